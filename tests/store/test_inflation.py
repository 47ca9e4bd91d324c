"""The size of zarr's decoding is bounded: by a chunk's claim, or by decoding no more than fits."""

from __future__ import annotations

import errno
import gzip
import os
import zipfile
from functools import cache, partial
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
import zstandard
from google_crc32c import value as zarr_crc32c
from zarr.storage import ZipStore

import bf16codecs
import tiers
from bf16codecs.errors import CorruptDataError
from bf16codecs.store import StoreError
from bf16codecs.zarr import BF16ZstdCodec, DeltaCodec
from edit_store import edit_array, edit_json, zip_folder
from lazy_models import in_memory, weights, write_store
from looping import noted
from measured_reads import linux, outcomes
from store_limits import lower_limits


def rewritten(path: Path, values: Any, at: str = "w", **options: Any) -> Path:
    """Let zarr write a tensor's array again, in another form."""
    root = zarr.open_group(path, mode="r+")
    attributes = dict(root[at].attrs)
    names = root[at].metadata.dimension_names
    del root[at]
    array = root.create_array(
        at, shape=values.shape, dtype="bfloat16", dimension_names=names, **options
    )
    array.attrs.update(attributes)
    array[...] = values
    zarr.consolidate_metadata(path)
    return path


FORMS: dict[str, dict[str, Any]] = {
    "gzip": {"chunks": (32, 32), "compressors": zarr.codecs.GzipCodec()},
    "zstd and crc32c": {
        "chunks": (32, 32),
        "compressors": [zarr.codecs.Crc32cCodec(), zarr.codecs.ZstdCodec()],
    },
    "blosc": {"chunks": (32, 32), "compressors": zarr.codecs.BloscCodec()},
    "frames and crc32c": {
        "chunks": (32, 32),
        "compressors": [zarr.codecs.Crc32cCodec(), BF16ZstdCodec()],
    },
    "run lengths": {"chunks": (32, 32), "compressors": bf16codecs.RunLength()},
    "run lengths of differences": {
        "chunks": (32, 32),
        "compressors": [DeltaCodec("|u1"), bf16codecs.RunLength(), zarr.codecs.Crc32cCodec()],
    },
    "shards": {"chunks": (32, 32), "shards": (64, 32), "compressors": None},
    "shards of zstd": {"chunks": (32, 32), "shards": (64, 32)},
}


@linux
def test_chunks_that_zarr_reads_are_bounded(tmp_path, arrays):
    """A file with a hole of 64 GiB for a chunk of 4 kB."""
    for form, options in FORMS.items():
        path = rewritten(write_store(tmp_path / "m.zarr", arrays), arrays["w"], **options)
        assert outcomes(path) == ["ok"] * 5, form
        for chunk in (path / "w" / "c").rglob("*"):
            if chunk.is_file():
                os.truncate(chunk, 64 << 30)
        (tmp_path / "back").unlink()
        lines = outcomes(path)
        assert sum("more than" in line for line in lines) >= 3, (form, lines)


@pytest.mark.parametrize("where", ["address", "store"])
def test_chunks_in_zip_files_that_are_not_on_a_disk_are_bounded(tmp_path, arrays, where):
    """A member of 1 MB for a chunk of 2 kB: zarr asks for all of it."""
    path = rewritten(write_store(tmp_path / "m.zarr", arrays), arrays["w"], **FORMS["gzip"])
    (path / "w/c/1/0").write_bytes(bytes(1_000_000))
    file = zip_folder(path, tmp_path / "m.zip", zipfile.ZIP_DEFLATED)
    place: Any = ZipStore(file, mode="r")
    if where == "address":
        fsspec = pytest.importorskip("fsspec")
        fsspec.filesystem("memory").pipe("/m.zip", file.read_bytes())
        place = "zip::memory://m.zip"
    with bf16codecs.open_model(place) as model:
        assert model["w"][3].tobytes() == arrays["w"][3].tobytes()
        for read in (model.load, lambda: model["w"][40], lambda: model["w"].zarr[40]):
            with pytest.raises(StoreError, match=r"chunk w/c/1/0: more than 8192 bytes"):
                read()


def with_crc32c(content: bytes) -> bytes:
    return content + int(zarr_crc32c(content)).to_bytes(4, "little")


@cache
def bomb_of(form: str) -> bytes:
    zeros = bytes(tiers.by_tier(1 << 27, 1 << 28))
    return {
        "gzip": gzip.compress,
        "zstd and crc32c": zstandard.compress,
        "blosc": numcodecs.Blosc("zstd").encode,
        "frames and crc32c": bf16codecs.BF16Zstd().encode,
        "run lengths": bf16codecs.RunLength().encode,
        "run lengths of differences": lambda zeros: with_crc32c(
            bf16codecs.RunLength().encode(zeros)
        ),
    }[form](zeros)


@linux
@pytest.mark.parametrize("where", ["folder", "deflated", "shard"])
def test_chunks_that_zarr_would_inflate(tmp_path, arrays, where):
    """More zeros than the chunk holds; the file itself has a size that a chunk can have."""
    for form in [form for form in FORMS if "shards" not in form]:
        if where == "folder" or tiers.IS_FULL or form in ("zstd and crc32c", "run lengths"):
            folder = tmp_path / form
            folder.mkdir()
            check_that_nothing_is_inflated(folder, arrays, form, where)


def check_that_nothing_is_inflated(
    tmp_path: Path, arrays: dict[str, Any], form: str, where: str
) -> None:
    options = dict(FORMS[form])
    if where == "shard":
        options["shards"] = (64, 32)
    path = rewritten(write_store(tmp_path / "m.zarr", arrays), arrays["w"], **options)
    bomb = bomb_of(form)
    # Stored chunks may be as large as decoded ones, so the array is made larger for the bomb.
    rows = max(64, 1 << (len(bomb) // 64).bit_length())

    def enlarge(node: dict[str, Any]) -> None:
        node["chunk_grid"]["configuration"]["chunk_shape"] = [rows, 32]
        if where == "shard":
            node["codecs"][0]["configuration"]["chunk_shape"] = [rows, 32]

    edit_array(path, "w", enlarge)
    for chunk in (path / "w" / "c").rglob("*"):
        if chunk.is_file():
            chunk.unlink()
    if where == "shard":
        index = np.array([0, len(bomb)], "<u8").tobytes()
        bomb += with_crc32c(index)
    (path / "w/c/0/0").parent.mkdir(parents=True, exist_ok=True)
    (path / "w/c/0/0").write_bytes(bomb)
    if where == "deflated":
        path = zip_folder(path, tmp_path / "m.zip", zipfile.ZIP_DEFLATED)
    lines = outcomes(path)
    assert sum("inflates to more than" in line for line in lines) == 4, (form, lines)


@pytest.mark.parametrize("is_remote", [False, True])
def test_an_empty_shard_is_not_one_of_fill_values(tmp_path, arrays, is_remote):
    path = write_store(tmp_path / "m.zarr", arrays)
    rewritten(path, arrays["w"], **FORMS["shards"])
    (path / "w/c/0/0").write_bytes(b"")
    with bf16codecs.open_model(in_memory(path) if is_remote else path) as model:
        for read in (model.load, lambda: model["w"][:3], lambda: model["w"].zarr[:3]):
            with pytest.raises((StoreError, OSError), match="missing, or empty"):
                read()


@pytest.mark.parametrize("is_remote", [False, True])
def test_a_chunk_that_a_shard_lacks_is_not_one_of_fill_values(tmp_path, is_remote):
    """Only what lies behind the end of the array may be missing."""
    for shape in ((64, 32), (40, 32), (70,)):
        arrays = {"layers.0.w": weights(shape)}
        path = write_store(tmp_path / "m.zarr", arrays)
        options = {"shards": (64, 32)[: len(shape)], "chunks": (32, 16)[: len(shape)]}
        rewritten(path, arrays["layers.0.w"], "layers/0/w", **options, compressors=None)
        shards = sorted(p for p in (path / "layers/0/w/c").rglob("*") if p.is_file())
        with bf16codecs.open_model(in_memory(path) if is_remote else path) as model:
            assert model.load()["layers.0.w"].tobytes() == arrays["layers.0.w"].tobytes()
        content = shards[-1].read_bytes()
        count = 4 if len(shape) == 2 else 2
        index = np.frombuffer(content[-4 - 16 * count : -4], "<u8").reshape(count, 2).copy()
        index[0] = (1 << 64) - 1
        shards[-1].write_bytes(content[: -4 - 16 * count] + with_crc32c(index.tobytes()))
        with bf16codecs.open_model(in_memory(path) if is_remote else path) as model:
            tensor = model["layers.0.w"]
            for read in (model.load, lambda: tensor[-1], lambda: tensor.zarr[-1:]):  # noqa: B023
                with (
                    noted(shape),
                    pytest.raises((StoreError, OSError), match="chunk of this shard is missing"),
                ):
                    read()


def test_codecs_that_may_inflate_without_a_limit_need_the_callers(tmp_path, arrays):
    twice = [zarr.codecs.GzipCodec(), zarr.codecs.GzipCodec()]
    codecs = [zarr.codecs.BytesCodec(), zarr.codecs.GzipCodec()]
    shards = partial(zarr.codecs.ShardingCodec, chunk_shape=(32, 32), codecs=codecs)
    forms: list[tuple[str, dict[str, Any]]] = [
        ("gzip, gzip", {"chunks": (32, 32), "compressors": twice}),
        # A checksum hid the shard's codecs, and a codec around it was not checked.
        ("crc32c", {"serializer": shards(), "compressors": zarr.codecs.Crc32cCodec()}),
        ("zstd", {"serializer": shards(), "compressors": zarr.codecs.ZstdCodec()}),
        # Their index was taken for one with a checksum behind it.
        ("gzip", {"serializer": shards(index_codecs=codecs[:1]), "compressors": None}),
        ("gzip", {"serializer": shards(index_location="start"), "compressors": None}),
    ]
    path = write_store(tmp_path / "m.zarr", arrays)
    for names, options in forms:
        rewritten(path, arrays["w"], **{"chunks": (64, 32), **options})
        with (
            noted(names),
            bf16codecs.open_model(path) as model,
            pytest.raises(StoreError, match=f"{names}, may inflate without a limit"),
        ):
            model.load()
        with noted(names), bf16codecs.open_model(path, max_bytes=1 << 20) as model:
            assert model.load()["w"].tobytes() == arrays["w"].tobytes()


@pytest.mark.parametrize("name", ["gzip", "bz2", "lzma", "zlib"])
def test_a_stream_behind_that_of_a_chunk_is_not_inflated(tmp_path, arrays, name):
    """Python's modules go on with it: a few kB of bzip2 became gigabytes."""
    codec = numcodecs.get_codec({"id": name})
    path = write_store(tmp_path / "m.zarr", arrays, codec="none", zarr_format=2)

    def compress(root: dict[str, Any]) -> None:
        root["metadata"]["w/.zarray"]["compressor"] = codec.get_config()

    edit_json(path, ".zmetadata", compress)
    chunk = path / "w/0.0"
    stream = bytes(codec.encode(chunk.read_bytes()))
    chunk.write_bytes(stream)
    with bf16codecs.open_model(path) as model:
        assert model.load()["w"].tobytes() == arrays["w"].tobytes()
    chunk.write_bytes(stream + bytes(codec.encode(bytes(100))))
    for read in READS:
        with (
            bf16codecs.open_model(path) as model,
            pytest.raises(CorruptDataError, match="bytes follow its compressed stream"),
        ):
            read(model["w"])


def test_shards_whose_index_is_of_another_form_need_the_callers(tmp_path, arrays):
    """Without a checksum, the entries would be read from 4 bytes too early."""
    path = write_store(tmp_path / "m.zarr", arrays)
    rewritten(path, arrays["w"], **FORMS["shards of zstd"])
    little, big = ({"name": "bytes", "configuration": {"endian": e}} for e in ("little", "big"))
    for codecs in ([little], [big, {"name": "crc32c"}]):

        def change(node: dict[str, Any], codecs: Any = codecs) -> None:
            node["codecs"][0]["configuration"]["index_codecs"] = codecs

        edit_array(path, "w", change)
        with pytest.raises(StoreError, match="may inflate without a limit"):
            bf16codecs.open_model(path).load()


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_a_compressed_zip_file_that_zarr_reads(tmp_path, arrays, compression):
    """Members are larger than what they take in the file."""
    path = write_store(tmp_path / "m.zarr", arrays)
    rewritten(path, arrays["w"], chunks=(32, 32), compressors=None, shards=(64, 32))
    path = zip_folder(path, tmp_path / "m.zarr.zip", compression)
    with bf16codecs.open_model(path) as model:
        assert model.load()["w"].tobytes() == arrays["w"].tobytes()
        assert model["w"][3].tobytes() == arrays["w"][3].tobytes()


def test_a_chunk_of_more_than_a_gigabyte_in_memory(tmp_path, arrays, monkeypatch):
    """Chunks whose stored size is known are requested without a further limit."""
    path = rewritten(
        write_store(tmp_path / "m.zarr", arrays), arrays["w"], chunks=(64, 32), shards=(64, 32)
    )
    lower_limits(monkeypatch, 1000)
    with bf16codecs.open_model(in_memory(path)) as model:
        assert model.load()["w"].tobytes() == arrays["w"].tobytes()


READS = [lambda w: w[...], lambda w: w[3, 4], lambda w: w[[3, 40], [4, 5]]]


@pytest.mark.parametrize(
    ("form", "content"),
    [
        ("gzip", gzip.compress(b"short")),
        ("blosc", numcodecs.Blosc().encode(b"short")),
        ("shards", b"no index"),
    ],
    ids=["gzip", "blosc", "shards"],
)
def test_what_zarr_cannot_decode_is_no_failure_of_a_file(tmp_path, arrays, form, content):
    path = rewritten(write_store(tmp_path / "m.zarr", arrays), arrays["w"], **FORMS[form])
    for chunk in (path / "w" / "c").rglob("*"):
        if chunk.is_file():
            chunk.write_bytes(content)
    packed = zip_folder(path, tmp_path / "m.zip", zipfile.ZIP_DEFLATED)
    # An error of a store in memory could be a server's: these share no class.
    kinds = [StoreError, StoreError, OSError] if form != "shards" else [CorruptDataError] * 3
    for place, error in zip((path, packed, in_memory(path)), kinds, strict=True):
        for read in READS:
            with bf16codecs.open_model(place) as model, pytest.raises(error, match="tensor 'w': "):
                read(model["w"])


def test_a_file_that_cannot_be_read_is_no_damage(tmp_path, arrays, monkeypatch):
    path = rewritten(write_store(tmp_path / "m.zarr", arrays), arrays["w"], **FORMS["gzip"])

    def fail(*args: Any) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    for read in READS:
        with bf16codecs.open_model(path) as model:
            read(model["w"])
            with monkeypatch.context() as patch:
                patch.setattr("bf16codecs._files.reading._read_some", fail)
                with pytest.raises(OSError, match="tensor 'w': .*" + os.strerror(errno.EIO)):
                    read(model["w"])
