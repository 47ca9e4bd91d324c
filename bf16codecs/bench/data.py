"""What is measured: tensors of a model, or synthetic ones."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bf16codecs.safetensors import open_source

__all__ = ["GAUSSIAN", "Bytes", "tensors_of"]

Bytes = NDArray[np.uint8]

#: Source name for synthetic data: four matrices of normal numbers, sigma 0.011 to 0.048.
GAUSSIAN = "gaussian"

# Tensors of other dtypes are left out, so that all rows of a table are comparable.
_DTYPE = "BF16"


def tensors_of(source: str | os.PathLike[str]) -> list[Bytes]:
    """Return the bytes of every BF16 tensor of a model, or synthetic data for ``"gaussian"``.

    Raises
    ------
    ValueError
        If the source is not a safetensors model, or has no BF16 tensor.
    """
    if source == GAUSSIAN:
        return _gaussian()
    tensors = []
    for file in open_source(source).files:
        with open(file.path, "rb") as f:
            for tensor in file.header.tensors:
                if tensor.dtype == _DTYPE and tensor.nbytes:
                    f.seek(file.header.data_start + tensor.start)
                    tensors.append(np.frombuffer(f.read(tensor.nbytes), np.uint8))
    if not tensors:
        raise ValueError(f"{Path(source)}: no {_DTYPE} tensors to measure")
    return tensors


def _gaussian() -> list[Bytes]:
    rng = np.random.default_rng(0)
    matrices = []
    for sigma in (0.011, 0.02, 0.033, 0.048):
        values = rng.standard_normal(1 << 24, np.float32) * np.float32(sigma)
        bits = values.view(np.uint32)
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        matrices.append(rounded.astype("<u2").view(np.uint8))
    return matrices
