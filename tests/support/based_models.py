"""Models stored as differences to a base, and checks of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import zarr
from zarr.storage import LocalStore, ZipStore

import bf16codecs
from bf16codecs.convert import (
    hdf5_to_safetensors,
    safetensors_to_hdf5,
    safetensors_to_zarr,
    verify_store,
    zarr_to_safetensors,
)
from bits import assert_same_bits
from lazy_models import write_safetensors
from tiers import by_tier

#: Two tensors at steps 300 and 399 of a run whose step 400 is the package's demo.
STEPS = Path(__file__).parents[1] / "codecs" / "steps" / "steps.safetensors"
NAMES = ["model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight"]

#: Kinds of store: the ending of their names, and what makes them.
KINDS: dict[str, tuple[str, Callable[..., Any]]] = {
    "zarr3": (".zarr", safetensors_to_zarr),
    "zarr2": (".zarr", partial(safetensors_to_zarr, zarr_format=2)),
    "zip": (".zarr.zip", safetensors_to_zarr),
    "hdf5": (".h5", safetensors_to_hdf5),
}
#: The kinds that the quick tier tries: one for each library that writes.
FEW_KINDS = by_tier(["zarr3", "hdf5"], list(KINDS))


def convert(kind: str, source: Path, store: Path, **options: Any) -> Path:
    """Make a store of a kind; return its path, which gets the kind's ending."""
    ending, make = KINDS[kind]
    path = store.with_name(store.name + ending)
    make(source, path, **{"sync": False, **options})
    return path


def restore(store: Path, target: Path, **options: Any) -> Any:
    """Restore the files of a store of any kind."""
    make = hdf5_to_safetensors if store.suffix == ".h5" else zarr_to_safetensors
    return make(store, target, **{"sync": False, **options})


def assert_holds(store: Any, original: Path, **options: Any) -> None:
    """Read a store in every way, and compare it with its source."""
    verify_store(store, original, **options)
    if isinstance(store, Path) and original.is_file():
        target = original.with_name(f"{original.name}.restored")
        restore(store, target, **options)
        assert target.read_bytes() == original.read_bytes()
        target.unlink()
    with bf16codecs.open_model(store, **options) as model:
        assert_same_tensors(model, original)


def assert_same_tensors(model: bf16codecs.Model, original: Path) -> None:
    """Compare the tensors of an open model, whole and in parts, with those of a file."""
    with bf16codecs.open_model(original) as source:
        assert model.keys() == source.keys()
        loaded = model.load()
        for name, expected in source.items():
            tensor, whole = model[name], expected[...]
            assert (tensor.shape, tensor.dtype) == (expected.shape, expected.dtype)
            assert tensor.get_dtype() == expected.get_dtype()
            assert_same_bits(loaded[name], whole)
            if tensor.shape:
                assert_same_bits(tensor[-1:], whole[-1:])
                assert_same_bits(tensor[..., ::-3], whole[..., ::-3])
            if tensor.size:
                last = tuple(np.array([size - 1, 0]) for size in tensor.shape)
                assert_same_bits(tensor[last], whole[last])


def info_of(store: Path) -> dict[str, Any]:
    """Return what `bf16codecs info --json` prints for a store."""
    with bf16codecs.open_model(store) as model:
        return model.info().to_json()


def tensors_of(store: Path) -> dict[str, dict[str, Any]]:
    """Return what `bf16codecs info --json` prints for each tensor, by name."""
    return {tensor["name"]: tensor for tensor in info_of(store)["tensors"]}


def base_of(store: Path) -> str | None:
    """Return the path of the base that a store's attributes name."""
    base = info_of(store)["base"]
    return None if base is None else base["path"]


def attributes_of(store: Path) -> dict[str, Any]:
    """Return the attributes that this package gave a store of any kind."""
    if store.suffix == ".h5":
        with h5py.File(store) as file:
            return json.loads(file.attrs["bf16codecs"])
    with ZipStore(store, mode="r") if store.is_file() else LocalStore(store) as opened:
        return dict(zarr.open_group(opened, mode="r").attrs)["bf16codecs"]


def write_steps(folder: Path, demo_model: Path) -> dict[int, Path]:
    """Write checkpoints of one training run, with two tensors each."""
    with bf16codecs.open_model(STEPS) as earlier, bf16codecs.open_model(demo_model) as last:
        arrays = {
            step: {name: earlier[f"{name}.step{step}"][...] for name in NAMES}
            for step in (300, 399)
        }
        arrays[400] = {name: last[name][...] for name in NAMES}
    return {
        step: write_safetensors(folder / f"step{step}.safetensors", tensors)
        for step, tensors in arrays.items()
    }


def write_nearby(model: Path, path: Path, seed: int = 0) -> Path:
    """Write a copy of a model with the last bit of a tenth of its bytes flipped."""
    raw = np.frombuffer(bytearray(model.read_bytes()), np.uint8)
    data = raw[8 + int.from_bytes(raw[:8].tobytes(), "little") :]
    data ^= (np.random.default_rng(seed).random(data.size) < 0.1).astype(np.uint8)
    path.write_bytes(raw.tobytes())
    return path


def total_size(store: Path) -> int:
    """Return the size of a store."""
    if store.is_file():
        return store.stat().st_size
    return sum(p.stat().st_size for p in store.rglob("*") if p.is_file())
