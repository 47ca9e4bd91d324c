"""What is in a folder of a model: files, folders, and which files are weights together."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path

from bf16codecs._files import Folder, open_to_read
from bf16codecs._limits import MAX_DEPTH
from bf16codecs._messages import few
from bf16codecs._paths import index_stem
from bf16codecs._replace import is_working_name
from bf16codecs.errors import SafetensorsError, StoreError
from bf16codecs.safetensors import Source, open_to_store, read_index, weight_map
from bf16codecs.store.kinds import STORE_SUFFIXES

__all__ = ["Tree", "WeightSet", "list_tree", "weight_sets"]

_SUFFIX = ".safetensors"
# Of files that are missing.
_SHOWN = 3


@dataclass(frozen=True)
class Tree:
    """The files and folders below a folder, by their paths from there, with slashes."""

    files: dict[str, Path] = field(default_factory=dict)
    #: Parents come before what is in them.
    folders: list[str] = field(default_factory=list)
    #: What opens the files where no link is followed, whatever takes their places meanwhile.
    held: Folder | None = None

    def open(self, name: str) -> FileIO:
        """Open a file to read it.

        Raises
        ------
        StoreError
            If it is a regular file no longer.
        OSError
            If it cannot be opened.
        """
        path = self.files[name]
        try:
            descriptor = open_to_read(path) if self.held is None else self.held.open(name)
        except StoreError as e:
            raise StoreError(f"{path}: {e}") from None
        except OSError as e:
            e.filename = str(path)  # without links, a name is opened in a descriptor
            raise
        if descriptor is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return FileIO(descriptor)


@dataclass(frozen=True)
class WeightSet:
    """Safetensors files that become one store, and the store's path from the folder."""

    store: str
    source: Source

    @property
    def folder(self) -> str:
        """The path of the folder that the files are in, with a slash if there is one."""
        return self.store[: self.store.rfind("/") + 1]

    @property
    def names(self) -> list[str]:
        """The paths of the files, the index last."""
        return [self.folder + path.name for path in self.source.paths]


def list_tree(top: Path, *, own: bool, without: Collection[str] = ()) -> Tree:
    """List what is in a folder and in those below.

    Parameters
    ----------
    top
        The folder, which may be a link.
    own
        Whether it is the caller's own, as it is when it is packed. Then links to files are what
        they lead to, as in the cache of huggingface_hub. In a stranger's they could lead anywhere,
        and are refused. Links to folders always are: a few of them can make paths without end.
    without
        Paths of folders in it that are left out.

    Raises
    ------
    ValueError
        If something is neither a file nor a folder, such as a pipe, or is a link that is refused,
        or is nested too deep. It is a StoreError unless the folder is the caller's own.
    OSError
        If something cannot be read, or a link leads nowhere.
    """
    tree = Tree(held=None if own else Folder(top))
    refusal = ValueError if own else StoreError

    def walk(folder: Path, prefix: str) -> None:
        for entry in sorted(os.scandir(folder), key=lambda e: e.name):
            name, path = prefix + entry.name, Path(entry.path)
            fault = _fault(entry, name, own)
            if fault:
                raise refusal(f"{path}: {fault}")
            # What a conversion that was killed has left is nothing of the model.
            if name in without or is_working_name(entry.name):
                continue
            if entry.is_dir():
                tree.folders.append(name)
                walk(path, f"{name}/")
            else:
                tree.files[name] = path

    walk(top, "")
    return tree


def _fault(entry: os.DirEntry[str], name: str, own: bool) -> str:
    """Say why something is neither packed nor restored; nothing if it is."""
    if entry.is_symlink():
        if not own:
            return (
                "a symbolic link, which could lead anywhere, and is not followed: if you trust the"
                " folder, cp -RL makes a copy without links"
            )
        if entry.is_dir():
            return (
                "a symbolic link to a folder, which is not followed: put a copy of the folder in"
                " its place (cp -RL), or remove the link"
            )
        if not os.path.exists(entry.path):
            raise FileNotFoundError(errno.ENOENT, "A link that leads nowhere", entry.path)
    if not entry.is_dir() and not entry.is_file():
        return "neither a file nor a folder"
    if name.count("/") >= MAX_DEPTH:
        return f"in more than {MAX_DEPTH} levels of folders, as no model is"
    return ""


def weight_sets(tree: Tree) -> tuple[list[WeightSet], dict[str, str]]:
    """Return which files become which stores: those of an index one, each other one its own.

    Hidden files are temporary files of other programs, and no weights. Where two indexes name a
    file, it is of the one that libraries look for, or the first.

    Returns
    -------
    sets
        The files of each store.
    apart
        By its path, of each index that is of no store, what becomes of its files, and why.

    Raises
    ------
    SafetensorsError, OSError
        If a file is damaged or missing.
    ValueError
        If something has the name by which a store of theirs would be looked for.
    """
    visible = [path for path in tree.files if not _begins(path, ".")]
    indexed: dict[str, Source] = {}
    apart: dict[str, str] = {}
    taken: set[Path] = set()
    for name in sorted(visible, key=lambda path: not _begins(path, "model.")):
        stem = index_stem(name)
        if stem is None:
            continue
        found = _opened_index(name, stem, tree)
        if isinstance(found, str):
            apart[name] = found
        elif taken.isdisjoint(found.paths):
            indexed[stem] = found
            taken.update(found.paths)
        else:
            apart[name] = "kept as it is, since another index names its files"
    alone = {
        name.removesuffix(_SUFFIX): _opened(tree.files[name])
        for name in visible
        if name.endswith(_SUFFIX) and tree.files[name] not in taken
    }
    used = {name.lower(): name for name in (*tree.files, *tree.folders)}
    for stem in (*alone, *indexed):
        _refuse_stores(stem, used)
    # Where a model is there as one file and as shards, libraries take the file.
    pairs = [*alone.items(), *indexed.items()]
    sets = [WeightSet(_unused(stem, used), source) for stem, source in pairs]
    return sorted(sets, key=lambda own: own.store), apart


def _begins(path: str, start: str) -> bool:
    """Tell whether the name of a file begins so, without its folders."""
    return path.rpartition("/")[2].startswith(start)


def _opened_index(name: str, stem: str, tree: Tree) -> Source | str:
    """Open an index with its files, or say what becomes of it where these are no model.

    Libraries load what is in the files, whatever else an index says, and the file of one name with
    it in its place: so models are uploaded whose index is not right, or was left behind.
    """
    path, folder = tree.files[name], name[: name.rfind("/") + 1]
    with _told_pointers(path):
        values = weight_map(read_index(path), path).values()
    files = sorted({value for value in values if isinstance(value, str)})
    lacking = [file for file in files if folder + file not in tree.files]
    if len(lacking) == len(files):
        return "kept as it is, since none of the files that it names is there"
    if not lacking:
        try:
            return _opened(path)
        except SafetensorsError as e:  # of a file that is damaged, opening it alone raises it again
            why = str(e).removeprefix(f"{path}: ")
    elif f"{stem}{_SUFFIX}" in tree.files:
        why = f"{few(lacking, _SHOWN)} is not there"
    else:
        text = (
            f"It names {few(lacking, _SHOWN)}, not there: get the rest, or remove it if it is old"
        )
        raise FileNotFoundError(errno.ENOENT, text, str(path))
    return f"kept as it is, and each of its files has a store of its own: {why}"


def _opened(path: Path) -> Source:
    with _told_pointers(path):
        return open_to_store(path)


@contextmanager
def _told_pointers(path: Path) -> Iterator[None]:
    """Say of what a checkout without its large files has in their place what it is."""
    try:
        yield
    except SafetensorsError as e:
        with open(path, "rb") as file:
            if file.read(40).startswith(b"version https://git-lfs"):
                text = f"{path}: a pointer of Git LFS, not the weights: get them (git lfs pull)"
                raise SafetensorsError(text) from e
        raise


def _refuse_stores(stem: str, there: Mapping[str, str]) -> None:
    """Refuse a folder with something that would be loaded in the place of the weights.

    Parameters
    ----------
    stem
        The path of a store without its suffix.
    there
        Paths of what is in the folder, by themselves in lower case.
    """
    for suffix in STORE_SUFFIXES:
        name = there.get(f"{stem}{suffix}".lower())
        if name is not None:
            raise ValueError(
                f"{name}: is in the folder already, and would be loaded in the place of the store"
                f" that is made of {stem}{_SUFFIX}: move it to another folder, or remove it"
            )


def _unused(stem: str, used: dict[str, str]) -> str:
    """Return the path of a store that nothing else has, not even in other case, and note it.

    It has a number where a model is there both as one file and as shards.
    """
    name, number = f"{stem}.zarr", 1
    while name.lower() in used:
        number += 1
        name = f"{stem}-{number}.zarr"
    used[name.lower()] = name
    return name
