"""Stored chunks in local ZIP files."""

from __future__ import annotations

import bisect
import bz2
import io
import lzma
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from bf16codecs._arrays.storage import (
    AtMost,
    InMemory,
    LocalChunk,
    LocalStorage,
    OpenRange,
    Request,
)
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.cached import cached_property
from bf16codecs._base.limits import check_metadata, check_parsed
from bf16codecs._base.messages import damaged, named_damage, one_line
from bf16codecs._base.paths import absolute
from bf16codecs._files.reading import SharedFile, read_at
from bf16codecs.errors import CorruptDataError, StoreError

__all__ = ["ZipStorage", "damaged_zip"]

# Errors of zipfile and the decompressors behind it.
_UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    OverflowError,
    RuntimeError,  # encrypted; and NotImplementedError, of other versions
    ValueError,
    IndexError,
    struct.error,
)

# Flags of a ZIP member: it is encrypted; its name is in UTF-8.
_ENCRYPTED, _UTF8_NAME = 0x1, 0x800


def damaged_zip(error: Exception) -> str:
    """Return why a ZIP file cannot be opened, and what to do."""
    why = f"its directory, which is at its end, cannot be read ({one_line(error)})"
    return damaged(why, "damaged or cut off")


class ZipStorage(LocalStorage):
    """Keys as members of a local ZIP file, which is held open; stored ones are read in ranges."""

    _LOCAL_HEADER = 30

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self._path = absolute(path)
        self._file = SharedFile(path)
        self._nbytes = os.fstat(self._file.descriptor).st_size
        try:
            self._zip = zipfile.ZipFile(_Reader(self._file, self._nbytes))
        except _UNREADABLE as e:
            raise StoreError(f"{path}: {damaged_zip(e)}") from e
        #: Upper bounds of members' ends: the next one's header, or the directory.
        self._ends = sorted([self._zip.start_dir, *(m.header_offset for m in self._zip.infolist())])
        self._ends.append(self._nbytes + 1)  # for a header behind the directory
        self._starts: dict[str, int] = {}

    def find(self, key: str) -> LocalChunk | None:
        """Open a member; return None if it does not exist."""
        member = self._member(key)
        if member is None:
            return None
        start = self._starts[key]
        if member.compress_type != zipfile.ZIP_STORED:
            return _ZipMember(self._file, start, member)
        return OpenRange(key, self._file.descriptor, start, member.file_size, self._buffer)

    @named_damage()
    def _member(self, key: str) -> zipfile.ZipInfo | None:
        """Return a member, after a comparison with the directory, as far as possible."""
        member = self._zip.NameToInfo.get(key)
        if member is None:
            return None
        mode = member.external_attr >> 16
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            raise StoreError("in the ZIP file, it is not a regular file")
        # Refuse what the file's size refutes, before anything is allocated for it.
        if member.header_offset + member.compress_size > self._nbytes:
            raise CorruptDataError("the ZIP file ends before it does")
        is_stored = member.compress_type == zipfile.ZIP_STORED
        if is_stored and member.file_size != member.compress_size:
            raise CorruptDataError("the ZIP file gives two sizes for it")
        if key not in self._starts:
            self._starts[key] = self._data_start(member)
        return member

    def _data_start(self, member: zipfile.ZipInfo) -> int:
        header = np.empty(self._LOCAL_HEADER, np.uint8)
        count = read_at(self._file.descriptor, member.header_offset, header)
        raw = header.tobytes()
        if count < self._LOCAL_HEADER or raw[:4] != b"PK\x03\x04":
            raise CorruptDataError("the ZIP file has no header for it")
        # Here, the extra field may be longer or shorter than in the directory; the name may not.
        n_name, n_extra = (int.from_bytes(raw[i : i + 2], "little") for i in (26, 28))
        name = np.empty(n_name, np.uint8)
        read_at(self._file.descriptor, member.header_offset + self._LOCAL_HEADER, name)
        encoding = "utf-8" if member.flag_bits & _UTF8_NAME else "cp437"
        if name.tobytes() != member.orig_filename.encode(encoding):
            raise CorruptDataError("the ZIP file gives two names for it")
        start = member.header_offset + self._LOCAL_HEADER + n_name + n_extra
        # Uncompressed members have no checksum that a range of them could be compared with.
        at = bisect.bisect_right(self._ends, member.header_offset)
        if start + member.compress_size > self._ends[at]:
            raise CorruptDataError("in the ZIP file, it overlaps the next")
        return start

    def read(self, key: str) -> Bytes | None:
        """Read a document, which may not exist, and check its CRC-32."""
        member = self._member(key)
        if member is None:
            return None
        check_metadata(member.file_size, lambda: member.compress_size)
        whole = _ZipMember(self._file, self._starts[key], member)
        (document,) = whole.read(AtMost(member.file_size))
        check_parsed(document, lambda: member.compress_size)
        return document

    def size(self, key: str) -> int:
        """Return the size of a key, 0 if it does not exist."""
        member = self._zip.NameToInfo.get(key)
        return 0 if member is None else member.compress_size

    def zip_names(self) -> Sequence[str]:
        """Return the names of all members."""
        return self._zip.namelist()

    def folder_size(self, path: str) -> int:
        """Return the size of all members below a path."""
        if not path:
            return self._nbytes
        members = self._zip.NameToInfo.values()
        return sum(m.compress_size for m in members if m.filename.startswith(f"{path}/"))

    def close(self) -> None:
        """Close the file."""
        super().close()
        self._zip.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return ZipStorage, (self._path,)


class _Reader(io.RawIOBase):
    """A file for `zipfile`, with a separate position."""

    def __init__(self, file: SharedFile, size: int) -> None:
        self._file, self._size, self._at = file, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if self._at < 0:
            raise OSError("before the beginning of the file")
        return self._at

    def readinto(self, buffer: Any) -> int:
        count = read_at(self._file.descriptor, self._at, np.frombuffer(buffer, np.uint8))
        self._at += count
        return count


class _ZipMember(LocalChunk):
    """A member of a ZIP file that is read whole, and its CRC-32 checked.

    `zipfile` is not used: it inflates all that a member holds, whatever size the directory gives.
    """

    reads_ranges = False

    def __init__(self, file: SharedFile, start: int, member: zipfile.ZipInfo) -> None:
        self._file, self._start, self._member = file, start, member
        self.key, self.size = member.filename, member.file_size

    @cached_property
    @named_damage()
    def _content(self) -> InMemory:
        stored = np.empty(self._member.compress_size, np.uint8)
        if read_at(self._file.descriptor, self._start, stored) < stored.size:
            raise CorruptDataError("the ZIP file ends before it does")
        try:
            content = _inflate(self._member, stored.tobytes())
        except _UNREADABLE as e:
            raise CorruptDataError(f"in the ZIP file: {one_line(e)}") from e
        if len(content) != self.size or zlib.crc32(content) != self._member.CRC:
            raise CorruptDataError("in the ZIP file: its size or CRC-32 is not that of its content")
        return InMemory(content)

    def read(self, request: Request) -> Sequence[Bytes]:
        """Read the member, and return ranges of it."""
        return self._content.read(request)


def _inflate(member: zipfile.ZipInfo, stored: bytes) -> bytes:
    """Decompress a member, at most one byte more than it should have."""
    if member.flag_bits & _ENCRYPTED:
        raise CorruptDataError("it is encrypted")
    if member.compress_type == zipfile.ZIP_STORED:
        return stored
    most = member.file_size + 1
    if member.compress_type == zipfile.ZIP_DEFLATED:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(stored, most)
    if member.compress_type == zipfile.ZIP_BZIP2:
        return bz2.BZ2Decompressor().decompress(stored, most)
    if member.compress_type == zipfile.ZIP_LZMA:
        # APPNOTE.TXT 5.8.8: a version, the size of the properties, and these.
        packed, dictionary = stored[4], int.from_bytes(stored[5:9], "little")
        properties = {
            "id": lzma.FILTER_LZMA1,
            "lc": packed % 9,
            "lp": packed // 9 % 5,
            "pb": packed // 45,
            "dict_size": max(4096, min(dictionary, most)),  # of which no more is used
        }
        return lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=[properties]).decompress(
            stored[9:], most
        )
    raise CorruptDataError(f"compression method {member.compress_type} is not known here")
