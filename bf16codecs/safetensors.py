"""Safetensors headers: what a file, a folder of shards or an index says, checked.

The rules are those of the reference implementation (what it refuses is refused here), with one
addition: duplicate tensor names, of which it silently keeps the last, are refused too.
"""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bf16codecs._files import read_at
from bf16codecs.errors import SafetensorsError

__all__ = [
    "DTYPE_BITS",
    "MAX_HEADER_BYTES",
    "Header",
    "SafetensorsError",
    "Source",
    "SourceFile",
    "TensorInfo",
    "is_plain_name",
    "open_source",
    "parse_header",
    "read_header",
]

MAX_HEADER_BYTES = 100_000_000
INDEX_SUFFIX = ".safetensors.index.json"
_U64 = 1 << 64

DTYPE_BITS = {
    "F4": 4,
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8"), 8),
    **dict.fromkeys(("F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("C64", "F64", "I64", "U64"), 64),
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What a header says about one tensor; `start` and `stop` count from the end of the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """Size of the tensor's data."""
        return self.stop - self.start


@dataclass(frozen=True)
class Header:
    """A checked header: `raw` is verbatim, `tensors` is in the order of their data."""

    raw: bytes
    tensors: tuple[TensorInfo, ...]
    metadata: dict[str, str]

    @property
    def data_start(self) -> int:
        """Offset of the first tensor's data in the file."""
        return 8 + len(self.raw)

    @property
    def file_size(self) -> int:
        """Size of the file that has this header."""
        return self.data_start + (self.tensors[-1].stop if self.tensors else 0)


@dataclass(frozen=True)
class SourceFile:
    """A safetensors file on disk."""

    path: Path
    header: Header

    @property
    def name(self) -> str:
        """The file's name without folders."""
        return self.path.name

    def read_into(self, offset: int, out: NDArray[np.uint8]) -> None:
        """Read bytes of the file, header included."""
        # Not mapped into memory: mapped pages would count as this process's memory.
        with open(self.path, "rb", buffering=0) as source:
            if read_at(source.fileno(), offset, out) < out.size:
                raise SafetensorsError(f"{self.path}: truncated while it was read")

    def state(self) -> Any:
        """Return what is another one when the file has changed."""
        status = os.stat(self.path)
        return status.st_ino, status.st_size, status.st_mtime_ns


@dataclass(frozen=True)
class Source:
    """One model: its files, and the index file with its verbatim content where there is one."""

    files: tuple[SourceFile, ...]
    index: Path | None = None
    index_raw: bytes = b""

    @property
    def nbytes(self) -> int:
        """Size of all files, without the index."""
        return sum(f.header.file_size for f in self.files)

    @property
    def paths(self) -> list[Path]:
        """All files on disk."""
        return [f.path for f in self.files] + ([self.index] if self.index is not None else [])


def _json_object(raw: bytes, where: str) -> list[tuple[str, Any]]:
    """Parse `raw` as a JSON object into pairs. Objects inside become dicts; duplicates raise."""

    def pairs_hook(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            twice = Counter(k for k, _ in pairs).most_common(1)[0][0]
            raise SafetensorsError(f"{where}: duplicate key {twice!r}")
        return found

    def refuse_constant(text: str) -> None:
        raise SafetensorsError(f"{where}: {text} is not JSON")

    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as e:
        raise SafetensorsError(f"{where}: not UTF-8 at byte {e.start}") from None
    try:
        value = json.loads(text, object_pairs_hook=pairs_hook, parse_constant=refuse_constant)
    except SafetensorsError:
        raise
    except (ValueError, RecursionError) as e:
        raise SafetensorsError(f"{where}: not valid JSON: {e}") from None
    if not isinstance(value, dict):
        raise SafetensorsError(f"{where}: not a JSON object")
    return list(value.items())


def _is_size(value: object) -> bool:
    # JSON's true and 2.0 would pass as integers in Python.
    return type(value) is int and 0 <= value < _U64


def _nbytes(bits: int, shape: Iterable[int], where: str) -> int:
    """Multiply as 64-bit arithmetic allows, from left to right as the reference does."""
    count = 1
    for size in shape:
        count *= size
        if count >= _U64:
            raise SafetensorsError(f"{where}: number of items overflows 64 bits")
    if count * bits >= _U64:
        raise SafetensorsError(f"{where}: size overflows 64 bits")
    if count * bits % 8:
        raise SafetensorsError(f"{where}: {count} items of {bits} bits do not fill whole bytes")
    return count * bits // 8


def _tensor(name: str, entry: Any, where: str) -> TensorInfo:
    where = f"{where}: tensor {name!r}"
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise SafetensorsError(f"{where}: name is not valid Unicode") from None
    if not isinstance(entry, dict):
        raise SafetensorsError(f"{where}: not a JSON object")
    for key in ("dtype", "shape", "data_offsets"):
        if key not in entry:
            raise SafetensorsError(f"{where}: no {key!r}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise SafetensorsError(f"{where}: unknown dtype {dtype!r:.40}")
    if not isinstance(shape, list) or not all(map(_is_size, shape)):
        raise SafetensorsError(f"{where}: shape is not a list of sizes")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
        raise SafetensorsError(f"{where}: data_offsets is not a pair of offsets")
    start, stop = offsets
    if start > stop:
        raise SafetensorsError(f"{where}: data_offsets {start} and {stop} are not in order")
    nbytes = _nbytes(DTYPE_BITS[dtype], shape, where)
    if nbytes != stop - start:
        raise SafetensorsError(
            f"{where}: {dtype} of shape {shape!r:.80} needs {nbytes} bytes,"
            f" data_offsets give {stop - start}"
        )
    return TensorInfo(name, dtype, tuple(shape), start, stop)


def _metadata(value: Any, where: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise SafetensorsError(f"{where}: __metadata__ is not an object of strings")
    return value


def parse_header(raw: bytes, data_size: int, where: str) -> Header:
    """Parse and check a header.

    Parameters
    ----------
    raw
        The header's JSON, without the length before it.
    data_size
        Number of bytes that follow the header in the file.
    where
        Name of the file, for messages.

    Raises
    ------
    SafetensorsError
        If the header breaks a rule, or the tensors do not cover the data exactly.
    """
    metadata: dict[str, str] = {}
    tensors = []
    for name, entry in _json_object(raw, f"{where}: header"):
        if name == "__metadata__":
            metadata = _metadata(entry, where)
        else:
            tensors.append(_tensor(name, entry, where))
    # Empty tensors share an offset with their neighbour; sorted by both ends they come first.
    tensors.sort(key=lambda t: (t.start, t.stop))
    end = 0
    for tensor in tensors:
        if tensor.start != end:
            fault = "overlaps the one before it" if tensor.start < end else "leaves a hole before"
            raise SafetensorsError(
                f"{where}: tensor {tensor.name!r} at offset {tensor.start} {fault}"
            )
        end = tensor.stop
    if end > data_size:
        raise SafetensorsError(
            f"{where}: truncated: the tensors need {end} bytes, the file has {data_size}"
            f" after its header"
        )
    if end < data_size:
        raise SafetensorsError(f"{where}: {data_size - end} bytes after the last tensor")
    return Header(raw, tuple(tensors), metadata)


def read_header(path: str | os.PathLike[str]) -> Header:
    """Read and check the header of a safetensors file; the data are not read."""
    path = Path(path)
    # Before it is opened: a named pipe would block.
    if not stat.S_ISREG(path.stat().st_mode):
        raise SafetensorsError(f"{path}: not a regular file")
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < 8:
            raise SafetensorsError(f"{path}: truncated: {size} bytes hold no safetensors header")
        length = int.from_bytes(file.read(8), "little")
        if length > MAX_HEADER_BYTES:
            raise SafetensorsError(
                f"{path}: not a safetensors file: its header would have {length} bytes,"
                f" the limit is {MAX_HEADER_BYTES}"
            )
        if length > size - 8:
            raise SafetensorsError(
                f"{path}: truncated: header of {length} bytes in a file of {size}"
            )
        raw = file.read(length)
    if len(raw) != length:
        raise SafetensorsError(f"{path}: truncated while it was read")
    return parse_header(raw, size - 8 - length, str(path))


def is_plain_name(name: str) -> bool:
    """Tell whether `name` names a file in a folder, and cannot lead out of it."""
    return name.isprintable() and name not in ("", ".", "..") and not set(name) & set("/\\:")


def _shard_names(raw: bytes, path: Path) -> dict[str, list[str]]:
    """Return the tensors that an index puts into each file."""
    weight_map = dict(_json_object(raw, str(path))).get("weight_map")
    if not isinstance(weight_map, dict):
        raise SafetensorsError(f"{path}: no weight_map")
    shards: dict[str, list[str]] = {}
    for tensor, name in weight_map.items():
        # A name with folders could lead anywhere; the index lies beside its files.
        if not isinstance(name, str) or not is_plain_name(name):
            raise SafetensorsError(
                f"{path}: tensor {tensor!r} is in {name!r}, not a plain file name"
            )
        shards.setdefault(name, []).append(tensor)
    return shards


def _refuse_shared_names(files: Iterable[SourceFile]) -> None:
    seen: dict[str, SourceFile] = {}
    for file in files:
        for tensor in file.header.tensors:
            other = seen.setdefault(tensor.name, file)
            if other is not file:
                raise SafetensorsError(
                    f"{file.path}: tensor {tensor.name!r} is also in {other.name};"
                    f" name the file or the index to convert"
                )


def _open_index(path: Path) -> Source:
    with open(path, "rb") as index:
        raw = index.read(MAX_HEADER_BYTES + 1)
    if len(raw) > MAX_HEADER_BYTES:
        raise SafetensorsError(f"{path}: larger than {MAX_HEADER_BYTES} bytes")
    shards = _shard_names(raw, path)
    files = []
    for name in sorted(shards):
        file = SourceFile(path.parent / name, read_header(path.parent / name))
        present = {t.name for t in file.header.tensors}
        for tensor in shards[name]:
            if tensor not in present:
                raise SafetensorsError(f"{path}: tensor {tensor!r} is not in {name}")
        files.append(file)
    _refuse_shared_names(files)
    return Source(tuple(files), path, raw)


def _entries(folder: Path, suffix: str) -> Iterator[Path]:
    # Hidden files are somebody's temporary ones.
    return (p for p in sorted(folder.iterdir()) if p.name.endswith(suffix) and p.name[0] != ".")


def _open_folder(path: Path) -> Source:
    indexes = list(_entries(path, INDEX_SUFFIX))
    shards = list(_entries(path, ".safetensors"))
    if len(indexes) > 1:
        raise SafetensorsError(f"{path}: more than one {INDEX_SUFFIX}: name the one to convert")
    if indexes:
        source = _open_index(indexes[0])
        extra = {p.name for p in shards} - {f.name for f in source.files}
        if extra:
            raise SafetensorsError(
                f"{path}: {min(extra)} is not in {indexes[0].name};"
                f" name the index to convert without it"
            )
        return source
    if not shards:
        raise SafetensorsError(f"{path}: no .safetensors file in this folder")
    files = tuple(SourceFile(p, read_header(p)) for p in shards)
    _refuse_shared_names(files)
    return Source(files)


def open_source(path: str | os.PathLike[str]) -> Source:
    """Read and check the headers of a model.

    Parameters
    ----------
    path
        A safetensors file, a folder of them (its index is used if it has one), or an index,
        `*.safetensors.index.json`.

    Raises
    ------
    SafetensorsError
        If a file breaks the format, or files and index contradict each other.
    OSError
        If a file cannot be read.
    """
    path = Path(path)
    if path.is_dir():
        return _open_folder(path)
    if path.name.endswith(".json"):
        return _open_index(path)
    return Source((SourceFile(path, read_header(path)),))
