"""Modules, with the parameters that they tie."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from bf16codecs.torch.files import load_file, save_file
from bf16codecs.torch.loading import checked_names, refuse_computed
from bf16codecs.torch.tied import check_metadata, checked_tensors, tied_names, with_tied

__all__ = ["load_model", "save_model"]


def save_model(
    model: torch.nn.Module,
    filename: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
    **options: Any,
) -> None:
    """Save a module's tensors, as `safetensors.torch.save_model` does.

    Of tensors that are tied only the first one is saved; the metadata say of the others, by name,
    which one it is.

    Parameters
    ----------
    model
        The module.
    filename, metadata, options
        As `save_file` takes them.

    Raises
    ------
    TypeError, ValueError
        As `save_file` raises them: of extra state that is no tensor, of sparse buffers.
    """
    tensors = checked_tensors(model.state_dict())
    check_metadata(metadata)
    tied = tied_names(tensors)
    alone = {name: tensor for name, tensor in tensors.items() if name not in tied}
    save_file(alone, filename, with_tied(tied, metadata), **options)


def load_model(
    model: torch.nn.Module,
    filename: str | os.PathLike[str],
    strict: bool = True,
    device: Any = "cpu",
    **options: Any,
) -> tuple[list[str], list[str]]:
    """Load a module's tensors, as `safetensors.torch.load_model` does.

    Parameters
    ----------
    model
        The module to load into. What it ties stays tied.
    filename, device, options
        As `load_file` takes them.
    strict
        Refuse a store that lacks tensors of the module, or has others.

    Returns
    -------
    missing, unexpected : list of str
        Tensors of the module that the store lacks, and of the store that the module lacks.

    Raises
    ------
    RuntimeError
        If there are such tensors and `strict` is true, or one has another shape.
    ValueError
        If a tensor of the module is of a class that computes its numbers from other data.
    """
    tensors = load_file(filename, device, **options)
    refuse_computed(model, tensors)
    keys = model.load_state_dict(tensors, strict=False)
    return checked_names(model, os.fspath(filename), keys, tensors, strict)
