"""The files that `torch.save` writes, ZIP files and the older form: their storages and values.

The older form is a sequence of pickles, with the bytes of each storage behind them.
"""

from __future__ import annotations

import errno
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, BinaryIO, cast

from bf16codecs._arrays.storage import Range
from bf16codecs._base.limits import MAX_METADATA_BYTES
from bf16codecs.convert.places import FileBytes
from bf16codecs.convert.sources.pytorch.detection import (
    MAGIC_NUMBER,
    PICKLE_START,
    RECORD,
    ZIP_START,
)
from bf16codecs.convert.sources.pytorch.naming import item_size
from bf16codecs.convert.sources.pytorch.pickles import Mapped, Storage, read_pickle
from bf16codecs.errors import SafetensorsError
from bf16codecs.safetensors import START_BYTES, unlike

__all__ = ["Contents", "read_contents", "read_small_pickle", "read_zip"]

_LOCAL_HEADER_BYTES = 30
_ENCRYPTED = 1
# A ZIP file ends with a record and a comment, of 64 KiB at most.
_DIRECTORY_END_BYTES = (1 << 16) + 22
_COUNT_BYTES = 8
# What zipfile raises for damaged data, some of it by its decompressors.
_OF_ZIP = (
    *(zipfile.BadZipFile, NotImplementedError, EOFError, OSError, RuntimeError),
    *(UnicodeDecodeError, lzma.LZMAError, zlib.error),
)
# Pickles are read in parts of at least this size.
_WINDOW_BYTES = 1 << 18


@dataclass(frozen=True)
class Contents:
    """The content of a file: its pickled value, and the range of each storage's bytes, by key."""

    value: Any
    storages: dict[str, tuple[int, int]]
    is_little_endian: bool


def read_contents(file: FileBytes, where: str) -> Contents:
    """Read all of a file but its storages; raise SafetensorsError if it is damaged."""
    start = file.part(0, START_BYTES)
    if start.startswith(ZIP_START):
        return read_zip(file, where, 0, file.size)
    _check_pickle(start, where)
    return _read_older(file, where)


def read_small_pickle(file: FileBytes, where: str) -> Any:
    """Return the value of a pickle that is a file of its own."""
    if file.size > MAX_METADATA_BYTES:
        raise SafetensorsError(f"{where}: larger than {MAX_METADATA_BYTES} bytes")
    _check_pickle(file.part(0, START_BYTES), where)
    return read_pickle(_in_memory(file.part(0, file.size)), where).value


def _check_pickle(start: bytes, where: str) -> None:
    """Refuse a file that does not begin as pickles of PyTorch do."""
    if not start.startswith(PICKLE_START):
        raise SafetensorsError(f"{where}: {unlike('a file of torch.save', start)}")


def read_zip(file: FileBytes, where: str, begin: int, size: int) -> Contents:
    """Read all of a ZIP file but its storages; it is `size` bytes of a file from `begin` on."""
    # Before zipfile does, which takes an error of a server for the end of the file.
    file.prefetch([(begin + max(0, size - _DIRECTORY_END_BYTES), begin + size)])
    try:
        with zipfile.ZipFile(file.as_file(begin, size)) as archive:
            members = archive.infolist()
            record = next((m for m in members if m.filename.endswith(RECORD)), None)
            if record is None:
                raise SafetensorsError(
                    f"{where}: not a file of torch.save: a ZIP file without data.pkl"
                )
            folder = record.filename.removesuffix("data.pkl")
            raw = _member(archive, record, where)
            order = _text(archive, folder + "byteorder", where)
    except _OF_ZIP as e:
        # Of a position, or of bzip2; others are of the disk, or of a server.
        is_of_data = getattr(e, "errno", None) == errno.EINVAL or str(e) == "Invalid data stream"
        if isinstance(e, OSError) and not is_of_data:
            raise
        raise SafetensorsError(
            f"{where}: a damaged or truncated ZIP file ({e}): get it again from where it came"
        ) from None
    stored = {
        member.filename.removeprefix(folder + "data/"): member
        for member in members
        if member.filename.startswith(folder + "data/")
        and member.compress_type == zipfile.ZIP_STORED
        and not member.flag_bits & _ENCRYPTED
    }
    storages = {}
    for (key, member), start in zip(
        stored.items(), _data_offsets(file, begin, stored), strict=True
    ):
        if start + member.file_size > begin + size:
            raise SafetensorsError(f"{where}: truncated: storage {key!r:.80} ends behind the file")
        storages[key] = start, start + member.file_size
    value = read_pickle(_in_memory(raw), f"{where}: data.pkl").value
    return Contents(value, storages, order in ("", "little"))


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, where: str) -> bytes:
    if member.flag_bits & _ENCRYPTED:
        raise SafetensorsError(f"{where}: {member.filename!r:.80} is encrypted")
    if member.file_size > MAX_METADATA_BYTES:
        raise SafetensorsError(
            f"{where}: {member.filename!r:.80} has {member.file_size} bytes beside the tensors, the"
            f" limit is {MAX_METADATA_BYTES}: keep such data in another file"
        )
    with archive.open(member) as opened:
        return opened.read(MAX_METADATA_BYTES)


def _text(archive: zipfile.ZipFile, name: str, where: str) -> str:
    """Return the text of a member; empty if there is none."""
    try:
        member = archive.getinfo(name)
    except KeyError:
        return ""
    return _member(archive, member, where).decode("ascii", "replace").strip()


def _data_offsets(
    file: FileBytes, begin: int, members: Mapping[str, zipfile.ZipInfo]
) -> Iterator[int]:
    """Yield where members' data begin, which their local headers say and no directory."""
    for name, member in members.items():
        if member.header_offset < 0:
            raise SafetensorsError(f"storage {name!r:.80} is not where it should be")
    starts = [begin + member.header_offset for member in members.values()]
    headers = file.read([(start, start + _LOCAL_HEADER_BYTES) for start in starts])
    for start, header, name in zip(starts, headers, members, strict=True):
        if len(header) < _LOCAL_HEADER_BYTES or not header.startswith(ZIP_START):
            raise SafetensorsError(f"storage {name!r:.80} is not where it should be")
        lengths = header[26:28], header[28:30]
        extra = sum(int.from_bytes(length, "little") for length in lengths)
        yield start + _LOCAL_HEADER_BYTES + extra


class _Pickles:
    """Pickles that are read in order like a file, and are not longer than metadata may be."""

    def __init__(self, read: Callable[[int, int], bytes]) -> None:
        self._read, self._at = read, 0
        self._window, self._begin = b"", 0

    def _fill(self, nbytes: int) -> int:
        """Read the next bytes into the window unless they are there; return where they begin."""
        if self._at + nbytes > MAX_METADATA_BYTES:
            raise ValueError(f"it is longer than {MAX_METADATA_BYTES} bytes")
        at = self._at - self._begin
        if at + nbytes > len(self._window):
            self._window = self._read(self._at, self._at + max(nbytes, _WINDOW_BYTES))
            self._begin, at = self._at, 0
        return at

    def read(self, n: int) -> bytes:
        """Return the next bytes, fewer at the end."""
        at = self._fill(n)
        part = self._window[at : at + n]
        self._at += len(part)
        return part

    def readline(self) -> bytes:
        """Return the bytes up to the next end of a line, or all if there is none."""
        nbytes = 1
        while True:
            at = self._fill(nbytes)
            end = self._window.find(b"\n", at)
            if end >= 0:
                return self.read(end + 1 - at)
            if len(self._window) - at < nbytes:
                return self.read(len(self._window) - at)
            nbytes = 2 * (len(self._window) - at)

    def tell(self) -> int:
        """Return the position."""
        return self._at


def _in_memory(data: bytes) -> BinaryIO:
    return cast(BinaryIO, _Pickles(lambda start, stop: data[start:stop]))


def _read_older(file: FileBytes, where: str) -> Contents:
    data = cast(BinaryIO, _Pickles(file.part))
    magic, protocol, system, content, keys = (read_pickle(data, where) for _ in range(5))
    if (
        magic.value != MAGIC_NUMBER
        or type(protocol.value) is not int
        or not isinstance(keys.value, list)
    ):
        raise SafetensorsError(f"{where}: not a file of torch.save")
    if not all(isinstance(key, (str, int)) for key in keys.value):
        raise SafetensorsError(f"{where}: the key of a storage is no text")
    order, storages, at = list(map(str, keys.value)), {}, data.tell()
    items = {storage.key: storage for storage in content.storages}
    file.prefetch(_ranges_of_counts(at, [items[key] for key in order if key in items]))
    for key in order:
        count = int.from_bytes(file.part(at, at + _COUNT_BYTES), "little")
        start = at + _COUNT_BYTES
        at = start + count * (item_size(items[key].type) if key in items else 1)
        if at > file.size:
            raise SafetensorsError(f"{where}: truncated: storage {key!r:.80} ends behind the file")
        storages[key] = start, at
    about = system.value if isinstance(system.value, Mapped) else ()
    return Contents(content.value, storages, ("little_endian", False) not in about)


def _ranges_of_counts(at: int, storages: Sequence[Storage]) -> list[Range]:
    """Return where the numbers before storages are in a sound file."""
    sizes = (_COUNT_BYTES + storage.items * item_size(storage.type) for storage in storages)
    starts = list(accumulate(sizes, initial=at))[:-1]
    return [(start, start + _COUNT_BYTES) for start in starts]
