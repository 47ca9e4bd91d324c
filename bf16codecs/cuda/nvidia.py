"""NVIDIA's packages: cuda-core, and the driver API below it.

Callers of this module get addresses and handles as integers, and this package's errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from bf16codecs._base.messages import install_extra
from bf16codecs.errors import DeviceError

_INSTALL = f"{install_extra('cuda13')}, or cuda12, to match the driver's CUDA"

try:
    import cuda.core as core
    from cuda.bindings import driver, nvrtc
    from cuda.core.utils import FileStreamProgramCache, make_program_cache_key
except ImportError as e:
    text = f"decoding on GPUs needs more packages: {_INSTALL} ({e})"
    raise type(e)(text, name=e.name) from e

__all__ = [
    "CudaVersion",
    "FileStreamProgramCache",
    "call",
    "compiler_version",
    "core",
    "driver",
    "driver_version",
    "make_program_cache_key",
    "named_errors",
    "nvrtc",
]

_NO_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"


def call(function: Any, *arguments: Any) -> Any:
    """Call the driver or NVRTC; return one result alone, any other number as a tuple.

    Raises MemoryError if the GPU is out of memory, and DeviceError for other failures.
    """
    with named_errors(function.__name__):
        status, *values = function(*arguments)
    if int(status) != 0:
        name = str(getattr(status, "name", status))
        raise _error(function.__name__, name)
    return values[0] if len(values) == 1 else tuple(values)


@contextmanager
def named_errors(subject: str) -> Iterator[None]:
    """Turn errors of NVIDIA packages into one line about `subject`: MemoryError or DeviceError."""
    try:
        yield
    except Exception as e:
        # Older versions raise a RuntimeError if there is no driver.
        if type(e).__module__.partition(".")[0] != "cuda" and type(e) is not RuntimeError:
            raise
        raise _error(subject, str(e)) from e


def _error(subject: str, reason: str) -> Exception:
    reason = reason.replace("\0", "").strip()  # NVRTC's log ends with a zero
    if reason.startswith(_NO_MEMORY):
        return MemoryError(f"{subject}: the GPU has no room for it ({_NO_MEMORY})")
    if "libnvrtc" in reason or '"nvrtc"' in reason:
        reason = f"NVIDIA's run-time compiler was not found: {_INSTALL}"
    if "libcuda" in reason or '"cuda"' in reason:
        return DeviceError("NVIDIA's driver was not found")
    # cuda-core appends the documentation of the error to its name.
    name, _, explanation = reason.partition(": ")
    if name.startswith("CUDA_ERROR"):
        reason = f"{name} ({explanation.partition('.')[0]})" if explanation else name
    return DeviceError(f"{subject}: {reason}")


class CudaVersion(NamedTuple):
    """A version of CUDA."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


def driver_version() -> CudaVersion:
    """Return the newest version of CUDA that the driver supports."""
    version = call(driver.cuDriverGetVersion)
    return CudaVersion(version // 1000, version % 1000 // 10)


def compiler_version() -> CudaVersion:
    """Return NVRTC's version of CUDA; raise DeviceError if NVRTC is not installed."""
    return CudaVersion(*call(nvrtc.nvrtcVersion))
