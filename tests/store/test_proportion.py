"""Work and memory for untrusted stores are in proportion to their stored bytes.

They are measured in a child process, and processor time by a limit that the system holds.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from zarr.storage import ZipStore

import bf16codecs
import tiers
from bf16codecs.convert import (
    hdf5_to_safetensors,
    safetensors_to_hdf5,
    verify_store,
    zarr_to_safetensors,
)
from bf16codecs.store import StoreError
from edit_store import claim_shape, edit_array, edit_json, zip_folder, zip_members
from lazy_models import weights, write_safetensors, write_store
from measured_reads import linux, outcomes


@pytest.fixture
def bomb(tmp_path, store):
    """A ZIP file whose metadata are followed by spaces, more than metadata may have."""
    bomb = tmp_path / "bomb.zarr.zip"
    spaces = b" " * 1_000_000
    with (
        zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("zarr.json", "w", force_zip64=True) as member,
    ):
        member.write((store / "zarr.json").read_bytes())
        for _ in range(tiers.by_tier(120, 400)):
            member.write(spaces)
    assert bomb.stat().st_size < 500_000
    return bomb


@linux
def test_a_zip_bomb_for_metadata(bomb):
    assert all("bytes of metadata" in line for line in outcomes(bomb))
    pytest.importorskip("fsspec")
    with pytest.raises((StoreError, OSError), match="bytes"):
        bf16codecs.open_model(at_an_address(bomb))


def test_metadata_of_more_than_100_megabytes(store):
    os.truncate(store / "zarr.json", 100_000_001)
    with pytest.raises(StoreError, match="more than 100000000"):
        bf16codecs.open_model(store)


@pytest.mark.parametrize(("spaces", "is_read"), [(1_000_000, True), (1 << 21, False)])
def test_metadata_of_more_than_128_times_what_they_are_stored_in(store, tmp_path, spaces, is_read):
    """Below 1 MiB, they may be."""
    text = (store / "zarr.json").read_bytes()
    (store / "zarr.json").write_bytes(text + b" " * spaces)
    path = zip_folder(store, tmp_path / "m.zarr.zip", zipfile.ZIP_DEFLATED)
    if is_read:
        bf16codecs.open_model(path).close()
    else:
        with pytest.raises(StoreError, match=r"\d+ bytes of metadata made of \d{4}: not credible"):
            bf16codecs.open_model(path)


@cache
def deflated_zeros(megabytes: int) -> bytes:
    deflater = zlib.compressobj()
    parts = [deflater.compress(bytes(1 << 20)) for _ in range(megabytes)]
    return b"".join(parts) + deflater.flush()


@linux
@pytest.mark.parametrize("kind", ["zarr", "h5"])
def test_a_header_that_claims_gigabytes(tmp_path, arrays, kind):
    """Constant blocks, or deflated zeros: 100 kB for gigabytes."""
    size = 3 << 30
    if kind == "zarr":
        store = write_store(tmp_path / "m.zarr", arrays)
        block = bf16codecs.BF16Zstd(22, "float8_e5m2").encode(np.zeros(1 << 28, np.uint8))

        def change(root: dict[str, Any]) -> None:
            node = root["consolidated_metadata"]["metadata"]["safetensors/header/0"]
            node["shape"] = [size]
            node["dimension_names"] = None
            node["chunk_grid"]["configuration"]["chunk_shape"] = [1 << 28]
            codec = {"name": "bf16codecs.zstd", "configuration": {"dtype": "float8_e5m2"}}
            node["codecs"] = [{"name": "bf16codecs.blocks", "configuration": {"codec": codec}}]
            root["attributes"]["bf16codecs"]["files"][0]["size"] = size + 100

        edit_json(store, "zarr.json", change)
        for i in range(size >> 28):
            (store / f"safetensors/header/0/c.{i}").write_bytes(block)
    else:
        store = tmp_path / "m.h5"
        safetensors_to_hdf5(write_safetensors(tmp_path / "m.safetensors", arrays), store)
        with h5py.File(store, "r+") as file:
            del file["safetensors/header/0"]
            header = file.create_dataset(
                "safetensors/header/0", (size,), "u1", chunks=(1 << 28,), compression="gzip"
            )
            for i in range(size >> 28):
                header.id.write_direct_chunk((i << 28,), deflated_zeros(1 << 8))
    lines = outcomes(store)
    assert all("bytes of metadata" in line for line in lines), lines


@linux
def test_an_array_of_millions_of_chunks_that_are_not_there(tmp_path):
    """The first missing chunk ends the reading."""
    for shape in ([1 << 22], [1 << 22, 2], [2, 1 << 22], [1 << 40]):
        path = write_store(tmp_path / "m.zarr", {"w": weights((1,))})
        claim_shape(path, shape, [1] * len(shape))
        check_that_a_chunk_is_missing(path)


@linux
@pytest.mark.parametrize("shards", [False, True])
def test_an_array_of_millions_of_chunks_that_zarr_reads(tmp_path, shards):
    """zarr lists all chunks of a call before it reads one: a million took 3.5 GB and a minute."""
    path = write_store(tmp_path / "m.zarr", {"w": weights((1,))})
    claim_shape(path, [1 << 22], [1 << 20 if shards else 1])
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "gzip"}]
    codecs[1]["configuration"] = {"level": 1}
    if shards:
        sharding = {"chunk_shape": [1], "codecs": codecs, "index_codecs": codecs[:1]}
        sharding["index_codecs"] += [{"name": "crc32c"}]
        codecs = [{"name": "sharding_indexed", "configuration": sharding}]
    edit_array(path, "w", lambda a: a.update(codecs=codecs))
    (path / "w" / "c.0").unlink()
    check_that_a_chunk_is_missing(path)


def check_that_a_chunk_is_missing(path: Path) -> None:
    lines = outcomes(path)
    missing = [line for line in lines if line.startswith(("StoreError", "LimitError"))]
    # All but metadata() and the first item, which is there.
    assert len(missing) >= 3, lines


@linux
def test_data_that_are_too_large_for_their_store(tmp_path):
    """12 GB of zeros in 400 kB: refused, unless the caller allows it."""
    path = write_store(tmp_path / "m.zarr", {"w": np.zeros((6, 1 << 10), "bfloat16")})
    claim_shape(path, [6, 1 << 30], [1, 1 << 27])
    chunk = bf16codecs.BF16Arithmetic().encode(np.zeros(1 << 27, "bfloat16"))
    for i in range(6):
        for j in range(8):
            (path / f"w/c.{i}.{j}").write_bytes(chunk)
    with bf16codecs.open_model(path) as model:
        tensor = model["w"]
        assert not tensor[5, 12345:12350].any()
        for read in (model.load, lambda: tensor[...], lambda: tensor[:, ::2]):
            with pytest.raises(StoreError, match=r"max_bytes"):
                read()
    for call in (lambda: zarr_to_safetensors(path, tmp_path / "back"), lambda: verify_store(path)):
        with pytest.raises(StoreError, match=r"allow it with max_bytes$"):
            call()
    lines = outcomes(path)
    assert sum("max_bytes" in line for line in lines) == 4, lines


def test_max_bytes_is_held_and_raised(store, arrays, tmp_path):
    whole = arrays["w"].nbytes
    with bf16codecs.open_model(store, max_bytes=whole) as model:
        assert model["w"][...].tobytes() == arrays["w"].tobytes()
        with pytest.raises(StoreError, match=f"more than max_bytes allows \\({whole}\\)"):
            model.load()
    with pytest.raises(StoreError, match="max_bytes"):
        zarr_to_safetensors(store, tmp_path / "back", max_bytes=1000)
    with pytest.raises(StoreError, match="max_bytes"):
        verify_store(store, max_bytes=1000)
    assert not (tmp_path / "back").exists()
    zarr_to_safetensors(store, tmp_path / "back", max_bytes=100_000)
    with pytest.raises(ValueError, match="max_bytes must be positive"):
        bf16codecs.open_model(store, max_bytes=0)


def test_a_model_that_shrinks_to_nothing_is_read(tmp_path):
    """The moments of an optimizer before its first step: as much as the floor allows."""
    arrays = {"m": np.zeros((1 << 13, 1 << 12), "bfloat16"), "w": weights((64, 64))}
    path = write_store(tmp_path / "m.zarr", arrays)
    assert sum(p.stat().st_size for p in path.rglob("*") if p.is_file()) < 64 << 10
    loaded = bf16codecs.open_model(path).load()
    assert not loaded["m"].any()


def test_restoring_hdf5_is_bounded(tmp_path, arrays):
    file = tmp_path / "m.h5"
    safetensors_to_hdf5(write_safetensors(tmp_path / "m.safetensors", arrays), file)
    with pytest.raises(StoreError, match="max_bytes"):
        hdf5_to_safetensors(file, tmp_path / "back", max_bytes=1000)


@linux
@pytest.mark.parametrize(
    ("owner", "kind"),
    [
        ("/", "numbers"),
        ("w", "text"),
        pytest.param("/", "text", marks=pytest.mark.slow),
        pytest.param("w", "numbers", marks=pytest.mark.slow),
    ],
)
def test_attributes_without_an_end(tmp_path, arrays, owner, kind):
    """One of 1 GB took 2.1 GB before it was found to be no text."""
    file = tmp_path / "m.h5"
    safetensors_to_hdf5(write_safetensors(tmp_path / "m.safetensors", arrays), file)
    size = tiers.by_tier(110_000_000, 3 << 26)
    content = np.zeros(size // 8) if kind == "numbers" else np.bytes_(b"x" * size)
    with h5py.File(file, "r+") as opened:
        opened[owner].attrs["bf16codecs"] = content
    lines = outcomes(file)
    refused = [line for line in lines if "attribute 'bf16codecs': " in line]
    assert len(refused) >= (5 if owner == "/" else 2), lines
    assert all("bytes of metadata, more than" in line for line in refused), lines


@linux
@pytest.mark.parametrize("path", ["w", "safetensors/header/0"])
@pytest.mark.parametrize("filters", ["deflate", "shuffle, deflate", "deflate, shuffle left out"])
def test_chunks_that_inflate_without_an_end(tmp_path, path, filters):
    """HDF5's own filter inflates all of it, far beyond the size of the chunk."""
    file = tmp_path / "m.h5"
    arrays = {"w": weights((1024, 512))}
    safetensors_to_hdf5(write_safetensors(tmp_path / "m.safetensors", arrays), file)
    bomb = deflated_zeros(1 << 8)
    with h5py.File(file, "r+") as opened:
        old = opened[path]
        attributes, kind, shape = dict(old.attrs), old.id.get_type(), old.shape
        del opened[path], old
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((1 << 20,) if len(shape) == 1 else shape)
        if "shuffle" in filters:
            properties.set_shuffle()
        properties.set_deflate(6)
        space = h5py.h5s.create_simple(shape, (h5py.h5s.UNLIMITED,) * len(shape))
        dataset = h5py.h5d.create(opened.id, path.encode(), kind, space, properties)
        dataset.write_direct_chunk((0,) * len(shape), bomb, 1 if "left out" in filters else 0)
        h5py.Dataset(dataset).attrs.update(attributes)
        del dataset
    lines = outcomes(file)
    refused = [line for line in lines if line.startswith("CorruptDataError")]
    assert len(refused) >= 4, lines
    assert all("inflates to more than the 1048576 bytes" in line for line in refused), lines


@pytest.mark.parametrize("compression", [None, "gzip", "lzf"])
def test_max_bytes_is_held_by_chunks_of_any_filter(tmp_path, compression):
    """HDF5 decodes whole chunks, though it reads slabs of 16 MiB."""
    file, shape = tmp_path / "m.h5", (1 << 11, 1 << 13)
    arrays = {"w": np.zeros(shape, "bfloat16"), "small": weights((64, 32))}
    safetensors_to_hdf5(write_safetensors(tmp_path / "m.safetensors", arrays), file)
    with h5py.File(file, "r+") as opened:
        for name, array in arrays.items():
            attributes, kind = dict(opened[name].attrs), opened[name].id.get_type()
            del opened[name]
            chunks = None if compression is None else array.shape
            made = opened.create_dataset(
                name, array.shape, h5py.Datatype(kind), chunks=chunks, compression=compression
            )
            made.id.write(h5py.h5s.ALL, h5py.h5s.ALL, array.view("u2"), mtype=kind)
            made.attrs.update(attributes)
    with bf16codecs.open_model(file, max_bytes=20 << 20) as model:
        assert model["small"][...].tobytes() == arrays["small"].tobytes()
        if compression is None:
            assert not model["w"][5].any()
        else:
            with pytest.raises(StoreError, match=r"a chunk of .* max_bytes allows"):
                model["w"][5]
    with bf16codecs.open_model(file, max_bytes=5000) as model:
        assert model["small"][...].tobytes() == arrays["small"].tobytes()


def at_an_address(file: Path) -> str:
    import fsspec

    fsspec.filesystem("memory").pipe("/bomb.zip", file.read_bytes())
    return "zip::memory://bomb.zip"


@linux
def test_many_small_values_for_metadata(tmp_path):
    """Python's values take more memory than their text: 24 times as much here."""
    file = tmp_path / "m.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        # Incompressible data let the rest shrink further than metadata do.
        noise = tiers.rng("noise").randbytes(150_000).hex()
        archive.writestr("zarr.json", f'{{"noise": "{noise}", "x": [{"{}," * 6_000_000}0]}}')
    lines = outcomes(file)
    assert all("bytes of metadata made of" in line for line in lines), lines
    pytest.importorskip("fsspec")
    for opened in (at_an_address(file), ZipStore(file, mode="r")):
        with pytest.raises(StoreError, match="bytes of metadata made of"):
            bf16codecs.open_model(opened)


METHODS = {"deflate": zipfile.ZIP_DEFLATED, "bzip2": zipfile.ZIP_BZIP2, "LZMA": zipfile.ZIP_LZMA}


@linux
@pytest.mark.parametrize("key", ["zarr.json", "w/c.0.0"])
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_zip_file_that_claims_less_than_a_member_holds(tmp_path, arrays, key, method):
    """200 MB of zeros in a few kB, and a directory that says 4 kB."""
    # Only to deflate so much is fast. More than 120 MB would be noticed in memory.
    megabytes = tiers.by_tier(130 if method == zipfile.ZIP_DEFLATED else 10, 200)
    store = write_store(tmp_path / "s.zarr.zip", arrays, codec="none")
    members = zip_members(store)
    bomb = tmp_path / "bomb.zarr.zip"
    with zipfile.ZipFile(bomb, "w") as archive:
        for name, content in members.items():
            if name != key:
                archive.writestr(name, content)
                continue
            info = zipfile.ZipInfo(key)
            info.compress_type = method
            with archive.open(info, "w") as member:
                for _ in range(megabytes):
                    member.write(bytes(1_000_000))
            info.file_size = len(content)
    lines = outcomes(bomb)
    assert sum("size or CRC-32" in line for line in lines) >= 4, lines


def test_every_compression_of_zip_files_is_read(tmp_path, arrays, store):
    for name, method in {**METHODS, "stored": zipfile.ZIP_STORED}.items():
        path = zip_folder(store, tmp_path / f"{name}.zarr.zip", method)
        loaded = bf16codecs.open_model(path).load()
        for tensor, array in arrays.items():
            assert loaded[tensor].tobytes() == array.tobytes(), (name, tensor)
