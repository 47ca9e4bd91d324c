"""Contenders that encode a model in blocks, as the earlier systems did."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from bf16codecs import _core
from bf16codecs._base.threads import run_ahead
from bf16codecs.bench.contenders import Contender
from bf16codecs.bench.data import Bytes, Payload
from bf16codecs.codecs import decode

__all__ = ["frame", "in_blocks"]


def _cut(data: Bytes, nbytes: int) -> list[Bytes]:
    return [data[start : start + nbytes] for start in range(0, data.size, nbytes)]


def in_blocks(contender: Contender, nbytes: int, workers: int = 1) -> Contender:
    """Return a contender that encodes each block alone, several at a time.

    The `decode` of the given contender must write to `out`.
    """

    def encode_blocks(data: Bytes) -> list[Bytes]:
        jobs = (partial(contender.encode, block) for block in _cut(data, nbytes))
        return list(run_ahead(jobs, workers))

    def decode_blocks(encoded: list[Bytes], out: Bytes) -> Bytes:
        blocks = zip(encoded, _cut(out, nbytes), strict=True)
        for _ in run_ahead((partial(contender.decode, *block) for block in blocks), workers):
            pass
        return out

    return replace(contender, encode=encode_blocks, decode=decode_blocks, threads=workers)


def frame(
    name: str,
    payload: Payload,
    codec: str,
    block_items: int,
    *,
    level: str = "fast",
    by_byte: bool = False,
    threads: int = 1,
) -> Contender:
    """Return a codec of this package that writes one frame with blocks of `block_items` items."""
    options = {"level": _core.LEVELS[level], "by_byte": by_byte, "block": block_items}
    number, dtype = _core.CODECS[codec], _core.DTYPES[payload.dtype]
    return Contender(
        name,
        lambda data: _core.encode(data, number, dtype, **options),  # type: ignore[arg-type]
        lambda encoded, out: decode(encoded, out),
        threads,
    )
