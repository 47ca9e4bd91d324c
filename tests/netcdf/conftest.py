from __future__ import annotations

import pytest

from netcdf_readers import Reader, has_netcdf4, no_programs


@pytest.fixture(scope="session", params=["python", "c"])
def reader(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """Return a reader of files, or stores, by netCDF-C."""
    if request.param == "python" and not has_netcdf4():
        pytest.skip("netCDF4 is not installed")
    if request.param == "c" and no_programs():
        pytest.skip(no_programs())
    return Reader(request.param, tmp_path_factory.mktemp("netcdf"))


@pytest.fixture
def programs() -> None:
    """Skip a test where netCDF-C's programs are missing."""
    if no_programs():
        pytest.skip(no_programs())


@pytest.fixture
def netcdf4() -> None:
    """Skip a test where the Python package, which has its own filters, is missing."""
    if not has_netcdf4():
        pytest.skip("netCDF4 is not installed")
