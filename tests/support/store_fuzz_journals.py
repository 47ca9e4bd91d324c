"""Journals that somebody else has put beside an HDF5 file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from journals import PAGE, entry, journal_of, sealed, superblock
from store_fuzz_mutations import EVERYTHING, Content, Family, Mutant
from store_fuzz_truth import Seed

#: Makes a journal of the file's content and a page of it.
Make = Callable[[bytes, int], Content]


def _page(raw: bytes, page: int) -> bytes:
    return raw[page * PAGE : (page + 1) * PAGE]


def _of_pages(
    new: Callable[[bytes], bytes] = lambda page: page,
    *,
    former: Callable[[bytes], bytes] = lambda page: page,
    size: Callable[[int], int] = lambda size: size,
    head: bool = True,
) -> Make:
    """Change one page, the file's size, and its superblock with that."""

    def make(raw: bytes, page: int) -> bytes:
        pages = {0: superblock(raw, size(len(raw)))} if head else {}
        pages[page] = new(_page(raw, page)) if page or not head else pages[0]
        entries = b"".join(
            entry(number, former(_page(raw, number)), pages[number].ljust(PAGE, b"\0"))
            for number in sorted(pages)
        )
        return sealed(len(raw), size(len(raw)), len(pages), entries=entries)

    return make


def _half_done(raw: bytes, page: int) -> bytes:
    """Let a page look as if it had been changed, and change another one."""
    pages = {0: _page(raw, 0), max(page, 1): bytes(PAGE)}
    formers = {0: b"x" * PAGE, max(page, 1): _page(raw, max(page, 1))}
    entries = b"".join(entry(number, formers[number], new) for number, new in pages.items())
    return sealed(len(raw), len(raw), 2, entries=entries)


def _of_numbers(before: int | None, after: int | None, count: int) -> Make:
    def make(raw: bytes, page: int) -> bytes:
        numbers = (len(raw) if n is None else n for n in (before, after))
        return sealed(*numbers, count, entries=entry(page, _page(raw, page), bytes(PAGE)))

    return make


def _special(make: Callable[[Path], object]) -> Make:
    def content(path: Path) -> None:
        make(path)

    return lambda raw, page: content


def _hollow(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(1 << 40)


#: Valid journals, which may be carried out beside a run, and change it.
_VALID: dict[str, Make] = {
    "the same": _of_pages(),
    "zeros": _of_pages(lambda page: bytes(PAGE)),
    "a bit": _of_pages(lambda page: bytes([page[0] ^ 1]) + page[1:]),
    "shorter": _of_pages(size=lambda size: size - 1),
    "half": _of_pages(size=lambda size: size // 2),
    "longer": _of_pages(size=lambda size: size + 1000),
    "half done": _half_done,
}
_INVALID: dict[str, Make] = {
    "too long": _of_pages(size=lambda size: max(size, 1 << 20) * 16 + 1),
    "empty": _of_pages(size=lambda size: 0),
    "without the first page": _of_pages(lambda page: bytes(PAGE), head=False),
    "of another file": _of_pages(former=lambda page: bytes([page[0] ^ 1]) + page[1:]),
    "empties": _of_numbers(0, 0, 0),
    "cuts off": _of_numbers(None, 100, 0),
    "grows": _of_numbers(None, 1 << 50, 0),
    "counts more": _of_numbers(None, None, 2),
    "counts many": _of_numbers(None, None, 1 << 60),
    "large sizes": _of_numbers(1 << 63, 1 << 63, 1),
    "cut": lambda raw, page: _VALID["zeros"](raw, page)[: page + 1],  # type: ignore[index]
    "not sealed": lambda raw, page: _VALID["zeros"](raw, page)[:-1] + b"x",  # type: ignore[index]
    "pipe": _special(os.mkfifo),
    "folder": _special(os.mkdir),
    "link to zeros": _special(lambda path: path.symlink_to("/dev/zero")),
    "link to itself": _special(lambda path: path.symlink_to(path.name)),
    "hollow": _special(_hollow),
}


class Journals(Family):
    """A journal for every page of a file."""

    def __init__(self, seed: Seed) -> None:
        self._raw, self._is_run = seed.files[""], seed.is_run
        self._key = f"../{journal_of(Path(seed.store)).name}"
        super().__init__(len(self._raw) // PAGE, [*_VALID, *_INVALID])

    def make(self, place: int, operation: Any) -> Mutant:
        """Put a journal beside the file, which may change only runs."""
        content = {**_VALID, **_INVALID}[operation](self._raw, place)
        may_change = self._is_run and operation in _VALID and operation != "the same"
        return Mutant(
            f"journal of page {place}: {operation}",
            {self._key: content},
            EVERYTHING if may_change else frozenset(),
        )
