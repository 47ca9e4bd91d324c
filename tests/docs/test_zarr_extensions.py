"""The entries for Zarr's registry: their schemas accept the metadata that codecs accept."""

from __future__ import annotations

import functools
import json
import re
import tomllib
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from zarr.registry import get_codec_class

import tiers
from bf16codecs.codecs import CODECS, BF16Arithmetic, BF16Huffman, BF16Split, BF16Zstd, RunLength
from bf16codecs.convert import safetensors_to_zarr
from bf16codecs.zarr import BF16BlocksCodec, DeltaCodec
from checkout import ROOT
from looping import for_each
from models import write_model
from native_core import core

REGISTRY = ROOT / "docs" / "registries" / "zarr-extensions"
BLOCKS, DELTA = "bf16codecs.blocks", "bf16codecs.delta"
#: The codecs with an entry: those of frames, and three others.
NAMES = sorted([*(f"bf16codecs.{name}" for name in CODECS), BLOCKS, DELTA, "bf16codecs.rle"])
HEADINGS = [
    "## Codec name",
    "## Configuration parameters",
    "## Example",
    "## Format and algorithm",
    "## Compatibility",
    "## Change log",
    "## Current maintainers",
]


@pytest.fixture(autouse=True)
def needs_jsonschema() -> None:
    pytest.importorskip("jsonschema", reason="jsonschema is not installed")


@functools.cache
def validator(name: str) -> Any:
    from jsonschema import Draft202012Validator

    schema = json.loads((REGISTRY / name / "schema.json").read_text("utf-8"))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def all_options() -> list[Any]:
    """Return codecs with all options of a class."""
    dtypes, flags, steps = core.DTYPES, (True, False), (1, 2, 65534)
    return [
        *(BF16Split(dtype, by) for dtype, by in product(dtypes, ("field", "byte"))),
        *(BF16Huffman(*each) for each in product(dtypes, flags, steps)),
        *(BF16Arithmetic(*each) for each in product(dtypes, core.LEVELS, flags, steps)),
        *(BF16Zstd(*each) for each in product((1, 3, 22), dtypes, flags)),
    ]


def is_valid(codec: Any, name: str) -> bool:
    return validator(name).is_valid(codec)


def is_taken(codec: Any, name: str) -> bool:
    """Return whether the class makes a codec of a configuration."""
    try:
        get_codec_class(name).from_dict(codec)
    except (TypeError, ValueError):
        return False
    return True


def entries_of(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the objects that name one of the codecs, anywhere in array metadata."""
    if isinstance(value, dict):
        if value.get("name") in NAMES:
            yield value
        for part in value.values():
            yield from entries_of(part)
    elif isinstance(value, list):
        for part in value:
            yield from entries_of(part)


def stored(data: NDArray[Any], **options: Any) -> tuple[dict[str, Any], str]:
    """Write an array of one chunk, and return its store with the key of the chunk."""
    store: dict[str, Any] = {}
    array = zarr.create_array(store, data=data, chunks=data.shape, **options)
    return store, array.metadata.encode_chunk_key((0,) * data.ndim)


def test_every_codec_of_the_package_has_an_entry() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert NAMES == sorted(path.name for path in REGISTRY.iterdir())
    assert NAMES == sorted(project["entry-points"]["zarr.codecs"])
    assert all(re.fullmatch(r"[a-z][a-z0-9-_.]+", name) for name in NAMES)


@for_each("name", NAMES)
def test_folder_is_what_the_registry_wants(name: str) -> None:
    folder = REGISTRY / name
    assert {path.name for path in folder.iterdir()} == {"README.md", "schema.json"}
    text = (folder / "README.md").read_text("utf-8")
    places = [text.index(heading) for heading in HEADINGS]
    assert places == sorted(places)
    assert f"MUST be `{name}`" in text
    examples = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", text, re.DOTALL)]
    found = [entry for example in examples for entry in entries_of(example)]
    assert name in {entry["name"] for entry in found}
    for entry in found:
        assert is_valid(entry, entry["name"])
        assert get_codec_class(entry["name"]).from_dict(entry).to_dict() == entry


@for_each("name", [n for n in NAMES if n not in (BLOCKS, DELTA)])
def test_defaults_are_those_of_the_class(name: str) -> None:
    parameters = validator(name).schema["properties"]["configuration"]["properties"]
    codec = {"name": name, "configuration": {k: p["default"] for k, p in parameters.items()}}
    assert get_codec_class(name).from_dict(codec) == get_codec_class(name).from_dict({"name": name})


def test_all_options_are_valid_as_they_are_written() -> None:
    options = all_options()
    for codec in (*options, RunLength()):
        assert is_valid(dict(codec), codec.codec_id), codec
    for codec in options:
        assert is_valid(BF16BlocksCodec(codec).to_dict(), BLOCKS), codec
    for dtype in ("|u1", "<u2", "<u4", "<u8"):
        assert is_valid(DeltaCodec(dtype).to_dict(), DELTA), dtype


@for_each("dtype", ["bfloat16", "float8_e5m2", "float32", "complex64", "int16"])
@for_each("codec_class", CODECS.values())
def test_what_zarr_writes_is_valid(codec_class: Any, dtype: str) -> None:
    """Even where the codec takes the array's data type."""
    for codec, shards in product((codec_class(), codec_class(dtype="auto")), (None, (8, 8))):
        for options in (
            {"compressors": codec},
            {"serializer": BF16BlocksCodec(codec), "compressors": None},
            {"serializer": BF16BlocksCodec(codec.codec_id), "compressors": None},
        ):
            store: dict[str, Any] = {}
            place = {"shape": (8, 8), "chunks": (4, 8), "shards": shards, "dtype": dtype}
            zarr.create_array(store, **place, **options)
            found = list(entries_of(json.loads(store["zarr.json"].to_bytes())))
            assert found
            assert all(is_valid(entry, entry["name"]) for entry in found), found


@for_each(
    "options",
    [
        {},
        {"level": "best"},
        {"codec": "huffman"},
        {"codec": "split"},
        {"codec": "zstd", "level": 22},
        {"lossy": "float16", "codec": "delta-rle"},
        {"lossy": "float16", "codec": "delta-deflate"},
    ],
)
def test_what_conversions_write_is_valid(tmp_path: Path, options: dict[str, Any]) -> None:
    tensors = [("a", "BF16", (8, 8)), ("b", "F32", (8, 8)), ("c", "F8_E4M3", (8,))]
    source = write_model(tmp_path / "m.safetensors", tensors)
    safetensors_to_zarr(source, tmp_path / "m.zarr", overwrite=True, sync=False, **options)
    found = list(entries_of(json.loads((tmp_path / "m.zarr" / "zarr.json").read_text())))
    assert found
    assert all(is_valid(entry, entry["name"]) for entry in found), found


@for_each("codec", lambda: [cls() for cls in (*CODECS.values(), RunLength)])
def test_chunks_of_both_formats_are_of_one_kind(codec: Any) -> None:
    """Compatibility as the entries describe it: readers of one format's chunks read the other's."""
    data = np.random.default_rng(0).normal(size=(64, 64)).astype("bfloat16")
    ways = [{"compressors": codec}, {"compressors": codec, "zarr_format": 2}]
    if not isinstance(codec, RunLength):
        ways.append({"serializer": BF16BlocksCodec(codec), "compressors": None})
    for source, target in product(ways, ways):
        store, key = stored(data, **source)
        chunk = store[key]
        store, key = stored(np.full_like(data, 3), **target)
        store[key] = chunk
        assert zarr.open_array(store)[:].tobytes() == data.tobytes()


@for_each("name", NAMES)
@for_each(
    "change",
    [
        {"name": "bf16codecs.none"},
        {"name": None},
        {"configuration": None},
        {"configuration": [3]},
        {"configuration": {"unknown": 1}},
        {"configuration": {"dtype": "float128"}},
        {"level": 3},
    ],
)
def test_other_metadata_are_not_valid(name: str, change: dict[str, Any]) -> None:
    codec = {"name": name, "configuration": {"dtype": "<u2"} if name == DELTA else {}}
    assert is_valid(codec, name)
    assert not is_valid({**codec, **change}, name)
    assert not is_valid([codec], name)
    assert not is_valid({"configuration": codec["configuration"]}, name)


#: Right and wrong values of all parameters. Left out are whole numbers written with a point, which
#: JSON Schema takes for integers, and "auto", which zarr replaces before it writes metadata.
VALUES: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from([*core.DTYPES, *core.LEVELS, "field", "byte", "|u1", "<u2", "<u4", "<u8"]),
    st.sampled_from(["", "3", "Fast", "BF16", "int8", "<f2", ">u2", "u2", "balanced", "true"]),
    st.sampled_from([None, 0.5, 2.5, [], {}, ["fast"]]),
    st.booleans(),
    st.integers(-2, 24),
    st.integers(65530, 65540),
    st.integers(),
)
CONFIGURATIONS = st.dictionaries(
    st.sampled_from(["dtype", "level", "checksum", "steps", "by", "unknown"]), VALUES, max_size=3
)


@settings(max_examples=tiers.by_tier(100, 400))
@given(st.sampled_from([n for n in NAMES if n != BLOCKS]), CONFIGURATIONS)
def test_schema_takes_what_the_class_takes(name: str, configuration: dict[str, Any]) -> None:
    codec = {"name": name, "configuration": configuration}
    assert is_valid(codec, name) == is_taken(codec, name)
    wrapped = {"name": BLOCKS, "configuration": {"codec": codec}}
    is_frame = name.partition(".")[2] in CODECS
    assert (
        is_valid(wrapped, BLOCKS)
        == is_taken(wrapped, BLOCKS)
        == (is_frame and is_valid(codec, name))
    )


@for_each("name", NAMES)
def test_schema_and_class_agree_on_the_rest(name: str) -> None:
    inner = {"name": "bf16codecs.huffman"}
    for codec in (
        {"name": name},
        {"name": name, "configuration": {}},
        {"name": name, "configuration": None},
        {"name": name, "configuration": {"codec": inner}},
        {"name": name, "configuration": {"codec": {**inner, "level": 3}}},
        {"name": name, "configuration": {"codec": {"name": "bf16codecs.rle"}}},
        {"name": name, "configuration": {"codec": {"name": "gzip"}}},
        {"name": name, "configuration": {"codec": None}},
        {"name": name, "configuration": {"codec": inner, "more": 1}},
        {"name": "gzip"},
        {},
    ):
        assert is_valid(codec, name) == is_taken(codec, name), codec
