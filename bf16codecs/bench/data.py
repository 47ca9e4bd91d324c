"""What is measured: tensors of a model, or synthetic ones."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bf16codecs import _core
from bf16codecs._dtypes import DTYPE_NAMES
from bf16codecs.safetensors import open_source

__all__ = ["GAUSSIAN", "Bytes", "Payload", "payload_of", "tensors_of"]

Bytes = NDArray[np.uint8]
Source = str | os.PathLike[str]

#: Source name for synthetic data: four matrices of normal numbers, sigma 0.011 to 0.048.
GAUSSIAN = "gaussian"


def tensors_of(source: Source) -> list[Bytes]:
    """Return the bytes of every BF16 tensor of a model, or synthetic data for ``"gaussian"``.

    Others are left out, so that all rows of a table are comparable.

    Raises
    ------
    ValueError
        If the source is not a safetensors model, or has no BF16 tensor.
    """
    return [tensor for _, tensor in _named_tensors(source, ["BF16"])[1]]


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
        As `tensors_of` takes it.
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
    files = open_source(source).files
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
