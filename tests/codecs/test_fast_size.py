"""Sizes at level "fast", whose tables come from samples, of arrays whose rows and columns differ.

Rows of 256, 1024 and 4096 values are those at which samples at equal distances meet the same rows.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from bf16codecs import BF16Arithmetic, BF16Huffman
from looping import for_each

COLUMNS = [256, 1000, 1024, 4096]
TYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}


def scaled(columns: int, kind: str) -> NDArray:
    array = np.random.default_rng(0).normal(0, 0.02, (2**20 // columns, columns))
    match kind:
        case "every 2nd row / 10":
            array[::2] /= 10
        case "every 4th row x 8":
            array[::4] *= 8
        case "every 8th row x 8":
            array[::8] *= 8
        case "left half x 8":
            array[:, : columns // 2] *= 8
        case "first half / 30":
            array[: len(array) // 2] /= 30
    return array


KINDS = [
    "every 2nd row / 10",
    "every 4th row x 8",
    "every 8th row x 8",
    "left half x 8",
    "first half / 30",
]


@for_each("kind", KINDS)
@for_each("columns", COLUMNS)
def test_tables_from_samples_take_little_more_than_counts_of_all(columns, kind):
    # Huffman codes count all symbols, and take 0.02 bits more than arithmetic ones.
    for dtype, bits in (("bfloat16", 0.13), ("float32", 0.13)):
        array = scaled(columns, kind).astype(TYPES[dtype])
        fast = BF16Arithmetic(dtype=dtype).encode(array)
        counted = BF16Huffman(dtype=dtype).encode(array)
        assert (len(fast) - len(counted)) * 8 / array.size < bits


@for_each("first", [0, 1])
@for_each("columns", COLUMNS)
def test_zeros_in_every_second_row_are_found(columns, first):
    array = scaled(columns, "").astype(TYPES["bfloat16"])
    rows = BF16Arithmetic().encode(np.ascontiguousarray(array[1 - first :: 2]))
    array[first::2] = 0
    frame = BF16Arithmetic().encode(array)
    assert len(frame) < len(rows) + 1.05 * array.size / 8
