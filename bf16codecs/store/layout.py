"""The model store's layout, whatever holds it: arrays, chunks, attributes, headers.

docs/store.md is the normative description. A backend (Zarr today) implements `StoreWriter` and
`StoreReader`; everything else here and in `convert` is common to all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numcodecs import Zstd
from numcodecs.abc import Codec
from numpy.typing import NDArray

from bf16codecs._buffers import DTYPES
from bf16codecs._chunks.grid import ArrayPlan, Piece, chunk_shape
from bf16codecs._version import __version__
from bf16codecs.codecs import BF16Arithmetic, BF16Huffman, BF16Split, BF16Zstd
from bf16codecs.errors import StoreError, UnsupportedVersionError
from bf16codecs.safetensors import (
    DTYPE_BITS,
    Header,
    Source,
    TensorInfo,
    is_plain_name,
    parse_header,
)
from bf16codecs.store.paths import array_paths

__all__ = [
    "ATTRIBUTES_KEY",
    "LAYOUT_VERSION",
    "CodecChoice",
    "StoreError",
    "StoreInfo",
    "StoreReader",
    "StoreWriter",
    "StoredFile",
    "plan_arrays",
    "plan_bytes",
    "read_bytes",
    "read_headers",
    "stored_arrays",
]

LAYOUT_VERSION = 1
ATTRIBUTES_KEY = "bf16codecs"

# HDF5 and older NumPy allow this many dimensions.
_MAX_NDIM = 32
_MAX_DIMENSION = 2**63

#: safetensors dtypes that arrays keep; all others are stored as their bytes.
_KEPT_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
}


@dataclass(frozen=True)
class CodecChoice:
    """What `--codec` and `--level` say, applied to each dtype."""

    name: str = "arithmetic"
    level: str | int | None = None

    def __post_init__(self) -> None:
        if self.name not in ("huffman", "arithmetic", "zstd", "split", "none"):
            raise ValueError(
                f"codec must be huffman, arithmetic, zstd, split or none, not {self.name!r}"
            )
        if self.level is not None and self.name not in ("arithmetic", "zstd"):
            raise ValueError(f"codec {self.name!r} has no levels")
        self.for_dtype("bfloat16")  # checks the level

    def for_dtype(self, dtype: str) -> Codec | None:
        """Return the codec of arrays of a data type, or None to store them as they are."""
        if self.name == "none":
            return None
        if dtype not in DTYPES:
            # Planes mean nothing for integers; every Zarr library has this codec.
            return None if self.name == "split" else Zstd(level=3, checksum=True)
        if self.name == "split":
            return BF16Split(dtype)
        if self.name == "huffman":
            return BF16Huffman(dtype)
        if self.name == "arithmetic":
            return BF16Arithmetic(dtype, "fast" if self.level is None else str(self.level))
        try:
            level = 3 if self.level is None else int(self.level)
        except ValueError:
            raise ValueError(f"zstd levels are 1 to 22, not {self.level!r}") from None
        return BF16Zstd(level, dtype)


def _stored_form(tensor: TensorInfo) -> tuple[str, tuple[int, ...]]:
    """Return the dtype and shape of a tensor's array."""
    dtype, bits, shape = _KEPT_DTYPES.get(tensor.dtype), DTYPE_BITS[tensor.dtype], tensor.shape
    # An empty tensor may have other dimensions that are larger than any memory.
    addressable = math.prod(max(1, size) for size in shape) * bits < _MAX_DIMENSION
    if len(shape) <= _MAX_NDIM and addressable:
        if dtype is not None:
            return dtype, shape
        if bits == 8:
            return "uint8", shape
        if shape and shape[-1] * bits % 8 == 0:
            return "uint8", (*shape[:-1], shape[-1] * bits // 8)
    return "uint8", (tensor.nbytes,)


def plan_bytes(path: str, nbytes: int, chunk_size: int) -> ArrayPlan:
    """Plan an array of bytes: a header, or the index."""
    return ArrayPlan(path, "uint8", (nbytes,), chunk_shape((nbytes,), 1, chunk_size))


def plan_arrays(source: Source, chunk_size: int) -> tuple[dict[str, str], list[ArrayPlan]]:
    """Plan the arrays of a model: the map from tensor names to paths, and the arrays in order."""
    files = [f.header for f in source.files]
    paths = array_paths(t.name for header in files for t in header.tensors)
    arrays = []
    for number, header in enumerate(files):
        for tensor in header.tensors:
            dtype, shape = _stored_form(tensor)
            attributes: dict[str, Any] = {"tensor": tensor.name, "dtype": tensor.dtype}
            if shape != tensor.shape:
                attributes["shape"] = list(tensor.shape)
            arrays.append(
                ArrayPlan(
                    paths[tensor.name],
                    dtype,
                    shape,
                    chunk_shape(shape, np.dtype(dtype).itemsize, chunk_size),
                    {ATTRIBUTES_KEY: attributes},
                    number,
                    header.data_start + tensor.start,
                )
            )
    return paths, arrays


@dataclass(frozen=True)
class StoredFile:
    """An original file: what restores it, and what it must then be."""

    name: str
    size: int
    sha256: str
    #: Array of its header, or of the index's whole content.
    path: str


@dataclass(frozen=True)
class StoreInfo:
    """What the group's attributes say."""

    files: tuple[StoredFile, ...]
    index: StoredFile | None
    paths: Mapping[str, str]

    def to_attributes(self) -> dict[str, Any]:
        """Return the group's attributes."""

        def entry(file: StoredFile, key: str) -> dict[str, Any]:
            return {"name": file.name, "size": file.size, "sha256": file.sha256, key: file.path}

        content: dict[str, Any] = {
            "layout": LAYOUT_VERSION,
            "writer": f"bf16codecs {__version__}",
            "files": [entry(f, "header") for f in self.files],
        }
        if self.index is not None:
            content["index"] = entry(self.index, "path")
        content["tensors"] = dict(self.paths)
        return {ATTRIBUTES_KEY: content}

    @classmethod
    def from_attributes(cls, attributes: Mapping[str, Any], where: str) -> StoreInfo:
        """Check a group's attributes.

        Raises
        ------
        StoreError
            If the group is no model store, or its attributes make no sense.
        UnsupportedVersionError
            If its layout is newer than this release.
        """
        content = attributes.get(ATTRIBUTES_KEY)
        if not isinstance(content, Mapping) or type(content.get("layout")) is not int:
            raise StoreError(f"{where}: not a model store: no {ATTRIBUTES_KEY!r} attribute")
        if content["layout"] > LAYOUT_VERSION:
            raise UnsupportedVersionError(
                f"{where}: store layout {content['layout']} is newer than this release of"
                f" bf16codecs reads ({LAYOUT_VERSION}): upgrade bf16codecs"
            )
        try:
            files = tuple(_stored_file(entry, "header") for entry in content["files"])
            index = _stored_file(content["index"], "path") if "index" in content else None
            paths = dict(content["tensors"])
            if not all(isinstance(path, str) for path in paths.values()):
                raise ValueError("an array path is not a string")
            names = [f.name for f in files] + ([index.name] if index else [])
            if len(set(names)) != len(names):
                raise ValueError("two files have one name")
        except (KeyError, TypeError, ValueError) as e:
            raise StoreError(f"{where}: damaged store attributes: {e}") from None
        return cls(files, index, paths)


def _stored_file(entry: Mapping[str, Any], key: str) -> StoredFile:
    file = StoredFile(entry["name"], entry["size"], entry["sha256"], entry[key])
    if not all(isinstance(text, str) for text in (file.name, file.sha256, file.path)):
        raise TypeError("a file's name, digest or path is not a string")
    if type(file.size) is not int or file.size < 0:
        raise ValueError(f"{file.size!r} is not a file size")
    # Restoring must not write anywhere else than where it was told to.
    if not is_plain_name(file.name):
        raise ValueError(f"{file.name!r} is not a plain file name")
    return file


class StoreWriter(Protocol):
    """A store being written; `write` may be called by several threads."""

    def create(self, array: ArrayPlan) -> None:
        """Prepare an array."""

    def write(self, piece: Piece, chunk: NDArray[np.uint8]) -> int:
        """Encode and write a whole chunk, and return its stored size."""

    def finish(self, info: StoreInfo) -> int:
        """Write all metadata, close the store, and return the metadata's size."""

    def close(self) -> None:
        """Release what is open; after `finish` nothing is."""


class StoreReader(Protocol):
    """A store being read; `read` may be called by several threads."""

    #: The store's path or address, for messages.
    where: str
    info: StoreInfo

    def plan(self, path: str) -> ArrayPlan:
        """Describe an array, in contiguous chunks."""

    def read(self, piece: Piece, chunk: NDArray[np.uint8]) -> None:
        """Decode a whole chunk, padding included, of a plan that `plan` returned."""

    def stored_nbytes(self, path: str) -> int:
        """Return the size that an array takes in the store."""

    def total_nbytes(self) -> int:
        """Return the size of the whole store."""

    def codec_name(self, path: str) -> str:
        """Name the codec of an array, for people."""

    def close(self) -> None:
        """Release what is open."""


def read_bytes(reader: StoreReader, path: str) -> bytes:
    """Read an array of bytes."""
    plan = reader.plan(path)
    if plan.dtype != "uint8" or len(plan.shape) != 1:
        raise StoreError(f"{reader.where}: {path} is not an array of bytes")
    content = bytearray()
    for piece in plan.pieces():
        chunk = np.empty(plan.chunk_nbytes, np.uint8)
        reader.read(piece, chunk)
        content += chunk[: piece.nbytes].data
    return bytes(content)


def read_headers(reader: StoreReader) -> list[Header]:
    """Read and check the headers of a store's files."""
    headers = []
    for file in reader.info.files:
        raw = read_bytes(reader, file.path)
        where = f"{reader.where}: {file.name}"
        headers.append(parse_header(raw, file.size - 8 - len(raw), where))
    return headers


def stored_arrays(reader: StoreReader, headers: Sequence[Header]) -> list[ArrayPlan]:
    """Return the arrays of all tensors, in the order in which their bytes lie in the files."""
    arrays = []
    for number, header in enumerate(headers):
        for tensor in header.tensors:
            path = reader.info.paths.get(tensor.name)
            if path is None:
                raise StoreError(f"{reader.where}: no array for tensor {tensor.name!r}")
            plan = reader.plan(path)
            if (plan.dtype, plan.shape) != _stored_form(tensor):
                raise StoreError(
                    f"{reader.where}: {path} is {plan.dtype} of shape {plan.shape!r:.80},"
                    f" tensor {tensor.name!r} is {tensor.dtype} of shape {tensor.shape!r:.80}"
                )
            arrays.append(replace(plan, file=number, offset=header.data_start + tensor.start))
    return arrays
