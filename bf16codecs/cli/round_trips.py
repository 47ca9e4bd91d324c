"""Round trips of a model with every codec, which the command `demo` shows."""

from __future__ import annotations

import filecmp
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bf16codecs._base.tables import Column, format_size
from bf16codecs.convert import DEFAULT_CODEC, safetensors_to_zarr, zarr_to_safetensors
from bf16codecs.safetensors import read_header
from bf16codecs.store.choice import CodecChoice

__all__ = ["CODECS", "COLUMNS", "RoundTrip", "explanation", "measure", "name_of"]

# Codecs and levels in the order in which they are shown.
CODECS: list[tuple[str, str | None]] = [
    ("arithmetic", "fast"),
    ("arithmetic", "best"),
    ("huffman", None),
    ("zstd", None),
    ("split", None),
    ("none", None),
]

# Copies of the small model up to this size show the speeds of a large one.
_MEASURED_BYTES = 1 << 25
_REPEATS = 3

COLUMNS = [
    Column("codec"),
    Column("store", least=9),
    Column("ratio"),
    Column("bits/value", rank=1),
    Column("encode", rank=2, least=10),
    Column("decode", rank=2, least=10),
    Column("restored", is_text=True, rank=3, least=9),
]


@dataclass(frozen=True)
class RoundTrip:
    """Sizes and speeds of one codec."""

    name: str
    nbytes: int
    #: Size of the whole store, with its metadata.
    stored_nbytes: int
    #: Bits per value, without the store's metadata.
    bits: float
    #: Bytes per second in memory.
    encode_rate: float
    decode_rate: float
    exact: bool

    @property
    def ratio(self) -> float:
        """Size of the file divided by that of the store."""
        return self.nbytes / self.stored_nbytes

    @property
    def cells(self) -> tuple[str, ...]:
        """The figures of the table's row."""
        return (
            self.name,
            format_size(self.stored_nbytes),
            f"{self.ratio:.3f}",
            f"{self.bits:.2f}",
            f"{self.encode_rate / 1e9:.2f} GB/s",
            f"{self.decode_rate / 1e9:.2f} GB/s",
            "bit-exact" if self.exact else "DIFFERS",
        )


def name_of(codec: str, level: str | None) -> str:
    """Return the name of a codec with its level."""
    return f"{codec} {level or ''}".strip()


def measure(model: Path, folder: Path, codec: str, level: str | None) -> RoundTrip:
    """Convert a model there and back in `folder`, and time the codec alone."""
    store, restored = folder / f"{codec}-{level}.zarr", folder / f"{codec}-{level}.safetensors"
    summary = safetensors_to_zarr(model, store, codec=codec, level=level)
    zarr_to_safetensors(store, restored)
    data = np.fromfile(model, np.uint8, offset=read_header(model).data_start)
    encode: Callable[[Any], Any] = np.copy
    decode: Callable[[Any, Any], Any] = np.copyto
    coder = CodecChoice(codec, level).for_dtype("bfloat16")
    if coder is not None:
        encode, decode = coder.encode, lambda out, encoded: coder.decode(encoded, out=out)
    # Each copy is encoded alone, since Zstandard would find the one before.
    copies = np.tile(data, (_MEASURED_BYTES // data.size, 1))
    out = np.zeros_like(copies)
    encoded = [encode(copy) for copy in copies]
    encode_time = min(_seconds(lambda: [encode(copy) for copy in copies]) for _ in range(_REPEATS))
    decode_time = min(
        _seconds(lambda: [decode(o, e) for o, e in zip(out, encoded, strict=True)])
        for _ in range(_REPEATS)
    )
    return RoundTrip(
        name_of(codec, level),
        summary.nbytes,
        summary.stored_nbytes,
        16 * len(encoded[0]) / data.size,
        copies.size / encode_time,
        copies.size / decode_time,
        filecmp.cmp(model, restored, shallow=False) and np.array_equal(out, copies),
    )


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def explanation(results: list[RoundTrip]) -> Iterator[str]:
    """Explain the figures, and why the default codec may not be the smallest."""
    yield ""
    yield "store, ratio: of the whole store with its metadata, as st2zarr and info show them;"
    yield "bits/value: of the weights alone; encode, decode: in memory"
    default = next(r for r in results if r.name.split()[0] == DEFAULT_CODEC)
    smaller = [r for r in results if r.stored_nbytes < default.stored_nbytes]
    if smaller:
        yield f"The default, {default.name}, is not the smallest here:"
    for other in smaller:
        line = f"  {other.name}: {1 - other.stored_nbytes / default.stored_nbytes:.1%} smaller"
        if other.bits >= default.bits:
            yield f"{line}, because of shorter metadata, not smaller weights"
        else:
            encode = default.encode_rate / other.encode_rate
            decode = default.decode_rate / other.decode_rate
            yield f"{line}; takes {encode:.1f} times as long to encode, {decode:.1f} to decode"
