"""Names and places of the tensors in what `torch.save` wrote.

A tensor is named by the keys that lead to it, joined by dots. Tensors that are the same part of a
storage are one, with several names. Bytes of a storage that no such tensor has become a tensor of
one dimension: those that are not contiguous, or overlap a larger one, are not shown by their names.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bf16codecs._base.dtypes import DTYPE_BITS
from bf16codecs.convert.regions import MOST_NAMES, Names, flat_region, free_parts, without_overlaps
from bf16codecs.convert.sources.pytorch.pickles import Mapped, Name, Storage, Tensor, Unknown
from bf16codecs.errors import SafetensorsError
from bf16codecs.store.outline import Layout, Region

__all__ = ["find_tensors", "item_size"]

# Levels of containers that are looked into, and the names that modules give to their parts.
_MOST_LEVELS = 256
_LONGEST_NAME = 256
# Places of one container that give names to what is in it.
_MOST_PLACES = 8
# Containers and tensors that are looked at, each time that a container leads to them.
_MOST_LOOKED_AT = 1 << 22
_LOOKED_INTO = (Mapped, Unknown, Tensor, Storage, list, tuple)
_PARTS_OF_MODULES = {"_parameters", "_buffers", "_modules"}

# The data type of a storage's class without "Storage", or of torch, and the items that one has.
_DTYPES = {
    **dict.fromkeys(("Byte", "QUInt8", "uint8", "quint8", "Untyped", "bits8"), "U8"),
    **dict.fromkeys(("Char", "QInt8", "int8", "qint8"), "I8"),
    **dict.fromkeys(("Bool", "bool"), "BOOL"),
    **dict.fromkeys(("Short", "int16"), "I16"),
    **dict.fromkeys(("Int", "QInt32", "int32", "qint32"), "I32"),
    **dict.fromkeys(("Long", "int64"), "I64"),
    **dict.fromkeys(("Half", "float16"), "F16"),
    **dict.fromkeys(("BFloat16", "bfloat16"), "BF16"),
    **dict.fromkeys(("Float", "float32"), "F32"),
    **dict.fromkeys(("Double", "float64"), "F64"),
    **dict.fromkeys(("ComplexFloat", "complex64"), "C64"),
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
}
# Safetensors has no complex numbers of these sizes: they are shown as pairs.
_PAIRS = {"ComplexDouble": "F64", "complex128": "F64", "complex32": "F16"}


def item_size(kind: Name) -> int:
    """Return the size of the items of a storage, by its type; 1 if that is not known."""
    found = _item_of(kind)
    return 1 if found is None else found[1]


def find_tensors(
    value: Any,
    storages: Mapping[str, tuple[int, int]],
    is_little_endian: bool,
    names: Names,
    root: tuple[str, ...] = (),
) -> Layout:
    """Find the tensors of a file, or of a part of it.

    `storages` are the ranges of their bytes in the file. Of big-endian files, bytes are shown.
    `root` are the keys that lead to the value.
    Raises SafetensorsError if a tensor is not within its storage.
    """
    views: list[Region] = []
    kinds: dict[str, str] = {}
    found_names: list[str] = []
    for path, found in _walk(value):
        storage = found if isinstance(found, Storage) else found.storage
        known = _item_of(storage.type) if is_little_endian else None
        kinds.setdefault(storage.key, "U8" if known is None else known[0])
        if isinstance(found, Tensor):
            name = names.unique(_name((*root, *path)))
            found_names.append(name)
            if storage.key in storages and is_little_endian:
                view = _view(name, found, *storages[storage.key])
                views += [view] if view is not None else []
    regions, aliases = _choose(views)
    shown = {region.name for region in regions} | aliases.keys()
    hidden = [name for name in found_names if name not in shown]
    layout = Layout(regions, aliases, [], hidden[:MOST_NAMES])
    _add_storages(layout, storages, kinds, names, root)
    return layout


def _add_storages(
    layout: Layout,
    storages: Mapping[str, tuple[int, int]],
    kinds: Mapping[str, str],
    names: Names,
    root: tuple[str, ...],
) -> None:
    """Add what no tensor has of the storages, which are of these data types."""
    ranges = sorted((*place, key) for key, place in storages.items())
    for start, stop, key in free_parts(layout.regions, ranges):
        begin, end = storages[key]
        where = "" if (begin, end) == (start, stop) else f"[{start - begin}:{stop - begin}]"
        name = names.unique(_name((*root, f"storage {key}{where}")))
        layout.regions.append(flat_region(name, kinds.get(key, "U8"), start, stop))
        layout.parts.append(name)


def _item_of(kind: Name) -> tuple[str, int] | None:
    """Return the data type, and the size in bytes, of the items of a storage or a tensor."""
    name = kind.name.removesuffix("Storage")
    if name in _PAIRS:
        return _PAIRS[name], 2 * DTYPE_BITS[_PAIRS[name]] // 8
    dtype = _DTYPES.get(name)
    return None if dtype is None else (dtype, DTYPE_BITS[dtype] // 8)


def _name(path: tuple[str, ...]) -> str:
    """Return the name of a tensor with these keys: of text that JSON has, and of bounded length."""
    name = ".".join(path) or "tensor"
    if len(name) > _LONGEST_NAME:
        name = f"{name[:_LONGEST_NAME]}..."
    return name.encode("utf-8", "backslashreplace").decode()


def _view(name: str, tensor: Tensor, start: int, stop: int) -> Region | None:
    """Return a tensor's part of a file; None if its numbers are not what the file has in a row."""
    kind = tensor.dtype or tensor.storage.type
    if (found := _item_of(kind)) is None or not tensor.is_plain:
        return None
    dtype, item = found
    count = math.prod(tensor.shape)
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.strides, strict=True))
    begin = start + item * tensor.offset
    end = begin + item * (last + 1 if count else 0)
    if end > stop or begin > stop:
        raise SafetensorsError(f"tensor {name!r:.80} ends behind its storage")
    shape = tensor.shape if 8 * item == DTYPE_BITS[dtype] else (*tensor.shape, 2)
    is_contiguous = not count or (end - begin == item * count and _is_in_order(tensor))
    return Region(name, dtype, shape, begin) if is_contiguous else None


def _is_in_order(tensor: Tensor) -> bool:
    """Return whether a tensor's items follow each other in C order."""
    step = 1
    for n, stride in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
        if n > 1 and stride != step:
            return False
        step *= max(1, n)
    return True


def _choose(views: Iterable[Region]) -> tuple[list[Region], dict[str, str]]:
    """Choose tensors that do not overlap, and return their further names."""
    by_place: dict[tuple[Any, ...], list[Region]] = {}
    for view in views:
        by_place.setdefault((view.offset, view.dtype, view.shape), []).append(view)
    aliases: dict[str, str] = {}
    candidates = []
    for first, *others in by_place.values():
        candidates.append(first)
        if first.nbytes:
            aliases |= {other.name: first.name for other in others[:MOST_NAMES]}
        else:  # empty tensors have no data to share
            candidates += others[:MOST_NAMES]
    chosen = without_overlaps(candidates)
    shown = {view.name for view in chosen}
    return chosen, {alias: name for alias, name in aliases.items() if name in shown}


#: What is in a container that may lead to tensors, with its keys.
_Known = dict[tuple[type, int], list[tuple[tuple[str, ...], Any]]]


def _walk(value: Any) -> Iterator[tuple[tuple[str, ...], Tensor | Storage]]:
    """Yield all tensors and storages in a value, in order, with the keys that lead to them."""
    # Each with the keys and the containers that lead to it.
    todo: list[tuple[tuple[str, ...], tuple[int, ...], Any]] = (
        [((), (), value)] if isinstance(value, _LOOKED_INTO) else []
    )
    visits: Counter[int] = Counter()
    known: _Known = {}
    looked_at = 0
    while todo:
        path, above, found = todo.pop()
        if isinstance(found, (Tensor, Storage)):
            yield path, found
            continue
        # A container may be in several places, even in itself.
        visits[id(found)] += 1
        is_again = id(found) in above or visits[id(found)] > _MOST_PLACES
        if is_again or len(above) > _MOST_LEVELS:
            continue
        children = list(_children(found, known))
        looked_at += len(children)
        if looked_at > _MOST_LOOKED_AT:
            return
        above = (*above, id(found))
        todo += [((*path, *key), above, child) for key, child in reversed(children)]


def _children(value: Any, known: _Known) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the containers, tensors and storages in a container, each with its key."""
    parts = [value.args, value.contents] if isinstance(value, Unknown) else [value]
    for part in parts:
        shared = part.pairs if isinstance(part, Mapped) else part
        place = type(value), id(shared)
        # Kept: of a few bytes each, many calls may share the same arguments.
        if place not in known:
            known[place] = list(_looked_into(part, isinstance(value, Unknown)))
        yield from known[place]


def _looked_into(part: Any, is_object: bool) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield what may lead to tensors; dictionaries of an object add no key."""
    if isinstance(part, Mapped):
        for number, (key, child) in enumerate(part):
            if isinstance(child, _LOOKED_INTO):
                text = _text(key, number)
                yield () if text in _PARTS_OF_MODULES else (text,), child
        return
    for number, child in enumerate(part):
        if isinstance(child, _LOOKED_INTO):
            yield () if is_object and isinstance(child, Mapped) else (str(number),), child


def _text(key: Any, number: int) -> str:
    """Return the text of a key, the `number`th of its dictionary."""
    is_short = isinstance(key, (str, float)) or (isinstance(key, int) and abs(key) < 1 << 64)
    return str(key) if is_short else f"key{number}"
