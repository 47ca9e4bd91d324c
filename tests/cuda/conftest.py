"""A GPU, or what stands in for one."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import cuda_driver
from cuda_driver import HOST_KERNELS, StandIn


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> StandIn | None:
    """Return the driver's stand-in; None where there is a GPU."""
    if reason := cuda_driver.why_not():
        pytest.skip(reason)
    if cuda_driver.has_gpu():
        return None
    folder = tmp_path_factory.mktemp("driver")
    os.environ[HOST_KERNELS] = str(cuda_driver.build_test_kernels(folder))
    return StandIn(cuda_driver.build_driver(folder))


@pytest.fixture
def stand_in(driver: StandIn | None) -> StandIn:
    """Return the driver's stand-in, for what a GPU cannot be made to do."""
    if driver is None:
        pytest.skip("needs the driver's stand-in")
    return driver


@pytest.fixture(autouse=True)
def cleanly(driver: StandIn | None, tmp_path: Path, monkeypatch) -> Iterator[None]:
    """Compare what there is before and after each test, and keep compiled kernels to it."""
    monkeypatch.setenv("BF16CODECS_CACHE_DIR", str(tmp_path / "cache"))
    if driver is None:
        yield
        return
    gc.collect()
    kinds = ("blocks", "streams", "events")
    before = {kind: driver.live(kind) for kind in kinds}
    yield
    driver.fail("")
    driver.become()
    gc.collect()
    assert {kind: driver.live(kind) for kind in kinds} == before
    assert driver.misuse() == ""
