"""The HDF5 plugin called as libhdf5 calls it, and where the tests find it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

from bf16codecs import hdf5

#: Where the programs of HDF5 look for the plugin: another build of it can be tested.
PLUGIN_FOLDER = os.environ.get("HDF5_PLUGIN_PATH") or hdf5.PLUGIN_PATH

OPTIONAL, REVERSE = 0x0001, 0x0100

_Filter = ctypes.CFUNCTYPE(
    ctypes.c_size_t,
    ctypes.c_uint,
    ctypes.c_size_t,
    ctypes.POINTER(ctypes.c_uint),
    ctypes.c_size_t,
    ctypes.POINTER(ctypes.c_size_t),
    ctypes.POINTER(ctypes.c_void_p),
)


class FilterClass(ctypes.Structure):
    """H5Z_class2_t."""

    _fields_ = [
        ("version", ctypes.c_int),
        ("id", ctypes.c_int),
        ("has_encoder", ctypes.c_uint),
        ("has_decoder", ctypes.c_uint),
        ("name", ctypes.c_char_p),
        ("can_apply", ctypes.c_void_p),
        ("set_local", ctypes.c_void_p),
        ("filter", _Filter),
    ]


def plugin_file() -> Path:
    (path,) = Path(PLUGIN_FOLDER).glob("*h5bf16codecs.*")
    return path


library = ctypes.CDLL(str(plugin_file()))
library.H5PLget_plugin_info.restype = ctypes.POINTER(FilterClass)
filter_class: FilterClass = library.H5PLget_plugin_info().contents

_libc = ctypes.CDLL(None if os.name == "posix" else "ucrtbase")
_libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = [ctypes.c_size_t]
_libc.free.argtypes = [ctypes.c_void_p]


def call(data: bytes, values: Sequence[int] = (), flags: int = 0) -> bytes | None:
    """Run the filter over a chunk in memory of exactly its size; None if it fails."""
    # Never of size zero, for which malloc may return a null pointer.
    memory = _libc.malloc(max(1, len(data)))
    ctypes.memmove(memory, data, len(data))
    buf, buf_size = ctypes.c_void_p(memory), ctypes.c_size_t(len(data))
    cd_values = (ctypes.c_uint * max(1, len(values)))(*values)
    size = filter_class.filter(flags, len(values), cd_values, len(data), buf_size, buf)
    try:
        if size == 0:
            # After a failure libhdf5 stores or frees the chunk, so it must be unchanged.
            assert (buf.value, buf_size.value) == (memory, len(data))
            assert ctypes.string_at(buf, len(data)) == data
            return None
        assert size <= buf_size.value
        return ctypes.string_at(buf, size)
    finally:
        _libc.free(buf)


def encode(data: bytes, values: Sequence[int] = (), flags: int = 0) -> bytes | None:
    return call(data, values, flags)


def decode(data: bytes, values: Sequence[int] = ()) -> bytes | None:
    return call(data, values, REVERSE)
