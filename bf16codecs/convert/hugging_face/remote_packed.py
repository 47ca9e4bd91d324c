"""Packed folders in the making in object stores: the manifest makes one, in one step.

Until then, the manifest is the document of a lease, whose note has the names of all files and
stores in the folder.
"""

from __future__ import annotations

import errno
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from bf16codecs._base import interrupt as _interrupt
from bf16codecs._base.messages import one_line
from bf16codecs._files.digests import FileHash
from bf16codecs.convert.hugging_face.folders import Tree
from bf16codecs.convert.hugging_face.note import note_of
from bf16codecs.convert.hugging_face.packed import MANIFEST, NOTE, Manifest, NotedFile, noted_source
from bf16codecs.convert.new_remote import remove_remote
from bf16codecs.convert.summary import Progress
from bf16codecs.errors import BF16CodecsError, CorruptDataError, LeftoverWarning
from bf16codecs.store.remote.lease import (
    ROOT,
    Lease,
    arrays_in_note,
    wait_for_death,
    without_note,
)
from bf16codecs.store.remote.object_folder import ObjectFolder

__all__ = ["new_remote_packed"]

_READ_AT_ONCE = 1 << 23
_STORE = ".zarr"


class RemotePacked:
    """A packed folder in an object store; files have no modes there.

    `document` is the manifest, in the end.
    """

    def __init__(
        self, folder: ObjectFolder, options: Mapping[str, Any] | None, lease: Lease
    ) -> None:
        self._folder, self.options, self._lease = folder, options, lease
        self.document = b""

    def copy(
        self, tree: Tree, kinds: Sequence[str], verify: bool, progress: Progress | None
    ) -> dict[str, NotedFile]:
        """Upload files, and note them."""
        self._lease.declare([NOTE, *tree.files])
        total, done = sum(path.stat().st_size for path in tree.files.values()), 0
        noted = {}
        for name, path in tree.files.items():
            self._lease.check()
            with tree.open(name) as file:
                noted[name] = noted_source(file, path, kinds)
                file.seek(0)
                self._folder.upload(name, file)
            if verify and self._digests(name, noted[name].size, kinds) != noted[name].digests:
                raise CorruptDataError(f"{self._folder.where}/{name}: was not read back as written")
            done += noted[name].size
            if progress is not None:
                progress("copy", min(done, total), total)
            _interrupt.check()
        return noted

    def _digests(self, name: str, size: int, kinds: Sequence[str]) -> Any:
        hashes = FileHash(kinds, size)
        for start in range(0, size, _READ_AT_ONCE):
            hashes.add(start, self._folder.read_part(name, start, _READ_AT_ONCE))
        return hashes.digests()

    def location(self, store: str) -> str:
        """Return the address of a store in it."""
        self._lease.declare([store])
        return f"{self._folder.where}/{store}"

    def finish(self, manifest: Manifest) -> None:
        """Write the note for readers, and keep the manifest, which is written last."""
        note = note_of(manifest).encode()
        if note:
            self._lease.check()
            self._folder.write(NOTE, note)
        self.document = manifest.text().encode()

    def stored_nbytes(self) -> int:
        """Return the size of all objects."""
        sizes = self._folder.sizes()
        return len(self.document) + sum(sizes[key] for key in sizes.keys() - {MANIFEST})


@contextmanager
def new_remote_packed(url: str, options: Mapping[str, Any] | None) -> Iterator[RemotePacked]:
    """Yield a packed folder to fill at an address; errors are those of `new_packed`."""
    folder = ObjectFolder(url, options or {})
    found = folder.read(MANIFEST)
    left = frozenset() if found is None else frozenset(arrays_in_note(found.data))
    _check_free(folder, left, found is not None and without_note(found.data) is not None)
    wait_for_death(folder, found, MANIFEST)
    with _interrupt.shielded():
        lease, document = Lease(folder, found, MANIFEST), None
        try:
            with _removing(folder, options, lease), _interrupt.exposed():
                lease.declare(left)
                _remove(folder, options, lease)
                made = RemotePacked(folder, options, lease)
                yield made
                _interrupt.check()
            document = made.document
        finally:
            lease.close(document)
        _interrupt.finish(url)


def _check_free(folder: ObjectFolder, left: frozenset[str], is_packed: bool) -> None:
    """Raise FileExistsError if there is anything but what a dead writer left."""
    keys = [key for key in folder.listed() if key != MANIFEST]
    foreign = next((key for key in keys if not _is_below(key, left)), "")
    why = ""
    if is_packed:
        why = "is a packed folder: in object stores, none is replaced: remove it first, or"
    elif foreign:
        why = f"contains {foreign!r:.200}:"
    if why:
        text = f"exists and {why} choose another name"
        raise FileExistsError(errno.EEXIST, text, folder.where)


def _is_below(key: str, names: frozenset[str]) -> bool:
    """Return whether a key is one of some files, or in one of some stores."""
    stores = tuple(f"{name}/" for name in names if name.endswith(_STORE))
    return key in names or key.startswith(stores)


@contextmanager
def _removing(
    folder: ObjectFolder, options: Mapping[str, Any] | None, lease: Lease
) -> Iterator[None]:
    """Remove what was written if the block fails, unless another process has taken over."""
    try:
        yield
    except BaseException:
        if not lease.is_lost:
            try:
                _remove(folder, options, lease)
            except (OSError, BF16CodecsError) as e:
                lease.leaves_keys = True
                text = f"{folder.where}: objects are left that the next writer removes: "
                warnings.warn(text + one_line(e), LeftoverWarning, stacklevel=4)
        raise


def _remove(folder: ObjectFolder, options: Mapping[str, Any] | None, lease: Lease) -> None:
    """Remove all that was declared."""
    names = list(lease.arrays)
    for name in (name for name in names if name.endswith(_STORE)):
        store = ObjectFolder(f"{folder.where}/{name}", options or {})
        root = store.read(ROOT)
        if root is not None:
            is_dead = wait_for_death(store, root)
            remove_remote(store.where, options, root.version, is_dead)
        lease.check()
    lease.remove(name for name in names if not name.endswith(_STORE))
