"""Coded sizes with blocks of several sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import Any

from bf16codecs import _core
from bf16codecs._base.arguments import as_integer
from bf16codecs._base.threads import run_ahead, worker_count
from bf16codecs.analysis.coded_sizes import CODECS, codec_for
from bf16codecs.analysis.pieces import Read, Tensor
from bf16codecs.codecs.frames import encode_version
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
        The approximate number of bytes to code, spread evenly over all tensors.

    Returns
    -------
    dict
        For each codec, pairs of a block size in bytes and the bits per value that the codec takes
        with it. `plots.block_sizes` draws them.

    Raises
    ------
    ValueError
        If the model has no floating-point numbers, or a block size is out of range.
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
    studied = [Tensor.of(t) for t in tensors if t.dtype.name == dtype]
    pieces = [(tensor, piece) for tensor in studied for piece in tensor.pieces(sample / nbytes)]
    coded, done = Counter[tuple[str, int]](), 0
    jobs = (tensor.job(piece, partial(_code, tensor, sizes)) for tensor, piece in pieces)
    with closing(run_ahead(jobs, worker_count())) as outcomes:
        for (results, errors), (_, piece) in zip(outcomes, pieces, strict=True):
            if errors:
                raise errors[0]
            for result in results:
                coded.update(result)
            done += piece.nbytes
    bits = 8 * studied[0].item.itemsize / done
    return {name: [(size, bits * coded[name, size]) for size in sizes] for name in CODECS}


def _code(tensor: Tensor, sizes: Sequence[int], read: Read) -> dict[tuple[str, int], int]:
    items, found = tensor.items(read.data), {}
    for name in CODECS:
        codec: Any = codec_for(name, tensor.item.name)
        for size in sizes:
            block = max(1, size // items.dtype.itemsize)
            found[name, size] = len(encode_version(codec, items, block=block))
    return found
