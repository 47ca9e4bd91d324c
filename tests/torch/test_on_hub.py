"""Models of transformers from packed folders on a hub."""

from __future__ import annotations

from pathlib import Path

import pytest

from bf16codecs.errors import StoreError
from hub_server import TOKEN, Hub
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
