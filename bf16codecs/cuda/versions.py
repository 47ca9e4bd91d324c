"""Which CUDA the driver and the compiler are of."""

from __future__ import annotations

from typing import NamedTuple

from bf16codecs.cuda._driver import call, driver, nvrtc

__all__ = ["CudaVersion", "compiler_version", "driver_version"]


class CudaVersion(NamedTuple):
    """A version of CUDA."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


def driver_version() -> CudaVersion:
    """Return the newest CUDA that the driver knows."""
    version = call(driver.cuDriverGetVersion)
    return CudaVersion(version // 1000, version % 1000 // 10)


def compiler_version() -> CudaVersion:
    """Return the CUDA that NVRTC is of.

    Raises
    ------
    DeviceError
        If it is not installed.
    """
    return CudaVersion(*call(nvrtc.nvrtcVersion))
