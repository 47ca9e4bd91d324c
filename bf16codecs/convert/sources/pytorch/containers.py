"""The files that `torch.save` writes, ZIP files and the older form: their storages and values.

The older form is a sequence of pickles, with the bytes of each storage behind them.
"""

from __future__ import annotations

import errno
import io
import mmap
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from bf16codecs._base.limits import MAX_METADATA_BYTES
from bf16codecs.convert.sources.pytorch.detection import MAGIC_NUMBER, RECORD, ZIP_START
from bf16codecs.convert.sources.pytorch.naming import item_size
from bf16codecs.convert.sources.pytorch.pickles import Mapped, read_pickle
from bf16codecs.errors import SafetensorsError
from bf16codecs.safetensors import open_file

__all__ = ["Contents", "read_contents", "read_small_pickle", "read_zip"]

_LOCAL_HEADER_BYTES = 30
_ENCRYPTED = 1


@dataclass(frozen=True)
class Contents:
    """The content of a file: its pickled value, and the range of each storage's bytes, by key."""

    size: int
    value: Any
    storages: dict[str, tuple[int, int]]
    is_little_endian: bool


def read_contents(path: Path) -> Contents:
    """Read all of a file but its storages; raise SafetensorsError if it is damaged."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if file.read(len(ZIP_START)) == ZIP_START:
            return read_zip(path, file, 0, size)
        return _read_older(path, file)


def read_small_pickle(path: Path) -> tuple[Any, int]:
    """Return the value of a pickle that is a file of its own, and the size of the file."""
    with open_file(path) as file:
        raw = file.read(MAX_METADATA_BYTES + 1)
    if len(raw) > MAX_METADATA_BYTES:
        raise SafetensorsError(f"{path}: larger than {MAX_METADATA_BYTES} bytes")
    return read_pickle(_bounded(raw), str(path)).value, len(raw)


def read_zip(path: Path, opened: BinaryIO, begin: int, size: int) -> Contents:
    """Read all of a ZIP file but its storages; it is `size` bytes of a file from `begin` on."""
    file = cast(BinaryIO, _Part(opened, begin, size))
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            record = next((m for m in members if m.filename.endswith(RECORD)), None)
            if record is None:
                raise SafetensorsError(f"{path}: a ZIP file without data.pkl: not of torch.save")
            folder = record.filename.removesuffix("data.pkl")
            raw = _member(archive, record, path)
            order = _text(archive, folder + "byteorder", path)
    except (zipfile.BadZipFile, NotImplementedError, EOFError, OSError, RuntimeError) as e:
        raise SafetensorsError(
            f"{path}: a damaged or truncated ZIP file ({e}): get it again from where it came"
        ) from None
    storages = {}
    for member in members:
        key = member.filename.removeprefix(folder + "data/")
        is_stored = member.compress_type == zipfile.ZIP_STORED
        if member.filename == key or not is_stored or member.flag_bits & _ENCRYPTED:
            continue
        start = _data_offset(file, member)
        if start + member.file_size > size:
            raise SafetensorsError(f"{path}: truncated: storage {key!r:.80} ends behind the file")
        storages[key] = begin + start, begin + start + member.file_size
    value = read_pickle(_bounded(raw), f"{path}: data.pkl").value
    return Contents(size, value, storages, order in ("", "little"))


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> bytes:
    if member.flag_bits & _ENCRYPTED:
        raise SafetensorsError(f"{path}: {member.filename!r:.80} is encrypted")
    if member.file_size > MAX_METADATA_BYTES:
        raise SafetensorsError(
            f"{path}: {member.filename!r:.80} has {member.file_size} bytes beside the tensors, the"
            f" limit is {MAX_METADATA_BYTES}: keep such data in another file"
        )
    with archive.open(member) as opened:
        return opened.read(MAX_METADATA_BYTES)


def _text(archive: zipfile.ZipFile, name: str, path: Path) -> str:
    """Return the text of a member; empty if there is none."""
    try:
        member = archive.getinfo(name)
    except KeyError:
        return ""
    return _member(archive, member, path).decode("ascii", "replace").strip()


def _data_offset(file: BinaryIO, member: zipfile.ZipInfo) -> int:
    """Return where a member's data begin, which its local header says and no directory."""
    file.seek(member.header_offset)
    header = file.read(_LOCAL_HEADER_BYTES)
    if not header.startswith(ZIP_START):
        raise SafetensorsError(f"{member.filename!r:.80} is not where it should be")
    lengths = header[26:28], header[28:30]
    return (
        member.header_offset
        + _LOCAL_HEADER_BYTES
        + sum(int.from_bytes(length, "little") for length in lengths)
    )


class _Part(io.RawIOBase):
    """A part of a file, as a file of its own."""

    def __init__(self, file: BinaryIO, begin: int, size: int) -> None:
        super().__init__()
        self._file, self._begin, self._size, self._at = file, begin, size, 0

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def seekable(self) -> bool:
        """Return that reading may begin anywhere."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a position."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if start + offset < 0:
            raise OSError(errno.EINVAL, "a position before the start")
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def read(self, n: int = -1) -> bytes:
        """Return the next bytes, fewer at the end."""
        left = max(0, self._size - self._at)
        self._file.seek(self._begin + self._at)
        part = self._file.read(left if n is None or n < 0 else min(n, left))
        self._at += len(part)
        return part


class _Bounded:
    """Bytes to be read like a file, which never returns more than the largest pickle has."""

    def __init__(self, data: bytes | mmap.mmap) -> None:
        self._data, self._at = data, 0

    def read(self, n: int) -> bytes:
        """Return the next bytes, fewer at the end."""
        if n > MAX_METADATA_BYTES:
            raise ValueError(f"a value of {n} bytes, the limit is {MAX_METADATA_BYTES}")
        part = self._data[self._at : self._at + n]
        self._at += len(part)
        return part

    def readline(self) -> bytes:
        """Return the bytes up to the next end of a line."""
        end = self._data.find(b"\n", self._at, self._at + MAX_METADATA_BYTES)
        return self.read(end + 1 - self._at if end >= 0 else len(self._data) - self._at)

    def tell(self) -> int:
        """Return the position."""
        return self._at


def _bounded(data: bytes | mmap.mmap) -> BinaryIO:
    return cast(BinaryIO, _Bounded(data))


def _read_older(path: Path, file: BinaryIO) -> Contents:
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        data, where = _bounded(mapping), str(path)
        magic, protocol, system, content, keys = (read_pickle(data, where) for _ in range(5))
        if (
            magic.value != MAGIC_NUMBER
            or type(protocol.value) is not int
            or not isinstance(keys.value, list)
        ):
            raise SafetensorsError(f"{path}: not a file of torch.save")
        storages, at, size = {}, data.tell(), len(mapping)
        sizes = {storage.key: item_size(storage.type) for storage in content.storages}
        if not all(isinstance(key, (str, int)) for key in keys.value):
            raise SafetensorsError(f"{path}: the key of a storage is no text")
        for key in map(str, keys.value):
            items = int.from_bytes(mapping[at : at + 8], "little")
            start = at + 8
            at = start + items * sizes.get(key, 1)
            if at > size:
                raise SafetensorsError(
                    f"{path}: truncated: storage {key!r:.80} ends behind the file"
                )
            storages[key] = start, at
        about = system.value if isinstance(system.value, Mapped) else ()
        return Contents(size, content.value, storages, ("little_endian", False) not in about)
