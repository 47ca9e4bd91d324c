"""The machine of a measurement."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from bf16codecs import _core
from bf16codecs._base.version import __version__
from bf16codecs.bench.peers import PACKAGES

__all__ = ["Machine", "machine"]


@dataclass(frozen=True)
class Machine:
    """The machine and package versions of a measurement."""

    cpu: str
    cores: int
    isa: str
    threads: int
    versions: dict[str, str]


def machine(threads: int = 1) -> Machine:
    """Describe this machine and the versions of the measured packages."""
    versions = {"bf16codecs": __version__, "python": platform.python_version()}
    for name in ("numpy", *PACKAGES):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return Machine(_cpu(), os.cpu_count() or 1, _core.active_isa(), threads, versions)


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
