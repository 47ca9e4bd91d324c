"""Changes the paths and addresses that stores name as their bases."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from store_fuzz_documents import documents
from store_fuzz_mutations import Content, Family, Mutant
from store_fuzz_truth import Seed

#: Where nobody listens: a connection is refused at once.
_CLOSED = "http://127.0.0.1:1"
_PLACES = [
    *("", " ", ".", "..", "/", "//", "~", "-", "*", "a" * 5000, "a\nb", "\x00", "\ud800", "$HOME"),
    *("/dev/zero", "/dev/tty", "/proc/self/mem", "/proc/self/fd/0", "/proc/self/fd", "/etc/passwd"),
    *("pipe", "./pipe", "file:pipe", "auto:.", "auto:/", "m.zarr", "m.h5", "m.zarr@1", "%2e%2e/m"),
    *(
        "file:///etc/passwd",
        " file:///etc/passwd",
        "FILE:///etc/passwd",
        "file://localhost/dev/zero",
    ),
    *(
        "local:///etc/passwd",
        "memory://m",
        "memory://",
        "data:,x",
        "data://x",
        "ftp://127.0.0.1:1/m",
    ),
    *("zip://x::file:///etc/passwd", "zip::file:///etc/passwd", "zip::/etc/passwd", "zip::zip::x"),
    *("reference://::file:///dev/zero", "simplecache::file:///etc/passwd", "dir://x::file:///"),
    *(f"reference://::{_CLOSED}/m", f"simplecache::{_CLOSED}/m", f"filecache::{_CLOSED}/m"),
    *(f"{_CLOSED}/m.zarr", f" {_CLOSED}/m.zarr", f"{_CLOSED}/m.h5", f"zip::{_CLOSED}/m.zip"),
    *(f"{_CLOSED}/m.safetensors", f"zip://m::{_CLOSED}/m.zip", f"zip::zip::{_CLOSED}/m.zip"),
    *("http://", "http:///m", "://", "::", "http://[::1", "http://127.0.0.1:99999/m", "http:m"),
    *("HTTP://127.0.0.1:1/m.zarr", "http://u:p@127.0.0.1:1/m.zarr", f"{_CLOSED}/../m?x#y"),
]


class Bases(Family):
    """Every path or address that a store may name as its base's."""

    def __init__(self, seed: Seed) -> None:
        self._documents = [
            (json.loads(text), replaced)
            for text, replaced in documents(seed).values()
            if list(_bases_in(json.loads(text)))
        ]
        super().__init__(1, _PLACES)

    def make(self, place: int, operation: str) -> Mutant:
        """Name another path, in all documents that name one."""
        changes: dict[str, Content] = {"../pipe": os.mkfifo}
        for document, replaced in self._documents:
            for base in _bases_in(document):
                base["path"] = operation
            changes |= replaced(json.dumps(document).encode())
        return Mutant(f"base at {operation!r:.200}", changes)


def _bases_in(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the entries of attributes that name a base, at any depth of a document."""
    if not isinstance(value, dict):
        return
    for key, below in value.items():
        if key == "base" and isinstance(below, dict) and "path" in below:
            yield below
        else:
            yield from _bases_in(below)
