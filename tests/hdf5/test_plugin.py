"""The plugin as a Linux library: its exports, and unloading it."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import plugin

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="is about libraries of Linux")

# Alone with the C library, as bf16codecs.hdf5 would keep the plugin loaded.
UNLOAD = """
import ctypes, os, sys
import _ctypes

path, encodes = sys.argv[1], sys.argv[2] == "encode"

def is_loaded():
    with open("/proc/self/maps") as maps:
        return os.path.basename(path) in maps.read()

assert not is_loaded()
library = ctypes.CDLL(path)
assert is_loaded()
if encodes:
    address, size = ctypes.c_void_p, ctypes.c_size_t

    class FilterClass(ctypes.Structure):
        _fields_ = [
            ("numbers", ctypes.c_uint * 4),
            ("pointers", address * 3),
            ("filter", ctypes.CFUNCTYPE(
                size, ctypes.c_uint, size, address, size, ctypes.POINTER(size),
                ctypes.POINTER(address),
            )),
        ]

    library.H5PLget_plugin_info.restype = ctypes.POINTER(FilterClass)
    libc = ctypes.CDLL(None)
    libc.calloc.restype = address
    room = 1 << 20
    memory = address(libc.calloc(1, size(room)))
    coded = library.H5PLget_plugin_info().contents.filter(0, 0, None, room, size(room), memory)
    assert 0 < coded < room
    libc.free(memory)
_ctypes.dlclose(library._handle)
assert not is_loaded()
"""


@pytest.mark.skipif(shutil.which("nm") is None, reason="nm (Debian: binutils) is not installed")
def test_exports_what_libhdf5_and_netcdf_look_for() -> None:
    path = plugin.plugin_file()
    asked_for = ["H5PLget_plugin_info", "H5PLget_plugin_type", "NCZ_get_codec_info"]
    assert exports(path) == [*asked_for, "h5bf16codecs_netcdf"]
    small = list(path.parent.glob("ncbf16codecs_*"))
    assert len(small) == 3
    for other in small:
        assert exports(other) == asked_for


def exports(path: Path) -> list[str]:
    command = ["nm", "-D", "--defined-only", str(path)]
    symbols = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return sorted(line.split()[-1] for line in symbols.splitlines())


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries unload nothing")
@pytest.mark.parametrize("use", ["nothing", "encode"])
def test_can_be_unloaded(run_python, use: str) -> None:
    run_python(UNLOAD, str(plugin.plugin_file()), use)
