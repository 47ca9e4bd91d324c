"""What is measured: tensors of a model, or synthetic ones."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bf16codecs import _core
from bf16codecs._dtypes import DTYPE_NAMES
from bf16codecs.convert.sources import opened_source

__all__ = ["GAUSSIAN", "Bytes", "Payload", "Sample", "payload_of", "picked", "sample_of"]

Bytes = NDArray[np.uint8]
Source = str | os.PathLike[str]

#: Source name for synthetic data: four matrices of normal numbers, sigma 0.011 to 0.048.
GAUSSIAN = "gaussian"


@dataclass(frozen=True)
class Sample:
    """Tensors of one dtype of a model, or a part of them.

    Attributes
    ----------
    dtype : str
        A codec's name of it.
    tensors : list of uint8 ndarray
        Their bytes.
    count, nbytes : int
        How many the model has of that dtype, and their bytes.
    left_out : dict
        How many tensors the model has of other dtypes, by safetensors' names.
    """

    dtype: str
    tensors: list[Bytes]
    count: int
    nbytes: int
    left_out: dict[str, int]

    @property
    def item_size(self) -> int:
        """Bytes of a number."""
        return _core.ITEM_SIZES[self.dtype]


def sample_of(source: Source, nbytes: int) -> Sample:
    """Return the tensors of the floating-point dtype that has most of a model's bytes.

    One dtype alone, so that all rows of a table are comparable.

    Parameters
    ----------
    source : path or ``"gaussian"``
        A safetensors model, or synthetic data.
    nbytes : int
        Of a larger model, tensors picked at random, though always the same, until they take this
        much; the last one is cut.

    Raises
    ------
    ValueError
        If the source is not a safetensors model, or has no such tensor.
    """
    if source == GAUSSIAN:
        matrices = [matrix for _, matrix in _gaussian()]
        whole = Sample("bfloat16", matrices, len(matrices), sum(m.nbytes for m in matrices), {})
        taken = picked([m.nbytes for m in matrices], nbytes, 2)
        return replace(whole, tensors=[matrices[i][:size] for i, size in taken])
    placed = [(f, t) for f in opened_source(source).files for t in f.header.tensors]
    sizes = Counter[str]()
    for _, tensor in placed:
        if DTYPE_NAMES.get(tensor.dtype) in _core.DTYPES:
            sizes[tensor.dtype] += tensor.nbytes
    dtype = max(sizes, key=sizes.__getitem__, default="")
    if not sizes[dtype]:
        there = ", ".join(dict.fromkeys(t.dtype for _, t in placed if t.nbytes)) or "no tensors"
        raise ValueError(f"{Path(source)}: no floating-point tensors to measure: it has {there}")
    own = [(f, t) for f, t in placed if t.dtype == dtype and t.nbytes]
    item = _core.ITEM_SIZES[DTYPE_NAMES[dtype]]
    taken = picked([t.nbytes for _, t in own], nbytes, item)
    tensors = []
    for i, size in taken:
        file, tensor = own[i]
        content = np.empty(size, np.uint8)
        file.read_into(file.header.data_start + tensor.start, content)
        tensors.append(content)
    others = Counter(t.dtype for _, t in placed if t.dtype != dtype)
    return Sample(DTYPE_NAMES[dtype], tensors, len(own), sizes[dtype], dict(others))


def picked(sizes: Sequence[int], nbytes: int, item_size: int) -> list[tuple[int, int]]:
    """Pick tensors of these sizes until they take some bytes; return which, and bytes of each."""
    if sum(sizes) <= nbytes:
        return list(enumerate(sizes))
    left, found = max(item_size, nbytes // item_size * item_size), []
    for i in np.random.default_rng(0).permutation(len(sizes)).tolist():
        found.append((i, min(sizes[i], left)))
        left -= found[-1][1]
        if not left:
            break
    return sorted(found)


@dataclass(frozen=True)
class Payload:
    """The tensors of one dtype as one piece, and those of another checkpoint in their places.

    `dtype` is a codec's name of it.
    """

    data: Bytes
    dtype: str
    base: Bytes | None = None

    @property
    def item_size(self) -> int:
        """Bytes of a number."""
        return _core.ITEM_SIZES[self.dtype]


def payload_of(
    source: Source, dtypes: Sequence[str], nbytes: int, base: Source | None = None
) -> Payload:
    """Return a model's tensors of one dtype, one after the other.

    Parameters
    ----------
    source : path or ``"gaussian"``
        As `sample_of` takes it.
    dtypes : sequence of str
        As safetensors names them: the first that the model has is taken.
    nbytes : int
        What goes beyond these bytes is left out.
    base : path, optional
        A model that has the same tensors.

    Raises
    ------
    ValueError
        If there are no such tensors, or `base` lacks one, or has it in another size.
    """
    dtype, tensors = _named_tensors(source, dtypes)
    item = DTYPE_NAMES[dtype]
    most = max(1, nbytes // _core.ITEM_SIZES[item]) * _core.ITEM_SIZES[item]
    data = np.concatenate([tensor for _, tensor in tensors])[:most]
    if base is None:
        return Payload(data, item)
    others = dict(_named_tensors(base, [dtype])[1])
    for name, tensor in tensors:
        if name not in others or others[name].size != tensor.size:
            raise ValueError(f"{Path(base)}: no tensor {name!r} of {tensor.size} bytes")
    return Payload(data, item, np.concatenate([others[name] for name, _ in tensors])[:most])


def _named_tensors(source: Source, dtypes: Sequence[str]) -> tuple[str, list[tuple[str, Bytes]]]:
    """Return the first of the dtypes that there is, and its tensors."""
    if source == GAUSSIAN and "BF16" in dtypes:
        return "BF16", _gaussian()
    files = opened_source(source).files
    there = {tensor.dtype for file in files for tensor in file.header.tensors if tensor.nbytes}
    dtype = next((dtype for dtype in dtypes if dtype in there), None)
    if dtype is None:
        raise ValueError(f"{Path(source)}: no {' or '.join(dtypes)} tensors to measure")
    tensors = []
    for file in files:
        with open(file.path, "rb") as f:
            for tensor in file.header.tensors:
                if tensor.dtype == dtype and tensor.nbytes:
                    f.seek(file.header.data_start + tensor.start)
                    content = np.frombuffer(f.read(tensor.nbytes), np.uint8)
                    tensors.append((tensor.name, content))
    return dtype, tensors


def _gaussian() -> list[tuple[str, Bytes]]:
    rng = np.random.default_rng(0)
    matrices = []
    for sigma in (0.011, 0.02, 0.033, 0.048):
        values = rng.standard_normal(1 << 24, np.float32) * np.float32(sigma)
        bits = values.view(np.uint32)
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        matrices.append((f"sigma {sigma}", rounded.astype("<u2").view(np.uint8)))
    return matrices
