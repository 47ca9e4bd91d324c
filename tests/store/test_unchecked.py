"""Damage that slices and `load` cannot detect, but a digest does: docs/trust.md lists it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

import bf16codecs
from bf16codecs.convert import (
    hdf5_to_safetensors,
    safetensors_to_hdf5,
    safetensors_to_run,
    safetensors_to_zarr,
    verify_store,
    zarr_to_safetensors,
)
from bf16codecs.errors import BF16CodecsError, CodecError, StoreError
from edit_store import edit_array, edit_attributes
from lazy_models import in_memory, weights, write_safetensors, write_shards, write_store
from looping import noted

FLOATS = {"w": weights((64, 32))}
ARRAYS = {**FLOATS, "n": np.arange(900) % 50}
KINDS = ["zarr3", "zarr2", "hdf5"]

#: By codec, and kind of store: the tensors whose chunks have no checksum. All others have one.
UNCHECKED = {
    "none": {kind: {"w", "n"} for kind in KINDS},
    "split": {kind: {"n"} for kind in KINDS},
    "zstd": {"hdf5": {"w", "n"}},
    "plain-zstd": {"zarr2": {"w", "n"}},
}


def made(folder: Path, kind: str, arrays: dict[str, Any] = ARRAYS, **options: Any) -> Path:
    if kind == "hdf5":
        source = write_safetensors(folder / "m.safetensors", arrays)
        safetensors_to_hdf5(source, folder / "m.h5", overwrite=True, **options)
        return folder / "m.h5"
    return write_store(folder / "m.zarr", arrays, zarr_format=int(kind[-1]), **options)


def place_of_chunk(store: Path, name: str) -> tuple[Path, int, int]:
    """Return the file of a tensor's first chunk, and the chunk's extent in it."""
    if store.suffix == ".h5":
        with h5py.File(store) as file:
            dataset = file[name].id
            if file[name].chunks is None:
                return store, dataset.get_offset(), dataset.get_storage_size()
            chunk = dataset.get_chunk_info(0)
            return store, chunk.byte_offset, chunk.size
    (path,) = (p for p in (store / name).iterdir() if p.name[0] in "c0")
    return path, 0, path.stat().st_size


def changed(store: Path, name: str) -> Iterator[int]:
    """Change each byte of a tensor's first chunk in turn; restore it at the end."""
    path, start, size = place_of_chunk(store, name)
    content = path.read_bytes()
    for at in range(start, start + size, max(1, size // 20)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        yield at
    path.write_bytes(content)


def restored(store: Path) -> None:
    restore = hdf5_to_safetensors if store.suffix == ".h5" else zarr_to_safetensors
    restore(store, store.with_name("back"), overwrite=True)


def is_read(store: Path, name: str) -> bool:
    """Return whether a slice is read without an error."""
    with suppress(BF16CodecsError), bf16codecs.open_model(store) as model:
        return model[name][...].size > 0
    return False


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("codec", ["arithmetic", "huffman", "zstd", "split", "none", "plain-zstd"])
def test_chunks_without_a_checksum(tmp_path: Path, codec: str, kind: str) -> None:
    """A changed byte in them may go unnoticed, but never in other chunks."""
    if kind == "hdf5" and codec == "plain-zstd":
        pytest.skip("HDF5's Zstandard is codec zstd")
    if kind == "hdf5" and codec == "zstd":
        pytest.importorskip("hdf5plugin")
    store = made(tmp_path, kind, codec=codec)
    for name in ARRAYS:
        read = [is_read(store, name) for _ in changed(store, name)]
        if name not in UNCHECKED.get(codec, {}).get(kind, ()):
            assert not any(read), name
            continue
        assert any(read), name
        for number, _ in enumerate(changed(store, name)):
            for tells in (verify_store, restored) if number % 7 == 0 else ():
                with pytest.raises(BF16CodecsError):
                    tells(store)


def rewritten(store: Path, **options: Any) -> None:
    """Let zarr write the tensor in chunks of another form."""
    group = zarr.open_group(store, mode="r+")
    attributes = dict(group["w"].attrs)
    zarr.create_array(
        group.store, name="w", data=FLOATS["w"], attributes=attributes, overwrite=True, **options
    )
    zarr.consolidate_metadata(group.store)


def exchange_chunks(store: Path) -> None:
    rewritten(store, chunks=(16, 32), compressors=zarr.codecs.ZstdCodec(checksum=True))
    first, second = store / "w/c/0/0", store / "w/c/1/0"
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


def put_a_filter_before(store: Path) -> None:
    rewritten(store, chunks=(64, 32), compressors=zarr.codecs.GzipCodec())
    delta = {"name": "bf16codecs.delta", "configuration": {"dtype": "|u1"}}
    edit_array(store, "w", lambda node: node["codecs"].insert(1, delta))


def change_the_chunks(store: Path) -> None:
    rewritten(store, chunks=(64, 64), compressors=None)
    edit_array(
        store,
        "w",
        lambda node: node["chunk_grid"]["configuration"].update(chunk_shape=[128, 32]),
    )


@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently")
@pytest.mark.parametrize("change", [exchange_chunks, put_a_filter_before, change_the_chunks])
def test_sound_chunks_in_another_place_or_form(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    store = made(tmp_path, "zarr3", FLOATS)
    change(store)
    with bf16codecs.open_model(store) as model:
        for found in (model["w"][...], model.load()["w"]):
            assert found.shape == FLOATS["w"].shape
            assert found.tobytes() != FLOATS["w"].tobytes()
    for tells in (verify_store, restored):
        with pytest.raises(CodecError, match="another BLAKE3"):
            tells(store)


@pytest.mark.parametrize("kind", ["zarr", "hdf5"])
def test_steps_under_another_number(tmp_path: Path, kind: str) -> None:
    """Only the array `step`, and `verify` of the whole run, detect it."""
    sources = [
        write_safetensors(tmp_path / f"m-step{i}.safetensors", {"w": weights((64, 32), seed=i)})
        for i in (1, 2)
    ]
    run = tmp_path / ("run.h5" if kind == "hdf5" else "run.zarr")
    safetensors_to_run(sources, run, as_hdf5=kind == "hdf5")

    def renumber(attributes: dict[str, Any]) -> None:
        for step, number in zip(attributes["steps"], (2, 3), strict=True):
            step["step"] = number

    edit_attributes(run, renumber)
    restore = hdf5_to_safetensors if kind == "hdf5" else zarr_to_safetensors
    restore(f"{run}@2", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == sources[0].read_bytes()
    with pytest.raises(BF16CodecsError, match=r"step: has the steps 1, 2; .* have 2, 3"):
        verify_store(run)


@pytest.mark.parametrize("kind", ["zarr", "hdf5"])
def test_the_array_of_another_tensor_at_a_step(tmp_path: Path, kind: str) -> None:
    arrays = {"v": weights((64, 32)), "w": weights((64, 32), seed=1)}
    source = write_safetensors(tmp_path / "m-step1.safetensors", arrays)
    run = tmp_path / ("run.h5" if kind == "hdf5" else "run.zarr")
    safetensors_to_run([source], run, as_hdf5=kind == "hdf5")

    def exchange(attributes: dict[str, Any]) -> None:
        tensors = attributes["tensors"]
        tensors["v"], tensors["w"] = tensors["w"], tensors["v"]

    edit_attributes(run, exchange)
    with bf16codecs.open_model(f"{run}@1") as model:
        assert model["w"][...].tobytes() == arrays["v"].tobytes()
    restore = hdf5_to_safetensors if kind == "hdf5" else zarr_to_safetensors
    for tells in (verify_store, lambda path: restore(f"{path}@1", tmp_path / "back")):
        with pytest.raises(CodecError, match="another BLAKE3"):
            tells(run)


def test_an_index_under_another_name(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "model", [{"a": weights((8, 8))}, {"b": weights((8, 8))}])
    (index,) = folder.glob("*.json")
    store = tmp_path / "m.zarr"
    for name in ("../x.json", "a/x.json", "x.safetensors", "x.json"):
        safetensors_to_zarr(folder, store, overwrite=True)
        edit_attributes(store, lambda attributes, name=name: attributes["index"].update(name=name))
        if name == "x.json":
            verify_store(store, folder)
            restored(store)
            assert (tmp_path / "back" / name).read_bytes() == index.read_bytes()
        else:
            with noted(name), pytest.raises(StoreError, match="name"):
                restored(store)


def test_of_a_remote_store_the_roots_copies_are_read_alone(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    store = made(tmp_path, "zarr3", FLOATS)
    (store / "w/zarr.json").write_text("{}")
    with pytest.raises(BF16CodecsError, match=r"w/zarr\.json"):
        verify_store(store)
    files = fsspec.filesystem("memory")
    files.put(str(store), "/root.zarr", recursive=True)
    try:
        assert verify_store("memory://root.zarr").tensors == 1
    finally:
        files.rm("/root.zarr", recursive=True)


CONTRADICTIONS: list[Callable[[dict[str, Any]], object]] = [
    lambda node: node["attributes"]["bf16codecs"].update(tensor="b"),
    lambda node: node["attributes"]["bf16codecs"].update(dtype="F16"),
    lambda node: node.update(shape=[4, 8]),
    lambda node: node.update(dimension_names=["dim0_8", "dim1_4"]),
]


def test_what_a_remote_array_says_of_itself_is_compared(tmp_path: Path) -> None:
    """The header is not read for that."""
    for number, change in enumerate(CONTRADICTIONS):
        store = write_store(tmp_path / "m.zarr", {"a": weights((8, 8)), "b": weights((8, 8))})
        edit_array(store, "a", change)
        shutil.rmtree(store / "safetensors")
        with bf16codecs.open_model(in_memory(store)) as model:
            assert model["b"][...].shape == (8, 8)
            with noted(number), pytest.raises(StoreError, match="tensor 'a'"):
                model["a"]
