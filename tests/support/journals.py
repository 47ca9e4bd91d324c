"""Journals as docs/runs.md has them, with anything in them."""

from __future__ import annotations

import hashlib
from pathlib import Path

PAGE, MAGIC = 128, b"bf16codecs journal 1\n"


def journal_of(path: Path) -> Path:
    return path.with_name(path.name + ".bf16codecs-journal")


def sealed(*numbers: int, entries: bytes = b"") -> bytes:
    """Return a journal with any numbers in it."""
    body = MAGIC + b"".join(n.to_bytes(8, "little") for n in numbers) + entries
    return body + hashlib.sha256(body).digest()


def entry(page: int, former: bytes, new: bytes = bytes(PAGE)) -> bytes:
    return page.to_bytes(8, "little") + hashlib.sha256(former).digest()[:8] + new


def superblock(content: bytes, size: int) -> bytes:
    """Return the first page of an HDF5 file, with a superblock that says another size."""
    at = {0: 40, 2: 28, 3: 28}[content[8]]
    return content[:at] + size.to_bytes(8, "little") + content[at + 8 : PAGE]
