"""A GPU, or the stand-in for one."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cuda_driver
from cuda_driver import HOST_KERNELS, StandIn

KINDS = ("blocks", "streams", "events")


class Skipped(pytest.Module):
    """A file of tests whose packages are missing. All are skipped in one line."""

    def collect(self) -> Any:
        pytest.skip("needs cuda-core", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: Any) -> pytest.Module | None:
    if cuda_driver.has_cuda_core():
        return None
    return Skipped.from_parent(parent, path=module_path)


@pytest.fixture(autouse=True)
def kept_kernels(tmp_path: Path, monkeypatch) -> Path:
    """Return the folder of compiled kernels, one for each test."""
    monkeypatch.setenv("BF16CODECS_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> StandIn | None:
    """Return the driver's stand-in, with the tests' own kernels; None where there is a GPU."""
    if reason := cuda_driver.why_not():
        pytest.skip(reason)
    if cuda_driver.has_gpu():
        return None
    folder = tmp_path_factory.mktemp("driver")
    os.environ[HOST_KERNELS] = str(cuda_driver.build_test_kernels(folder))
    return StandIn(cuda_driver.build_driver(folder))


@pytest.fixture
def gpu(driver: StandIn | None) -> Iterator[StandIn | None]:
    """Return `driver`; check after the test that nothing is left or misused."""
    if driver is None:
        yield None
        return
    gc.collect()
    before = {kind: driver.live(kind) for kind in KINDS}
    yield driver
    driver.fail("")
    driver.set_memory()
    gc.collect()
    assert {kind: driver.live(kind) for kind in KINDS} == before
    assert driver.misuse() == ""


@pytest.fixture
def stand_in(gpu: StandIn | None) -> StandIn:
    """Return the driver's stand-in, for faults that a GPU cannot be made to have."""
    if gpu is None:
        pytest.skip("needs the driver's stand-in")
    return gpu


@pytest.fixture
def cupy(gpu, monkeypatch) -> Iterator[Any]:
    """Return CuPy or its stand-in, with zarr's buffers on it."""
    zarr: Any = pytest.importorskip("zarr")
    import cupy_stand_in

    module = pytest.importorskip("cupy") if gpu is None else cupy_stand_in.module()
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setattr("zarr.core.buffer.gpu.cp", module)
    with zarr.config.enable_gpu():
        yield module
    if gpu is not None:
        cupy_stand_in.module()  # streams go
    gc.collect()


@pytest.fixture(scope="session")
def needs_torch() -> None:
    pytest.importorskip("torch", reason="needs torch")
