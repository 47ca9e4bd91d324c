"""System B: Huffman codes of high bytes, or arithmetic coding of both bytes, in small blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numcodecs
import numpy as np

from bf16codecs._base.memory import give_back_freed_memory, no_peak_because, peak_memory
from bf16codecs._base.threads import codec_threads
from bf16codecs.bench.contenders import Contender, of_codec
from bf16codecs.bench.data import Bytes, Payload
from bf16codecs.bench.isolated import in_a_process
from bf16codecs.bench.systems.blocks import frame, in_blocks
from bf16codecs.errors import CodecError

__all__ = ["contenders", "figures"]

# Block sizes that the system's study compared; it chose the largest.
_BLOCKS = tuple(1 << k for k in range(16, 21))
_MODES = (
    ("FAST: BF16Huffman", "huffman", "fast"),
    ("BF16Arithmetic fast", "arithmetic", "fast"),
    ("BEST: BF16Arithmetic best", "arithmetic", "best"),
)
_FLIPS = 200


def contenders(payload: Payload, threads: Sequence[int]) -> Iterator[Contender]:
    """Yield both modes in blocks of every size, and their original competitors."""
    for n in threads:
        for nbytes in _BLOCKS if n == 1 else _BLOCKS[-1:]:
            yield from _modes(payload, nbytes, n)
    yield of_codec("gzip -1", numcodecs.GZip(1))
    yield of_codec("gzip -9", numcodecs.GZip(9), slow=True)
    yield of_codec("bzip2", numcodecs.BZ2(9), slow=True)
    yield of_codec("xz -9", numcodecs.LZMA(preset=9), slow=True)
    yield of_codec("zstd -1", numcodecs.Zstd(1))


def _modes(payload: Payload, nbytes: int, threads: int = 1) -> Iterator[Contender]:
    for name, codec, level in _MODES:
        name = f"{name}, {nbytes >> 10} KiB"
        items = nbytes // payload.item_size
        yield frame(name, payload, codec, items, level=level, threads=threads)


def figures(payload: Payload) -> Iterator[tuple[str, str]]:
    """Yield entropies, memory while streaming a model, and the share of damage that is noticed."""
    for name, bits in _entropies(payload.data):
        yield f"entropy, {name}", f"{bits:.3f} bits a byte"
    for mode in _modes(payload, _BLOCKS[-1]):
        call = partial(_working_memory, in_blocks(mode, _BLOCKS[-1]), payload.data)
        memory = in_a_process(mode.name, call)
        text = f"unknown: {no_peak_because()}" if memory is None else f"{memory / 1e6:.2f} MB"
        yield f"memory, {mode.name}", text
    for mode in _modes(payload, _BLOCKS[-1]):
        noticed = _noticed(mode, payload.data[: _BLOCKS[-1]])
        yield f"flipped bits noticed, {mode.name}", f"{noticed} of {_FLIPS}"


def _entropies(data: Bytes) -> Iterator[tuple[str, float]]:
    high, low = data[1::2], data[0::2]
    yield "payload", _entropy(np.bincount(data, minlength=256))
    pairs = np.bincount(data[:-1].astype("<u2") << 8 | data[1:], minlength=1 << 16)
    yield "payload given the byte before", _entropy(pairs) - _entropy(pairs.reshape(256, -1).sum(1))
    yield "high bytes", _entropy(np.bincount(high))
    yield "low bytes", _entropy(np.bincount(low))
    yield "high bytes, differences", _entropy(np.bincount(high[1:] - high[:-1]))
    yield "high bytes, XOR", _entropy(np.bincount(high[1:] ^ high[:-1]))
    items = data.view("<u2")
    yield "exponents", _entropy(np.bincount(items >> 7 & 255))
    yield "signs and mantissas", _entropy(np.bincount((items >> 8 & 128) | (items & 127)))


def _entropy(counts: np.ndarray) -> float:
    shares = counts[counts > 0] / counts.sum()
    return max(0.0, float(-(shares * np.log2(shares)).sum()))  # not -0


def _working_memory(contender: Contender, data: Bytes) -> int | None:
    """Return the memory for encoding and decoding one block after the other, keeping none."""
    blocks = [data[start : start + _BLOCKS[-1]] for start in range(0, data.size, _BLOCKS[-1])]
    out = np.zeros(_BLOCKS[-1], np.uint8)
    give_back_freed_memory()
    with codec_threads(1), peak_memory() as peak:
        for block in blocks:
            contender.decode(contender.encode(block), out[: block.size])
        return peak()


def _noticed(contender: Contender, data: Bytes) -> int:
    """Return how many frames with one flipped bit are refused."""
    encoded = np.frombuffer(contender.encode(data), np.uint8).copy()
    out = np.zeros_like(data)
    noticed = 0
    for bit in np.random.default_rng(0).integers(0, 8 * encoded.size, _FLIPS):
        encoded[bit >> 3] ^= 1 << (bit & 7)
        try:
            contender.decode(encoded, out)
        except CodecError:
            noticed += 1
        encoded[bit >> 3] ^= 1 << (bit & 7)
    return noticed
