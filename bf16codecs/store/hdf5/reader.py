"""Reads the model store from HDF5."""

from __future__ import annotations

import gc
import json
import mmap
import os
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any, NoReturn, TypeVar

import h5py
from h5py._hl.base import phil

from bf16codecs._arrays.array import RangeReader, UnitArray
from bf16codecs._base.limits import DEFAULT_LIMITS, Limits, check_metadata
from bf16codecs._base.messages import advised, causes, damaged, named_errors, one_line
from bf16codecs._files.journal import Journal, carry_out_journal, journal_of
from bf16codecs.errors import BF16CodecsError, StoreError
from bf16codecs.hdf5.direct import Decoding, dataset_array
from bf16codecs.hdf5.filters import codec_level, codec_name
from bf16codecs.hdf5.types import item_type
from bf16codecs.store.arrays import CheckSize, StoredArrays
from bf16codecs.store.attributes import Difference
from bf16codecs.store.layout import ATTRIBUTES_KEY, StoreInfo
from bf16codecs.store.reader import ModelReader

__all__ = ["Hdf5Arrays", "attribute_names", "hdf5_attributes", "open_hdf5", "other_object"]


T = TypeVar("T")

_OTHER_FILE = "an HDF5 file: h5py reads it, and st2h5 makes model stores of safetensors"
_NO_HDF5 = "file signature not found"
_ERRNO = re.compile(r"\berrno = (\d+), error message = ")
_TRUNCATED = re.compile(r"truncated file: eof = (\d+),.* stored_eof = (\d+)")

# A part of every run's attribute, and of nothing else: docs/store.md.
_RUN = b'"run": {"group": '

# The most attempts to open a file that changes meanwhile.
_OPENINGS = 10


class _Opened:
    """One state of a file that may be appended to, with the decoder of its chunks."""

    def __init__(self, where: str, limits: Limits) -> None:
        self._where, self._state = where, os.stat(where)
        with named_errors(where), ExitStack() as stack:
            # HDF5 would reuse its cached state of a file that this process has open.
            given = stack.enter_context(open(where, "rb")) if _is_open(where) else None
            # A cache of decoded chunks for each dataset would be of no use.
            with _truncation_named():
                self.file = h5py.File(where if given is None else given, "r", rdcc_nbytes=0)
            stack.pop_all()
        self._given = given
        self.decoding = Decoding(True, limits.max_bytes is not None, given)

    def has_changed(self) -> bool:
        """Return whether another process has written to the file since it was opened."""
        return has_changed(self._where, self._state)

    def close(self) -> None:
        """Close the file."""
        try:
            with _named_library(self._where):
                self.file.close()
        finally:
            if self._given is not None:
                self._given.close()


@contextmanager
def _truncation_named() -> Iterator[None]:
    """Report a file that is cut off as damaged: libhdf5's message is about its internals.

    Other errors, as for a file that is being written, need not be damage.
    """
    try:
        yield
    except OSError as e:
        found = _TRUNCATED.search(str(e))
        if found is None and _NO_HDF5 not in str(e):
            raise
        why = f"it has {found[1]} bytes of {found[2]}" if found else one_line(e)
        raise StoreError(damaged(why, "damaged or cut off")) from e


@contextmanager
def _named_library(what: str) -> Iterator[None]:
    """Report what libhdf5 cannot read in an open file as damage.

    h5py's exception types depend on the call rather than the cause. Errors of the system, as of a
    failing disk, are no damage, and remain OSErrors.
    """
    with named_errors(what, OSError):
        try:
            yield
        except (BF16CodecsError, MemoryError):
            raise
        except Exception as e:
            number = _errno_of(e)
            if number:
                raise OSError(number, os.strerror(number)) from e
            if isinstance(e, (KeyError, OSError, RuntimeError, ValueError)):
                raise StoreError(damaged(" ".join(map(str, e.args)))) from e
            raise StoreError(one_line(e)) from e


def _errno_of(error: BaseException) -> int:
    """Return the system's error number, or 0; not all of h5py's exceptions have it."""
    for cause in causes(error):  # an error in reading an attribute was named
        if isinstance(cause, OSError) and cause.errno:
            return cause.errno
        if found := _ERRNO.search(str(cause)):
            return int(found[1])
    return 0


def has_changed(path: str, before: os.stat_result) -> bool:
    """Return whether another process has written to a file, or is about to."""
    try:
        now = os.stat(path)
    except OSError:
        return False
    is_same = (now.st_size, now.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    return os.path.samestat(now, before) and not (is_same and Journal(path).pending() is None)


def open_hdf5(path: str | os.PathLike[str], limits: Limits) -> ModelReader:
    """Open a model store in HDF5; first finish an append that a dead process left complete.

    Raises OSError if it cannot be opened, or an append that is complete cannot be finished.
    """
    where = os.fspath(path)
    for left in reversed(range(_OPENINGS)):
        if not _is_no_run(where, limits):
            carry_out_journal(where)
        before = os.stat(where)
        try:
            return ModelReader(Hdf5Arrays(where, limits))
        except (OSError, StoreError):
            if not (left and has_changed(where, before)):
                raise
    raise AssertionError


def _is_no_run(where: str, limits: Limits) -> bool:
    """Return whether a file has a journal although it is not a run: only runs have journals.

    After a partly applied journal, libhdf5 may fail to open the file, or never return: it follows
    the sizes of objects in a heap, and an object of zero bytes precedes itself. A journal may be
    forged, so the file itself has to contain the attribute of a run.
    """
    if not os.path.lexists(journal_of(where)):
        return False
    if not Journal(where).is_half_done():
        with suppress(OSError, BF16CodecsError):
            attributes = hdf5_attributes(where, limits)[ATTRIBUTES_KEY]
            return not (isinstance(attributes, Mapping) and "run" in attributes)
    if not os.path.getsize(where):
        return True
    with open(where, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(_RUN) < 0


class Hdf5Arrays(StoredArrays):
    """The arrays of a model store in HDF5."""

    names_dimensions = False

    def __init__(self, path: str | os.PathLike[str], limits: Limits) -> None:
        where = os.fspath(path)
        #: All open states of the file, the newest last: arrays of each are read on.
        self._opened: list[_Opened] = []
        self._attributes: dict[str, Mapping[str, Any]] = {}
        with ExitStack() as stack:
            stack.callback(self._close_all)
            self._opened.append(_Opened(where, limits))
            super().__init__(where, _read_info(self._file, where), limits)
            stack.pop_all()

    def attributes(self, path: str) -> Mapping[str, Any]:
        """Return the attributes of an array under `bf16codecs`."""
        if path not in self._attributes:
            self._attributes[path] = self._read_attributes(path)
        return self._attributes[path]

    def _read_attributes(self, path: str) -> Mapping[str, Any]:
        def read(dataset: Any) -> Any:
            text = _read_attribute(h5py.Dataset(dataset))
            try:
                return {} if text is None else json.loads(text)
            except (ValueError, RecursionError) as e:
                why = f"attribute {ATTRIBUTES_KEY!r} is not JSON: {one_line(e)}"
                raise StoreError(damaged(why)) from e

        attributes = self._ask(path, read)
        return attributes if isinstance(attributes, Mapping) else {}

    def open_zarr(self, path: str, check_size: CheckSize) -> NoReturn:
        """Raise ValueError: HDF5 files have no Zarr arrays."""
        raise ValueError(f"{self.where}: HDF5 files have no Zarr arrays")

    def stored_nbytes(self, path: str) -> int:
        """Return the stored size of an array's data."""
        return int(self._ask(path, lambda dataset: dataset.get_storage_size()))

    def total_nbytes(self) -> int:
        """Return the size of the file."""
        return int(self._file.id.get_filesize())

    def codec_name(self, path: str) -> str:
        """Return the name of an array's filters."""
        return self._ask(path, codec_name)

    def codec_level(self, path: str) -> str:
        """Return the level of an array's arithmetic codec; of other codecs ``""``."""
        return self._ask(path, codec_level)

    def close(self) -> None:
        """Close files and connections."""
        with named_errors(self.where, OSError):
            self._close_all()

    def _close_all(self) -> None:
        while self._opened:
            self._opened.pop().close()

    @property
    def _file(self) -> h5py.File:
        if not self._opened:  # closed by the caller that gave it as a base
            raise StoreError("the file is closed")
        return self._opened[-1].file

    def open(self, path: str, check_size: CheckSize) -> UnitArray:
        """Open a dataset."""
        return self._array_of(path, None)

    def open_difference(
        self, path: str, difference: Difference, find_base: Callable[[], RangeReader]
    ) -> UnitArray:
        """Open what is stored as a difference to what `find_base` returns."""
        return self._array_of(path, find_base)

    def _array_of(self, path: str, find_base: Callable[[], RangeReader] | None) -> UnitArray:
        label = self.label(path)

        def read(dataset: Any) -> UnitArray:
            decoding = self._opened[-1].decoding
            items = item_type(dataset.get_type())
            return dataset_array(
                dataset, items, label, decoding, is_complete=True, find_base=find_base
            )

        return self._ask(path, read)

    def _ask(self, path: str, call: Callable[[Any], T]) -> T:
        """Ask something of a dataset, and once more if the run was appended to in between.

        libhdf5 caches parts of a file, which do not match what it later reads of a changed file.
        """
        for left in reversed(range(_OPENINGS)):
            try:
                dataset = self._dataset(path)
                with _named_library(self.label(path)):
                    return call(dataset)
            except StoreError:
                may_grow = self.info.run is not None and self._opened
                if not (left and may_grow and self._opened[-1].has_changed()):
                    raise
            carry_out_journal(self.where)
            self._opened.append(_Opened(self.where, self.limits))
        raise AssertionError

    def _dataset(self, path: str) -> Any:
        """Open a little-endian dataset whose data are in this file."""
        with _named_library(f"{self.where}: array {path!r:.300}"):
            # Links and storage may lead to any file, or pipe: HDF5 opens what it follows or reads.
            _refuse_links(self._file.id, path)
            dataset = h5py.h5o.open(self._file.id, path.encode())
            if not isinstance(dataset, h5py.h5d.DatasetID):
                raise StoreError("is not an array")
            properties = dataset.get_create_plist()
            is_virtual = properties.get_layout() == h5py.h5d.VIRTUAL
            if is_virtual or properties.get_external_count():
                raise StoreError("its data are in another file")
            try:
                items = item_type(dataset.get_type())
            except TypeError as e:
                raise StoreError(f"its type is not the data type of a tensor: {e}") from e
            if items.dtype.byteorder == ">":
                raise StoreError("is big-endian")
            if not items.has_same_bytes:
                raise StoreError("its type is not the data type of a tensor: HDF5 converts it")
        return dataset


def _open_names() -> list[bytes]:
    """Return the names of the files that HDF5 has open in this process."""
    with phil:
        files = h5py.h5f.get_obj_ids(h5py.h5f.OBJ_ALL, h5py.h5f.OBJ_FILE)
        return [h5py.h5f.get_name(file) for file in files]


def _is_open(path: str) -> bool:
    """Return whether this process has a file open in HDF5 under its current name."""
    try:
        names = _open_names()
    except RuntimeError:
        # While h5py makes objects for the files that it counted, the garbage collector may close an
        # unreferenced one. After a collection, all are referenced.
        gc.collect()
        names = _open_names()
    for name in names:
        with suppress(OSError, ValueError):
            if os.path.samefile(os.fsdecode(name), path):
                return True
    return False


def _refuse_links(file: Any, path: str) -> None:
    """Raise unless each part of a path exists in this file, reached by hard links alone."""
    parts = path.encode().split(b"/")
    for end in range(1, len(parts) + 1):
        with phil:
            links = file.links
            name = b"/".join(parts[:end])
            is_there = links.exists(name)
            is_link = is_there and links.get_info(name).type != h5py.h5l.TYPE_HARD
        if is_link:
            raise StoreError("is a soft or external link, or below one: only hard links are read")
        if not is_there:
            raise StoreError(advised("is missing"))


def _read_attribute(owner: h5py.HLObject) -> str | bytes | None:
    """Return the attribute as text, or None if it is missing; raise StoreError for other types."""
    with _named_library(f"attribute {ATTRIBUTES_KEY!r}"):
        with phil:
            # HDF5 reads a whole attribute to open it. Above 64 KiB it is in the owner's heap.
            check_metadata(h5py.h5o.get_info(owner.id).meta_size.attr.heap_size)
            if ATTRIBUTES_KEY not in owner.attrs:
                return None
            attribute = owner.attrs.get_id(ATTRIBUTES_KEY)
            kind, extent = attribute.get_type(), attribute.get_space().get_simple_extent_type()
            if not isinstance(kind, h5py.h5t.TypeStringID) or extent != h5py.h5s.SCALAR:
                raise StoreError("it is not text")
            text: str | bytes = owner.attrs[ATTRIBUTES_KEY]
        # Text of variable length is in a heap of the file: it had no size to ask for.
        check_metadata(len(text))
        return text


def _read_info(file: h5py.File, where: str) -> StoreInfo:
    """Read and check the attributes of a store."""
    return StoreInfo.from_attributes(_read_attributes(file, where), where, _OTHER_FILE)


def hdf5_attributes(path: str | os.PathLike[str], limits: Limits) -> dict[str, Any]:
    """Return the attributes of a store, which need not be valid; raise errors of `open_hdf5`."""
    where = os.fspath(path)
    with closing(_Opened(where, limits)) as opened:
        return _read_attributes(opened.file, where)


def other_object(path: str | os.PathLike[str], known: Container[str]) -> str:
    """Return the name of a file's first object that is not among the known; empty if all are.

    A link counts as unknown even with a known name, and so does a user block. Errors are those of
    `open_hdf5`.
    """
    where = os.fspath(path)
    with closing(_Opened(where, DEFAULT_LIMITS)) as opened, _named_library(where):
        if opened.file.userblock_size:
            return "user block"
        groups = [""]
        while groups:
            group = groups.pop()
            for name, is_link in _links_of(opened.file.id, group):
                path = f"{group}/{name}".removeprefix("/")
                if is_link or path not in known:
                    return path
                groups.append(path)
    return ""


def attribute_names(path: str | os.PathLike[str], objects: Iterable[str]) -> list[set[str]]:
    """Return the names of the attributes of objects in a file; raise errors of `open_hdf5`."""
    where = os.fspath(path)
    with closing(_Opened(where, DEFAULT_LIMITS)) as opened, _named_library(where), phil:
        return [set(opened.file[name or "/"].attrs) for name in objects]


def _links_of(file: Any, group: str) -> list[tuple[str, bool]]:
    """Return the names in a group, and whether each is a link of another kind than a hard one."""
    with phil:
        node = h5py.h5o.open(file, group.encode() or b"/")
        if not isinstance(node, h5py.h5g.GroupID):
            return []
        kinds = {name: node.links.get_info(name).type for name in node}
    return [
        (name.decode(errors="backslashreplace"), kind != h5py.h5l.TYPE_HARD)
        for name, kind in kinds.items()
    ]


def _read_attributes(file: h5py.File, where: str) -> dict[str, Any]:
    with named_errors(where, OSError):
        text = _read_attribute(file)
        try:
            attributes = None if text is None else json.loads(text)
        except (ValueError, RecursionError) as e:
            raise StoreError(damaged(one_line(e), "damaged store attributes")) from None
    return {ATTRIBUTES_KEY: attributes}
