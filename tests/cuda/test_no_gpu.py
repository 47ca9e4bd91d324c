"""Messages without a GPU, without a driver, or with old ones, each in its own process."""

from __future__ import annotations

import pytest

import cuda_driver

pytestmark = pytest.mark.slow

CODE = """
import ctypes, sys
for library in sys.argv[1:]:
    ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
from bf16codecs.cuda.device import Device
from bf16codecs.errors import DeviceError
try:
    print(Device.of(0).name)
except DeviceError as error:
    print(error)
"""


@pytest.fixture
def library(driver) -> str:
    if driver is None:
        pytest.skip("there is a GPU")
    return driver.path


def test_no_driver(run_python) -> None:
    if cuda_driver.has_gpu():
        pytest.skip("there is a GPU")
    said = run_python(CODE).stdout
    assert said == "no NVIDIA GPU can be used: NVIDIA's driver was not found\n"


def test_no_gpu(run_python, library: str) -> None:
    said = run_python(CODE, library, BF16CODECS_STAND_IN_DEVICES="0").stdout
    assert said.startswith("no NVIDIA GPU can be used: cuInit: CUDA_ERROR_NO_DEVICE")


def test_an_old_driver(run_python, library: str) -> None:
    said = run_python(CODE, library, BF16CODECS_STAND_IN_VERSION="11080").stdout
    assert said == "the NVIDIA driver is for CUDA 11.8; CUDA 12 or later is needed\n"


def test_an_old_gpu(run_python, library: str) -> None:
    """That the compiler of CUDA 12 knows."""
    said = run_python(CODE, library, BF16CODECS_STAND_IN_ARCH="61").stdout
    assert said == "GPU 0 (Stand-in 0) has compute capability 6.1; at least 7.0 is needed\n"


def test_a_gpu(run_python, library: str) -> None:
    assert run_python(CODE, library).stdout == "Stand-in 0\n"
