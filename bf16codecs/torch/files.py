"""Loads and saves model stores with PyTorch, like `safetensors.torch`."""

from __future__ import annotations

import bisect
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bf16codecs._dtypes import DTYPE_BITS
from bf16codecs._paths import given_path
from bf16codecs._torch_tensors import as_tensor
from bf16codecs.convert import safetensors_to_hdf5, safetensors_to_zarr
from bf16codecs.model.model import open_model
from bf16codecs.safetensors import Source, SourceFile, parse_header
from bf16codecs.store.kinds import Kind, suffix_of
from bf16codecs.torch.tied import DTYPES, check_tensors, tied_names

__all__ = ["as_tensor", "load_file", "save_file"]


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
        Of the tensors; by default the CPU.
    max_bytes, storage_options, base
        As `bf16codecs.open_model` takes them.

    Returns
    -------
    dict
        Tensors by name. Those that were tied when `save_file` saved them are one tensor.

    Raises
    ------
    FileNotFoundError, bf16codecs.store.StoreError, bf16codecs.errors.CodecError
        As `bf16codecs.open_model` and reading do.

    Examples
    --------
    >>> import bf16codecs.torch
    >>> module.load_state_dict(bf16codecs.torch.load_file("model.zarr"))  # doctest: +SKIP
    """
    with open_model(filename, storage_options, max_bytes, base) as model:
        return model.load("torch", device=device)


def save_file(
    tensors: Mapping[str, torch.Tensor],
    filename: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
    **options: Any,
) -> None:
    """Save tensors as a model store, as `safetensors.torch.save_file` saves a file.

    `zarr2st` restores from it the file that safetensors would have written. Tied tensors, which it
    refuses, are the same part of the same memory: the metadata say of each but the first, by name,
    which one it is, and `load_file` ties them again. What shares memory in another way is stored
    separately.

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
        If a name is no string, or what it names is no tensor.
    ValueError
        If a tensor cannot be stored, as one without data, or `filename` has another suffix.

    Examples
    --------
    >>> import bf16codecs.torch
    >>> bf16codecs.torch.save_file(module.state_dict(), "model.zarr")  # doctest: +SKIP
    """
    path = Path(given_path(filename, "store"))
    convert = _conversion(path)
    check_tensors(tensors)
    told = {**tied_names(tensors), **(metadata or {})}
    name = path.name.removesuffix(path.suffix).removesuffix(".zarr") or "model"
    file = _TensorFile.of(tensors, told, Path(f"{name}.safetensors"))
    convert(_Memory((file,)), filename, **{"overwrite": True, **options})


def _conversion(path: Path) -> Callable[..., Any]:
    """Return what makes a store of the kind that a path's suffix says."""
    kind = suffix_of(path.name)[1]
    if kind is Kind.HDF5:
        return safetensors_to_hdf5
    if kind in (Kind.FOLDER, Kind.ZIP) or not path.suffix:
        return safetensors_to_zarr
    raise ValueError(
        f"{path}: a store is a folder (.zarr), a ZIP file (.zarr.zip) or an HDF5 file (.h5, .hdf5),"
        f" and its name must not end in {path.suffix!r:.80}"
    )


class _Memory(Source):
    """A model that is not on disk."""

    @property
    def paths(self) -> list[Path]:
        """No files."""
        return []


@dataclass(frozen=True)
class _TensorFile(SourceFile):
    """The safetensors file of given tensors, made on the fly."""

    tensors: list[torch.Tensor]

    @classmethod
    def of(
        cls, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None, path: Path
    ) -> _TensorFile:
        """Lay out a file as safetensors does: wide dtypes first, then by name."""
        rank = list(DTYPE_BITS).index
        names = sorted(tensors, key=lambda name: (-rank(DTYPES[tensors[name].dtype]), name))
        entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
        offset = 0
        for name in names:
            tensor, shape = tensors[name], list(tensors[name].shape)
            if DTYPES[tensor.dtype] == "F4":  # two numbers in each item
                shape[-1] *= 2
            stop = offset + tensor.numel() * tensor.element_size()
            dtype = DTYPES[tensor.dtype]
            entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, stop]}
            offset = stop
        raw = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
        raw += b" " * (-len(raw) % 8)
        header = parse_header(raw, offset, str(path))
        # Conjugated and negated views have other bytes than numbers.
        ordered = [
            tensors[info.name].detach().resolve_conj().resolve_neg().contiguous()
            for info in header.tensors
        ]
        return cls(path, header, ordered)

    def read_into(self, offset: int, out: NDArray[np.uint8]) -> None:
        """Read bytes of one tensor."""
        offset -= self.header.data_start
        infos = self.header.tensors
        # Empty tensors share their offset with the one that follows them.
        number = bisect.bisect_right(infos, offset, key=lambda info: info.start) - 1
        tensor = self.tensors[number]
        first = (offset - infos[number].start) // tensor.element_size()
        part = tensor.reshape(-1)[first : first + out.size // tensor.element_size()]
        out[:] = part.view(torch.uint8).cpu().numpy()

    def state(self) -> Any:
        """Return something that differs once a tensor has changed."""
        return [tensor._version for tensor in self.tensors]
