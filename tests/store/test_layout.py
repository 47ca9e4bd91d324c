"""The layout: safe paths, chunks, attributes; zarr writes the same files."""

from __future__ import annotations

import copy
import itertools
import json
import math
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import tiers
from bf16codecs._arrays.grid import ArrayPlan, chunk_shape
from bf16codecs.convert import safetensors_to_zarr
from bf16codecs.errors import UnsupportedVersionError
from bf16codecs.safetensors import read_header
from bf16codecs.store import StoreError
from bf16codecs.store.choice import CodecChoice
from bf16codecs.store.layout import StoreInfo
from bf16codecs.store.paths import array_paths
from looping import noted
from measured_reads import linux
from models import TRICKY_NAMES, every_dtype, write_model

SAFE_SEGMENT = re.compile(r"[A-Za-z0-9_=-]{1,160}")
CODECS = [("arithmetic", level) for level in ("fast", "best")]
CODECS += [(codec, None) for codec in ("huffman", "zstd", "split", "none")]

names = st.sets(
    st.text(max_size=12) | st.text("aA./=\\_c0", max_size=6) | st.sampled_from(TRICKY_NAMES)
)


def check_paths(paths: dict[str, str]) -> None:
    folded = {path.lower() for path in paths.values()}
    assert len(folded) == len(paths)
    for path in paths.values():
        segments = path.split("/")
        assert all(SAFE_SEGMENT.fullmatch(s) for s in segments), path
        assert not any(s.startswith("__") for s in segments)
        assert segments[0].lower() != "safetensors"
        assert len(path) <= 480 + len("=")
        # No array's path is a parent of another's, in upper or lower case.
        parents = itertools.accumulate(segments[:-1], "{}/{}".format)
        assert not {p.lower() for p in parents} & folded


@given(names)
def test_paths_are_safe_and_distinct(tensors: set[str]) -> None:
    paths = array_paths(tensors)
    assert paths.keys() == tensors
    check_paths(paths)
    # A name's path does not depend on the order of the header.
    assert array_paths(sorted(tensors, reverse=True)) == paths


def test_tricky_names_together() -> None:
    check_paths(array_paths(TRICKY_NAMES))


def test_folders_do_not_differ_by_case_only() -> None:
    paths = array_paths(["Block.x", "block.y"])
    folders = {p.rpartition("/")[0] for p in paths.values()}
    assert len({f.lower() for f in folders}) == 2


def test_paths_of_the_document() -> None:
    for name, path in {
        "model.layers.0.mlp.up_proj.weight": "model/layers/0/mlp/up_proj/weight",
        "": "=",
        "..": "=/=/=",
        "../../x": "=/=/=2F/=/=2Fx",
        "zarr.json": "zarr/json",
        "c/0": "c=2F0",
        "safetensors.x": "=73afetensors/x",
        "__x.__y": "=5F_x/=5F_y",
        "con.nul.x": "=63on/=6Eul/x",
        "\u00e9": "=C3=A9",
    }.items():
        assert array_paths([name]) == {name: path}


def test_prefixes_give_way() -> None:
    assert array_paths(["a", "a.b", "a.b.c"]) == {"a": "a=", "a.b": "a/b=", "a.b.c": "a/b/c"}


@given(
    st.lists(st.integers(1, 90), max_size=2) | st.lists(st.integers(1, 12), max_size=4),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(1, 4000),
)
def test_chunks_cover_the_bytes_in_order(shape: list[int], size: int, limit: int) -> None:
    chunks = chunk_shape(shape, size, limit)
    dtype = {1: "uint8", 2: "bfloat16", 4: "float32", 8: "float64"}[size]
    plan = ArrayPlan("x", dtype, tuple(shape), chunks, offset=5)
    assert plan.is_contiguous
    assert plan.chunk_nbytes <= max(limit, size)
    # The bytes of a piece are those of the chunk, cut out of the array in C order.
    numbers = np.arange(math.prod(shape))
    items = numbers.reshape(shape)
    end = 5
    for piece in plan.pieces():
        assert piece.offset == end
        cut = tuple(slice(i * c, (i + 1) * c) for i, c in zip(piece.index, chunks, strict=True))
        first = (end - 5) // size
        expected = numbers[first : first + piece.nbytes // size]
        np.testing.assert_array_equal(items[cut].ravel(), expected)
        end += piece.nbytes
    assert end == 5 + plan.nbytes


def test_chunk_shapes() -> None:
    for shape, chunks in {
        (): (),
        (0, 7): (1, 1),
        (3000,): (1000,),
        (96, 10): (96, 10),
        (300, 10): (100, 10),  # 100 of the 102 rows that fit, since they divide evenly
        (509, 10): (102, 10),  # a prime: one row of padding in the last of five chunks
        (4, 1000, 10): (1, 100, 10),
        (3, 1, 5000): (1, 1, 1000),
    }.items():
        assert chunk_shape(shape, 2, 2050) == chunks, shape


def test_little_padding() -> None:
    for rows in range(1, 3000, 7):
        (chunk,) = chunk_shape((rows,), 1, 100)
        count = -(-rows // chunk)
        assert chunk * count - rows < count
        assert count <= max(2 * -(-rows // 100), 1)


@given(st.integers(1, 5000), st.integers(1, 300))
def test_the_longest_length_that_divides_evenly(size: int, limit: int) -> None:
    even = [n for n in range(limit // 2 + 1, limit + 1) if size % n == 0]
    if limit < size and even:
        assert chunk_shape((size,), 1, limit) == (max(even),)


@linux
def test_lengths_without_an_end(run_python: Any) -> None:
    """Metadata of a few bytes, which zarr has to decode, took 0.4 s to open."""
    code = """
import resource, sys
from bf16codecs._arrays.grid import chunk_shape

resource.setrlimit(resource.RLIMIT_CPU, (10, 10))
for size in (1 << 40) + 15, (1 << 59) + 1:
    for _ in range(int(sys.argv[1])):
        assert 1 << 23 < chunk_shape((size,), 1, 1 << 24)[0] <= 1 << 24
"""
    run_python(code, str(tiers.by_tier(10, 100)))


def test_not_contiguous() -> None:
    assert not ArrayPlan("x", "uint8", (10, 10), (5, 5)).is_contiguous
    assert ArrayPlan("x", "uint8", (10, 10), (1, 5)).is_contiguous
    assert not ArrayPlan("x", "uint8", (10, 10), (2, 16)).is_contiguous
    assert ArrayPlan("x", "uint8", (10, 10), (1, 16)).is_contiguous
    assert ArrayPlan("x", "uint8", (10, 10), (16, 10)).is_contiguous


def test_wrong_codecs_and_levels() -> None:
    for codec, level in (
        ("lzma", None),
        ("huffman", 3),
        ("none", "fast"),
        ("split", 1),
        ("zstd", 0),
        ("zstd", 23),
        ("zstd", "best"),
        ("arithmetic", 3),
        ("arithmetic", "worst"),
    ):
        with noted(codec, level), pytest.raises(ValueError, match=r"codec|level"):
            CodecChoice(codec, level)
    with pytest.raises(ValueError, match=r"with lossy='float16' delta-rle or delta-deflate, not"):
        CodecChoice("lzma")


ATTRIBUTES = {
    "bf16codecs": {
        "layout": 1,
        "files": [{"name": "m", "size": 1, "sha256": "0", "header": "safetensors/header/0"}],
        "tensors": {"a": "a"},
    }
}


def test_attributes_round_trip() -> None:
    info = StoreInfo.from_attributes(ATTRIBUTES, "x")
    assert StoreInfo.from_attributes(info.to_attributes(), "x") == info


def test_unknown_attributes_of_layout_1_are_ignored() -> None:
    attributes = copy.deepcopy(ATTRIBUTES)
    attributes["bf16codecs"].update(lossy={"to": "else"}, base=3, run={"group": 0}, more=[])
    attributes["bf16codecs"]["files"][0].update(restored_sha256=1, blake3=1)
    assert StoreInfo.from_attributes(attributes, "x") == StoreInfo.from_attributes(ATTRIBUTES, "x")


def test_newer_layout_advises_an_upgrade() -> None:
    with pytest.raises(UnsupportedVersionError, match="upgrade"):
        StoreInfo.from_attributes({"bf16codecs": {"layout": 4}}, "x")


DAMAGES: list[Callable[[Any], object]] = [
    lambda a: a.clear(),
    lambda a: a["bf16codecs"].update(layout="1"),
    lambda a: a["bf16codecs"].update(layout=0),
    lambda a: a["bf16codecs"].update(layout=-1),
    lambda a: a["bf16codecs"].pop("files"),
    lambda a: a["bf16codecs"].update(files=3),
    lambda a: a["bf16codecs"].update(files=["m.safetensors"]),
    lambda a: a["bf16codecs"].update(index="m.json"),
    lambda a: a["bf16codecs"]["files"][0].pop("sha256"),
    lambda a: a["bf16codecs"]["files"][0].update(size=-1),
    lambda a: a["bf16codecs"]["files"][0].update(size="1"),
    lambda a: a["bf16codecs"]["files"][0].update(name="../m"),
    lambda a: a["bf16codecs"]["files"][0].update(name="/m"),
    lambda a: a["bf16codecs"]["files"][0].update(header=0),
    lambda a: a["bf16codecs"]["files"].append(a["bf16codecs"]["files"][0]),
    lambda a: a["bf16codecs"].update(index={}),
    lambda a: a["bf16codecs"].update(tensors=[1]),
    lambda a: a["bf16codecs"].update(tensors={"a": 1}),
]


def test_damaged_attributes() -> None:
    for change in DAMAGES:
        attributes = copy.deepcopy(ATTRIBUTES)
        change(attributes)
        with noted(attributes), pytest.raises(StoreError, match=r"^x: "):
            StoreInfo.from_attributes(attributes, "x")


def tensor_bits(source: Path, name: str) -> bytes:
    header = read_header(source)
    t = next(t for t in header.tensors if t.name == name)
    return source.read_bytes()[header.data_start + t.start : header.data_start + t.stop]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return every_dtype(tmp_path_factory.mktemp("source") / "m.safetensors")


@pytest.mark.parametrize("zarr_format", [3, 2])
def test_stores_of_every_dtype_are_zarrs(source: Path, tmp_path: Path, zarr_format: int) -> None:
    quick = CODECS[::3] if zarr_format == 3 else CODECS[2:3]
    for codec, level in tiers.by_tier(quick, CODECS):
        store = tmp_path / f"{codec}-{level}.zarr"
        options = {"codec": codec, "level": level, "zarr_format": zarr_format}
        safetensors_to_zarr(source, store, chunk_size=100, **options)
        with noted(codec, level):
            check_that_zarr_reads(store, source)
            if (codec, level) in tiers.by_tier(quick[:1], CODECS):
                check_that_zarr_writes_the_same(store, tmp_path / f"theirs-{codec}-{level}.zarr")


def check_that_zarr_reads(store: Path, source: Path) -> None:
    group = zarr.open_group(store, mode="r")
    assert group.metadata.consolidated_metadata is not None
    paths = group.attrs["bf16codecs"]["tensors"]
    for tensor in read_header(source).tensors:
        array = group[paths[tensor.name]]
        own = array.attrs["bf16codecs"]
        assert (own["tensor"], own["dtype"]) == (tensor.name, tensor.dtype)
        assert tuple(own.get("shape", array.shape)) == tensor.shape
        assert np.asarray(array[...]).tobytes() == tensor_bits(source, tensor.name)
        if (
            array.dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")
            or array.dtype.kind in "fc"
        ):
            assert np.isnan(array.fill_value)
        else:
            assert array.fill_value == 0


def check_that_zarr_writes_the_same(ours: Path, theirs: Path) -> None:
    """Let zarr write the same arrays, and compare every file."""
    group = zarr.open_group(ours, mode="r")
    zarr_format = group.metadata.zarr_format
    copied = zarr.create_group(theirs, attributes=dict(group.attrs), zarr_format=zarr_format)
    with zarr.config.set({"array.write_empty_chunks": True}):
        for path, array in group.members(max_depth=None):
            if isinstance(array, zarr.Array):
                copy_array(copied, path, array)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", zarr.errors.ZarrUserWarning)  # "not part of format 3"
        zarr.consolidate_metadata(theirs)
    assert keys(ours) == keys(theirs)
    for key in keys(ours):
        a, b = (ours / key).read_bytes(), (theirs / key).read_bytes()
        if key.rpartition("/")[2].startswith((".z", "zarr.json")):
            assert json.loads(a) == json.loads(b), key
        else:
            assert a == b, key


def keys(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def copy_array(group: zarr.Group, path: str, array: zarr.Array) -> None:
    """Create an array of the same metadata by zarr, and let zarr write it."""
    options: dict[str, Any] = {"compressors": array.compressors or None}
    if array.metadata.zarr_format == 3:
        options["serializer"] = array.serializer
        options["dimension_names"] = array.metadata.dimension_names
        options["chunk_key_encoding"] = {"name": "default", "separator": "."}
    new = group.create_array(
        path,
        shape=array.shape,
        chunks=array.chunks,
        dtype=array.dtype.name,
        fill_value=array.fill_value,
        attributes=dict(array.attrs),
        **options,
    )
    if array.size:
        new[...] = array[...]


@pytest.mark.parametrize("zarr_format", [3, 2])
def test_nothing_is_dropped_as_empty(tmp_path: Path, zarr_format: int) -> None:
    """Chunks of zeros, of negative zeros and of NaNs are all stored, bit by bit."""
    patterns = [0x0000, 0x8000, 0x7FC0, 0x7FFF, 0xFFFF]
    shapes = [(name, "BF16", (8, 4)) for name in map(hex, patterns)]
    source = write_model(tmp_path / "m.safetensors", shapes)
    raw = bytearray(source.read_bytes())
    values = np.repeat(np.array(patterns, "<u2"), 32)
    raw[-values.nbytes :] = values.tobytes()
    source.write_bytes(raw)
    store = tmp_path / "m.zarr"
    safetensors_to_zarr(source, store, zarr_format=zarr_format, chunk_size=32)
    group = zarr.open_group(store, mode="r")
    for pattern in patterns:
        array = group[hex(pattern)]
        assert array.dtype == ml_dtypes.bfloat16
        assert (array[...].view(np.uint16) == pattern).all()
        assert len([p for p in (store / hex(pattern)).iterdir() if p.name[-1].isdigit()]) == 2


@pytest.mark.parametrize("zarr_format", [3, 2])
def test_xarray_opens_each_group(tmp_path: Path, zarr_format: int) -> None:
    xarray = pytest.importorskip("xarray")
    tensors = [("x.w", "F32", (4, 6)), ("x.b", "F32", (4,)), ("x.v", "F32", (6, 6))]
    source = write_model(tmp_path / "m.safetensors", tensors)
    safetensors_to_zarr(source, tmp_path / "m.zarr", zarr_format=zarr_format)
    dataset = xarray.open_zarr(tmp_path / "m.zarr", group="x", consolidated=False)
    assert dataset["w"].dims == ("dim0_4", "dim1_6")
    assert dataset["b"].dims == ("dim0_4",)
    assert dataset["w"].values.tobytes() == tensor_bits(source, "x.w")
