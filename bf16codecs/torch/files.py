"""Loads and saves model stores with PyTorch, like `safetensors.torch`."""

from __future__ import annotations

import bisect
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bf16codecs._dtypes import DTYPE_BITS, DTYPE_NAMES
from bf16codecs._torch_tensors import as_tensor
from bf16codecs.convert import safetensors_to_zarr
from bf16codecs.model.model import open_model
from bf16codecs.safetensors import Source, SourceFile, parse_header

__all__ = ["as_tensor", "load_file", "save_file"]

# Older releases of PyTorch lack some.
_NAMES = {
    getattr(torch, item): name
    for name, item in {**DTYPE_NAMES, "F4": "float4_e2m1fn_x2"}.items()
    if hasattr(torch, item)
}


def load_file(
    filename: str | os.PathLike[str], device: Any = "cpu", max_bytes: int | None = None
) -> dict[str, torch.Tensor]:
    """Load a model store as `safetensors.torch.load_file` loads a file.

    Parameters
    ----------
    filename
        Whatever `bf16codecs.open_model` opens.
    device
        Of the tensors; by default the CPU.
    max_bytes
        As `bf16codecs.open_model` takes it.

    Returns
    -------
    dict
        Tensors by name.

    Raises
    ------
    FileNotFoundError, bf16codecs.store.StoreError, bf16codecs.errors.CodecError
        As `bf16codecs.open_model` and reading do.

    Examples
    --------
    >>> import bf16codecs.torch
    >>> module.load_state_dict(bf16codecs.torch.load_file("model.zarr"))  # doctest: +SKIP
    """
    with open_model(filename, max_bytes=max_bytes) as model:
        return model.load("torch", device=device)


def save_file(
    tensors: Mapping[str, torch.Tensor],
    filename: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
    **options: Any,
) -> None:
    """Save tensors as a model store, as `safetensors.torch.save_file` saves a file.

    `zarr2st` restores from it the file that safetensors would have written. Tensors that share
    memory are stored separately, and no longer share it when they are loaded.

    Parameters
    ----------
    tensors
        Tensors by name, on any device.
    filename
        The store: a folder, or a ZIP file if the name ends in ``.zip``. An existing one is
        replaced when the new one is complete.
    metadata
        Text to store with them, as ``__metadata__``.
    options
        `codec`, `level`, `chunk_size`, `threads`, `zarr_format` and `verify`, as
        `bf16codecs.convert.safetensors_to_zarr` takes them.

    Examples
    --------
    >>> import bf16codecs.torch
    >>> bf16codecs.torch.save_file(module.state_dict(), "model.zarr")  # doctest: +SKIP
    """
    name = Path(filename).name.removesuffix(".zip").removesuffix(".zarr") or "model"
    file = _TensorFile.of(tensors, metadata, Path(f"{name}.safetensors"))
    safetensors_to_zarr(_Memory((file,)), filename, **{"overwrite": True, **options})


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
        for name, tensor in tensors.items():
            if not isinstance(tensor, torch.Tensor):
                raise TypeError(f"tensor {name!r} is a {type(tensor).__name__}, not a torch.Tensor")
            if tensor.layout != torch.strided or tensor.dtype not in _NAMES:
                raise ValueError(
                    f"tensor {name!r}: {tensor.dtype} in layout {tensor.layout} cannot be stored"
                )
        rank = list(DTYPE_BITS).index
        names = sorted(tensors, key=lambda name: (-rank(_NAMES[tensors[name].dtype]), name))
        entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
        offset = 0
        for name in names:
            tensor, shape = tensors[name], list(tensors[name].shape)
            if _NAMES[tensor.dtype] == "F4":  # two numbers in each item
                shape[-1] *= 2
            stop = offset + tensor.numel() * tensor.element_size()
            dtype = _NAMES[tensor.dtype]
            entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, stop]}
            offset = stop
        raw = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
        raw += b" " * (-len(raw) % 8)
        header = parse_header(raw, offset, str(path))
        ordered = [tensors[info.name].detach().contiguous() for info in header.tensors]
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
