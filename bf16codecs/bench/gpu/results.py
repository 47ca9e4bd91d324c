"""Results of a benchmark on a GPU."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from bf16codecs.bench.host import Machine, machine
from bf16codecs.bench.measure import Rates
from bf16codecs.cuda.device import Device, KernelNeeds
from bf16codecs.cuda.nvidia import compiler_version, driver_version
from bf16codecs.cuda.sources import kernel_names
from bf16codecs.model.gpu import LOADING_THREADS

__all__ = ["Gpu", "GpuResult", "Unmeasured", "gpu_machine", "host_machine", "result_of"]

# Packages whose versions are reported beside this one's; nvCOMP has several names.
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
    """A contender's result: rates in GB/s of decoded bytes, ratios to the table's reference.

    Each round compares with the reference of the same round. `planes` names the modes of the
    frames' planes.
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
    """A contender that was not measured, the reason, and whether it failed."""

    table: str
    name: str
    why: str
    failed: bool


@dataclass(frozen=True)
class Gpu:
    """The GPU of a measurement, its driver and its compiler.

    `free_nbytes` and `total_nbytes` describe its memory before measuring; `kernels` has the
    resources that each of the package's kernels needs on a multiprocessor.
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
    """Describe a GPU; this compiles the kernels unless they are cached."""
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
    """Describe the GPU's host, with the versions of the measured packages."""
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
        Table and name of the contender.
    nbytes, encoded_nbytes
        Decoded and encoded size.
    seconds, reference
        Seconds of each round, and those of the reference in the same round.
    exact
        Whether all bytes were as expected.
    planes
        Modes of the frames' planes.
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
