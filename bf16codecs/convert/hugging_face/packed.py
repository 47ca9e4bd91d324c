"""The manifest of a packed folder: the files and folders of the original, and their stores."""

from __future__ import annotations

import json
import os
import re
import stat
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from io import FileIO
from operator import and_
from pathlib import Path
from typing import Any

from bf16codecs._base import interrupt as _interrupt
from bf16codecs._base.arguments import for_caller
from bf16codecs._base.limits import MAX_DEPTH, MAX_METADATA_BYTES, check_metadata
from bf16codecs._base.messages import few
from bf16codecs._base.paths import and_parents
from bf16codecs._files.digests import Digests, FileHash
from bf16codecs._files.folders import Folder
from bf16codecs.convert.hugging_face.folders import Tree, list_tree
from bf16codecs.convert.summary import Progress
from bf16codecs.errors import (
    BF16CodecsError,
    CorruptDataError,
    StoreError,
    UnsupportedVersionError,
)
from bf16codecs.safetensors import is_plain_name
from bf16codecs.store.attributes import StoredFile
from bf16codecs.store.reader import ModelReader

__all__ = [
    "MANIFEST",
    "NOTE",
    "Manifest",
    "NotedFile",
    "check_names",
    "copy_noted",
    "folder_modes",
    "mode_of_store",
    "noted_source",
    "rest_of",
    "rights_of_new",
    "set_modes",
    "stored_files",
    "why_not_packed",
]

#: The name of the manifest in a packed folder.
MANIFEST = "bf16codecs.json"
#: The name of the note for readers of a packed folder, which belongs to no original.
NOTE = "BF16CODECS.md"
_LAYOUT = 1
# The bits of a mode that the manifest has: not the set-user-ID, set-group-ID and sticky bits.
_RIGHTS = 0o777
_READ_AT_ONCE = 1 << 20
# How many files a message names.
_SHOWN = 3


@dataclass(frozen=True)
class NotedFile:
    """The entry of a file, with the permission bits of its mode."""

    mode: int
    size: int
    digests: Digests

    @classmethod
    def of(cls, path: Path, digests: Digests) -> NotedFile:
        """Note a file whose digests are known."""
        return cls(_rights(path), path.stat().st_size, digests)

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> NotedFile:
        """Parse a result of `entry`; raise KeyError, TypeError or ValueError if it is invalid."""
        noted = cls(_mode(entry["mode"]), entry["size"], Digests.from_entry(entry))
        if noted.digests.blake3 is None:
            raise KeyError("blake3")
        if type(noted.size) is not int or not 0 <= noted.size < 2**63:
            raise ValueError("size")
        return noted

    def entry(self) -> dict[str, Any]:
        """Return the entry as a JSON object."""
        return {"mode": f"{self.mode:04o}", "size": self.size, **self.digests.entry()}

    def is_other(self, size: int, digests: Digests) -> bool:
        """Return whether a file of this size and these digests is not the noted one."""
        is_known = self.digests.are_comparable(digests)
        return size != self.size or not is_known or self.digests.difference(digests) is not None


@dataclass(frozen=True)
class Manifest:
    """The entries of a folder, by relative paths with slashes."""

    #: The files in each store.
    stores: Mapping[str, Mapping[str, NotedFile]]
    #: The files that are copied unchanged.
    files: Mapping[str, NotedFile]
    #: Modes of folders; ``"."`` is the folder itself.
    folders: Mapping[str, int]

    @property
    def weights(self) -> list[str]:
        """The paths of all files in stores."""
        return [name for files in self.stores.values() for name in files]

    @property
    def made(self) -> set[str]:
        """The paths that packing made: neither copies, nor added since."""
        return {MANIFEST, *self.stores, *({NOTE} - self.files.keys())}

    def within(self, rights: int) -> Manifest:
        """Return a manifest whose modes give at most these rights."""
        return Manifest(
            {store: _within(files, rights) for store, files in self.stores.items()},
            _within(self.files, rights),
            {name: mode & rights for name, mode in self.folders.items()},
        )

    def text(self) -> str:
        """Return the manifest as a text in JSON."""
        content = {
            "layout": _LAYOUT,
            "folders": {name: f"{mode:04o}" for name, mode in self.folders.items()},
            "stores": {store: _entries(files) for store, files in self.stores.items()},
            "files": _entries(self.files),
        }
        return f"{json.dumps(content, indent=2)}\n"

    def write(self, folder: Path) -> None:
        """Write the manifest to a packed folder."""
        (folder / MANIFEST).write_text(self.text(), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read the manifest of a packed folder.

        Raises StoreError if it is missing or invalid, UnsupportedVersionError if it is too new.
        """
        path = folder / MANIFEST
        return cls.parse(_content(path), str(path))

    @classmethod
    def parse(cls, text: bytes, where: str) -> Manifest:
        """Parse the text of a manifest, which messages call `where`; errors are those of `read`."""
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as e:
            raise StoreError(f"{where}: not JSON ({e})") from e
        layout = document.get("layout") if isinstance(document, dict) else None
        if isinstance(layout, int) and layout > _LAYOUT:
            raise UnsupportedVersionError(f"{where}: layout {layout} needs a newer release")
        try:
            manifest = cls(
                {store: _noted(files) for store, files in document["stores"].items()},
                _noted(document["files"]),
                {name: _mode(mode) for name, mode in document["folders"].items()},
            )
            is_sound = layout == _LAYOUT and manifest._is_sound()
        except (AttributeError, KeyError, TypeError, ValueError):
            is_sound = False
        if not is_sound:
            raise StoreError(
                f"{where}: damaged: it does not say which files are in which stores of the folder"
            )
        return manifest

    def _is_sound(self) -> bool:
        """Return whether the manifest has stores, and no path leads out of the folder."""
        names = (*self.folders.keys() - {"."}, *self.stores, *self.files)
        return (
            bool(self.stores)
            and "." in self.folders
            and all(map(_is_below, names))
            and all(map(_is_sound, self.stores, self.stores.values()))
        )


def _content(path: Path) -> bytes:
    try:
        # The folder is not trusted: a link may lead out of it, and a pipe may never end.
        descriptor = Folder(path.parent, follow=True).find(path.name)
        if descriptor is not None:
            with os.fdopen(descriptor, "rb") as file:
                check_metadata(os.fstat(descriptor).st_size)
                return file.read(MAX_METADATA_BYTES)
    except StoreError as e:
        raise StoreError(f"{path}: {e}") from e
    packs = for_caller("pack_hugging_face", "pack-hf without --restore")
    raise StoreError(f"{path.parent}: not a packed folder: no {MANIFEST} in it ({packs} makes one)")


def _within(files: Mapping[str, NotedFile], rights: int) -> dict[str, NotedFile]:
    return {name: replace(noted, mode=noted.mode & rights) for name, noted in files.items()}


def _entries(files: Mapping[str, NotedFile]) -> dict[str, Any]:
    return {name: noted.entry() for name, noted in sorted(files.items())}


def _noted(entries: Mapping[str, Any]) -> dict[str, NotedFile]:
    return {name: NotedFile.from_entry(entry) for name, entry in entries.items()}


def _mode(text: str) -> int:
    """Parse a mode; raise ValueError unless it has only permission bits."""
    if re.fullmatch("0?[0-7]{3}", text) is None:
        raise ValueError(text)
    return int(text, 8)


def _is_below(name: str) -> bool:
    """Return whether a name is a canonical path to something in the folder."""
    parts = name.split("/")
    os.fsencode(name)  # ValueError for text that no file system takes
    # A path drops empty parts and ".", and on Windows cuts at ":" and backslashes.
    is_plain = Path(name).parts == tuple(parts) and ".." not in parts and "\0" not in name
    return is_plain and len(parts) <= MAX_DEPTH


def _is_sound(store: str, files: Mapping[str, NotedFile]) -> bool:
    """Return whether a store and its files are in one folder, with plain names."""
    folder, _, store_name = store.rpartition("/")
    pairs = [name.rpartition("/") for name in files]
    return (
        bool(pairs)
        and all(map(is_plain_name, [store_name, *(name for *_, name in pairs)]))
        and all(parent == folder for parent, *_ in pairs)
    )


def _rights(path: Path) -> int:
    return path.stat().st_mode & _RIGHTS


def rights_of_new(folder: Path) -> int:
    """Return the rights that restored files may have: only those to write that new folders get.

    Makes `folder`, at a free path, for this: reading the umask would change it for all threads.
    """
    folder.mkdir()
    try:
        return 0o755 | _rights(folder)
    finally:
        folder.rmdir()


def copy_noted(
    tree: Tree,
    target: Path,
    kinds: Sequence[str],
    verify: bool,
    progress: Progress | None,
    rights: int = _RIGHTS,
) -> dict[str, NotedFile]:
    """Make a folder with copies of the folders and files of a tree, and note the files.

    `kinds` are digests to compute. `verify` compares copies with their originals. Modes of copies
    give at most `rights`. Raises CorruptDataError if a copy differs, or a file changes meanwhile.
    """
    target.mkdir(0o700)  # until it gets its mode: its content may be private
    for name in tree.folders:
        (target / name).mkdir(parents=True)
    total, done = sum(path.stat().st_size for path in tree.files.values()), 0
    noted = {}
    for name, path in tree.files.items():
        with tree.open(name) as file:
            noted[name] = _copy(file, path, target / name, kinds, verify)
        (target / name).chmod(noted[name].mode & rights)
        done += noted[name].size
        if progress is not None:
            progress("copy", min(done, total), total)
        _interrupt.check()
    return noted


def _copy(file: FileIO, path: Path, copy: Path, kinds: Sequence[str], verify: bool) -> NotedFile:
    """Copy a file that was opened by `path`, and return the entry of the copy."""
    with open(copy, "xb") as made:
        for part in _parts(file, path):
            made.write(part)
    with open(copy, "rb", buffering=0) as written:
        digests = _digests_of(written, copy, kinds)
    if verify and _digests_of(file, path, kinds) != digests:
        raise CorruptDataError(f"{copy}: was not read back as {path} was written to it")
    status = os.fstat(file.fileno())
    return NotedFile(status.st_mode & _RIGHTS, copy.stat().st_size, digests)


def noted_source(file: FileIO, path: Path, kinds: Sequence[str]) -> NotedFile:
    """Return the entry of a file that was opened by `path`; raise CorruptDataError if it is cut."""
    status, digests = os.fstat(file.fileno()), _digests_of(file, path, kinds)
    return NotedFile(status.st_mode & _RIGHTS, status.st_size, digests)


def _digests_of(file: FileIO, path: Path, kinds: Sequence[str]) -> Digests:
    size, at = os.fstat(file.fileno()).st_size, 0
    hashes = FileHash(kinds, size)
    for part in _parts(file, path):
        hashes.add(at, part[: size - at])
        at += len(part)
        if at >= size:  # the file may have grown since
            break
    if at < size:
        raise CorruptDataError(f"{path}: was cut while it was read")
    return hashes.digests()


def _parts(file: FileIO, path: Path) -> Iterator[bytes]:
    """Yield the content of a file that was opened by `path`."""
    file.seek(0)
    try:
        while part := file.read(_READ_AT_ONCE):
            yield part
    except OSError as e:
        e.filename = str(path)  # reads from a descriptor do not name the file
        raise


def stored_files(reader: ModelReader) -> dict[str, StoredFile]:
    """Return the files of a store by name, the index last."""
    index = reader.info.index
    files = reader.info.files if index is None else (*reader.info.files, index)
    return {file.name: file for file in files}


def mode_of_store(files: Iterable[NotedFile]) -> int:
    """Return the mode of a store's folder: open to users who may read all of its files."""
    common = reduce(and_, (file.mode for file in files))
    return 0o700 | common & 0o077 | (common & 0o044) >> 2


def folder_modes(top: Path, names: Iterable[str]) -> dict[str, int]:
    """Return the modes of a folder, as ``"."``, and of folders in it."""
    return {name: _rights(top / name) for name in (".", *names)}


def set_modes(top: Path, manifest: Manifest) -> None:
    """Give the noted modes to the files in a folder, and then to the folders."""
    for name, noted in manifest.files.items():
        (top / name).chmod(noted.mode)
    for name, mode in manifest.folders.items():
        # Without its owner's rights, the folder could not be filled, moved or removed.
        (top / name).chmod(mode | stat.S_IRWXU)


def rest_of(source: Path, manifest: Manifest) -> Tree:
    """Return the files of a packed folder outside of stores, and the folders to make."""
    tree = list_tree(source, follow=False, without=manifest.made)
    missing = sorted(manifest.files.keys() - tree.files.keys())
    if missing:
        raise StoreError(
            f"{source}: {few(missing, _SHOWN)} is not there, and was when it was packed: put it"
            f" back, or take its name out of {MANIFEST}"
        )
    check_names(manifest, tree.files, tree.folders, str(source / MANIFEST))
    # Empty folders are lost where only files are stored, as on the hub.
    folders = sorted({*tree.folders, *manifest.folders} - {"."})
    return replace(tree, folders=folders)


def check_names(
    manifest: Manifest, files: Collection[str], folders: Collection[str], where: str
) -> None:
    """Refuse a manifest whose files have a name twice, or are in each other.

    `files` and `folders` are those beside the stores, and `where` is the manifest, for messages.
    """
    weights = Counter(manifest.weights)
    twice = sorted(name for name, count in weights.items() if count > 1)
    if twice:
        raise StoreError(f"{where}: says that {few(twice, _SHOWN)} is in several stores")
    doubled = sorted({*files, *folders} & weights.keys())
    if doubled:
        raise StoreError(
            f"{where}: {few(doubled, _SHOWN)} is there, and a store has it as well: move it out of"
            " the folder"
        )
    inside = {*folders, *manifest.folders} - {"."}
    inside |= {name.rpartition("/")[0] for name in (*files, *weights)}
    both = sorted({path for name in inside for path in and_parents(name)} & {*files, *weights})
    if both:
        raise StoreError(f"{where}: says that {few(both, _SHOWN)} is a folder, and it is a file")


def why_not_packed(path: Path) -> str:
    """Return why a path is not a packed folder without added files, or ""."""
    if not (path / MANIFEST).is_file():
        return f"is not a packed folder: it has no {MANIFEST}"
    try:
        manifest = Manifest.read(path)
        tree = list_tree(path, follow=False, without=manifest.made)
    except (BF16CodecsError, OSError, ValueError) as e:
        return f"cannot be read as a packed folder ({e}): remove it first"
    others = {*tree.files, *tree.folders} - {*manifest.files, *manifest.folders}
    return f"contains {min(others)!r:.200}, which was not packed: move it away" if others else ""
