"""Loads and saves tensors and modules as model stores, like `safetensors.torch`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from bf16codecs._base.paths import given_path
from bf16codecs._base.torch_tensors import as_tensor
from bf16codecs.convert.options import Options
from bf16codecs.convert.store import convert_model
from bf16codecs.model.model import open_model
from bf16codecs.store.kinds import Kind, suffix_of
from bf16codecs.torch.loading import checked_names, refuse_computed
from bf16codecs.torch.tensors import (
    check_metadata,
    checked_tensors,
    source_of,
    tied_names,
    with_tied,
)

__all__ = ["as_tensor", "load_file", "load_model", "save_file", "save_model"]


def load_file(
    filename: str | os.PathLike[str],
    device: Any = "cpu",
    max_bytes: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    base: Any = None,
) -> dict[str, torch.Tensor]:
    """Load a model store as `safetensors.torch.load_file` loads a file.

    Parameters
    ----------
    filename
        Whatever `bf16codecs.open_model` opens.
    device
        The device of the tensors; by default the CPU.
    max_bytes, storage_options, base
        As `bf16codecs.open_model` takes them.

    Returns
    -------
    dict
        Tensors by name. Names that were tied when `save_file` saved them refer to one tensor.

    Raises
    ------
    FileNotFoundError, bf16codecs.store.StoreError, bf16codecs.errors.CodecError
        As `bf16codecs.open_model` and reading do.
    TypeError, ValueError, RuntimeError
        If the device does not exist, or this PyTorch was built without support for it.

    Examples
    --------
    >>> import bf16codecs.torch
    >>> module.load_state_dict(bf16codecs.torch.load_file("model.zarr"))  # doctest: +SKIP
    """
    with open_model(filename, storage_options, max_bytes, base, "torch", device) as model:
        return model.load()


def save_file(
    tensors: Mapping[str, torch.Tensor],
    filename: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
    **options: Any,
) -> None:
    """Save tensors as a model store, as `safetensors.torch.save_file` saves a file.

    `zarr2st` restores from it the file that safetensors would have written. Tied tensors, which
    safetensors refuses, are the same part of the same memory: the metadata map the names of all but
    the first to the first, and `load_file` ties them again. Other tensors that share memory are
    stored separately.

    Parameters
    ----------
    tensors
        Tensors by name, on any device.
    filename
        The store: a folder if the name ends in ``.zarr`` or has no suffix, a ZIP file if it ends in
        ``.zip``, an HDF5 file if it ends in ``.h5`` or ``.hdf5``. An existing one is replaced when
        the new one is complete.
    metadata
        Text to store with them, as ``__metadata__``.
    options
        `codec`, `level`, `chunk_size`, `threads`, `verify` and others, as
        `bf16codecs.convert.safetensors_to_zarr` or `safetensors_to_hdf5` takes them.

    Raises
    ------
    TypeError
        If a name is not a string, or its value not a tensor, or `metadata` has anything but
        strings.
    ValueError
        If a tensor cannot be stored, such as one without data, or of a class that computes its
        numbers from other data; or if `filename` has another suffix.

    Examples
    --------
    >>> import bf16codecs.torch
    >>> bf16codecs.torch.save_file(module.state_dict(), "model.zarr")  # doctest: +SKIP
    """
    path = Path(given_path(filename, "store"))
    kind = _kind(path)
    plain = checked_tensors(tensors)
    check_metadata(metadata)
    stored_metadata = with_tied(tied_names(plain), metadata)
    name = path.name.removesuffix(path.suffix).removesuffix(".zarr") or "model"
    source = source_of(plain, stored_metadata, f"{name}.safetensors")
    convert_model(source, filename, kind, Options(**{"overwrite": True, **options}))


def _kind(path: Path) -> Kind:
    """Return the kind of store that a path's suffix states."""
    kind = suffix_of(path.name)[1]
    if kind in (Kind.FOLDER, Kind.ZIP, Kind.HDF5):
        return kind
    if not path.suffix:
        return Kind.FOLDER
    raise ValueError(
        f"{path}: a store is a folder (.zarr), a ZIP file (.zarr.zip) or an HDF5 file (.h5, .hdf5),"
        f" and its name must not end in {path.suffix!r:.80}"
    )


def save_model(
    model: torch.nn.Module,
    filename: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
    **options: Any,
) -> None:
    """Save a module's tensors, as `safetensors.torch.save_model` does.

    Only the first of several tied tensors is saved; the metadata map the names of the others to it.

    Parameters
    ----------
    model
        The module.
    filename, metadata, options
        As `save_file` takes them.

    Raises
    ------
    TypeError, ValueError
        As `save_file` raises them, also for extra state that is not a tensor, and sparse buffers.
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
