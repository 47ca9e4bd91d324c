"""Tensors in memory as the safetensors file that they would be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bf16codecs._base.torch_tensors import in_a_row
from bf16codecs.safetensors import Source, SourceFile, make_header
from bf16codecs.torch.tied import stored_form

__all__ = ["source_of"]


def source_of(
    tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None, path: Path
) -> Source:
    """Return a model of one file, made on the fly, of tensors that can be stored.

    Parameters
    ----------
    tensors
        By name, on any device.
    metadata
        Its ``__metadata__``; with None, it has none.
    path
        Where the file would be, for messages.
    """
    return _Memory((_TensorFile.of(tensors, metadata, path),))


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
        """Lay out a file, of tensors that can be stored."""
        forms = {name: stored_form(t.dtype, tuple(t.shape)) for name, t in tensors.items()}
        header = make_header(forms, metadata, str(path))
        return cls(path, header, [tensors[info.name].detach() for info in header.tensors])

    def read_into(self, offset: int, out: NDArray[np.uint8]) -> None:
        """Read bytes of one tensor."""
        number, start = self.header.find(offset)
        tensor = self.tensors[number]
        first = start // tensor.element_size()
        part = _items(tensor, first, first + out.size // tensor.element_size())
        out[:] = part.view(torch.uint8).cpu().numpy()

    def state(self) -> Any:
        """Return something that differs once a tensor has changed."""
        return [tensor._version for tensor in self.tensors]


def _items(tensor: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    """Return a range of the items in their order: of what is in another one, a copy of it alone."""
    while tensor.ndim > 1 and not tensor.is_contiguous():
        row = tensor[0].numel()
        first, last = start // row, -(-stop // row)
        tensor, start, stop = tensor[first:last], start - first * row, stop - first * row
        if len(tensor) != 1:
            break
        tensor = tensor[0]
    # Conjugated and negated views have other bytes than numbers.
    run = in_a_row(tensor.contiguous())[start:stop]
    return run.resolve_conj().resolve_neg().contiguous()
