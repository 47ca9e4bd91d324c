"""Which CUDA the driver and the compiler are of."""

from __future__ import annotations

from bf16codecs.cuda._driver import call, driver, nvrtc

__all__ = ["compiler_version", "driver_version"]


def driver_version() -> str:
    """Return the newest CUDA that the driver knows: ``"12.9"``."""
    version = call(driver.cuDriverGetVersion)
    return f"{version // 1000}.{version % 1000 // 10}"


def compiler_version() -> str:
    """Return the CUDA that NVRTC is of: ``"12.9"``.

    Raises
    ------
    DeviceError
        If it is not installed.
    """
    major, minor = call(nvrtc.nvrtcVersion)
    return f"{major}.{minor}"
