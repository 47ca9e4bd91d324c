"""What codecs reach with blocks of several sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from bf16codecs import _core
from bf16codecs._arguments import as_integer
from bf16codecs._buffers import Bytes
from bf16codecs._frames import encode_version
from bf16codecs._threads import run_ahead, worker_count
from bf16codecs.analysis.pieces import Part, Tensor
from bf16codecs.analysis.reach import CODECS, codec_for
from bf16codecs.model.model import Model, open_model

__all__ = ["study_blocks"]

#: 4 KiB to 4 MiB.
SIZES = tuple(1 << n for n in range(12, 23))


def study_blocks(
    src: Any, sizes: Sequence[int] = SIZES, sample: int = 1 << 25
) -> dict[str, list[tuple[int, float]]]:
    """Code a model with blocks of several sizes.

    Parameters
    ----------
    src : str, path or Model
        A model.
    sizes : sequence of int
        Sizes of blocks, in bytes.
    sample : int
        About how many bytes to code, spread evenly over all tensors.

    Returns
    -------
    dict
        By codec, pairs of a block's size and what is reached with it, in bits a value: what
        `plots.block_sizes` draws.

    Raises
    ------
    ValueError
        If the model has no floating-point numbers, or there cannot be such blocks.
    """
    for size in sizes:
        if not 1 <= as_integer("a block's size", size) <= _core.MAX_BLOCK_BYTES:
            most = _core.MAX_BLOCK_BYTES
            raise ValueError(f"a block's size must be 1 to {most} bytes, not {size}")
    if isinstance(src, Model):
        return _study(src, sizes, sample)
    with open_model(src) as model:
        return _study(model, sizes, sample)


def _study(model: Model, sizes: Sequence[int], sample: int) -> dict[str, list[tuple[int, float]]]:
    tensors = [tensor for tensor in model.values() if tensor.dtype.name in _core.DTYPES]
    by_dtype = Counter[str]()
    for tensor in tensors:
        by_dtype[tensor.dtype.name] += tensor.nbytes
    if not sum(by_dtype.values()):
        raise ValueError(f"{model.where}: has no floating-point numbers")
    dtype, nbytes = by_dtype.most_common(1)[0]
    own = [Tensor.of(t) for t in tensors if t.dtype.name == dtype]
    parts = [(tensor, part) for tensor in own for part in tensor.parts(sample / nbytes)]
    coded, done = Counter[tuple[str, int]](), 0
    jobs = (_job(tensor, part, sizes) for tensor, part in parts)
    with closing(run_ahead(jobs, worker_count())) as results:
        for result, (_, part) in zip(results, parts, strict=True):
            coded.update(result)
            done += part.nbytes
    bits = 8 * own[0].item.itemsize / done
    return {name: [(size, bits * coded[name, size]) for size in sizes] for name in CODECS}


def _job(
    tensor: Tensor, part: Part, sizes: Sequence[int]
) -> Callable[[], dict[tuple[str, int], int]]:
    """Return what codes a part; it reads it, too, unless that has to happen here."""
    if tensor.concurrency:
        return lambda: _code(tensor, tensor.read(part)[0], sizes)
    return partial(_code, tensor, tensor.read(part)[0], sizes)


def _code(tensor: Tensor, data: Bytes, sizes: Sequence[int]) -> dict[tuple[str, int], int]:
    items, found = tensor.items(data), {}
    for name in CODECS:
        codec: Any = codec_for(name, tensor.item.name)
        for size in sizes:
            block = max(1, size // items.dtype.itemsize)
            found[name, size] = len(encode_version(codec, items, block=block))
    return found
