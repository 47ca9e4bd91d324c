"""Outlines: where the tensors of a file lie that is not a safetensors file, and its other bytes.

docs/store.md, "Files of other kinds", is the normative description.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from bf16codecs._arrays.storage import Range
from bf16codecs._base.dtypes import DTYPE_BITS
from bf16codecs._base.limits import MAX_METADATA_BYTES
from bf16codecs.errors import SafetensorsError, StoreError
from bf16codecs.safetensors import Header, TensorInfo, json_object
from bf16codecs.store.attributes import stated_shape

__all__ = ["Layout", "Outline", "Region", "make_outline", "parse_outline"]


@dataclass(frozen=True, slots=True)
class Region:
    """Consecutive bytes of a file that are a tensor in C order, little-endian."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        """Size of the tensor's data."""
        return math.prod(self.shape) * DTYPE_BITS[self.dtype] // 8

    @property
    def stop(self) -> int:
        """Offset of the first byte behind it."""
        return self.offset + self.nbytes


@dataclass(frozen=True)
class Outline(Header):
    """The counterpart of a safetensors header: `raw` has all bytes but the tensors'."""

    #: The size of the file.
    size: int = 0
    #: The bytes before the first tensor.
    start: bytes = b""

    @property
    def prefix(self) -> bytes:
        """The bytes before the first tensor."""
        return self.start

    @property
    def data_start(self) -> int:
        """Offset of the first tensor."""
        return len(self.start)

    @property
    def file_size(self) -> int:
        """Size of the file."""
        return self.size


class Layout(NamedTuple):
    """The tensors of a file: none overlaps another.

    `parts` are those of `regions` that are no tensors of the model, but bytes of the file, `hidden`
    names of tensors that are no regions, and `aliases` further names of those that are.
    """

    regions: list[Region]
    aliases: dict[str, str]
    parts: list[str]
    hidden: list[str]

    @classmethod
    def empty(cls) -> Layout:
        """Return that of a file without tensors."""
        return cls([], {}, [], [])

    def add(self, other: Layout) -> None:
        """Add the tensors of another part of the file."""
        self.regions.extend(other.regions)
        self.aliases.update(other.aliases)
        self.parts.extend(other.parts)
        self.hidden.extend(other.hidden)


def make_outline(
    kind: str, size: int, layout: Layout, read: Callable[[Sequence[Range]], list[bytes]]
) -> Outline:
    """Make the outline of a file.

    Parameters
    ----------
    kind
        The kind of the file, by which stores name it.
    size
        The size of the file in bytes.
    layout
        Its tensors.
    read
        Returns the bytes of ranges of the file.
    """
    ordered = sorted(layout.regions, key=lambda region: (region.offset, region.stop))
    tensors = {
        region.name: {
            "dtype": region.dtype,
            "shape": list(region.shape),
            "offset": region.offset,
        }
        for region in ordered
    }
    content: dict[str, Any] = {"tensors": tensors}
    others = {"aliases": layout.aliases, "parts": layout.parts, "hidden": layout.hidden}
    content |= {key: value for key, value in others.items() if value}
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
    rest = b"".join(read(list(_gaps(ordered, size))))
    raw = len(text).to_bytes(8, "little") + text + rest
    if len(raw) > MAX_METADATA_BYTES:
        raise SafetensorsError(
            f"{len(raw)} bytes of the file are in no tensor, or name tensors: the limit is"
            f" {MAX_METADATA_BYTES}"
        )
    return parse_outline(raw, kind, size, "the outline")


def parse_outline(raw: bytes, kind: str, size: int, where: str) -> Outline:
    """Parse the outline of a file of `size` bytes.

    Raises StoreError or SafetensorsError if it breaks the rules.
    """
    length = int.from_bytes(raw[:8], "little")
    if len(raw) < 8 + length:
        raise StoreError(f"{where}: truncated")
    content = dict(json_object(raw[8 : 8 + length], where))
    try:
        regions = [_region(name, entry) for name, entry in content["tensors"].items()]
        aliases = _aliases(content.get("aliases", {}), {region.name for region in regions})
        parts, hidden = (_names(content.get(key, [])) for key in ("parts", "hidden"))
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        why = f"it has no {e}" if isinstance(e, KeyError) else str(e)
        raise StoreError(f"{where}: a damaged outline: {why}") from None
    if any(one.stop > other.offset for one, other in pairwise(regions)):
        raise StoreError(f"{where}: tensors overlap, or are not in order")
    if regions and regions[-1].stop > size:
        raise StoreError(f"{where}: tensor {regions[-1].name!r:.80} ends behind the file")
    at, gaps = 8 + length, []
    for start, stop in _gaps(regions, size):
        gaps.append((start, raw[at : at + stop - start]))
        at += stop - start
    if at != len(raw):
        raise StoreError(
            f"{where}: the bytes between tensors are {len(raw) - 8 - length}, not {at - 8 - length}"
        )
    first = gaps.pop(0)[1] if gaps and gaps[0][0] == 0 else b""
    tensors = tuple(
        TensorInfo(r.name, r.dtype, r.shape, r.offset - len(first), r.stop - len(first))
        for r in regions
    )
    return Outline(
        raw,
        tensors,
        kind=kind,
        gaps=tuple(gaps),
        aliases=aliases,
        parts=frozenset(parts),
        hidden=tuple(hidden),
        size=size,
        start=first,
    )


def _gaps(regions: Iterable[Region], size: int) -> Iterable[tuple[int, int]]:
    """Yield the ranges of a file that are in no region."""
    at = 0
    for region in regions:
        if region.offset > at:
            yield at, region.offset
        at = max(at, region.stop)
    if size > at:
        yield at, size


def _region(name: str, entry: Mapping[str, Any]) -> Region:
    dtype, shape, offset = entry["dtype"], stated_shape(entry["shape"]), entry["offset"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise ValueError(f"tensor {name!r:.80}: {dtype!r:.80} is not a dtype")
    if type(offset) is not int or offset < 0:
        raise ValueError(f"tensor {name!r:.80}: {offset!r:.80} is not an offset")
    if math.prod(shape) * DTYPE_BITS[dtype] % 8:
        raise ValueError(f"tensor {name!r:.80}: does not fill whole bytes")
    return Region(name, dtype, shape, offset)


def _aliases(entry: Any, names: set[str]) -> dict[str, str]:
    if not isinstance(entry, Mapping):
        raise TypeError("aliases are not an object")
    for alias, name in entry.items():
        if name not in names:
            raise ValueError(f"{alias!r:.80} stands for {name!r:.80}, which is no tensor")
        if alias in names:
            raise ValueError(f"{alias!r:.80} is a tensor, and stands for another")
    return dict(entry)


def _names(entry: Any) -> list[str]:
    if not isinstance(entry, list) or not all(isinstance(name, str) for name in entry):
        raise TypeError(f"{entry!r:.80} is not a list of names")
    return entry
