"""Safetensors headers, parsed and checked.

All that the reference implementation refuses is refused here, but for unused values that are nested
beyond its 128 levels. Duplicate names are refused as well, of which it silently keeps the last.
"""

from __future__ import annotations

import bisect
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from bf16codecs._base.cached import cached_property
from bf16codecs._base.dtypes import DTYPE_BITS
from bf16codecs._base.limits import MAX_METADATA_BYTES
from bf16codecs._base.messages import counted
from bf16codecs._files.reading import open_to_read
from bf16codecs.errors import SafetensorsError, StoreError

__all__ = [
    "MAX_HEADER_BYTES",
    "SAFETENSORS",
    "START_BYTES",
    "Header",
    "TensorInfo",
    "header_nbytes",
    "is_plain_name",
    "is_safetensors",
    "json_object",
    "make_header",
    "name_fault",
    "open_file",
    "parse_header",
    "read_header",
    "unlike",
]

MAX_HEADER_BYTES = MAX_METADATA_BYTES
#: The kind of a safetensors file, as stores name it.
SAFETENSORS = "safetensors"
_U64 = 1 << 64
_METADATA = "__metadata__"

# Numbers and text that JSON's grammar allows, and the reference does not take.
_ODD_NUMBER = re.compile(rb"-0|[0-9]{300}")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A header's entry for one tensor; `start` and `stop` are bytes from the end of the header."""

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
    metadata: dict[str, str] = field(default_factory=dict)
    #: Whether the header has such an entry, which may be empty: safetensors distinguishes the two.
    has_metadata: bool = False
    #: The kind of the file. One of another kind than safetensors may have bytes between tensors,
    #: `gaps` with their offsets, and further names of tensors, each with the one it stands for.
    kind: str = SAFETENSORS
    gaps: tuple[tuple[int, bytes], ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    #: Which of the tensors are but parts of the file, and tensors of it that are not shown.
    parts: frozenset[str] = frozenset()
    hidden: tuple[str, ...] = ()

    @cached_property
    def entries(self) -> dict[str, TensorInfo]:
        """The tensors by all of their names."""
        found = {tensor.name: tensor for tensor in self.tensors}
        others = {alias: replace(found[name], name=alias) for alias, name in self.aliases.items()}
        return found | others

    @property
    def prefix(self) -> bytes:
        """The bytes before a file's data: the header's length and the header."""
        return len(self.raw).to_bytes(8, "little") + self.raw

    @property
    def data_start(self) -> int:
        """Offset of the first tensor's data in the file."""
        return 8 + len(self.raw)

    @property
    def file_size(self) -> int:
        """Size of the file that has this header."""
        return self.data_start + (self.tensors[-1].stop if self.tensors else 0)

    def find(self, offset: int) -> tuple[int, int]:
        """Return which tensor, by number, has the byte at an offset in the file, and where.

        The second number is counted from the start of the tensor's data.
        """
        offset -= self.data_start
        # Empty tensors share their offset with the one that follows them.
        number = bisect.bisect_right(self.tensors, offset, key=lambda tensor: tensor.start) - 1
        return number, offset - self.tensors[number].start


def json_object(raw: bytes, where: str) -> list[tuple[str, Any]]:
    """Parse JSON as an object, into pairs. Inner objects become dicts; duplicates raise."""

    def pairs_hook(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            twice = Counter(k for k, _ in pairs).most_common(1)[0][0]
            raise SafetensorsError(f"{where}: duplicate key {twice!r}")
        return found

    def refuse_constant(text: str) -> None:
        raise SafetensorsError(f"{where}: {text} is not JSON")

    def finite(text: str) -> float:
        if math.isinf(number := float(text)):
            raise SafetensorsError(f"{where}: {text:.40} is out of range")
        return number

    def whole(text: str) -> int | float:
        number = finite(text)
        return number if text == "-0" else int(text)

    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as e:
        raise SafetensorsError(f"{where}: not UTF-8 at byte {e.start}") from None
    try:
        value = json.loads(
            text,
            object_pairs_hook=pairs_hook,
            parse_constant=refuse_constant,
            parse_float=finite,
            parse_int=whole if _ODD_NUMBER.search(raw) else None,
        )
        if _SURROGATE.search(raw):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except SafetensorsError:
        raise
    except UnicodeEncodeError:
        raise SafetensorsError(f"{where}: text that is not valid Unicode") from None
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
        raise SafetensorsError(
            f"{where}: no whole bytes in {counted(count, 'item')} of {bits} bits"
        )
    return count * bits // 8


def _tensor(name: str, entry: Any, where: str) -> TensorInfo:
    where = f"{where}: tensor {name!r}"
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
            f"{where}: {dtype} of shape {shape!r:.80} needs {counted(nbytes, 'byte')},"
            f" data_offsets give {stop - start}"
        )
    return TensorInfo(name, dtype, tuple(shape), start, stop)


def _metadata(value: Any, where: str) -> dict[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise SafetensorsError(f"{where}: __metadata__ is not an object of strings")
    return value


def parse_header(raw: bytes, data_size: int, where: str) -> Header:
    """Parse and check a header: its JSON, without the length before it.

    `data_size` is the number of bytes that follow it in the file, which the tensors have to cover
    exactly. `where` names the file in messages.
    """
    metadata: dict[str, str] | None = None
    tensors = []
    for name, entry in json_object(raw, f"{where}: header"):
        if name == _METADATA:
            metadata = _metadata(entry, where)
        else:
            tensors.append(_tensor(name, entry, where))
    # Empty tensors share an offset with their neighbour; sorted by both ends they come first.
    tensors.sort(key=lambda t: (t.start, t.stop))
    end = 0
    for tensor in tensors:
        if tensor.start != end:
            fault = (
                "overlaps the one before it" if tensor.start < end else "leaves a hole before it"
            )
            raise SafetensorsError(
                f"{where}: tensor {tensor.name!r} at offset {tensor.start} {fault}"
            )
        end = tensor.stop
    if end > data_size:
        raise SafetensorsError(
            f"{where}: truncated: the tensors need {counted(end, 'byte')}, the file has {data_size}"
            f" after its header"
        )
    if end < data_size:
        raise SafetensorsError(f"{where}: {counted(data_size - end, 'byte')} after the last tensor")
    return Header(raw, tuple(tensors), metadata or {}, metadata is not None)


def make_header(
    tensors: Mapping[str, tuple[str, tuple[int, ...]]],
    metadata: Mapping[str, str] | None,
    where: str,
) -> Header:
    """Lay out a file as safetensors does: wide dtypes first, then by name.

    Parameters
    ----------
    tensors
        Dtype and shape of each tensor, by name.
    metadata
        Its ``__metadata__``; with None, it has no such entry.
    where
        The file, for messages.

    Raises
    ------
    SafetensorsError
        If a tensor has a name that the format keeps for itself.
    """
    if _METADATA in tensors:
        raise SafetensorsError(f"{where}: no tensor may be called {_METADATA!r}: rename it")
    rank = list(DTYPE_BITS).index
    entries: dict[str, Any] = {} if metadata is None else {_METADATA: dict(metadata)}
    offset = 0
    for name in sorted(tensors, key=lambda name: (-rank(tensors[name][0]), name)):
        dtype, shape = tensors[name]
        stop = offset + math.prod(shape) * DTYPE_BITS[dtype] // 8
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, stop]}
        offset = stop
    raw = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    raw += b" " * (-len(raw) % 8)
    return parse_header(raw, offset, where)


def open_file(path: Path) -> BinaryIO:
    """Open a file to read it; raise SafetensorsError if it is not a regular one."""
    try:
        return os.fdopen(open_to_read(path), "rb")
    except StoreError as e:
        raise SafetensorsError(f"{path}: {e}") from None


# How files begin that are given instead of safetensors files, and their names.
_BEGINNINGS = {
    b"PK\x03\x04": "a ZIP file, as torch.save writes",
    b"GGUF": "a GGUF file",
    b"\x89HDF": "an HDF5 file",
    b"\x80\x02": "a pickle, as torch.save once wrote",
    b"version ": "a pointer of Git LFS: get the file with git lfs pull",
}


#: How many of a file's first bytes tell what it looks like.
START_BYTES = 9


def unlike(kind: str, start: bytes, otherwise: str = "") -> str:
    """Say that a file is not of a kind, and what it looks like by its first bytes, for a message.

    `otherwise` is said of one that looks like nothing known.
    """
    if not start:
        return "it is empty"
    return f"not {kind} ({like})" if (like := _likeness(start)) else f"not {kind}{otherwise}"


def _likeness(start: bytes) -> str:
    """Say what a file that begins like this may be; empty if that is unknown."""
    for beginning, what in _BEGINNINGS.items():
        if start.startswith(beginning):
            return f"it looks like {what}"
    if is_safetensors(start):
        return "it looks like a safetensors file"
    text = start[:8].decode("ascii") if start[:8].isascii() else ""
    return "it looks like text" if text and text.replace("\n", " ").isprintable() else ""


def is_safetensors(start: bytes) -> bool:
    """Return whether a file begins as safetensors files do."""
    return int.from_bytes(start[:8], "little") <= MAX_HEADER_BYTES and start[8:9] == b"{"


def header_nbytes(start: bytes, size: int, where: str) -> int:
    """Return the size of a file's header, from the first 8 bytes of the file, or more.

    SafetensorsError is raised for another file, and for one that is truncated. `size` is the
    file's.
    """
    length, why = int.from_bytes(start[:8], "little"), ""
    if size < 8:
        has_no = "has no" if size == 1 else "have no"
        why = f": {counted(size, 'byte')} {has_no} room for a safetensors header"
    elif length > MAX_HEADER_BYTES:
        why = f": its header would have {length} bytes, the limit is {MAX_HEADER_BYTES}"
    if why:
        raise SafetensorsError(f"{where}: {unlike('a safetensors file', start, why)}")
    if length > size - 8:
        raise SafetensorsError(
            f"{where}: truncated: header of {counted(length, 'byte')} in a file of {size}"
        )
    return length


def read_header(path: str | os.PathLike[str]) -> Header:
    """Read and check the header of a safetensors file, not its data."""
    path = Path(path)
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = header_nbytes(file.read(8), size, str(path))
        raw = file.read(length)
    if len(raw) != length:
        raise SafetensorsError(f"{path}: truncated while it was read")
    return parse_header(raw, size - 8 - length, str(path))


def is_plain_name(name: str) -> bool:
    """Return whether `name` is a file name without folders, which cannot lead out of a folder."""
    return not name_fault(name)


def name_fault(name: str) -> str:
    """Return what keeps `name` from being a plain file name, in words; empty if nothing does."""
    if not 0 < len(name) <= 255:  # file systems allow as many characters, or bytes
        return f"has {len(name)} characters"
    if name in (".", ".."):
        return "is that of a folder"
    odd = next((c for c in name if c in "/\\:" or not c.isprintable()), "")
    return f"has {odd!a}" if odd else ""
