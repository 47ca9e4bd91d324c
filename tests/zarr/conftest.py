"""Fixtures of the tests of zarr's arrays."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import zarr

from bits import PIPELINES


@pytest.fixture(params=PIPELINES, ids=lambda path: path.rpartition(".")[2])
def pipeline(request):
    """Let zarr run codecs through each of its pipelines."""
    with zarr.config.set({"codec_pipeline.path": request.param}):
        yield


@pytest.fixture
def new_folder(tmp_path: Path) -> Callable[[], Path]:
    """Return a function that makes an empty folder: one for each case of a loop."""
    numbers = itertools.count()

    def make() -> Path:
        folder = tmp_path / f"case-{next(numbers)}"
        folder.mkdir()
        return folder

    return make
