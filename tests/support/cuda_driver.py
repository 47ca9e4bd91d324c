"""A stand-in for NVIDIA's driver, built and loaded where there is no GPU: see `cuda_stand_in`."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).with_name("cuda_stand_in")
LOCKSTEP = Path(__file__).parents[1] / "native" / "lockstep"
NATIVE = Path(__file__).parents[2] / "bf16codecs" / "_native"
#: The library of kernels that a launch runs: it has `bf16codecs_host_launch`.
HOST_KERNELS = "BF16CODECS_HOST_KERNELS"
OUT_OF_MEMORY, NO_DEVICE = 2, 100
#: What each of its devices has unless a test wants it otherwise, and what it is.
MEMORY, CAPABILITY = 1 << 30, (9, 0)

# In a process of its own: once the driver is loaded, no stand-in can take its place.
_LOOK = """
import ctypes
driver = ctypes.CDLL("nvcuda.dll" if __import__("os").name == "nt" else "libcuda.so.1")
count = ctypes.c_int()
print(driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or count.value)
assert count.value
"""


@cache
def has_gpu() -> bool:
    """Return whether this machine has a GPU that the driver knows."""
    return subprocess.run([sys.executable, "-c", _LOOK], capture_output=True).returncode == 0


def has_cuda_core() -> bool:
    """Return whether cuda-core is installed, and what it needs."""
    try:
        return all(importlib.util.find_spec(f"cuda.{name}") for name in ("core", "bindings"))
    except ImportError:
        return False


def why_not() -> str:
    """Return why neither a GPU nor the stand-in can be used; nothing if one can."""
    if not has_cuda_core():
        return "needs cuda-core"
    if has_gpu():
        return ""
    if sys.platform != "linux" or compiler() is None:
        return "has no GPU, and needs Linux and a C++ compiler for a stand-in"
    from bf16codecs.cuda.compiling import architectures
    from bf16codecs.errors import DeviceError

    try:
        architectures()
    except DeviceError as error:
        return str(error)
    return ""


def compiler() -> str | None:
    return os.environ.get("CXX") or shutil.which("c++")


def build(library: Path, *sources: Path, options: tuple[str, ...] = ()) -> Path:
    """Build a shared library."""
    command = [compiler() or "c++", "-std=c++20", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC"]
    command += ["-fvisibility=hidden", *options, "-o", library, *sources, "-ldl"]
    subprocess.run(command, check=True)
    return library


def build_driver(folder: Path) -> Path:
    """Build the stand-in, as the file that a driver would be."""
    sources = [SOURCES / f"{name}.cpp" for name in ("driver", "machine", "image", "hooks")]
    return build(folder / "libcuda.so.1", *sources, options=("-Wl,-soname,libcuda.so.1",))


def build_test_kernels(folder: Path) -> Path:
    """Build the kernels of test_kernels.cu, and the package's, for the processor."""
    sources = SOURCES / "test_kernels.cpp", LOCKSTEP / "launch.cpp"
    return build(folder / "test_kernels.so", *sources, options=(f"-I{NATIVE}", "-ffp-contract=off"))


class StandIn:
    """The driver in this process, from now on: cuda-bindings finds what is loaded already.

    Parameters
    ----------
    library
        What `build_driver` built.
    """

    def __init__(self, library: Path) -> None:
        self.path = str(library)
        self._library = ctypes.CDLL(self.path, ctypes.RTLD_GLOBAL)
        self._library.stand_in_calls.restype = ctypes.c_long
        self._library.stand_in_live.restype = ctypes.c_long

    def fail(self, function: str, n: int = 1, result: int = OUT_OF_MEMORY) -> None:
        """Let the n-th next call of a function fail; of ``cuMemAlloc``, without its version."""
        self._library.stand_in_fail(function.encode(), ctypes.c_long(n), result)

    def calls(self, function: str) -> int:
        """Return how often a function has been called."""
        return self._library.stand_in_calls(function.encode())

    def live(self, kind: str) -> int:
        """Return how many ``"blocks"`` of memory, ``"streams"`` or ``"events"`` there are."""
        return self._library.stand_in_live(kind.encode())

    def misuse(self) -> str:
        """Return what was done that no program should do, since this was asked last."""
        text = ctypes.create_string_buffer(200)
        self._library.stand_in_misuse(text, len(text))
        return text.value.decode()

    def set_memory(self, nbytes: int = MEMORY) -> None:
        """Let each of its devices have so much memory."""
        self._library.stand_in_set_memory(ctypes.c_size_t(nbytes))
