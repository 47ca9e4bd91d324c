"""Checkpoints of `torch.distributed.checkpoint`: a folder with `.metadata` and `.distcp` files.

Each file holds what `torch.save` wrote, one after the other, and `.metadata` has the names and the
places. Nothing of it is run, and the folder is restored byte for byte.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bf16codecs._arrays.storage import Range
from bf16codecs._base.messages import named_errors
from bf16codecs.convert.places import FileBytes, Place
from bf16codecs.convert.regions import Names, outline_of
from bf16codecs.convert.sources.pytorch.containers import read_small_pickle, read_zip
from bf16codecs.convert.sources.pytorch.detection import METADATA, ZIP_START
from bf16codecs.convert.sources.pytorch.naming import find_tensors
from bf16codecs.convert.sources.pytorch.pickles import Mapped, Unknown
from bf16codecs.errors import SafetensorsError
from bf16codecs.safetensors import Header, is_plain_name
from bf16codecs.store.outline import Layout
from bf16codecs.store.reader import ModelReader

__all__ = ["open_checkpoint"]

KIND = "distcp"

# Most pickles, and directories of ZIP files, are shorter.
_END_BYTES = 1 << 11


@dataclass(frozen=True)
class _Entry:
    """A part of a file: a tensor, a shard of one, or another object."""

    name: str
    #: Where a shard begins in its tensor.
    offsets: tuple[int, ...]
    begin: int
    size: int


def open_checkpoint(place: Place) -> ModelReader:
    """Open a checkpoint; raise SafetensorsError if it is damaged, or a file of it is missing."""
    names, where = Names(), place.label(METADATA)
    with place.open(METADATA) as file:
        entries = _entries(read_small_pickle(file, where), where)
        headers: list[tuple[str, Header]] = [
            (METADATA, outline_of(file, KIND, Layout.empty(), names))
        ]
    shards = Counter(entry.name for of_file in entries.values() for entry in of_file)
    headers += [
        (name, _read(place, name, entries[name], shards, names)) for name in sorted(entries)
    ]
    known = {name for name, _ in headers}
    return place.reader(headers, None, [name for name in place.names() if name not in known])


def _entries(metadata: Any, where: str) -> dict[str, list[_Entry]]:
    """Return the parts of each file."""
    storage_data = dict(_fields(metadata)).get("storage_data")
    if not isinstance(storage_data, Mapped):
        raise SafetensorsError(f"{where}: not the metadata of a checkpoint: it has no storage_data")
    found: dict[str, list[_Entry]] = defaultdict(list)
    for key, value in storage_data:
        index, place = dict(_fields(key)), dict(_fields(value))
        name, file = index.get("fqn"), place.get("relative_path")
        begin, size = place.get("offset"), place.get("length")
        if not isinstance(name, str) or not isinstance(file, str):
            raise SafetensorsError(f"{where}: the name or the file of a part is no text")
        if not is_plain_name(file) or file == METADATA:
            raise SafetensorsError(f"{where}: part {name!r:.80} is in {file!r:.80}, no plain name")
        if type(begin) is not int or type(size) is not int or begin < 0 or size < 0:
            raise SafetensorsError(f"{where}: part {name!r:.80} has no place in its file")
        found[file].append(_Entry(name, _numbers(index.get("offset")), begin, size))
    return found


def _fields(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the fields of an object, by name."""
    if isinstance(value, Unknown):
        for content in value.contents:
            if isinstance(content, Mapped):
                yield from (pair for pair in content if isinstance(pair[0], str))


def _numbers(size: Any) -> tuple[int, ...]:
    """Return the numbers of a `torch.Size`; nothing of anything else."""
    values = size.args if isinstance(size, Unknown) else ()
    numbers = values[0] if values and isinstance(values[0], tuple) else ()
    return numbers if all(type(n) is int for n in numbers) else ()


def _read(
    place: Place, name: str, entries: list[_Entry], shards: Mapping[str, int], names: Names
) -> Header:
    """Read all of a file but its tensors; shards of one are named by their places."""
    layout, where = Layout.empty(), place.label(name)
    with named_errors(where, SafetensorsError, OSError), place.open(name) as file:
        for entry in entries:
            if entry.begin + entry.size > file.size:
                raise SafetensorsError(f"truncated: {entry.name!r:.80} ends behind the file")
        file.prefetch(_ends(entries))
        end = 0
        for entry in sorted(entries, key=lambda entry: entry.begin):
            if entry.begin >= end and (found := _layout(file, where, entry, shards, names)):
                layout.add(found)
            end = max(end, entry.begin + entry.size)
        return outline_of(file, KIND, layout, names)


def _ends(entries: list[_Entry]) -> Iterator[Range]:
    """Yield the beginnings and the ends of parts: most have nothing else but tensors."""
    for entry in entries:
        end = entry.begin + entry.size
        yield entry.begin, min(entry.begin + _END_BYTES, end)
        yield max(entry.begin, end - _END_BYTES), end


def _layout(
    file: FileBytes, where: str, entry: _Entry, shards: Mapping[str, int], names: Names
) -> Layout | None:
    """Return the tensors in a part of a file; None if it has another form, or is damaged."""
    if file.part(entry.begin, entry.begin + len(ZIP_START)) != ZIP_START:
        return None
    try:
        contents = read_zip(file, where, entry.begin, entry.size)
    except SafetensorsError:
        return None
    root = entry.name
    if shards[root] > 1:
        root += f"[{', '.join(map(str, entry.offsets))}]"
    return find_tensors(
        contents.value, contents.storages, contents.is_little_endian, names, (root,)
    )
