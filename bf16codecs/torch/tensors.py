"""Tensors to save: checks, ties between them, and a model of one file with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from bf16codecs._base.buffers import Bytes
from bf16codecs._base.dtypes import DTYPE_NAMES
from bf16codecs._base.torch_tensors import in_a_row, plain_tensor
from bf16codecs.safetensors import make_header
from bf16codecs.store.files import FilesReader, ModelFile, ReadBytes

__all__ = [
    "DTYPES",
    "TORCH_DTYPES",
    "check_metadata",
    "checked_tensors",
    "header_spec",
    "source_of",
    "tied_names",
    "with_tied",
]

#: The names of dtypes in safetensors. Older releases of PyTorch lack some.
DTYPES = {
    getattr(torch, torch_name): name
    for name, torch_name in {**DTYPE_NAMES, "F4": "float4_e2m1fn_x2"}.items()
    if hasattr(torch, torch_name)
}

#: The dtypes by their names in safetensors.
TORCH_DTYPES = {name: dtype for dtype, name in DTYPES.items()}


def header_spec(dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Return the dtype and shape that a tensor has in a safetensors header."""
    name = DTYPES[dtype]
    return name, (*shape[:-1], 2 * shape[-1]) if name == "F4" else shape  # two numbers in an item


def checked_tensors(tensors: Any) -> dict[str, torch.Tensor]:
    """Return plain tensors; raise TypeError or ValueError unless all of them can be stored."""
    if not isinstance(tensors, Mapping):
        raise TypeError(f"tensors must be a dict of tensors by name, not {type(tensors).__name__}")
    for name, tensor in tensors.items():
        if not isinstance(name, str):
            kind = type(name).__name__
            raise TypeError(f"names of tensors must be strings, not {name!r:.80} ({kind})")
        if not isinstance(tensor, torch.Tensor):
            kind = type(tensor).__name__
            raise TypeError(f"tensor {name!r} is a {kind}, not a torch.Tensor")
        if tensor.device.type == "meta":
            raise ValueError(f"tensor {name!r}: it is on the device meta, and has no data")
        if tensor.layout != torch.strided or tensor.dtype not in DTYPES:
            raise ValueError(
                f"tensor {name!r}: {tensor.dtype} in layout {tensor.layout} cannot be stored:"
                f" dtypes are {', '.join(str(d).removeprefix('torch.') for d in DTYPES)}, and the"
                " layout torch.strided (.to_dense())"
            )
    return {name: plain_tensor(tensor, name) for name, tensor in tensors.items()}


def check_metadata(metadata: Any) -> None:
    """Raise TypeError unless metadata are a mapping of strings to strings, or None."""
    if metadata is not None and not isinstance(metadata, Mapping):
        kind = type(metadata).__name__
        raise TypeError(f"metadata must be a dict of strings, not {metadata!r:.80} ({kind})")
    for key, value in (metadata or {}).items():
        for part in (key, value):
            if not isinstance(part, str):
                kind = type(part).__name__
                text = f"metadata must be strings, not {part!r:.80} ({kind}), as in {key!r:.80}"
                raise TypeError(text)


def with_tied(
    tied: Mapping[str, str], metadata: Mapping[str, str] | None
) -> Mapping[str, str] | None:
    """Add names of tied tensors to metadata; return None without either, as safetensors does."""
    return {**tied, **(metadata or {})} if tied or metadata is not None else None


def tied_names(
    tensors: Mapping[str, torch.Tensor], preferred: Iterable[str] = ()
) -> dict[str, str]:
    """Map the name of each tensor that is another one's memory to the name of that one.

    Of tied tensors, the first `preferred` name is kept, or else the first, in alphabetical order as
    in `safetensors.torch.save_model`.
    """
    groups: dict[Any, list[str]] = {}
    for name in sorted(tensors):
        tensor = tensors[name]
        if tensor.is_meta:
            groups.setdefault(id(tensor), []).append(name)
        elif tensor.numel() and tensor.data_ptr():
            view = tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg()
            groups.setdefault((tensor.device, tensor.data_ptr(), *view), []).append(name)
    preferred, tied = set(preferred), {}
    for names in groups.values():
        kept = next((name for name in names if name in preferred), names[0])
        tied.update({name: kept for name in names if name != kept})
    return tied


def source_of(
    tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None, name: str
) -> FilesReader:
    """Return a model of one file, `name`, from tensors on any device."""
    specs = {key: header_spec(t.dtype, tuple(t.shape)) for key, t in tensors.items()}
    header = make_header(specs, metadata, name)
    ordered = [tensors[info.name].detach() for info in header.tensors]

    def read(offset: int, out: Bytes) -> None:
        index, start = header.find(offset)
        tensor = ordered[index]
        first = start // tensor.element_size()
        items = _items(tensor, first, first + out.size // tensor.element_size())
        out[:] = items.view(torch.uint8).cpu().numpy()

    def state() -> dict[str, list[int]]:
        return {name: [tensor._version for tensor in ordered]}

    file = ModelFile(name, header, ReadBytes(read, header.file_size), name)
    reader = FilesReader(name, [file], state=state)
    reader.is_shareable = False  # it is memory of this process
    return reader


def _items(tensor: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    """Return a range of a tensor's items in C order, and copy no more than that range."""
    while tensor.ndim > 1 and not tensor.is_contiguous():
        row = tensor[0].numel()
        first, last = start // row, -(-stop // row)
        tensor, start, stop = tensor[first:last], start - first * row, stop - first * row
        if len(tensor) != 1:
            break
        tensor = tensor[0]
    items = in_a_row(tensor.contiguous())[start:stop]
    # Conjugated and negated views change the numbers, not the bytes in memory.
    return items.resolve_conj().resolve_neg().contiguous()
