"""NVIDIA's packages: cuda-core, and the driver's functions that it lies on.

Addresses and handles are integers from here on, and errors are those of this package.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bf16codecs._base.messages import install_extra
from bf16codecs.errors import DeviceError

_INSTALL = f"{install_extra('cuda13')}, or cuda12, whichever CUDA the driver is for"

try:
    import cuda.core as core
    from cuda.bindings import driver, nvrtc
    from cuda.core.utils import FileStreamProgramCache, make_program_cache_key
except ImportError as e:
    text = f"for decoding on GPUs, other packages are needed: {_INSTALL} ({e})"
    raise type(e)(text, name=e.name) from e

__all__ = [
    "FileStreamProgramCache",
    "call",
    "core",
    "driver",
    "make_program_cache_key",
    "named_errors",
    "nvrtc",
]

_NO_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"


def call(function: Any, *arguments: Any) -> Any:
    """Call a function of the driver or of NVRTC, and return what it gives besides its status.

    That is one value, or a tuple of any other number of them.

    Raises
    ------
    MemoryError
        If the GPU has no room for it.
    DeviceError
        If it fails in another way.
    """
    with named_errors(function.__name__):
        status, *values = function(*arguments)
    if int(status) != 0:
        name = str(getattr(status, "name", status))
        raise _error(function.__name__, name)
    return values[0] if len(values) == 1 else tuple(values)


@contextmanager
def named_errors(what: str) -> Iterator[None]:
    """Say what failed, in one line, of errors that NVIDIA's packages raise.

    Parameters
    ----------
    what
        What the block of code is about.

    Raises
    ------
    MemoryError
        If the GPU has no room for it.
    DeviceError
        If it fails in another way.
    """
    try:
        yield
    except Exception as e:
        # Older versions raise a RuntimeError where there is no driver.
        if type(e).__module__.partition(".")[0] != "cuda" and type(e) is not RuntimeError:
            raise
        raise _error(what, str(e)) from e


def _error(what: str, reason: str) -> Exception:
    reason = reason.replace("\0", "").strip()  # NVRTC's log ends with a zero
    if reason.startswith(_NO_MEMORY):
        return MemoryError(f"{what}: the GPU has no room for it ({_NO_MEMORY})")
    if "libnvrtc" in reason or '"nvrtc"' in reason:
        reason = f"NVIDIA's run-time compiler was not found: {_INSTALL}"
    if "libcuda" in reason or '"cuda"' in reason:
        return DeviceError("NVIDIA's driver was not found")
    # Behind the error's name, cuda-core has what its documentation says.
    name, _, explanation = reason.partition(": ")
    if name.startswith("CUDA_ERROR"):
        reason = f"{name} ({explanation.partition('.')[0]})" if explanation else name
    return DeviceError(f"{what}: {reason}")
