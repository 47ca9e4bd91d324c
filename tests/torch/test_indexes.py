"""Packed folders whose index contradicts its files load like the original."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bf16codecs.errors import StoreError
from lazy_imports import lazily
from looping import noted
from tiny_llama import packed, same, saved

torch = lazily("torch")
hf = lazily("transformers")
safetensors_torch = lazily("safetensors.torch")
bf16torch = lazily("bf16codecs.torch")

pytestmark = pytest.mark.usefixtures("needs_transformers", "no_network")

NORM = "model.norm.weight"


def sharded(folder: Path, variant: str | None = None) -> Path:
    """Save a model in several files with an index; return the index."""
    saved(folder, max_shard_size="30KB", variant=variant)
    (index,) = folder.glob("*.index*.json")
    return index


def edit_index(index: Path, **where: str) -> None:
    document = json.loads(index.read_text())
    document["weight_map"].update(where)
    index.write_text(json.dumps(document))


def overlaid(folder: Path, name: str, variant: str | None = None) -> None:
    """Put one tensor into another file as well, with other numbers, and name that in the index."""
    state = {NORM: torch.full((64,), 5.0, dtype=torch.bfloat16)}
    safetensors_torch.save_file(state, folder / name, {"format": "pt"})
    edit_index(sharded(folder, variant), **{NORM: name})


def load_both(native: Path, there: Path, **options):
    """Load a packed folder by its path and by unchanged code, beside the original."""
    theirs = hf.AutoModelForCausalLM.from_pretrained(native, **options)
    ours = bf16torch.from_pretrained(hf.AutoModelForCausalLM, there, **options)
    bf16torch.patch_transformers()
    try:
        assert same(hf.AutoModelForCausalLM.from_pretrained(there, **options), ours)
    finally:
        bf16torch.unpatch_transformers()
    assert same(ours, theirs)
    return ours


def test_a_file_that_supersedes_a_tensor(tmp_path):
    """Transformers takes a tensor from the last file in sorted order, against the index."""
    norms = set()
    for name, variant in (
        ("z-overlay.safetensors", None),
        ("a-overlay.safetensors", None),
        ("z-overlay.safetensors", "fp16"),
    ):
        native, there = tmp_path / f"{name}{variant}", tmp_path / f"{name}{variant} packed"
        native.mkdir()
        overlaid(native, name, variant)
        packed(native, there)
        with noted(name, variant):
            assert not (there / "model.zarr").exists()
            norms.add(load_both(native, there, variant=variant).model.norm.weight[0].item())
    assert norms == {5.0, 1.0}


def test_a_tensor_that_no_file_has(tmp_path):
    index = sharded(tmp_path / "native")
    edit_index(index, mtp=json.loads(index.read_text())["weight_map"][NORM])
    there = packed(tmp_path / "native", tmp_path / "packed")
    load_both(tmp_path / "native", there)
    load_both(tmp_path / "native", there, dtype=torch.float32)
    told = [
        load(place, output_loading_info=True)[1]
        for load, place in (
            (hf.LlamaForCausalLM.from_pretrained, tmp_path / "native"),
            (lambda *a, **o: bf16torch.from_pretrained(hf.LlamaForCausalLM, *a, **o), there),
        )
    ]
    assert told[0] == told[1]


def test_an_index_that_was_left_behind(tmp_path):
    index = sharded(tmp_path / "native")
    for shard in (tmp_path / "native").glob("*.safetensors"):
        shard.unlink()
    saved(tmp_path / "again")
    (tmp_path / "again" / "model.safetensors").rename(tmp_path / "native" / "model.safetensors")
    there = packed(tmp_path / "native", tmp_path / "packed")
    assert (there / index.name).exists()
    load_both(tmp_path / "native", there)


def test_indexes_that_model_safetensors_goes_before(tmp_path):
    """With any such index, transformers loads the file, and so the store is loaded."""
    saved(tmp_path / "m")
    cases = {
        "out": '{"weight_map": {"a": "../m/model.safetensors"}}',
        "absolute": json.dumps({"weight_map": {"a": str(tmp_path / "m" / "model.safetensors")}}),
        "half": '{"weight_map": {"a": "model.safetensors", "b": "../m/model.safetensors"}}',
        "other format": '{"weight_map": {"a": "pytorch_model.bin"}}',
        "damaged": "{",
        "list": "[]",
        "numbers": '{"weight_map": {"a": 5}}',
        "nothing": "",
    }
    for case, text in cases.items():
        native = saved(tmp_path / case)
        (native / "model.safetensors.index.json").write_text(text)
        (native / "pytorch_model.bin").write_bytes(b"x")
        with noted(case):
            load_both(native, packed(native, tmp_path / f"{case} packed"))
            assert (tmp_path / f"{case} packed" / "model.safetensors.index.json").exists()


def test_dtypes_without_a_configuration(tmp_path):
    """They are the index's, or those of the first file."""
    for told in ({}, {"dtype": "float16"}):
        native, there = tmp_path / f"{told}", tmp_path / f"{told} packed"
        native.mkdir()
        overlaid(native, "z-overlay.safetensors")
        index = native / "model.safetensors.index.json"
        index.write_text(json.dumps(json.loads(index.read_text()) | {"metadata": told}))
        config = json.loads((native / "config.json").read_text())
        del config["dtype"]
        (native / "config.json").write_text(json.dumps(config))
        load_both(native, packed(native, there))


def test_weights_beside_stores(tmp_path):
    """Some files of an index exist: transformers loads them, or names the missing ones."""
    native = tmp_path / "native"
    native.mkdir()
    overlaid(native, "z-overlay.safetensors")
    there = packed(native, tmp_path / "packed")
    shards = sorted(native.glob("*.safetensors"))
    (there / shards[0].name).write_bytes(shards[0].read_bytes())
    with pytest.raises(StoreError, match=r"has .* and .*\.zarr: remove the one that is old"):
        bf16torch.from_pretrained(hf.AutoModelForCausalLM, there)
    for shard in shards:
        (there / shard.name).write_bytes(shard.read_bytes())
    bf16torch.patch_transformers()
    theirs = hf.AutoModelForCausalLM.from_pretrained(native)
    assert same(hf.AutoModelForCausalLM.from_pretrained(there), theirs)
    bf16torch.unpatch_transformers()


def test_indexes_that_lead_elsewhere(tmp_path):
    """Transformers refuses them, like empty ones."""
    there = packed(saved(tmp_path / "native"), tmp_path / "packed")
    index = there / "model.safetensors.index.json"
    (there / "model.zarr").rename(tmp_path / "other.zarr")
    for where in ({"a": "../other.safetensors"}, {"a": str(tmp_path / "other.safetensors")}, [], 5):
        index.write_text(json.dumps({"weight_map": where}))
        with noted(where), pytest.raises(StoreError, match="no store of a model in it"):
            bf16torch.from_pretrained(hf.AutoModelForCausalLM, there)
