"""Quantised tensors of GGUF files in stores, multiplied out by the package gguf."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bf16codecs._arrays.storage import Range
from bf16codecs._base.limits import MAX_METADATA_BYTES
from bf16codecs._base.messages import from_extra, named_errors
from bf16codecs.convert.places import FileBytes
from bf16codecs.convert.sources.gguf import KIND, read_tensors, region_of
from bf16codecs.errors import StoreError
from bf16codecs.model.model import Model
from bf16codecs.safetensors import Header
from bf16codecs.store.reader import ModelReader

with from_extra("gguf", "bf16codecs.gguf"):
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

__all__ = ["QuantizedTensor", "dequantized"]


class QuantizedTensor:
    """A tensor of blocks whose rows are multiplied out when they are indexed.

    Attributes
    ----------
    name : str
        Its name.
    type : str
        The type of its blocks, such as ``"Q4_K"``.
    shape : tuple of int
        Its shape in numbers.
    dtype : numpy.dtype
        float32.
    """

    dtype = np.dtype(np.float32)

    def __init__(self, name: str, kind: int, shape: tuple[int, ...], blocks: Any) -> None:
        self.name, self.shape = name, shape
        self._kind, self._blocks = kind, blocks

    @property
    def type(self) -> str:
        """The type of its blocks; a number if the installed package does not know it."""
        known = self._kind in set(GGMLQuantizationType)
        return str(GGMLQuantizationType(self._kind).name) if known else str(self._kind)

    def __getitem__(self, key: Any) -> NDArray[np.float32]:
        """Return a part, by integers, slices and an ellipsis; only the rows that it is in are read.

        IndexError is raised for other keys, and NotImplementedError for a type that the package
        gguf does not multiply out.
        """
        *rows, numbers = self._whole_key(key if isinstance(key, tuple) else (key,))
        if self._kind not in set(GGMLQuantizationType):
            raise NotImplementedError(f"{self.name}: type {self.type}: upgrade the package gguf")
        blocks = np.asarray(self._blocks[tuple(rows)])
        if not blocks.size:
            return np.empty((*blocks.shape[:-1], self.shape[-1]), np.float32)[..., numbers]
        part: NDArray[np.float32] = dequantize(blocks, GGMLQuantizationType(self._kind))
        return part[..., numbers]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return all of it."""
        if copy is False:
            raise ValueError("multiplied out anew each time: there is nothing to return but a copy")
        return self[...].astype(dtype or self.dtype, copy=False)

    def _whole_key(self, key: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a key for each axis."""
        given = [k for k in key if k is not Ellipsis]
        others = (slice(None),) * (len(self.shape) - len(given))
        at = next((i for i, k in enumerate(key) if k is Ellipsis), len(given))
        whole = (*given[:at], *others, *given[at:])
        if len(key) - len(given) > 1 or len(whole) > len(self.shape):
            raise IndexError(f"too many indices for {self!r}")
        if not all(isinstance(k, (int, np.integer, slice)) for k in given):
            raise IndexError(f"{self.name}: indices are integers, slices and one ellipsis")
        return whole

    def __repr__(self) -> str:
        return f"QuantizedTensor({self.name!r}, {self.type}, shape={self.shape})"


def dequantized(model: Model) -> Mapping[str, QuantizedTensor]:
    """Return the quantised tensors of a model from GGUF files, by name.

    The model has them as arrays of bytes; here they are float32 numbers, which are computed when a
    tensor is indexed. Plain tensors are in the model alone.

    Parameters
    ----------
    model : Model
        What `bf16codecs.open_model` returns for a store of GGUF files.

    Returns
    -------
    mapping of str to QuantizedTensor
        In the order of the file.

    Raises
    ------
    bf16codecs.store.StoreError
        If the store has no GGUF file, or is damaged.

    Examples
    --------
    >>> with bf16codecs.open_model("model.zarr") as model:  # doctest: +SKIP
    ...     rows = bf16codecs.gguf.dequantized(model)["blk.0.ffn_up.weight"][:16]
    """
    reader = model._handle.opened
    files = [(i, header) for i, header in enumerate(reader.headers) if header.kind == KIND]
    if not files:
        raise StoreError(f"{reader.where}: has no GGUF file")
    found: dict[str, QuantizedTensor] = {}
    for i, header in files:
        found |= {tensor.name: tensor for tensor in _quantized(model, i, header)}
    return found


def _quantized(model: Model, file: int, header: Header) -> Iterator[QuantizedTensor]:
    reader = model._handle.opened
    with named_errors(reader.file_path(file)):
        described, _ = read_tensors(_Metadata(_beginning(reader, file, header)))
    # Several tensors may begin at one offset; the store has one of them.
    by_offset = {(t.offset, r.dtype, r.shape): t for t in described if (r := region_of(t))}
    for tensor in header.tensors:
        offset = header.data_start + tensor.start
        found = by_offset.get((offset, tensor.dtype, tensor.shape))
        is_quantised = found is not None and found.shape != tensor.shape
        if found is not None and is_quantised and tensor.name not in header.parts:
            yield QuantizedTensor(tensor.name, found.type, found.shape, model[tensor.name])


def _beginning(reader: ModelReader, file: int, header: Header) -> bytes:
    """Return what a file has before its first tensor, which is a tensor of bytes if it is long."""
    if header.prefix or not header.tensors:
        return header.prefix
    beginning = np.empty(min(header.tensors[0].nbytes, MAX_METADATA_BYTES), np.uint8)
    reader.read_range(file, 0, beginning)
    return beginning.tobytes()


class _Metadata(FileBytes):
    """The beginning of a file, in memory."""

    def __init__(self, content: bytes) -> None:
        self._content, self.size = content, len(content)

    def read(self, ranges: Sequence[Range]) -> list[bytes]:
        """Return ranges of it."""
        return [self._content[start:stop] for start, stop in ranges]
