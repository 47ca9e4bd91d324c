"""Encode data for a GPU to decode: tensors, and variants of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes  # noqa: F401  NumPy knows bfloat16 and float8 by it
import numpy as np
from numpy.typing import NDArray

from bf16codecs import _core, codecs
from bf16codecs._base.messages import counted, few
from bf16codecs.bench.data import Bytes

__all__ = ["Frame", "OnHostError", "Variant", "frames_of", "planes_of", "variants"]

# Noise that makes a base, as a share of the tensor's deviation: like a step of training.
_STEP = 0.01
# Deviation of logarithms of magnitudes: exponents all over the range need a wide table.
_WIDE = 4.0

Encode = Callable[[Bytes, Bytes | None], bytes]


class OnHostError(Exception):
    """The GPU cannot decode some blocks of the frames; the host has to."""


def _same(content: Bytes) -> Bytes:
    return content


@dataclass(frozen=True)
class Variant:
    """A way to encode tensors.

    Attributes
    ----------
    name : str
        Name in the table.
    encode : callable
        Encodes a tensor's bytes, against those of its base if it has one.
    content : callable
        Returns the bytes to encode, for those of a tensor.
    base : callable, optional
        Returns the bytes of the base, for those of a tensor.
    """

    name: str
    encode: Encode
    content: Callable[[Bytes], Bytes] = field(default=_same)
    base: Callable[[Bytes], Bytes] | None = None


@dataclass(frozen=True)
class Frame:
    """A tensor's frame: index, blocks, decoded bytes, base, and modes of the blocks' planes."""

    index: _core.Index
    payload: Bytes
    content: Bytes
    base: Bytes | None
    modes: Counter[tuple[str, ...]]

    @property
    def nbytes(self) -> int:
        """Size of the frame."""
        return self.index.frame_size


def variants(dtype: str) -> Iterator[Variant]:
    """Yield the variants to measure for a data type."""
    fast = codecs.BF16Arithmetic(dtype)
    best = codecs.BF16Arithmetic(dtype, "best")
    for name, codec in (
        ("BF16Split", codecs.BF16Split(dtype)),
        ("BF16Huffman", codecs.BF16Huffman(dtype)),
        ("BF16Arithmetic fast", fast),
        ("BF16Arithmetic best", best),
        ("BF16Zstd 3", codecs.BF16Zstd(dtype=dtype)),
    ):
        yield Variant(name, _alone(codec))

    def wide(content: Bytes) -> Bytes:
        return _of_all_magnitudes(content, dtype)

    def base(content: Bytes) -> Bytes:
        return _step_before(content, dtype)

    yield Variant("BF16Arithmetic wide", _alone(fast), wide)
    yield Variant("BF16Arithmetic constant", _alone(fast), np.zeros_like)
    yield Variant("encode_delta fast", _difference(fast), base=base)
    yield Variant("encode_delta best", _difference(best), base=base)


def frames_of(variant: Variant, tensors: Sequence[Bytes]) -> list[Frame]:
    """Encode tensors.

    Raises
    ------
    OnHostError
        If the GPU cannot decode them all.
    """
    frames = []
    for tensor in tensors:
        content = np.ascontiguousarray(variant.content(tensor))
        base = None if variant.base is None else variant.base(tensor)
        encoded = np.frombuffer(variant.encode(content, base), np.uint8)
        index = _core.Index(encoded)
        payload = encoded[index.offset(0) : index.offset(index.n_blocks)]
        blocks = codecs.inspect(encoded)["blocks"]
        modes = Counter(tuple(plane["mode"] for plane in block["planes"]) for block in blocks)
        plan = _core.DevicePlan(index, 0, index.n_blocks, payload)
        if plan.needs(payload, 0) is None:
            raise OnHostError(f"{_counted(modes)}: such blocks are decoded on the host")
        frames.append(Frame(index, payload, content, base, modes))
    return frames


def planes_of(frames: Sequence[Frame]) -> str:
    """Return the modes of planes, the most frequent first: ``"rans_pairs + stored"``."""
    return _counted(sum((frame.modes for frame in frames), Counter()))


def _counted(modes: Counter[tuple[str, ...]]) -> str:
    texts = [" + ".join(planes) for planes, _ in modes.most_common()]
    return texts[0] if len(texts) == 1 else f"{few(texts, 2)} ({counted(modes.total(), 'block')})"


def _alone(codec: codecs.FrameCodec) -> Encode:
    return lambda content, _: codec.encode(content)


def _difference(codec: codecs.FrameCodec) -> Encode:
    return lambda content, base: codecs.encode_delta(codec, content, base)


def _step_before(content: Bytes, dtype: str) -> Bytes:
    """Return the numbers with a little noise."""
    numbers: NDArray[Any] = content.view(dtype)
    with np.errstate(all="ignore"):
        wide: NDArray[Any] = numbers.astype("f8" if dtype == "float64" else "f4")
        usual = wide[np.isfinite(wide)]
        step = np.float32(_STEP * usual.std() if usual.size else 0)
        noise = np.random.default_rng(0).standard_normal(wide.size, np.float32)
        return (wide + step * noise).astype(numbers.dtype).view(np.uint8)


def _of_all_magnitudes(content: Bytes, dtype: str) -> Bytes:
    """Return as many numbers, with exponents spread far."""
    random = np.random.default_rng(0)
    n = content.size // _core.ITEM_SIZES[dtype]
    with np.errstate(all="ignore"):
        values = np.exp(_WIDE * random.standard_normal(n, np.float32))
        values *= random.choice(np.array([-1, 1], np.float32), n)
        return values.astype(dtype).view(np.uint8)
