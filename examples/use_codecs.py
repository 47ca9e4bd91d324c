"""Compress an array of weights in both Zarr formats, and compare the codecs' sizes.

python examples/use_codecs.py [FOLDER]
"""

import sys
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import zarr

from bf16codecs import BF16Arithmetic, BF16Huffman, BF16Split, BF16Zstd
from bf16codecs.zarr import BF16BlocksCodec

CODECS = [BF16Split(), BF16Huffman(), BF16Arithmetic(), BF16Zstd(level=3)]


def main(folder: Path) -> None:
    weights = np.random.default_rng(0).normal(0, 0.02, (2048, 1024)).astype(ml_dtypes.bfloat16)
    # Fill with NaN: zarr does not store chunks that equal the fill value, and -0.0 equals 0.0.
    common = {"data": weights, "chunks": (512, 1024), "fill_value": float("nan")}

    print(f"{'codec':<12}{'format 2':>10}{'format 3':>10}   bits per value")
    for codec in CODECS:
        name = codec.codec_id.removeprefix("bf16codecs.")
        sizes = []
        for zarr_format in (2, 3):
            store = folder / f"{name}-v{zarr_format}.zarr"
            array = zarr.create_array(store, compressors=codec, zarr_format=zarr_format, **common)
            assert array[:].tobytes() == weights.tobytes()
            sizes.append(array.nbytes_stored())
        print(f"{name:<12}{sizes[0]:>10}{sizes[1]:>10}   {8 * sizes[1] / weights.size:.3f}")

    # With the codec as serializer, zarr fetches and decodes only the blocks that a slice touches.
    # No compressor may follow it.
    array = zarr.create_array(
        folder / "blocks.zarr", serializer=BF16BlocksCodec("huffman"), compressors=None, **common
    )
    assert array[1000, 3:9].tobytes() == weights[1000, 3:9].tobytes()
    print(f"stores in {folder}")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit("usage: use_codecs.py [FOLDER]")
    try:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp()))
    except (OSError, ValueError) as error:
        sys.exit(f"use_codecs.py: {error}")
