"""Models on a hub as sources of conversions: revisions, tokens, digests, hubs that misbehave."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bf16codecs.convert import (
    append_to_run,
    safetensors_to_run,
    safetensors_to_zarr,
    verify_store,
)
from bf16codecs.errors import BF16CodecsError, CorruptDataError, SafetensorsError, StoreError
from bf16codecs.store.opening import open_store
from commands import ended, start
from folders import content_of
from hub_server import TOKEN, Hub
from model_folders import write_sharded
from models import write_model

pytest.importorskip("huggingface_hub")


@pytest.fixture
def folder(hub: Hub) -> Path:
    """Return the newest commit, which has a model of two files, and others."""
    folder = hub.root / hub.commits["main"]
    write_sharded(folder)
    (folder / "config.json").write_text("{}")
    (folder / "unet").mkdir()
    write_model(folder / "unet" / "diffusion_pytorch_model.safetensors", [("u", "BF16", (9, 8))])
    return folder


def convert(hub: Hub, address: str, target: Path, **options: Any) -> Any:
    options["storage_options"] = {"endpoint": hub.url, **options.pop("hub_options", {})}
    return safetensors_to_zarr(address, target, **options)


def test_a_repository(hub: Hub, folder: Path, tmp_path: Path) -> None:
    summary = convert(hub, "hf://owner/name", tmp_path / "m.zarr")
    assert summary.left_out == ("config.json", "unet/")
    safetensors_to_zarr(folder, tmp_path / "local.zarr", sha256=True)
    assert content_of(tmp_path / "m.zarr") == content_of(tmp_path / "local.zarr")
    # One request for the list; none for sizes, and none for what the redirects lead to.
    assert sum(path.startswith("/api") for path in hub.requests) == 1
    assert hub.requests.count(f"/owner/name/resolve/{folder.name}/config.json") == 0
    verify_store(
        tmp_path / "m.zarr", "hf://owner/name@main/", storage_options={"endpoint": hub.url}
    )


@pytest.mark.parametrize("path", ["unet", "unet/", "unet/diffusion_pytorch_model.safetensors"])
def test_a_part_of_a_repository(hub: Hub, folder: Path, tmp_path: Path, path: str) -> None:
    convert(hub, f"hf://owner/name/{path}", tmp_path / "m.zarr")
    verify_store(tmp_path / "m.zarr", folder / "unet" / "diffusion_pytorch_model.safetensors")


def test_revisions(hub: Hub, folder: Path, tmp_path: Path) -> None:
    for number, revision in enumerate(("v1", "refs/pr/1", "a/branch"), 1):
        hub.commits[revision] = str(number) * 40
        commit = hub.root / hub.commits[revision]
        commit.mkdir()
        model = write_model(commit / "model.safetensors", [("a", "BF16", (64, 8))], number)
        address = f"hf://models/owner/name@{revision.replace('a/b', 'a%2Fb')}"
        convert(hub, address, tmp_path / "m.zarr", overwrite=True)
        verify_store(tmp_path / "m.zarr", model)
    with pytest.raises(StoreError, match="owner/name has no revision v9"):
        convert(hub, "hf://owner/name@v9", tmp_path / "m.zarr", overwrite=True)


def test_a_revision_that_moves_meanwhile(hub: Hub, folder: Path, tmp_path: Path) -> None:
    """All is read from the commit that the revision named at first."""
    (hub.root / ("1" * 40)).mkdir()

    def move(phase: str, done: int, total: int) -> None:
        hub.commits["main"] = "1" * 40

    convert(hub, "hf://owner/name", tmp_path / "m.zarr", progress=move)
    verify_store(tmp_path / "m.zarr", folder)


def test_tokens_go_to_the_hub_alone(hub: Hub, folder: Path, tmp_path: Path) -> None:
    hub.is_private = True
    with pytest.raises(StoreError, match=r"or it is private: .*hf auth login"):
        convert(hub, "hf://owner/name", tmp_path / "m.zarr")
    elsewhere: list[str | None] = []
    hub.files.note_headers = lambda headers: elsewhere.append(headers.get("Authorization"))
    convert(hub, "hf://owner/name", tmp_path / "m.zarr", hub_options={"token": TOKEN})
    assert hub.tokens[-1] == f"Bearer {TOKEN}"
    assert elsewhere
    assert set(elsewhere) == {None}


def test_the_command_takes_tokens_from_the_environment(
    hub: Hub, folder: Path, tmp_path: Path
) -> None:
    hub.is_private = True
    for token, status in ((TOKEN, 0), ("hf_wrong", 1)):
        process = start(
            "st2zarr", "hf://owner/name", tmp_path / "m.zarr", "--overwrite",
            HF_ENDPOINT=hub.url, HF_TOKEN=token,
        )  # fmt: skip
        out, err = ended(process)
        assert process.returncode == status, err
        assert token not in out + err
    verify_store(tmp_path / "m.zarr", folder)


def test_files_that_are_not_what_the_hub_states(hub: Hub, folder: Path, tmp_path: Path) -> None:
    name = "unet/diffusion_pytorch_model.safetensors"
    for lie, error, message in (
        ({"lfs": {"sha256": "0" * 64, "size": 9, "pointerSize": 9}}, CorruptDataError, "SHA-256"),
        ({"size": 10**6}, SafetensorsError, "model.safetensors: "),
        ({"size": 100}, SafetensorsError, "model.safetensors: "),
        ({"size": 3}, SafetensorsError, "model.safetensors: "),
    ):
        hub.lies = {name: lie}
        with pytest.raises(error, match=message):
            convert(hub, "hf://owner/name/unet", tmp_path / "m.zarr")
        assert not (tmp_path / "m.zarr").exists()
    hub.lies = {name: {"rfilename": "../../x.safetensors"}}
    with pytest.raises(BF16CodecsError, match="has no such folder"):
        convert(hub, "hf://owner/name/unet", tmp_path / "m.zarr")


def test_hubs_that_are_busy_or_break_off(hub: Hub, folder: Path, tmp_path: Path) -> None:
    hub.busy, hub.files.failures = 1, 2
    convert(hub, "hf://owner/name", tmp_path / "m.zarr")
    verify_store(tmp_path / "m.zarr", folder)


def test_a_renamed_repository(hub: Hub, folder: Path, tmp_path: Path) -> None:
    convert(hub, f"hf://{hub.old_name}", tmp_path / "m.zarr")
    assert sum(hub.old_name in path for path in hub.requests) == 1
    verify_store(tmp_path / "m.zarr", folder)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("hf://owner", r"an address on a hub is hf://owner/name\[@revision\]"),
        ("hf://owner/na me", "Repo id must"),
        ("hf://owner/none", "the hub has no repository owner/none"),
        ("hf://owner/name/none", "owner/name has no such folder"),
        ("hf://owner/name/none.safetensors", "owner/name has no such file"),
        ("hf://owner/name/m.zarr", "zarr_to_safetensors restores that"),
        ("hf://owner/name/stored", "a Zarr store, not a .*: zarr_to_safetensors restores that"),
    ],
)
def test_wrong_addresses(
    hub: Hub, folder: Path, tmp_path: Path, address: str, message: str
) -> None:
    safetensors_to_zarr(folder / "unet", tmp_path / "stored.zarr")
    (tmp_path / "stored.zarr").rename(folder / "stored")
    with pytest.raises(BF16CodecsError, match=message):
        convert(hub, address, tmp_path / "m.zarr")


def test_gated_repositories_and_wrong_options(hub: Hub, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a hub takes no option 'anon'"):
        convert(hub, "hf://owner/name", tmp_path / "m.zarr", hub_options={"anon": True})
    hub.refusal = "GatedRepo"
    with pytest.raises(StoreError, match="owner/name is gated: accept its conditions"):
        convert(hub, "hf://owner/name", tmp_path / "m.zarr")


def test_names_of_files(hub: Hub, folder: Path, tmp_path: Path) -> None:
    (folder / "one").mkdir()
    write_model(folder / "one" / "a model#1.safetensors", [("a", "BF16", (64, 8))])
    convert(hub, "hf://owner/name/one", tmp_path / "m.zarr")
    (file,) = open_store(tmp_path / "m.zarr").info.files
    assert file.name == "a model#1.safetensors"


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"pip install 'bf16codecs\[hub\]'"):
        safetensors_to_zarr("hf://owner/name", tmp_path / "m.zarr")


def test_runs_compare_digests(hub: Hub, tmp_path: Path) -> None:
    root = hub.root / hub.commits["main"]
    urls = []
    for step in (100, 200):
        name = f"step-{step}.safetensors"
        write_model(root / name, [("a", "BF16", (64, 8))], step)
        urls.append(f"hf://owner/name/{name}")
    run, options = tmp_path / "run.zarr", {"storage_options": {"endpoint": hub.url}}
    safetensors_to_run(urls[:1], run, **options)
    with closing(open_store(f"{run}@100")) as reader:
        assert reader.info.files[0].digests.sha256
    hub.lies = {"step-200.safetensors": {"lfs": {"sha256": "0" * 64, "size": 9, "pointerSize": 9}}}
    before = content_of(run)
    with pytest.raises(CorruptDataError, match="another SHA-256 than the original"):
        append_to_run(urls[1], run, **options)
    assert content_of(run) == before
    hub.lies = {}
    append_to_run(urls[1], run, **options)
    verify_store(run, root)
