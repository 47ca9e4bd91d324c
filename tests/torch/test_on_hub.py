"""Models of transformers from packed folders on a hub."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bf16codecs.errors import StoreError
from hub_server import TOKEN, Hub, run_at
from lazy_imports import lazily
from tiny_llama import packed, same

hf = lazily("transformers")
bf16torch = lazily("bf16codecs.torch")

pytestmark = [
    pytest.mark.usefixtures("needs_transformers"),
    pytest.mark.filterwarnings("ignore:Unclosed"),
]


@pytest.fixture
def commit(hub: Hub, native: Path) -> Path:
    """Return the newest commit, which has packed folders."""
    folder = hub.root / hub.commits["main"]
    folder.rmdir()
    packed(native, folder)
    packed(native, folder / "sub")
    (folder / "tokenizer.json").write_text(" " * (1 << 21))
    return folder


@pytest.mark.parametrize("path", ["", "/", "@main", "/sub"])
def test_packed_folders(hub: Hub, commit: Path, native: Path, path: str) -> None:
    hub.is_private = True
    options = {"endpoint": hub.url, "token": TOKEN}
    ours = bf16torch.from_pretrained(
        hf.AutoModelForCausalLM, f"hf://owner/name{path}", storage_options=options
    )
    theirs = hf.AutoModelForCausalLM.from_pretrained(native)
    assert same(ours, theirs)
    assert ours.generation_config.to_dict() == theirs.generation_config.to_dict()
    assert not any("tokenizer" in request for request in hub.requests)


def test_subfolders_and_variants(hub: Hub, commit: Path, native: Path) -> None:
    options = {"endpoint": hub.url}
    theirs = hf.AutoModelForCausalLM.from_pretrained(native)
    (commit / "sub" / "model.zarr").rename(commit / "sub" / "model.fp16.zarr")
    ours = bf16torch.from_pretrained(
        hf.AutoModelForCausalLM,
        "hf://owner/name",
        subfolder="sub",
        variant="fp16",
        storage_options=options,
    )
    assert same(ours, theirs)
    with pytest.raises(
        StoreError, match=r"name/sub: no store of a model in it: neither model\.zarr"
    ):
        bf16torch.from_pretrained(hf.AutoModel, "hf://owner/name/sub", storage_options=options)


def test_a_store_by_itself(hub: Hub, commit: Path, native: Path) -> None:
    ours = bf16torch.from_pretrained(
        hf.AutoModelForCausalLM,
        "hf://owner/name/sub/model.zarr",
        config=native,
        storage_options={"endpoint": hub.url},
    )
    assert same(ours, hf.AutoModelForCausalLM.from_pretrained(native))


def test_what_is_not_there(hub: Hub, commit: Path) -> None:
    options = {"endpoint": hub.url}
    with pytest.raises(StoreError, match="the hub has no repository owner/none"):
        bf16torch.from_pretrained(hf.AutoModel, "hf://owner/none", storage_options=options)
    (commit / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"No config\.json in it: give config="):
        bf16torch.from_pretrained(hf.AutoModel, "hf://owner/name", storage_options=options)


#: Loads a model by its bare name, as programs do that know nothing of stores but the first line.
BARE = """
import bf16codecs.torch, sys, torch, transformers
if sys.argv[1] == "patched":
    bf16codecs.torch.patch_transformers()
name, native, *options = sys.argv[2:]
theirs = transformers.AutoModelForCausalLM.from_pretrained(native)
options = dict(option.split("=") for option in options)
ours = transformers.AutoModelForCausalLM.from_pretrained(name, **options)
for key, tensor in theirs.state_dict().items():
    assert torch.equal(ours.state_dict()[key], tensor), key
"""


def test_bare_names(hub: Hub, commit: Path, native: Path, tmp_path: Path) -> None:
    hub.is_private = True
    status, out = run_at(hub, tmp_path, BARE, "patched", "owner/name", native, HF_TOKEN=TOKEN)
    assert status == 0, out
    chunks = [request for request in hub.requests if "model.zarr/" in request]
    assert chunks, hub.requests
    status, out = run_at(hub, tmp_path, BARE, "not", "owner/name", native, HF_TOKEN=TOKEN)
    assert "does not appear to have a file named" in out


def test_bare_names_of_other_stores(hub: Hub, commit: Path, native: Path, tmp_path: Path) -> None:
    shutil.copytree(commit, hub.root / ("1" * 40))
    hub.commits["v2"] = "1" * 40
    (hub.root / hub.commits["v2"] / "sub" / "model.zarr").rename(
        hub.root / hub.commits["v2"] / "sub" / "model.fp16.zarr"
    )
    options = "subfolder=sub", "variant=fp16", "revision=v2"
    status, out = run_at(hub, tmp_path, BARE, "patched", "owner/name", native, *options)
    assert status == 0, out
    status, out = run_at(hub, tmp_path, BARE, "patched", "owner/name", native, *options[:2])
    assert "does not appear to have a file named" in out


def test_repositories_with_weights_are_loaded_as_before(
    hub: Hub, commit: Path, native: Path, tmp_path: Path
) -> None:
    shutil.copy(native / "model.safetensors", commit)
    status, out = run_at(hub, tmp_path, BARE, "patched", "owner/name", native)
    assert status == 0, out
    assert not any("model.zarr/" in request for request in hub.requests)
