"""The layout of an Orbax checkpoint: arrays, and documents that describe them."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bf16codecs._base.cached import cached_property
from bf16codecs._base.messages import few
from bf16codecs._base.paths import absolute, and_parents
from bf16codecs._files.folders import walk, walk_tree
from bf16codecs._files.reading import open_to_read
from bf16codecs.errors import StoreError

__all__ = [
    "KEY",
    "MARKERS",
    "MAX_DOCUMENT_BYTES",
    "Checkpoint",
    "Location",
    "is_orbax",
    "other_than_checkpoint",
    "parent_checkpoint",
    "read_checkpoint",
    "too_many_documents",
]

#: The key of a checkpoint's documents in the metadata of a safetensors file.
KEY = "bf16codecs.orbax"

_CHECKPOINT, _TREE, _DATABASE = "_CHECKPOINT_METADATA", "_METADATA", "manifest.ocdbt"
#: Names of files: each checkpoint, and each item of one, has at least one of them.
MARKERS = (_TREE, _DATABASE, _CHECKPOINT)
# A file of Orbax before 2023 with small values, beside the arrays.
_AGGREGATE = "checkpoint"
_UNFINISHED = ".orbax-checkpoint-tmp"
# A database may have further manifests, whose names are numbers.
_MANIFEST = re.compile(r"manifest\.(ocdbt|[0-9a-f]{16})")
_VERSION = 1
#: The most bytes of a checkpoint beside its arrays. A header of safetensors may have 100 MB.
MAX_DOCUMENT_BYTES = 32 << 20
_ARRAY_TYPES = {"jax.Array", "np.ndarray", "scalar"}


class Location(NamedTuple):
    """The location of an array in a checkpoint."""

    #: The folder of the OCDBT database that has the array; None if the array is a folder itself.
    database: str | None
    #: Its path in the database, or in the checkpoint.
    path: str
    #: The driver of tensorstore: ``"zarr"`` or ``"zarr3"``.
    driver: str
    #: Whether a missing chunk is damage, instead of zeros.
    has_all_chunks: bool


@dataclass(frozen=True)
class Checkpoint:
    """Everything in a checkpoint but the data of its arrays; paths have slashes.

    `files` has the content of files by path, including the metadata of arrays that are folders.
    `databases` has the metadata of the arrays in OCDBT databases, by folder and key.
    """

    files: Mapping[str, bytes]
    databases: Mapping[str, Mapping[str, bytes]]

    def arrays(self) -> dict[str, Location]:
        """Return the arrays by name: their paths, without the folder of an only item.

        Raises StoreError if an item's metadata are missing or unreadable, or list missing arrays.
        """
        found = [self._locate(None, key) for key in self.files]
        for database, keys in self.databases.items():
            found += [self._locate(database, key) for key in keys]
        arrays = {
            _joined(array.database, array.path): array for array in found if array is not None
        }
        for location in arrays.values():
            self._check_has_tree(location)
        for item in self._trees:
            self._check_tree(item, arrays)
        prefixes = {self._item_of(path) for path in arrays}
        start = len(_joined(*prefixes, "")) if len(prefixes) == 1 else 0
        return {path[start:]: location for path, location in arrays.items()}

    @cached_property
    def _trees(self) -> dict[str, dict[str, Any]]:
        """The descriptions of the saved trees, by folder."""
        return {
            os.path.dirname(path): _parsed(raw, path)
            for path, raw in self.files.items()
            if _name(path) == _TREE
        }

    @cached_property
    def _items(self) -> list[str]:
        """The folders of the items that were saved together, the innermost first."""
        return sorted({*self._trees, *self.databases}, key=len, reverse=True)

    def _item_of(self, path: str) -> str:
        return next((item for item in self._items if path.startswith(_joined(item, ""))), "")

    def _locate(self, database: str | None, key: str) -> Location | None:
        """Return the array whose metadata have a key; None if the key is not an array's."""
        where = _joined(database, key)
        raw = self.files[key] if database is None else self.databases[database][key]
        if not _is_of_array(where, raw):
            return None
        tree = self._trees.get(self._item_of(where), {})
        is_full = tree.get("store_array_data_equal_to_fill_value") is True
        driver = "zarr" if _name(key) == ".zarray" else "zarr3"
        return Location(database, os.path.dirname(key), driver, is_full)

    def _check_has_tree(self, location: Location) -> None:
        """Refuse an array that Orbax finds only by its tree, if that is missing."""
        folder, name = os.path.split(location.path)
        folders = [location.database] if location.database is not None else and_parents(folder)
        if any(
            _joined(parent, file) in self.files
            for parent in folders
            for file in (_TREE, _AGGREGATE)
        ):
            return
        # Without a description, Orbax reads a folder of nothing but arrays as a tree, and an array
        # named _AGGREGATE alone.
        is_bare = location.database is None and not self._has_documents(folder)
        if not is_bare and name != _AGGREGATE:
            where = _joined(location.database if location.database is not None else folder, _TREE)
            raise StoreError(
                f"{where} is missing, which describes the tree of arrays: take a whole copy of the"
                " checkpoint, or let Orbax restore it into a tree that you give, and save it again"
            )

    def _has_documents(self, folder: str) -> bool:
        return any(os.path.dirname(path) == folder for path in self.files)

    def _check_tree(self, item: str, arrays: Mapping[str, Location]) -> None:
        """Refuse a tree that lists arrays that are missing, or nothing."""
        missing, where = [], _joined(item, _TREE)
        tree = self._trees[item].get("tree_metadata")
        if not tree:
            raise StoreError(
                f"{where} has no tree_metadata, without which Orbax restores nothing: take another"
                " copy of the checkpoint"
            )
        if _joined(item, _AGGREGATE) in self.files:
            return
        try:
            for leaf in tree.values():
                about = leaf["value_metadata"]
                name = ".".join(str(key["key"]) for key in leaf["key_metadata"])
                is_array = about["value_type"] in _ARRAY_TYPES and not about["skip_deserialize"]
                if is_array and _joined(item, name) not in arrays:
                    missing.append(repr(name))
        except (AttributeError, KeyError, TypeError) as e:
            raise StoreError(f"{where}: not the metadata of a tree: {e!r}") from e
        if missing:
            raise StoreError(f"{where} lists arrays that are missing: {few(missing, 3):.300}")

    def to_text(self) -> str:
        """Return the checkpoint's documents as JSON."""
        document = {
            "version": _VERSION,
            "files": _texts(self.files),
            "databases": {folder: _texts(keys) for folder, keys in self.databases.items()},
        }
        return json.dumps(document, ensure_ascii=False, separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> Checkpoint:
        """Parse a result of `to_text`; raise StoreError if it is invalid, or a path leads out."""
        try:
            document = json.loads(text)
            if document["version"] != _VERSION:
                raise StoreError(
                    f"version {document['version']!r:.80} is unknown: upgrade bf16codecs"
                )
            checkpoint = cls(
                _contents(document["files"]),
                {folder: _contents(keys) for folder, keys in document["databases"].items()},
            )
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as e:
            if isinstance(e, StoreError):
                raise
            raise StoreError(f"not the documents of an Orbax checkpoint: {e!r:.300}") from e
        for path in (*checkpoint.files, *checkpoint.databases):
            parts = path.split("/") if path else []
            is_odd = os.path.splitdrive(path)[0] or (os.sep != "/" and os.sep in path)
            if is_odd or not {"", ".", ".."}.isdisjoint(parts):
                raise StoreError(f"the path {path!r:.200} leads out of the checkpoint")
        return checkpoint


def is_orbax(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is an Orbax checkpoint, an unfinished one, or a folder of some."""
    root = Path(path)
    if not root.is_dir():
        return False
    return _UNFINISHED in root.name or any(map(_has_marker, (root, *_folders(root))))


def parent_checkpoint(path: Path) -> Path | None:
    """Return the checkpoint, or the item of one, whose folder has a path; None without one."""
    parent = Path(absolute(path)).parent
    return parent if _has_marker(parent) else None


def other_than_checkpoint(root: Path) -> str:
    """Return why a path is not a complete checkpoint of one step; "" if it is one."""
    if not root.is_dir():
        return "it is no folder, as Orbax checkpoints are"
    inner = _folders(root)
    unfinished = next((path.name for path in (root, *inner) if _UNFINISHED in path.name), None)
    if unfinished is not None:
        return f"an Orbax checkpoint that was not finished ({unfinished}): take another"
    steps = [path.name for path in inner if (path / _CHECKPOINT).is_file()]
    if not any(map(_has_marker, (root, *inner))):
        # Steps of Orbax before 2024 have no marker of their own, but their items do.
        steps = [path.name for path in inner if any(map(_has_marker, _folders(path)))]
    if steps:
        last = max(steps, key=lambda name: (len(name), name))
        return f"a folder of Orbax checkpoints: name one of them, such as {root / last}"
    return "" if is_orbax(root) else f"no Orbax checkpoint: it has no {' or '.join(MARKERS)}"


def read_checkpoint(root: Path, read_database: Callable[[Path], dict[str, bytes]]) -> Checkpoint:
    """Read all documents of a checkpoint: with a `CheckpointManager`, those of one step.

    `read_database` returns the metadata of an OCDBT database's arrays, by key. Raises StoreError if
    this is not one finished checkpoint, and for files that `walk_tree` refuses.
    """
    if why := other_than_checkpoint(root):
        raise StoreError(f"{root}: {why}")
    try:
        for _ in walk_tree(root, follow=True):
            pass  # refuses pipes, and links that tensorstore would follow without end
    except FileNotFoundError as e:
        raise StoreError(f"{e.filename}: {e.strerror}") from e
    files: dict[str, bytes] = {}
    databases: dict[str, dict[str, bytes]] = {}
    nbytes = 0
    for folder, manifests, names in _walk(root):
        path = "" if folder == root else folder.relative_to(root).as_posix()
        # tensorstore reads whole manifests, so they are measured before it opens the database.
        for name in (*manifests, *names):
            nbytes += (folder / name).stat().st_size
            if nbytes > MAX_DOCUMENT_BYTES:
                raise too_many_documents(root, _joined(path, name))
        if manifests:
            databases[path] = read_database(folder)
            nbytes += sum(map(len, databases[path].values()))
        files.update({_joined(path, name): _read(folder / name) for name in names})
    return Checkpoint(files, databases)


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir())


def _has_marker(folder: Path) -> bool:
    return any((folder / name).is_file() for name in MARKERS)


def _walk(root: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Yield each folder with its manifests, if it is a database, and its documents, not chunks."""
    arrays: set[str] = set()
    for folder, folders, names in walk(root):
        manifests: list[str] = []
        if _DATABASE in names:
            # Skip its data, and the databases of single processes, which were merged into it.
            folders[:] = [f for f in folders if f != "d" and not f.startswith("ocdbt.process_")]
            manifests = sorted(filter(_MANIFEST.fullmatch, names))
            names = [name for name in names if name not in manifests]
        documents = [name for name in names if name in (".zarray", ".zattrs", "zarr.json")]
        paths = (Path(folder, name) for name in documents)
        is_array = any(_is_of_array(str(path), _read(path)) for path in paths)
        # All other files in the folder of an array, and in folders below, are chunks.
        if is_array or os.path.dirname(folder) in arrays:
            arrays.add(folder)
            names = documents
        folders.sort()
        yield Path(folder), manifests, sorted(names)


def _read(path: Path) -> bytes:
    try:
        with os.fdopen(open_to_read(path), "rb") as file:
            data = file.read(MAX_DOCUMENT_BYTES + 1)
    except StoreError as e:
        raise StoreError(f"{path}: {e}") from None
    if len(data) > MAX_DOCUMENT_BYTES:
        raise too_many_documents(path.parent, path.name)
    return data


def too_many_documents(where: Path, path: str) -> StoreError:
    """Return the error for too many bytes beside the arrays; with `path`, they are too many."""
    return StoreError(
        f"{where}: more than {MAX_DOCUMENT_BYTES >> 20} MiB beside its arrays, with {path!r:.300}:"
        " leave out what is no part of the model, or take another copy"
    )


def _joined(*parts: str | None) -> str:
    """Join parts of a path; an empty last part leaves a slash at the end."""
    *folders, last = parts
    start = "/".join(part for part in folders if part)
    return f"{start}/{last}" if start else last or ""


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _is_of_array(path: str, raw: bytes) -> bool:
    """Return whether metadata are an array's, and refuse deep JSON, which crashes tensorstore."""
    name = os.path.basename(path)
    if name not in (".zarray", "zarr.json"):
        return False
    document = _parsed(raw, path)
    return name == ".zarray" or document.get("node_type") == "array"


def _parsed(raw: bytes, where: str) -> dict[str, Any]:
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as e:
        raise StoreError(f"{where}: not JSON: {e}") from e
    if not isinstance(document, dict):
        raise StoreError(f"{where}: not a JSON object")
    return document


def _texts(files: Mapping[str, bytes]) -> dict[str, str | list[str]]:
    """Return the content of files for JSON: text, or a list with base64 for other bytes."""

    def text(raw: bytes) -> str | list[str]:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return [base64.b64encode(raw).decode()]

    return {path: text(raw) for path, raw in files.items()}


def _contents(texts: Mapping[str, Any]) -> dict[str, bytes]:
    def content(text: Any) -> bytes:
        if isinstance(text, str):
            return text.encode()
        (encoded,) = text
        try:
            return base64.b64decode(encoded, validate=True)
        except binascii.Error as e:
            raise StoreError(f"not base64: {e}") from e

    return {path: content(text) for path, text in texts.items()}
