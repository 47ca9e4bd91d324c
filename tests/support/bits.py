"""Comparing arrays by their bits, and the codec pipelines that zarr has."""

import numpy as np
import zarr

# The second one came with zarr 3.3.
PIPELINES = [
    f"zarr.core.codec_pipeline.{name}"
    for name in ("BatchedCodecPipeline", "FusedCodecPipeline")
    if hasattr(zarr.core.codec_pipeline, name)
]


def bits(values):
    """View numbers as unsigned integers."""
    values = np.asarray(values)
    return values.view(f"u{values.itemsize}")


def assert_same_bits(actual, expected):
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(bits(actual), bits(expected))
