"""Tensors in memory as the safetensors file that they would be."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from bf16codecs._base.buffers import Bytes
from bf16codecs._base.torch_tensors import in_a_row
from bf16codecs.safetensors import make_header
from bf16codecs.store.files import FilesReader, ModelFile, ReadBytes
from bf16codecs.torch.tied import stored_form

__all__ = ["source_of"]


def source_of(
    tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None, name: str
) -> FilesReader:
    """Return a model of one file, made on the fly, of tensors that can be stored.

    Parameters
    ----------
    tensors
        By name, on any device.
    metadata
        Its ``__metadata__``; with None, it has none.
    name
        Of the file.
    """
    forms = {key: stored_form(t.dtype, tuple(t.shape)) for key, t in tensors.items()}
    header = make_header(forms, metadata, name)
    ordered = [tensors[info.name].detach() for info in header.tensors]

    def read(offset: int, out: Bytes) -> None:
        number, start = header.find(offset)
        tensor = ordered[number]
        first = start // tensor.element_size()
        part = _items(tensor, first, first + out.size // tensor.element_size())
        out[:] = part.view(torch.uint8).cpu().numpy()

    def state() -> dict[str, list[int]]:
        return {name: [tensor._version for tensor in ordered]}

    file = ModelFile(name, header, ReadBytes(read, header.file_size), name)
    return FilesReader(name, [file], state=state)


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
