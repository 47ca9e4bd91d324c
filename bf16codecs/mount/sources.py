"""Opens what is to be mounted, as a tree of folders and files."""

from __future__ import annotations

import os
import posixpath
import time
from collections.abc import Hashable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bf16codecs._base.limits import Limits, check_metadata
from bf16codecs._base.paths import and_parents, given_path
from bf16codecs._files.folders import Folder as HeldFolder
from bf16codecs.convert.hugging_face.packed import (
    MANIFEST,
    Manifest,
    check_names,
    rest_of,
    stored_files,
)
from bf16codecs.errors import StoreError
from bf16codecs.mount.cache import Cache
from bf16codecs.mount.tree import (
    FILE_RIGHTS,
    FOLDER_RIGHTS,
    CopiedFile,
    DecodedFile,
    Directory,
    File,
    IndexFile,
    KeptFile,
    LazyModel,
    RangesFile,
    Status,
)
from bf16codecs.store.attributes import StoredFile
from bf16codecs.store.kinds import HUB_SCHEME, Kind, address_scheme, path_of, suffix_of
from bf16codecs.store.opening import Opening, open_either, open_store, split_step
from bf16codecs.store.reader import ModelReader
from bf16codecs.store.runs.reader import RunReader

if TYPE_CHECKING:
    from bf16codecs.store.remote.safetensors import RemoteFolder

__all__ = ["MountedTree", "Source"]

# The documents of a Zarr group. Writing a store changes at least one of them.
_DOCUMENTS = "zarr.json", ".zgroup", ".zattrs", ".zmetadata"


@dataclass
class MountedTree:
    """The files of a source, as it was when it was opened."""

    root: Directory
    #: Files and folders on the disk. Writing the source changes at least one of them.
    watched: Sequence[Path] = ()
    #: What lossy stores have lost.
    losses: Sequence[str] = ()
    #: When each step of a run was first seen, in nanoseconds since 1970, by what identifies it.
    times: Mapping[Hashable, int] = field(default_factory=dict)
    #: Closes everything that was opened.
    opened: ExitStack = field(default_factory=ExitStack)
    #: How many files are open in it.
    users: int = 0

    def state(self) -> Any:
        """Return what differs after the source was written; empty if that is not known."""
        found = []
        for path in self.watched:
            with suppress(OSError):
                status = os.stat(path)
                found.append((str(path), status.st_ino, status.st_size, status.st_mtime_ns))
        return found

    def close(self, cache: Cache) -> None:
        """Close stores and connections; the cache forgets what was decoded."""
        files = (file for _, file in self.root.files())
        cache.forget_files({file.cached for file in files if isinstance(file, DecodedFile)})
        self.opened.close()


@dataclass(frozen=True)
class Source:
    """A store, a run, a step of one, or a packed folder, at a path or an address.

    Attributes
    ----------
    text
        The path, or the address. A relative path stays relative.
    base
        The base of the store, if it is not where the store says.
    storage_options
        Options of the file system of an address.
    max_bytes
        The largest chunk to decode; by default, what the size of the store makes credible.
    """

    text: str
    base: str | None = None
    storage_options: Mapping[str, Any] | None = None
    max_bytes: int | None = None

    @classmethod
    def of(cls, source: str | os.PathLike[str], **options: Any) -> Source:
        """Check a path or an address."""
        return cls(given_path(source, "store"), **options)

    @property
    def path(self) -> Path | None:
        """Its path on a disk, without the number of a step; None for an address."""
        path = path_of(split_step(self.text)[0])
        return None if path is None else Path(path)

    def open(self, cache: Cache, earlier: MountedTree | None = None) -> MountedTree:
        """Open it; what is decoded is kept in the cache.

        `earlier` is the tree of the same source from before it changed. Errors are those of
        `bf16codecs.open_model`.
        """
        opening = Opening(self.storage_options, Limits(self.max_bytes), base=self.base)
        tree = MountedTree(Directory(Status(FOLDER_RIGHTS, 0)))
        with tree.opened:
            found = _packed(self, opening)
            if found is not None:
                found.fill(tree, cache)
            else:
                reader = open_either(self.text, opening)
                tree.opened.callback(reader.close)
                _add_models(tree, reader, cache, {} if earlier is None else earlier.times)
            if earlier is not None:
                _date_changes(tree.root, earlier.root)
            tree.opened = tree.opened.pop_all()
        return tree


def _documents_of(store: Path) -> list[Path]:
    """Return what changes when a store is written; a folder also does while others work in it."""
    documents = [store / name for name in _DOCUMENTS]
    return documents if any(path.exists() for path in documents) else [store]


def _date_changes(root: Directory, earlier: Directory) -> None:
    """Let files that have changed have another time, by which the system notices that."""
    for path, file in root.files():
        before = earlier.find(path)
        if isinstance(before, KeptFile) and isinstance(file, KeptFile):
            is_other = file.content != before.content
            if is_other and file.status[1:] == before.status[1:]:
                file.changed_at(time.time_ns())


def _changed_at(path: Path | None) -> int:
    """Return when a store was written, in nanoseconds since 1970; at an address, now."""
    times = []
    for document in () if path is None else _documents_of(path):
        with suppress(OSError):
            times.append(os.stat(document).st_mtime_ns)
    return max(times, default=time.time_ns())


def _add_models(
    tree: MountedTree, reader: ModelReader, cache: Cache, earlier: Mapping[Hashable, int]
) -> None:
    """Add the files of a model, or a folder for each step of a run."""
    where = path_of(reader.location[0])
    path = Path(where) if where else None
    changed = _changed_at(path)
    tree.root = Directory(Status(FOLDER_RIGHTS, changed))
    tree.watched = [] if path is None else _documents_of(path)
    tree.losses = _losses(reader)
    if not isinstance(reader, RunReader):
        tree.root.members.update(_checked_files(reader, cache, Status(FILE_RIGHTS, changed)))
        return
    times: dict[Hashable, int] = {}
    for index, step in enumerate(reader.run.steps):
        # Not by its place in the run, since steps before it may be dropped. A published run that
        # has begun anew may have another step of this number, with the same files.
        identity = step.number, step.files, step.index, reader.stored.step_key(index)
        seen = times[identity] = earlier.get(identity, changed)
        # There may be thousands of steps, each with hundreds of tensors.
        model = LazyModel(partial(reader.step, step.number))
        files = _files(model, step.files, step.index, cache, Status(FILE_RIGHTS, seen), identity)
        tree.root.members[f"step-{step.number}"] = Directory(Status(FOLDER_RIGHTS, seen), files)
    tree.times = times


def _losses(reader: ModelReader) -> list[str]:
    loss = reader.info.loss
    return [] if loss is None else [f"{reader.where}: {loss.described()}"]


def _checked_files(
    reader: ModelReader, cache: Cache, status: Status
) -> dict[str, Directory | File]:
    """Return the original files of a model, by their names, once its metadata are checked."""
    info, model = reader.info, LazyModel(lambda: reader)
    files = _files(model, info.files, info.index, cache, status)
    for file in files.values():
        if isinstance(file, DecodedFile):
            file.check()
    return files


def _files(
    model: LazyModel,
    stored: Sequence[StoredFile],
    index: StoredFile | None,
    cache: Cache,
    status: Status,
    step: Hashable = None,
) -> dict[str, Directory | File]:
    """Return the original files of a model, by their names."""
    found: dict[str, Directory | File] = {}
    for number, file in enumerate(stored):
        # Without digests, nothing says that another file is the same.
        content = (step, file) if step is not None or file.digests.kinds else object()
        sized = status._replace(size=file.size)
        found[file.name] = DecodedFile(sized, content, model, number, cache)
    if index is not None:
        found[index.name] = IndexFile(status._replace(size=index.size), (step, index), model)
    return found


# --- packed folders -------------------------------------------------------------------------------


class _Packed:
    """A packed folder on a disk."""

    def __init__(self, path: Path, opening: Opening) -> None:
        self._path, self._opening = path, opening
        self.manifest = Manifest.read(path)

    def fill(self, tree: MountedTree, cache: Cache) -> None:
        """Add all files of the original to an empty tree."""
        manifest, path = self.manifest, self._path
        rest, held = rest_of(path, manifest), HeldFolder(path, follow=True)
        root = tree.root = Directory(self._folder_status("."))
        for name in rest.folders:
            root.add(name, Directory(self._folder_status(name)))
        for name in rest.files:
            root.add(name, CopiedFile(name, partial(rest.open, name)))
        for store in manifest.stores:
            held.refuse_links(store)  # opening a store would follow links
            _add_store(tree, manifest, store, str(path / store), self._opening, cache)
        stores = (document for store in manifest.stores for document in _documents_of(path / store))
        tree.watched = [path / MANIFEST, *stores]

    def _folder_status(self, name: str) -> Status:
        try:
            changed = os.stat(self._path / name).st_mtime_ns
        except OSError:  # an empty folder, which a copy may lack
            changed = _changed_at(self._path)
        return Status.of(self.manifest.folders.get(name, FOLDER_RIGHTS), changed)


class _RemotePacked:
    """A packed folder at an address."""

    def __init__(self, folder: RemoteFolder, address: str, opening: Opening) -> None:
        self._folder, self._address, self._opening = folder, address, opening
        file = folder.file(MANIFEST)
        check_metadata(file.size)
        self.manifest = Manifest.parse(file.part(0, file.size), f"{address}/{MANIFEST}")

    def fill(self, tree: MountedTree, cache: Cache) -> None:
        """Add all files of the original to an empty tree."""
        manifest, now = self.manifest, time.time_ns()
        check_names(manifest, manifest.files, manifest.folders, f"{self._address}/{MANIFEST}")
        root = tree.root = Directory(Status.of(manifest.folders["."], now))
        for name in sorted(_folders(manifest)):
            root.add(name, Directory(Status.of(manifest.folders.get(name, FOLDER_RIGHTS), now)))
        for name, noted in manifest.files.items():
            file = self._folder.file(name)
            size = file.size_or_0  # as listed, or as a request tells
            if size != noted.size:
                raise StoreError(
                    f"{self._address}/{name}: has {size} bytes, and {MANIFEST} says {noted.size}"
                )
            root.add(name, RangesFile(Status.of(noted.mode, now, size), noted, file.part))
        for store in manifest.stores:
            address = f"{self._address}/{store}"
            _add_store(tree, manifest, store, address, self._opening, cache)


def _folders(manifest: Manifest) -> set[str]:
    """Return the folders of a manifest, and all that files and stores are in."""
    names = {*manifest.files, *manifest.weights}
    parents = {parent for name in names for parent in and_parents(name)} - names
    below = {parent for name in manifest.folders for parent in and_parents(name)}
    return (below | parents) - {".", ""}


def _packed(source: Source, opening: Opening) -> _Packed | _RemotePacked | None:
    """Return the packed folder that a source is; None if it is something else."""
    text, path = source.text, source.path
    if path is not None:
        if not (path / MANIFEST).is_file():
            return None
        _refuse_base(source)
        return _Packed(path, replace(opening, options=None))
    if suffix_of(text.rstrip("/"))[1] is not None or split_step(text)[1] is not None:
        return None
    folder, address = _folder_at(text, opening)
    if MANIFEST not in (folder.sizes or ()):
        return None
    _refuse_base(source)
    return _RemotePacked(folder, address, opening)


def _refuse_base(source: Source) -> None:
    if source.base is not None:
        raise ValueError(f"{source.text}: a packed folder has no base: name a store in it")


def _folder_at(text: str, opening: Opening) -> tuple[RemoteFolder, str]:
    """Return the folder at an address, and the address that its stores are opened by."""
    # zarr is imported only for addresses.
    from bf16codecs.store.remote.hub import find_on_hub
    from bf16codecs.store.remote.safetensors import remote_folder

    if address_scheme(text) == HUB_SCHEME:
        place = find_on_hub(text, opening.options or {})
        return replace(place.files_in(opening.limits), sizes=place.sizes), place.fixed.rstrip("/")
    return remote_folder(text, opening.options, opening.limits), text.rstrip("/")


def _add_store(
    tree: MountedTree,
    manifest: Manifest,
    store: str,
    location: str,
    opening: Opening,
    cache: Cache,
) -> None:
    """Add the files that a store of a packed folder has."""
    reader = open_store(location, Kind.FOLDER, opening=opening)
    tree.opened.callback(reader.close)
    entries = manifest.stores[store].items()
    noted = {posixpath.basename(name): (name, entry) for name, entry in entries}
    if stored_files(reader).keys() != noted.keys():
        raise StoreError(f"{location}: has other files than {MANIFEST} says")
    where = path_of(location)
    changed = _changed_at(Path(where) if where else None)
    for base, file in _checked_files(reader, cache, Status(FILE_RIGHTS, changed)).items():
        name, entry = noted[base]
        if isinstance(file, KeptFile):
            file.allow(entry.mode)
        tree.root.add(name, file)
    tree.losses = [*tree.losses, *_losses(reader)]
