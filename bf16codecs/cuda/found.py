"""Which GPU can be used; this can be asked without the packages that it takes."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from bf16codecs.errors import DeviceError

if TYPE_CHECKING:
    from bf16codecs.cuda.device import Device

__all__ = ["found_gpu", "only_there"]


def found_gpu(ordinal: int, what: str) -> Device | None:
    """Return a GPU if this package can decode there.

    That takes the packages of the extra ``cuda``. Without them, the host has to decode, and so it
    does if the driver or the compiler is of no use, which is warned of.

    Parameters
    ----------
    ordinal
        Which one, as CUDA numbers them.
    what
        What would be decoded, for the warning.
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
        warnings.warn(f"{e}; {what} are decoded on the host", stacklevel=3)
        return None


def only_there(label: str, gpu: Device) -> DeviceError:
    """Return the error for what is damaged on a GPU, and not on the host."""
    return DeviceError(
        f"{label}: GPU {gpu.ordinal} ({gpu.name}) could not decode it, and the host can. Please"
        " report it; what is read to the CPU is right, and can be copied"
    )
