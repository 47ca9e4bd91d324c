"""Find a GPU that this package can decode on, if CUDA's packages are installed."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from bf16codecs.errors import DeviceError

if TYPE_CHECKING:
    from bf16codecs.cuda.device import Device

__all__ = ["found_gpu", "gpu_only_failure"]


def found_gpu(ordinal: int, data: str) -> Device | None:
    """Return GPU number `ordinal` if this package can decode on it; None if the host has to decode.

    None without the packages of the extra ``cuda``; None with a warning, which names `data`, if the
    driver or the compiler cannot be used.
    """
    try:
        from bf16codecs.cuda.compiling import expect_compiler
        from bf16codecs.cuda.device import Device
    except ImportError:
        return None
    try:
        gpu = Device.of(ordinal)
        expect_compiler(gpu.compute_capability)
        return gpu
    except DeviceError as e:
        warnings.warn(f"{e}; {data} are decoded on the host", stacklevel=3)
        return None


def gpu_only_failure(label: str, gpu: Device) -> DeviceError:
    """Return the error for data that the host can decode and the GPU cannot."""
    return DeviceError(
        f"{label}: GPU {gpu.ordinal} ({gpu.name}) could not decode it, but the host can. Please"
        " report this; until then, read it to the CPU and copy it to the GPU"
    )
