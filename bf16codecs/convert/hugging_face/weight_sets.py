"""Assignment of the safetensors files in a model's folder to stores."""

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
# The most missing files that a message names.
_SHOWN = 3


@dataclass(frozen=True)
class WeightSet:
    """Safetensors files that become one store, and the relative path of the store."""

    store: str
    source: ModelReader

    @property
    def folder(self) -> str:
        """The relative path of the files' folder, with a slash, or "" for the top."""
        return self.store[: self.store.rfind("/") + 1]

    @property
    def names(self) -> list[str]:
        """The paths of the files, the index last."""
        return [self.folder + path.name for path in self.source.paths]


def weight_sets(tree: Tree) -> tuple[list[WeightSet], dict[str, str]]:
    """Return the files of each store: those of an index together, each other file alone.

    Hidden files, which are temporary files of other programs, are left out. The second result maps
    each index that is not in a store to the treatment of its files, and the reason. Raises
    ValueError if a store's name is taken.
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
    # If a model has both a single file and shards, libraries load the single file.
    pairs = [*alone.items(), *indexed.items()]
    sets = [WeightSet(_unused(stem, used), source) for stem, source in pairs]
    apart = {index.name: index.why for index in indexes if index.source is None}
    return sorted(sets, key=lambda weights: weights.store), apart


@dataclass(frozen=True)
class _Index:
    """An index: its path, the model's path without a suffix, and paths of files that exist."""

    name: str
    stem: str
    files: set[str]
    #: The model; None if the files do not form one.
    source: ModelReader | None = None
    #: Then the treatment of the files, and the reason.
    why: str = ""


def _opened_indexes(names: Iterable[str], tree: Tree) -> list[_Index]:
    """Open indexes; a file in several belongs to the one that libraries load, or the first."""
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
    """Return whether the name of a file, without its folders, begins with `start`."""
    return path.rpartition("/")[2].startswith(start)


def _opened_index(name: str, stem: str, tree: Tree) -> _Index:
    """Open an index with its files, or note why they are not a model.

    Published indexes may be wrong or stale, since libraries prefer a single file to an index.
    """
    path, folder = tree.files[name], name[: name.rfind("/") + 1]
    is_needed = f"{stem}{_SUFFIX}" not in tree.files
    try:
        with _lfs_pointers(path):
            values = weight_map(read_index(path), path).values()
    except SafetensorsError as e:
        if is_needed:
            raise
        why = str(e).removeprefix(f"{path}: ")
        return _Index(name, stem, set(), why=f"kept as it is, since it is damaged: {why}")
    files = sorted({value for value in values if isinstance(value, str)})
    present = {folder + file for file in files} & tree.files.keys()
    lacking = few([file for file in files if folder + file not in present], _SHOWN)
    if not present:
        why = "kept as it is, since none of the files that it names is there"
        return _Index(name, stem, present, why=why)
    if lacking and is_needed:
        text = f"It names {lacking}, not there: get the rest, or remove the index if it is old"
        raise FileNotFoundError(errno.ENOENT, text, str(path))
    why = f"{lacking} is not there"
    if not lacking:
        try:
            return _Index(name, stem, present, _opened(path))
        except SafetensorsError as e:  # if a file is damaged, opening it alone raises this again
            why = str(e).removeprefix(f"{path}: ")
    why = f"kept as it is, and each of its files has a store of its own: {why}"
    return _Index(name, stem, present, why=why)


def _opened(path: Path) -> ModelReader:
    with _lfs_pointers(path):
        return opened_source(path, to_store=True)


@contextmanager
def _lfs_pointers(path: Path) -> Iterator[None]:
    """Report a pointer of Git LFS instead of a damaged file, if the file was not fetched."""
    try:
        yield
    except SafetensorsError as e:
        with open(path, "rb") as file:
            if file.read(40).startswith(b"version https://git-lfs"):
                text = f"{path}: a pointer of Git LFS, not the weights: get them (git lfs pull)"
                raise SafetensorsError(text) from e
        raise


def _refuse_stores(stem: str, used: Mapping[str, str]) -> None:
    """Raise ValueError if something in the folder would be loaded instead of the new store.

    `stem` is the store's path without suffix; `used` maps lower-case paths in the folder to paths.
    """
    for suffix in STORE_SUFFIXES:
        name = used.get(f"{stem}{suffix}".lower())
        if name is not None:
            raise ValueError(
                f"{name}: is in the folder already, and would be loaded instead of the store that"
                f" is made of {stem}{_SUFFIX}: move it to another folder, or remove it"
            )


def _unused(stem: str, used: dict[str, str]) -> str:
    """Return a path for a store, with a number if the name is in use in any case, and note it."""
    name, number = f"{stem}.zarr", 1
    while name.lower() in used:
        number += 1
        name = f"{stem}-{number}.zarr"
    used[name.lower()] = name
    return name
