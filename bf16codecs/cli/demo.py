"""The command `demo`: a round trip of a small model with every codec."""

from __future__ import annotations

import filecmp
import importlib.resources
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from bf16codecs import _interrupt
from bf16codecs.cli.console import format_rate, format_size, print_table, show
from bf16codecs.cli.options import command
from bf16codecs.convert import safetensors_to_zarr, zarr_to_safetensors
from bf16codecs.safetensors import read_header
from bf16codecs.store.choice import CodecChoice

__all__ = ["demo"]

# Codecs and levels in the order in which they are shown.
_CODECS: list[tuple[str, str | None]] = [
    ("arithmetic", "fast"),
    ("arithmetic", "best"),
    ("huffman", None),
    ("zstd", None),
    ("split", None),
    ("none", None),
]

# The demo's model is small; repeated to this size, it shows the speeds of a large one.
_MEASURED_BYTES = 1 << 25
_REPEATS = 3


@dataclass(frozen=True)
class _Result:
    """Sizes and speeds of one codec."""

    stored_nbytes: int
    #: Bits per value, without the store's metadata.
    bits: float
    #: Bytes per second in memory.
    encode_rate: float
    decode_rate: float
    exact: bool


def _measure(model: Path, folder: Path, codec: str, level: str | None) -> _Result:
    """Convert a model there and back in `folder`, and time the codec alone."""
    store, restored = folder / f"{codec}-{level}.zarr", folder / f"{codec}-{level}.safetensors"
    summary = safetensors_to_zarr(model, store, codec=codec, level=level)
    zarr_to_safetensors(store, restored)
    _interrupt.finish(None)  # both are temporary
    data = np.fromfile(model, np.uint8, offset=read_header(model).data_start)
    values = data.size // 2
    data = np.resize(data[: values * 2], _MEASURED_BYTES)
    encode: Callable[[Any], Any] = np.copy
    decode: Callable[[Any, Any], Any] = np.copyto
    coder = CodecChoice(codec, level).for_dtype("bfloat16")
    if coder is not None:
        encode, decode = coder.encode, lambda out, encoded: coder.decode(encoded, out=out)
    encoded, out = encode(data), np.zeros_like(data)
    encode_time = min(_seconds(lambda: encode(data)) for _ in range(_REPEATS))
    decode_time = min(_seconds(lambda: decode(out, encoded)) for _ in range(_REPEATS))
    return _Result(
        summary.stored_nbytes,
        16 * len(encoded) / data.size,
        data.size / encode_time,
        data.size / decode_time,
        filecmp.cmp(model, restored, shallow=False) and np.array_equal(out, data),
    )


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@click.command()
@command
def demo() -> None:
    """Take a small trained model through the whole round trip, with every codec."""
    resource = importlib.resources.files("bf16codecs") / "data" / "demo.safetensors"
    with importlib.resources.as_file(resource) as model, tempfile.TemporaryDirectory() as folder:
        header = read_header(model)
        values = (header.file_size - header.data_start) // 2
        show(f"A language model of {values} BF16 weights, {format_size(header.file_size)}")
        rows = []
        for name, level in _CODECS:
            result = _measure(model, Path(folder), name, level)
            rows.append(
                (
                    f"{name} {level or ''}".strip(),
                    format_size(result.stored_nbytes),
                    f"{result.bits:.2f}",
                    f"{16 / result.bits:.3f}",
                    format_rate(result.encode_rate, 1),
                    format_rate(result.decode_rate, 1),
                    "bit-exact" if result.exact else "DIFFERS",
                )
            )
    titles = ("codec", "store", "bits/value", "ratio", "encode", "decode", "round trip")
    print_table(titles, rows)
    if any(row[-1] != "bit-exact" for row in rows):
        raise ValueError("a round trip was not bit-exact")
