"""What the tests of zarr's arrays share."""

import pytest
import zarr

from bits import PIPELINES


@pytest.fixture(params=PIPELINES, ids=lambda path: path.rpartition(".")[2])
def pipeline(request):
    """Let zarr run codecs through each of its pipelines."""
    with zarr.config.set({"codec_pipeline.path": request.param}):
        yield
