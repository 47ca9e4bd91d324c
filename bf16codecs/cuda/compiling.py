"""Compile the kernels with NVRTC on the machine that runs them, once for each kind of GPU.

For a GPU that is newer than the compiler, NVRTC makes PTX, which the driver compiles.
"""

from __future__ import annotations

import functools
import hashlib
import io
import os
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from bf16codecs._base.forks import make_lock
from bf16codecs._base.messages import install_extra
from bf16codecs.cuda.nvidia import (
    FileStreamProgramCache,
    call,
    compiler_version,
    core,
    driver_version,
    make_program_cache_key,
    named_errors,
    nvrtc,
)
from bf16codecs.cuda.sources import NVRTC_HEADERS, Sources, kernel_sources
from bf16codecs.errors import DeviceError

__all__ = [
    "Code",
    "architectures",
    "cache_folder",
    "compile_source",
    "compiled",
    "expect_compiler",
    "newer_than_driver",
]

# The compiled kernels of one version for one GPU take half a megabyte.
_CACHE_BYTES = 64 << 20
_DIGEST_BYTES = 32


# If two compilers are installed, cuda-bindings takes the newer one.
_OTHER_COMPILER = (
    f"; the compiler of CUDA 12 may work, if it is the only one: pip uninstall nvidia-cuda-nvrtc; "
    f"{install_extra('cuda12')}"
)


class Code(NamedTuple):
    """A compiled source file."""

    #: A cubin, or PTX.
    code: bytes
    #: Whether it is PTX.
    is_ptx: bool


_compiled: dict[tuple[tuple[int, int], bytes], Code] = {}
_lock = make_lock()


def compiled(kernel: str, capability: tuple[int, int]) -> Code:
    """Return a kernel from the cache, or compile it; raise DeviceError if that is impossible."""
    sources = kernel_sources(kernel)
    with _lock:
        key = capability, sources.digest
        if key not in _compiled:
            _compiled[key] = _kept(capability, sources)
        return _compiled[key]


@functools.cache  # called for each chunk
def expect_compiler(capability: tuple[int, int]) -> None:
    """Raise DeviceError if no compiler is installed for a compute capability."""
    _options(capability)


def newer_than_driver() -> str:
    """Return advice for a compiler of a later CUDA than the driver; else an empty string.

    Within a major version, every driver loads the code of every compiler.
    """
    if compiler_version().major <= driver_version().major:
        return ""
    versions = f"NVRTC {compiler_version()} made it, and the driver is for CUDA {driver_version()}"
    return f"; {versions}{_OTHER_COMPILER}"


def architectures() -> list[int]:
    """Return the architectures that NVRTC supports, sorted: 90 is compute capability 9.0."""
    return sorted(call(nvrtc.nvrtcGetSupportedArchs))


def compile_source(
    capability: tuple[int, int], sources: Sources, report: io.StringIO | None = None
) -> Code:
    """Compile a source file for a compute capability.

    `report` receives the assembler's report of the registers and memory that the kernels use.
    Raises DeviceError if there is no compiler, or it fails; the message has its output.
    """
    options, is_ptx = _options(capability)
    included = [str(sources.folder), str(NVRTC_HEADERS)]
    options = replace(options, include_path=included)
    if report is not None:
        options = replace(options, ptxas_options=["-v"])
    with named_errors(f"{sources.name} for compute capability {capability[0]}.{capability[1]}"):
        program = core.Program(sources.text, "c++", options)
        result = program.compile("ptx" if is_ptx else "cubin", logs=report)
        return Code(bytes(result.code), is_ptx)


def cache_folder() -> Path | None:
    """Return the folder of the cache of compiled kernels; None without a home folder."""
    if given := os.environ.get("BF16CODECS_CACHE_DIR"):
        return Path(given).expanduser()
    variable, below_home = "XDG_CACHE_HOME", ".cache"
    if sys.platform == "win32":
        variable, below_home = "LOCALAPPDATA", "AppData/Local"
    if (caches := os.environ.get(variable, "")) and Path(caches).is_absolute():
        return Path(caches) / "bf16codecs"
    try:
        return Path.home() / below_home / "bf16codecs"
    except RuntimeError:
        return None


def _options(capability: tuple[int, int]) -> tuple[Any, bool]:
    """Return the compiler's options for a GPU, without folders, and whether the result is PTX."""
    arch = 10 * capability[0] + capability[1]
    known = architectures()
    is_ptx = arch not in known
    older = [a for a in known if a <= arch]
    if not older:
        raise DeviceError(
            f"NVRTC {compiler_version()} compiles for GPUs of compute capability {known[0] / 10}"
            f" and newer, not {arch / 10}{_OTHER_COMPILER if arch >= 70 else ''}"
        )
    target = f"compute_{older[-1]}" if is_ptx else f"sm_{arch}"
    options = core.ProgramOptions(
        name="kernel.cu",
        arch=target,
        std="c++20",
        # Headers shared with the CPU have functions without __device__.
        device_as_default_execution_space=True,
    )
    return options, is_ptx


def _kept(capability: tuple[int, int], sources: Sources) -> Code:
    """Return kernels from the cache, or compile and cache them.

    cuda-core synchronizes processes and evicts old code, but only the digest detects damage.
    """
    options, is_ptx = _options(capability)
    with named_errors("NVRTC"):
        # Without folders, so that all installations of one version share the cache.
        key = make_program_cache_key(
            code=sources.text,
            code_type="c++",
            options=options,
            target_type="ptx" if is_ptx else "cubin",
            extra_digest=sources.digest,
        )
    cache = _open_cache()
    if cache is not None:
        with suppress(OSError):
            kept = cache.get(key) or b""
            if _digest(kept[_DIGEST_BYTES:]) == kept[:_DIGEST_BYTES]:
                return Code(kept[_DIGEST_BYTES:], is_ptx)
    code = compile_source(capability, sources)
    if cache is not None:
        with suppress(OSError):
            cache[key] = _digest(code.code) + code.code
    return code


def _open_cache() -> Any:
    folder = cache_folder()
    if folder is None:
        return None
    try:
        return FileStreamProgramCache(folder / "cuda", max_size_bytes=_CACHE_BYTES)
    except OSError:  # not creatable or not writable
        return None


def _digest(code: bytes) -> bytes:
    return hashlib.sha256(code).digest()
