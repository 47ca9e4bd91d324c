"""Reads an array of a lossy Zarr store by docs/store.md, one number at a time.

It shares no code with the package, which is tested against it.
"""

from __future__ import annotations

import gzip
import itertools
import json
import math
import zlib
from pathlib import Path

from google_crc32c import value as crc32c

from reference_run_length import decode


def restored_tensor(store: Path, path: str) -> bytes:
    """Return the bytes of an FP32 tensor as it is restored."""
    if (store / "zarr.json").exists():
        document = json.loads((store / path / "zarr.json").read_text())
        own = document["attributes"]["bf16codecs"]
        chunks = document["chunk_grid"]["configuration"]["chunk_shape"]
        names = [codec["name"] for codec in document["codecs"]]
        assert document["data_type"] == "float16"
        prefix = "c."
    else:
        document = json.loads((store / path / ".zarray").read_text())
        own = json.loads((store / path / ".zattrs").read_text())["bf16codecs"]
        chunks = document["chunks"]
        assert document["filters"] == [{"id": "delta", "dtype": "<u2", "astype": "<u2"}]
        names = ["bytes", "bf16codecs.delta", document["compressor"]["id"]]
        assert document["dtype"] == "<f2"
        prefix = ""
    assert (own["dtype"], own["lossy"]["to"]) == ("F32", "float16")
    shape = document["shape"]
    # Chunks are whole rows: their numbers follow each other.
    items = []
    for index in itertools.product(
        *(range(-(-n // c)) for n, c in zip(shape, chunks, strict=True))
    ):
        name = prefix + ".".join(map(str, index)) if index else prefix.rstrip(".") or "0"
        stored = _integers(_unpacked((store / path / name).read_bytes(), names))
        assert len(stored) == math.prod(chunks)
        own_items = [min(c, n - i * c) for i, c, n in zip(index, chunks, shape, strict=True)]
        items += stored[: math.prod(own_items)]
    return b"".join(_as_float32(item).to_bytes(4, "little") for item in items)


def _unpacked(stored: bytes, names: list[str]) -> bytes:
    """Undo all codecs but the differences."""
    if names[1:] == ["bf16codecs.delta", "gzip"]:
        return gzip.decompress(stored)
    if names[1:] == ["bf16codecs.delta", "zlib"]:
        return zlib.decompress(stored)
    if names[1:] == ["bf16codecs.delta", "bf16codecs.rle", "crc32c"]:
        assert crc32c(stored[:-4]) == int.from_bytes(stored[-4:], "little")
        stored = stored[:-4]
    else:
        assert names[1:] == ["bf16codecs.delta", "bf16codecs.rle"]
    return decode(stored)


def _integers(differences: bytes) -> list[int]:
    items, total = [], 0
    for at in range(0, len(differences), 2):
        total = (total + int.from_bytes(differences[at : at + 2], "little")) % 65536
        items.append(total)
    return items


def _as_float32(half: int) -> int:
    """Return the bits of the float32 number that a float16 number is."""
    sign, exponent, fraction = half >> 15 << 31, half >> 10 & 0x1F, half & 0x3FF
    if exponent == 31:
        quiet = 1 << 22 if fraction else 0
        return sign | 255 << 23 | fraction << 13 | quiet
    if exponent:
        return sign | exponent + 112 << 23 | fraction << 13
    if not fraction:
        return sign
    shift = 11 - fraction.bit_length()  # subnormal: 2^-24 times the fraction
    return sign | 113 - shift << 23 | (fraction << shift & 0x3FF) << 13
