"""Which safetensors files in a folder of a model become which stores."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bf16codecs._base.messages import few
from bf16codecs._base.paths import index_stem
from bf16codecs.convert.hugging_face.folders import Tree
from bf16codecs.convert.sources import opened_source
from bf16codecs.errors import SafetensorsError
from bf16codecs.safetensors import read_index, weight_map
from bf16codecs.store.kinds import STORE_SUFFIXES
from bf16codecs.store.reader import ModelReader

__all__ = ["WeightSet", "weight_sets"]

_SUFFIX = ".safetensors"
# Of files that are missing.
_SHOWN = 3


@dataclass(frozen=True)
class WeightSet:
    """Safetensors files that become one store, and the store's path from the folder."""

    store: str
    source: ModelReader

    @property
    def folder(self) -> str:
        """The path of the folder that the files are in, with a slash if there is one."""
        return self.store[: self.store.rfind("/") + 1]

    @property
    def names(self) -> list[str]:
        """The paths of the files, the index last."""
        return [self.folder + path.name for path in self.source.paths]


def weight_sets(tree: Tree) -> tuple[list[WeightSet], dict[str, str]]:
    """Return the files of each store: those of an index together, each other file alone.

    Hidden files are other programs' temporary files, and left out. The second result maps indexes
    in no store to what becomes of their files, and why. Raises ValueError if a store's name is
    taken.
    """
    visible = [path for path in tree.files if not _begins(path, ".")]
    indexes = _opened_indexes(visible, tree)
    indexed = {index.stem: index.source for index in indexes if index.source is not None}
    taken = {path for source in indexed.values() for path in source.paths}
    alone = {
        name.removesuffix(_SUFFIX): _opened(tree.files[name])
        for name in visible
        if name.endswith(_SUFFIX) and tree.files[name] not in taken
    }
    used = {name.lower(): name for name in (*tree.files, *tree.folders)}
    for stem in (*alone, *(index.stem for index in indexes if index.files)):
        _refuse_stores(stem, used)
    # Where a model is there as one file and as shards, libraries take the file.
    pairs = [*alone.items(), *indexed.items()]
    sets = [WeightSet(_unused(stem, used), source) for stem, source in pairs]
    apart = {index.name: index.why for index in indexes if index.source is None}
    return sorted(sets, key=lambda each: each.store), apart


@dataclass(frozen=True)
class _Index:
    """An index, its path, that of its model without a suffix, and those of its files there."""

    name: str
    stem: str
    files: set[str]
    #: The model, or what becomes of the files, and why, where they are none.
    source: ModelReader | None = None
    why: str = ""


def _opened_indexes(names: Iterable[str], tree: Tree) -> list[_Index]:
    """Open indexes; a file in several belongs to the one that libraries look for, or the first."""
    found: list[_Index] = []
    named: set[str] = set()
    for name in sorted(names, key=lambda path: not _begins(path, "model.")):
        stem = index_stem(name)
        if stem is not None:
            index = _opened_index(name, stem, tree)
            if index.source is not None and not named.isdisjoint(index.files):
                why = "kept as it is, since another index names its files"
                index = replace(index, source=None, why=why)
            found.append(index)
            named.update(index.files)
    return found


def _begins(path: str, start: str) -> bool:
    """Tell whether the name of a file begins so, without its folders."""
    return path.rpartition("/")[2].startswith(start)


def _opened_index(name: str, stem: str, tree: Tree) -> _Index:
    """Open an index with its files, or say why they are not a model.

    Published indexes may be wrong or stale, as libraries prefer a file of that name to an index.
    """
    path, folder = tree.files[name], name[: name.rfind("/") + 1]
    is_needed = f"{stem}{_SUFFIX}" not in tree.files
    try:
        with _told_pointers(path):
            values = weight_map(read_index(path), path).values()
    except SafetensorsError as e:
        if is_needed:
            raise
        why = str(e).removeprefix(f"{path}: ")
        return _Index(name, stem, set(), why=f"kept as it is, since it is damaged: {why}")
    files = sorted({value for value in values if isinstance(value, str)})
    there = {folder + file for file in files} & tree.files.keys()
    lacking = few([file for file in files if folder + file not in there], _SHOWN)
    if not there:
        why = "kept as it is, since none of the files that it names is there"
        return _Index(name, stem, there, why=why)
    if lacking and is_needed:
        text = f"It names {lacking}, not there: get the rest, or remove the index if it is old"
        raise FileNotFoundError(errno.ENOENT, text, str(path))
    why = f"{lacking} is not there"
    if not lacking:
        try:
            return _Index(name, stem, there, _opened(path))
        except SafetensorsError as e:  # opening a file that is damaged alone raises it again
            why = str(e).removeprefix(f"{path}: ")
    why = f"kept as it is, and each of its files has a store of its own: {why}"
    return _Index(name, stem, there, why=why)


def _opened(path: Path) -> ModelReader:
    with _told_pointers(path):
        return opened_source(path, to_store=True)


@contextmanager
def _told_pointers(path: Path) -> Iterator[None]:
    """Name a pointer of Git LFS as what it is, in the place of a file that was not fetched."""
    try:
        yield
    except SafetensorsError as e:
        with open(path, "rb") as file:
            if file.read(40).startswith(b"version https://git-lfs"):
                text = f"{path}: a pointer of Git LFS, not the weights: get them (git lfs pull)"
                raise SafetensorsError(text) from e
        raise


def _refuse_stores(stem: str, there: Mapping[str, str]) -> None:
    """Raise ValueError if something would be loaded in the place of the weights.

    `stem` is a store's path without suffix; `there` maps lower-case paths in the folder to paths.
    """
    for suffix in STORE_SUFFIXES:
        name = there.get(f"{stem}{suffix}".lower())
        if name is not None:
            raise ValueError(
                f"{name}: is in the folder already, and would be loaded in the place of the store"
                f" that is made of {stem}{_SUFFIX}: move it to another folder, or remove it"
            )


def _unused(stem: str, used: dict[str, str]) -> str:
    """Return a store's path, unused in any letter case, with a number if needed, and note it."""
    name, number = f"{stem}.zarr", 1
    while name.lower() in used:
        number += 1
        name = f"{stem}-{number}.zarr"
    used[name.lower()] = name
    return name
