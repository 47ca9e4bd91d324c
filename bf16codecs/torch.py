"""Model stores for PyTorch, with the functions of `safetensors.torch`."""

from __future__ import annotations

import os
from typing import Any

import torch

from bf16codecs._tensors import as_tensor
from bf16codecs.model import open_model

__all__ = ["as_tensor", "load_file"]


def load_file(filename: str | os.PathLike[str], device: Any = "cpu") -> dict[str, torch.Tensor]:
    """Load a model store as `safetensors.torch.load_file` loads a file.

    Parameters
    ----------
    filename
        Whatever `bf16codecs.open_model` opens.
    device
        Where the tensors go.

    Examples
    --------
    >>> import bf16codecs.torch
    >>> module.load_state_dict(bf16codecs.torch.load_file("model.zarr"))  # doctest: +SKIP
    """
    with open_model(filename) as model:
        return model.load("torch", device=device)
