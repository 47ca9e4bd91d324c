"""Results of a benchmark on a GPU."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from bf16codecs.bench.host import Machine, machine
from bf16codecs.bench.measure import Rates
from bf16codecs.cuda.device import Device, KernelNeeds
from bf16codecs.cuda.sources import kernel_names
from bf16codecs.cuda.versions import compiler_version, driver_version
from bf16codecs.model.gpu import LOADING_THREADS

__all__ = ["Gpu", "GpuResult", "Unmeasured", "gpu_machine", "host_machine", "result_of"]

# Beside this one's; nvCOMP's has several names.
_PACKAGES = (
    "numpy",
    "cuda-core",
    "cuda-bindings",
    "nvidia-nvcomp-cu13",
    "nvidia-nvcomp-cu12",
    "torch",
    "safetensors",
)


@dataclass(frozen=True)
class GpuResult:
    """The result of one contender; rates in GB/s of decoded bytes, ratios to the reference's.

    `planes` says how the frames' planes are coded. The reference is what the table says, in the
    same round each time.
    """

    table: str
    name: str
    nbytes: int
    rounds: int
    encoded_nbytes: int
    gbps: float
    gbps_min: float
    gbps_max: float
    to_reference: float
    exact: bool
    planes: str = ""

    @property
    def ratio(self) -> float:
        """Decoded size over encoded size."""
        return self.nbytes / max(1, self.encoded_nbytes)


@dataclass(frozen=True)
class Unmeasured:
    """A contender that was not measured, why, and whether that is because it failed."""

    table: str
    name: str
    why: str
    failed: bool


@dataclass(frozen=True)
class Gpu:
    """The GPU of a measurement, and what is between it and this package.

    `free_nbytes` and `total_nbytes` are of its memory, before anything is measured; `kernels` says
    what each of the package's kernels takes of a multiprocessor.
    """

    ordinal: int
    name: str
    compute_capability: str
    multiprocessors: int
    free_nbytes: int
    total_nbytes: int
    driver: str
    nvrtc: str
    kernels: dict[str, KernelNeeds]


def gpu_machine(device: Device) -> Gpu:
    """Describe a GPU; the kernels are compiled for that, unless they are kept from before."""
    major, minor = device.compute_capability
    return Gpu(
        device.ordinal,
        device.name,
        f"{major}.{minor}",
        device.multiprocessors,
        *device.room,
        str(driver_version()),
        str(compiler_version()),
        {name: device.needs(name) for name in kernel_names()},
    )


def host_machine() -> Machine:
    """Describe what the GPU is in, with the packages that are measured on it."""
    host = machine(LOADING_THREADS)
    versions = {name: host.versions[name] for name in ("bf16codecs", "python")}
    for name in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return replace(host, versions=versions)


def result_of(
    table: str,
    name: str,
    nbytes: int,
    encoded_nbytes: int,
    seconds: Sequence[float],
    reference: Sequence[float],
    exact: bool,
    planes: str = "",
) -> GpuResult:
    """Return a contender's result.

    Parameters
    ----------
    table, name
        Which one.
    nbytes, encoded_nbytes
        Decoded and encoded size.
    seconds, reference
        What each round took, and what the reference took in it.
    exact
        Whether all was what it should be.
    planes
        How the frames' planes are coded.
    """
    rates = Rates.of(nbytes, seconds, reference)
    return GpuResult(
        table=table,
        name=name,
        nbytes=nbytes,
        rounds=len(seconds),
        encoded_nbytes=encoded_nbytes,
        gbps=rates.median,
        gbps_min=rates.least,
        gbps_max=rates.most,
        to_reference=rates.to_memcpy,
        exact=exact,
        planes=planes,
    )
