"""GGUF files, as llama.cpp writes them: a file is restored byte for byte.

Tensors of plain numbers become arrays of them. Quantised ones become arrays of bytes, a row of
blocks in each row. The package gguf, which is not needed here, multiplies these out.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from math import prod
from typing import NamedTuple

from bf16codecs._base.buffers import aligned
from bf16codecs._base.limits import MAX_METADATA_BYTES
from bf16codecs._base.messages import named_errors
from bf16codecs.convert.places import FileBytes, Place
from bf16codecs.convert.regions import MOST_NAMES, Names, outline_of, without_overlaps
from bf16codecs.errors import SafetensorsError
from bf16codecs.safetensors import START_BYTES, unlike
from bf16codecs.store.kinds import GGUF_SUFFIX
from bf16codecs.store.outline import Layout, Region
from bf16codecs.store.reader import ModelReader

__all__ = ["SUFFIXES", "GGUFTensor", "is_source", "open_source", "read_tensors", "region_of"]

KIND = "gguf"
SUFFIXES = (GGUF_SUFFIX,)

_MAGIC = b"GGUF"
_VERSIONS = (1, 2, 3)
_ALIGNMENT_KEY = b"general.alignment"
_MOST_DIMENSIONS = 32
_READ_BYTES = 1 << 20

# Types of metadata, by number: of plain values, the letter of `struct`.
_STRING, _ARRAY = 8, 9
_VALUES = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}

# Types of tensors, by number: those of plain numbers, and the items and bytes of a block of others.
_PLAIN = {
    0: "F32",
    1: "F16",
    30: "BF16",
    28: "F64",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
}
_BLOCKS = {
    2: (32, 18),
    3: (32, 20),
    6: (32, 22),
    7: (32, 24),
    8: (32, 34),
    9: (32, 40),
    10: (256, 84),
    11: (256, 110),
    12: (256, 144),
    13: (256, 176),
    14: (256, 210),
    15: (256, 292),
    16: (256, 66),
    17: (256, 74),
    18: (256, 98),
    19: (256, 50),
    20: (32, 18),
    21: (256, 110),
    22: (256, 82),
    23: (256, 136),
    29: (256, 56),
    34: (256, 54),
    35: (256, 66),
    39: (32, 17),
    40: (64, 36),
    41: (128, 18),
}


def is_source(place: Place) -> bool:
    """Return whether a file begins as GGUF files do, or a folder has some, and no safetensors."""
    if place.name:
        return place.begins(place.name, len(_MAGIC)) == _MAGIC
    names = place.names()
    has_others = any(name.endswith(".safetensors") for name in names)
    return not has_others and any(name.endswith(GGUF_SUFFIX) for name in names)


def open_source(place: Place) -> ModelReader:
    """Open a file, or the only one in a folder; raise SafetensorsError if it is damaged."""
    name, names = place.name or _file_in(place), Names()
    with named_errors(place.label(name), SafetensorsError, OSError), place.open(name) as file:
        outline = outline_of(file, KIND, _layout(file, names), names)
    others = [] if place.name else [other for other in place.names() if other != name]
    return place.reader([(name, outline)], None, others)


def _layout(file: FileBytes, names: Names) -> Layout:
    """Find the tensors of a file.

    Those that overlap larger ones, are of unknown types, or are big-endian, are hidden: their bytes
    are shown without their names.
    """
    tensors, is_little_endian = read_tensors(file)
    found = [region_of(tensor) if is_little_endian else None for tensor in tensors]
    regions = [region for region in found if region is not None]
    last = max((region.stop for region in regions), default=0)
    if last > file.size:
        raise ValueError(f"truncated: its tensors end at byte {last}, and the file at {file.size}")
    shown = set(map(id, without_overlaps(regions)))
    layout = Layout.empty()
    for tensor, region in zip(tensors, found, strict=True):
        name = names.unique(tensor.name)
        if region is not None and id(region) in shown:
            layout.regions.append(replace(region, name=name))
        elif len(layout.hidden) < MOST_NAMES:
            layout.hidden.append(name)
    return layout


def _file_in(place: Place) -> str:
    """Return the name of the only file in a folder."""
    files = [name for name in place.names() if name.endswith(GGUF_SUFFIX)]
    if len(files) > 1:
        raise SafetensorsError(
            f"several GGUF files, such as {files[0]}: name one instead of the folder: each becomes"
            " a store of its own"
        )
    return files[0]


class _Metadata:
    """The beginning of a file, which is read in order."""

    def __init__(self, file: FileBytes) -> None:
        self._file, self._data = file, bytearray()
        self.at = 0
        start = file.part(0, START_BYTES)
        if not start.startswith(_MAGIC):
            raise ValueError(unlike("a GGUF file", start))
        version = int.from_bytes(self.take(8)[len(_MAGIC) :], "little")
        self.at = len(_MAGIC)
        # The other order of bytes puts the version into the highest of them.
        self.is_little_endian = version & 0xFFFF != 0
        self._order = "<" if self.is_little_endian else ">"
        self.version = self.number("I")
        if self.version not in _VERSIONS:
            raise ValueError(f"version {self.version} of GGUF is not known: upgrade bf16codecs")
        #: The letter of lengths and counts.
        self.length = "I" if self.version == 1 else "Q"

    def take(self, nbytes: int) -> bytes:
        """Return the next bytes."""
        end = self.at + nbytes
        if end > MAX_METADATA_BYTES:
            raise ValueError(f"its metadata take {end} bytes, the limit is {MAX_METADATA_BYTES}")
        while len(self._data) < end:
            at = len(self._data)
            part = self._file.part(at, max(at + _READ_BYTES, end))
            if not part:
                raise ValueError("truncated in its metadata")
            self._data += part
        self.at = end
        return bytes(self._data[end - nbytes : end])

    def number(self, letter: str) -> int:
        """Return the next number, by the letter of `struct` for its type."""
        form = self._order + letter
        (value,) = struct.unpack(form, self.take(struct.calcsize(form)))
        return int(value) if letter not in "fd" else 0

    def text(self) -> bytes:
        """Return the next string."""
        return self.take(self.number(self.length))

    def value(self, kind: int, depth: int = 0) -> int:
        """Read a value; return it if it is a number."""
        if kind in _VALUES:
            return self.number(_VALUES[kind])
        if kind == _STRING:
            self.text()
        elif kind == _ARRAY and depth < _MOST_DIMENSIONS:
            inner, count = self.number("I"), self.number(self.length)
            if inner in _VALUES:
                self.take(count * struct.calcsize("<" + _VALUES[inner]))
            else:
                for _ in range(count):
                    self.value(inner, depth + 1)
        else:
            raise ValueError(f"a value of the unknown type {kind}")
        return 0


class GGUFTensor(NamedTuple):
    """A tensor as a file describes it."""

    name: str
    #: In C order, in numbers.
    shape: tuple[int, ...]
    #: The number of its type.
    type: int
    #: The offset of its bytes in the file.
    offset: int


def read_tensors(file: FileBytes) -> tuple[list[GGUFTensor], bool]:
    """Return the tensors of a file in their order there, and whether it is little-endian.

    ValueError is raised if it is damaged.
    """
    metadata = _Metadata(file)
    count, entries = metadata.number(metadata.length), metadata.number(metadata.length)
    alignment = 32
    for _ in range(entries):
        key, kind = metadata.text(), metadata.number("I")
        value = metadata.value(kind)
        if key == _ALIGNMENT_KEY:
            alignment = value
    if alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"an alignment of {alignment} bytes is not a power of two")
    relative = [_read_tensor(metadata) for _ in range(count)]
    start = aligned(metadata.at, alignment)
    tensors = [tensor._replace(offset=start + tensor.offset) for tensor in relative]
    return tensors, metadata.is_little_endian


def _read_tensor(metadata: _Metadata) -> GGUFTensor:
    """Return the next tensor, with its offset behind the metadata."""
    name, count = metadata.text().decode("utf-8", "backslashreplace"), metadata.number("I")
    if count > _MOST_DIMENSIONS:
        raise ValueError(f"tensor {name!r:.80} has {count} dimensions")
    shape = tuple(metadata.number(metadata.length) for _ in range(count))[::-1]
    if prod(shape) >> 60:
        raise ValueError(f"tensor {name!r:.80} is larger than any file")
    return GGUFTensor(name, shape, metadata.number("I"), metadata.number("Q"))


def region_of(tensor: GGUFTensor) -> Region | None:
    """Return where a tensor lies, of numbers or of bytes; None if its size is not known."""
    name, shape, kind, offset = tensor
    if kind in _PLAIN:
        return Region(name, _PLAIN[kind], shape, offset)
    items, nbytes = _BLOCKS.get(kind, (0, 0))
    if not items or not shape or shape[-1] % items:
        return None
    return Region(name, "U8", (*shape[:-1], shape[-1] // items * nbytes), offset)
