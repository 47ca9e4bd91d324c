"""Makes ZIP files with false directories, members' headers, sizes and names."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

from store_fuzz_mutations import Family, Mutant
from store_fuzz_truth import Seed, zip_contents

_DIRECTORY, _MEMBER, _END = b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06"
#: Where fields lie, and their sizes (APPNOTE 4.3).
_FIELDS = {
    _MEMBER: [(4, 2), (6, 2), (8, 2), (14, 4), (18, 4), (22, 4), (26, 2), (28, 2)],
    _DIRECTORY: [
        *((4, 2), (6, 2), (8, 2), (10, 2), (16, 4), (20, 4), (24, 4), (28, 2), (30, 2), (32, 2)),
        *((34, 2), (36, 2), (38, 4), (42, 4)),
    ],
    _END: [(4, 2), (6, 2), (8, 2), (10, 2), (12, 4), (16, 4), (20, 2)],
}
_VALUES = (0, 1, 2, 8, 9, 12, 14, 93, 95, 99, 0x800, 0x2000, 0x7FFF, 0xFFFF, 0xFFFFFFFF, 0x7FFFFFFF)
_CHANGES = ("more", "less", "double", "next", 1 << 20, 1 << 30)


class ZipFields(Family):
    """Every field of a ZIP file's headers."""

    def __init__(self, seed: Seed) -> None:
        self._raw = raw = seed.files[""]
        self._places = []
        for magic, fields in _FIELDS.items():
            at = raw.find(magic)
            while at >= 0:
                self._places += [(at + offset, size) for offset, size in fields]
                at = raw.find(magic, at + 1)
        super().__init__(len(self._places), [*_VALUES, *_CHANGES])

    def make(self, place: int, operation: Any) -> Mutant:
        """Write another number into a field."""
        at, size = self._places[place]
        found = int.from_bytes(self._raw[at : at + size], "little")
        after = int.from_bytes(self._raw[at + size : at + 2 * size], "little")
        named = {"more": found + 1, "less": found - 1, "double": 2 * found, "next": after}
        value = named.get(operation, operation) % (1 << 8 * size)
        content = self._raw[:at] + value.to_bytes(size, "little") + self._raw[at + size :]
        return Mutant(f"field at {at}: {operation}", {"": content})


#: Name, content, and how it is compressed.
Member = tuple[str, bytes, int]
#: Changes the list of members, given the name of one.
Change = Callable[[list[Member], str], None]


def _rebuilt(change: Change) -> Callable[[Seed, str], bytes]:
    """Write the members again, after a change of their list."""

    def make(seed: Seed, name: str) -> bytes:
        members = [(n, c, 0) for n, c in zip_contents(seed.files[""]).items()]
        change(members, name)
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            for member, content, method in members:
                archive.writestr(zipfile.ZipInfo(member), content, method)
        return out.getvalue()

    return make


def _replace(change: Callable[[str, bytes], Member]) -> Change:
    def apply(members: list[Member], name: str) -> None:
        for i, (member, content, _) in enumerate(members):
            if member == name:
                members[i] = change(member, content)

    return apply


def _again(content: bytes) -> Change:
    def apply(members: list[Member], name: str) -> None:
        members.append((name, content, 0))

    return apply


_BOMB_BYTES = 700_000_000


@cache
def _deflated_spaces() -> tuple[bytes, int]:
    """Return `_BOMB_BYTES` spaces, deflated, and their CRC-32."""
    packer, piece = zlib.compressobj(1, zlib.DEFLATED, -15), b" " * 10_000_000
    deflated, crc = b"", 0
    for _ in range(_BOMB_BYTES // len(piece)):
        deflated += packer.compress(piece)
        crc = zlib.crc32(piece, crc)
    return deflated + packer.flush(), crc


def _bomb(seed: Seed, name: str) -> bytes:
    """Write a member that is a thousand times larger than its stored data."""
    deflated, crc = _deflated_spaces()
    raw = bytearray(_rebuilt(_replace(lambda n, c: (n, deflated, 0)))(seed, name))
    stored = zlib.crc32(deflated).to_bytes(4, "little") + len(deflated).to_bytes(4, "little") * 2
    claimed = crc.to_bytes(4, "little") + len(deflated).to_bytes(4, "little")
    claimed += _BOMB_BYTES.to_bytes(4, "little")
    at = raw.find(stored)
    while at >= 0:
        raw[at : at + 12] = claimed
        method = at - 6  # before the time, the date and these
        raw[method : method + 2] = b"\x08\0"
        at = raw.find(stored, at + 1)
    return bytes(raw)


def _many(seed: Seed, name: str) -> bytes:
    raw = io.BytesIO(seed.files[""])
    with zipfile.ZipFile(raw, "a") as archive:
        for i in range(70_000):
            archive.writestr(f"x{i}", b"")
    return raw.getvalue()


def _commented(comment: bytes) -> Callable[[Seed, str], bytes]:
    def make(seed: Seed, name: str) -> bytes:
        raw = io.BytesIO(seed.files[""])
        with zipfile.ZipFile(raw, "a") as archive:
            archive.comment = comment
        return raw.getvalue()

    return make


_WHOLE: dict[str, Callable[[Seed, str], bytes]] = {
    # Not twice with other data: the last one counts, as ZipStore of zarr's writes what it changes.
    "twice, empty": _rebuilt(_again(b"")),
    "twice, object": _rebuilt(_again(b"{}")),
    "missing": _rebuilt(_replace(lambda n, c: ("x", c, 0))),
    "parent": _rebuilt(_replace(lambda n, c: (f"../{n}", c, 0))),
    "absolute": _rebuilt(_replace(lambda n, c: (f"/{n}", c, 0))),
    "backslash": _rebuilt(_replace(lambda n, c: (n.replace("/", "\\"), c, 0))),
    "nul": _rebuilt(_replace(lambda n, c: (f"{n}\0x", c, 0))),
    "folder": _rebuilt(_replace(lambda n, c: (f"{n}/", b"", 0))),
    "deflated": _rebuilt(_replace(lambda n, c: (n, c, zipfile.ZIP_DEFLATED))),
    "bzip2": _rebuilt(_replace(lambda n, c: (n, c, zipfile.ZIP_BZIP2))),
    "lzma": _rebuilt(_replace(lambda n, c: (n, c, zipfile.ZIP_LZMA))),
    "deflated, longer": _rebuilt(_replace(lambda n, c: (n, c * 1000, zipfile.ZIP_DEFLATED))),
    "deflated, cut": _rebuilt(_replace(lambda n, c: (n, c[:-1], zipfile.ZIP_DEFLATED))),
    "empty": _rebuilt(_replace(lambda n, c: (n, b"", 0))),
    "behind something": lambda seed, name: bytes(1000) + seed.files[""],
    "before something": lambda seed, name: seed.files[""] + bytes(1000),
    "twice the file": lambda seed, name: seed.files[""] * 2,
    "comment": _commented(b"x" * 65535),
    "comment that ends": _commented(b"x" + _END + bytes(18)),
    "end alone": lambda seed, name: _END + bytes(18),
    "many members": _many,
    "bomb": _bomb,
}


class ZipMembers(Family):
    """Every member of a ZIP file, changed as a whole."""

    def __init__(self, seed: Seed) -> None:
        self._seed, self._names = seed, list(zip_contents(seed.files[""]))
        super().__init__(len(self._names), list(_WHOLE))

    def make(self, place: int, operation: str) -> Mutant:
        """Write the file again."""
        name = self._names[place]
        return Mutant(f"{name}: {operation}", {"": _WHOLE[operation](self._seed, name)})
