"""The plugin's interface for netCDF, called as netCDF calls it, without netCDF."""

from __future__ import annotations

import ctypes
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numcodecs import get_codec

import plugin
from bf16codecs import BF16Arithmetic, BF16Huffman, BF16Split, BF16Zstd, hdf5
from bf16codecs.hdf5.filters import cd_values
from looping import for_each

OTHERS = ["split", "arithmetic", "zstd"]
NO_MEMORY_OR_FILTER = {-61, -132}
REFUSED = [0xFFFFFFFF]

_Values = ctypes.POINTER(ctypes.c_uint)


class Codec(ctypes.Structure):
    """NCZ_codec_t."""

    _fields_ = [
        ("version", ctypes.c_int),
        ("sort", ctypes.c_int),
        ("codec_id", ctypes.c_char_p),
        ("filter_id", ctypes.c_uint),
        ("initialize", ctypes.CFUNCTYPE(None)),
        ("finalize", ctypes.c_void_p),
        (
            "codec_to_hdf5",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                ctypes.c_char_p,
                ctypes.POINTER(ctypes.c_size_t),
                ctypes.POINTER(_Values),
            ),
        ),
        (
            "hdf5_to_codec",
            ctypes.CFUNCTYPE(
                ctypes.c_int, ctypes.c_size_t, _Values, ctypes.POINTER(ctypes.c_void_p)
            ),
        ),
        ("modify_parameters", ctypes.c_void_p),
    ]

    def values(self, config: str) -> list[int]:
        """Return the filter's values for the configuration of an array."""
        n, values = ctypes.c_size_t(), _Values()
        assert self.codec_to_hdf5(config.encode(), n, values) == 0
        found = values[: n.value]
        plugin._libc.free(values)
        return found

    def config(self, values: tuple[int, ...]) -> str | int:
        """Return the configuration that is written for values, or an error of netCDF."""
        text = ctypes.c_void_p()
        error = self.hdf5_to_codec(len(values), (ctypes.c_uint * len(values))(*values), text)
        if error:
            return error
        found = ctypes.string_at(text).decode()
        plugin._libc.free(text)
        return found


def loaded(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    library.NCZ_get_codec_info.restype = ctypes.POINTER(Codec)
    library.H5PLget_plugin_info.restype = ctypes.POINTER(plugin.FilterClass)
    return library


def library_of(name: str) -> ctypes.CDLL:
    if name == "huffman":
        return loaded(plugin.plugin_file())
    (path,) = plugin.plugin_file().parent.glob(f"ncbf16codecs_{name}.*")
    return loaded(path)


def codec_of(name: str) -> Codec:
    return library_of(name).NCZ_get_codec_info().contents


@for_each("name", ["huffman", *OTHERS])
def test_a_library_for_each_codec(name: str) -> None:
    library = library_of(name)
    codec = library.NCZ_get_codec_info().contents
    filter_class = library.H5PLget_plugin_info().contents
    assert (codec.version, codec.sort) == (1, 1)
    assert codec.codec_id.decode() == f"bf16codecs.{name}"
    assert library.H5PLget_plugin_type() == 0
    assert filter_class.version == 1
    # netCDF ignores a library whose numbers differ, and has one place for each number.
    assert codec.filter_id == filter_class.id
    assert (codec.filter_id == hdf5.FILTER_ID) == (name == "huffman")
    codec.initialize()
    assert codec.filter_id == hdf5.FILTER_ID
    # Where netCDF loads plugins anew.
    assert library.NCZ_get_codec_info().contents.filter_id == filter_class.id


def test_numbers_differ() -> None:
    classes = [library_of(n).H5PLget_plugin_info().contents for n in ["huffman", *OTHERS]]
    assert len({c.id for c in classes}) == 4
    assert all(hdf5.FILTER_ID <= c.id < 65535 for c in classes)


def test_one_codec_settles_the_numbers_of_all() -> None:
    """Because netCDF does not initialize the last one of its table."""
    codecs = [codec_of(name) for name in OTHERS]
    codec_of("huffman").initialize()
    assert {codec.filter_id for codec in codecs} == {hdf5.FILTER_ID}


@for_each(
    "codec",
    [
        BF16Huffman(),
        BF16Huffman("float32", checksum=False),
        BF16Huffman("auto", steps=65534, grid=False),
        BF16Arithmetic("float64", grid=False, checksum=False),
        BF16Arithmetic("float32", level="best", checksum=False, steps=2),
        BF16Split("float8_e5m2"),
        BF16Split("float32", by="byte"),
    ],
)
def test_configurations_are_those_of_python(codec: Any) -> None:
    native = codec_of(codec.codec_id.removeprefix("bf16codecs."))
    values = native.values(json.dumps(codec.get_config()))
    assert tuple(values) == cd_values(codec)
    assert json.loads(native.config(tuple(values))) == codec.get_config()
    # netCDF may ask any of them.
    assert codec_of("huffman").config(tuple(values)) == native.config(tuple(values))


def test_values_that_only_hdf5_files_have_are_left_out() -> None:
    """A chunk's size, and its rows."""
    config = codec_of("huffman").config((3, 2, 0, 1, 4096, 16))
    assert json.loads(config) == BF16Arithmetic("float32", level="best").get_config()
    assert json.loads(codec_of("huffman").config(())) == BF16Huffman().get_config()


@for_each("values", [(4, 2), (9,), (2, 6), (2, 0, 8), (1, 0, 4), (2, 0, 0, 1), (0,) * 7 + (1,)])
def test_wrong_values_are_refused(values: tuple[int, ...]) -> None:
    assert codec_of("huffman").config(values) in NO_MEMORY_OR_FILTER


def test_zstandard_is_known_but_cannot_be_written(capfd: pytest.CaptureFixture[str]) -> None:
    values = codec_of("zstd").values(json.dumps(BF16Zstd(7, "float32").get_config()))
    assert values == [4, 2, 0, 7]
    assert codec_of("zstd").values('{"id": "bf16codecs.zstd"}') == [4, 0, 0, 3]
    info = library_of("zstd").H5PLget_plugin_info().contents
    with called(info.filter, bytes(1000), values) as (size, _):
        assert size == 0
    assert codec_of("zstd").config(tuple(values)) in NO_MEMORY_OR_FILTER
    assert "write bf16codecs.zstd with the Python package" in capfd.readouterr().err


#: What comes after `{"id": "bf16codecs.huffman"`.
CONFIGURATIONS = [
    "}",
    "} ",
    ' , "dtype" : "float32" , "checksum" : false }',
    ', "dtype": "float64", "dtype": "float32"}',
    ', "steps": 1}',
    ', "steps": 3}',
    ', "steps": 0}',
    ', "steps": 65535}',
    ', "steps": -1}',
    ', "steps": 4294967298}',
    ', "steps": 18446744073709551618}',
    ', "steps": true}',
    ', "steps": "2"}',
    ', "steps": 2.5}',
    ', "steps": null}',
    ', "checksum": "true"}',
    ', "checksum": 1}',
    ', "checksum": null}',
    ', "dtype": "float"}',
    ', "dtype": 2}',
    ', "dtype": null}',
    ', "dtype": ["float32"]}',
    ', "dtype": {"name": "float32"}}',
    ', "level": "best"}',
    ', "by": "byte"}',
    ', "size": 3}',
    ', "": 3}',
    ', "dtype": "float32"',
    ', "dtype": "float32}',
    ', "dtype": "float32\\',
    ', "dtype" "float32"}',
    ', "dtype": }',
    ', dtype: "float32"}',
    ', "dtype": "float32",}',
    ', "dtype": "float32"}}',
    ', "dtype": "float32"} x',
    "",
    ",",
    ', "id": "bf16codecs.split"}',
]


@for_each("rest", CONFIGURATIONS)
def test_verdicts_on_configurations_are_those_of_python(rest: str) -> None:
    text = '{"id": "bf16codecs.huffman"' + rest
    try:
        codec = get_codec(json.loads(text))
        expected = list(cd_values(codec)) if isinstance(codec, BF16Huffman) else REFUSED
    except (ValueError, TypeError):
        expected = REFUSED
    assert codec_of("huffman").values(text) == expected


@for_each("text", ["", " ", "null", "[]", '"id"', "{", "{}x", "{,}", '{"id"}'])
def test_texts_that_are_not_configurations_are_refused(text: str) -> None:
    assert codec_of("huffman").values(text) == REFUSED


def test_without_the_plugin_beside_them(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """netCDF would end the process if they gave nothing."""
    for name in OTHERS:
        (path,) = plugin.plugin_file().parent.glob(f"ncbf16codecs_{name}.*")
        library = loaded(Path(shutil.copy(path, tmp_path)))
        codec = library.NCZ_get_codec_info().contents
        info = library.H5PLget_plugin_info().contents
        assert (codec.codec_id, codec.filter_id) == (b"", info.id)
        with called(info.filter, bytes(1000), [0, 2]) as (size, _):
            assert size == 0
    said = capfd.readouterr().err
    assert said.count("wants the plugin of the same release in the same folder: ") == len(OTHERS)
    assert said.count("is not in the same folder") == len(OTHERS)


def test_libhdf5_is_not_asked_for_netcdfs_chunks(tmp_path: Path) -> None:
    """Nor is one that was used before: another library has its own, and its own lock."""
    values = np.random.default_rng(0).normal(0, 1, 1000).astype(np.float32)
    arithmetic = library_of("arithmetic").H5PLget_plugin_info().contents
    frame = BF16Arithmetic("float32").encode(values[:500])
    options = (3, 2)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset(
            "x",
            data=values,
            chunks=values.shape,
            compression=hdf5.FILTER_ID,
            compression_opts=options,
        )
    with h5py.File(tmp_path / "x.h5") as file:
        dataset = file["x"]
        assert dataset[0] == values[0]  # for which the plugin asks
        library_of("huffman").H5PLget_plugin_info()
        with called(arithmetic.filter, frame, list(options), plugin.REVERSE) as (size, _):
            assert size == 2000


@contextmanager
def called(
    function: Any, data: bytes, values: list[int], flags: int = 0
) -> Iterator[tuple[int, bytes]]:
    """Return the result of the filter, and the memory after it."""
    memory = plugin._libc.malloc(len(data))
    ctypes.memmove(memory, data, len(data))
    buf, room = ctypes.c_void_p(memory), ctypes.c_size_t(len(data))
    array = (ctypes.c_uint * len(values))(*values)
    size = function(flags, len(values), array, len(data), room, buf)
    try:
        yield size, ctypes.string_at(buf, room.value)
    finally:
        plugin._libc.free(buf)


@for_each("name", OTHERS)
def test_datasets_get_the_filters_own_number(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    info = library_of(name).H5PLget_plugin_info().contents
    prototype = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    assert prototype(info.set_local)(0, 0, 0) < 0
    assert f"use {hdf5.FILTER_ID}" in capfd.readouterr().err
