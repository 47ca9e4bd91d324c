"""Digests of files, computed while the files' parts come.

BLAKE3 (github.com/BLAKE3-team/BLAKE3-specs) is what this package compares: one thread computes 7.2
GB/s with AVX-512, of SHA-256 1.9 (docs/benchmarks.md). SHA-256 is what hubs list.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bf16codecs import _core
from bf16codecs._base.forks import make_lock

__all__ = ["Digests", "FileHash", "digests_of_file", "kinds_of"]

# Their names in messages, in the order in which readers prefer them.
_LABELS = {"blake3": "BLAKE3", "sha256": "SHA-256"}

# One thread is done with a smaller file before others have begun.
_LARGE_FILE = 1 << 24
_MOST_THREADS = 4


def kinds_of(sha256: bool) -> tuple[str, ...]:
    """Return the kinds of digests to compute."""
    return tuple(_LABELS) if sha256 else ("blake3",)


@dataclass(frozen=True)
class Digests:
    """Digests of one file, in hexadecimal; None if it was not computed."""

    blake3: str | None = None
    sha256: str | None = None

    @classmethod
    def of(cls, content: bytes, kinds: Sequence[str]) -> Digests:
        """Compute the digests of a small file."""
        return FileHash(kinds, len(content), content).digests()

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any], prefix: str = "") -> Digests:
        """Take digests from the attributes of a store; raise TypeError if one is not a string."""
        digests = cls(**{kind: entry.get(prefix + kind) for kind in _LABELS})
        if not all(isinstance(text, str) for text in digests.entry().values()):
            raise TypeError("a digest is not a string")
        return digests

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that are known."""
        return tuple(kind for kind in _LABELS if getattr(self, kind) is not None)

    def preferred(self) -> Digests:
        """Return only the digest that is computed fastest."""
        return Digests(**{kind: getattr(self, kind) for kind in self.kinds[:1]})

    def entry(self, prefix: str = "") -> dict[str, str]:
        """Return the digests for the attributes of a store."""
        return {prefix + kind: getattr(self, kind) for kind in self.kinds}

    def labelled(self) -> dict[str, str]:
        """Return the digests by their names in messages."""
        return {_LABELS[kind]: getattr(self, kind) for kind in self.kinds}

    def are_comparable(self, other: Digests) -> bool:
        """Tell whether both have a digest of the same kind."""
        return not set(self.kinds).isdisjoint(other.kinds)

    def difference(self, other: Digests) -> tuple[str, str, str] | None:
        """Return a kind's name, this digest and the other one, of the first kind that differs."""
        for kind in self.kinds:
            ours, theirs = getattr(self, kind), getattr(other, kind)
            if theirs not in (None, ours):
                return _LABELS[kind], ours, theirs
        return None


def digests_of_file(path: Path, kinds: Sequence[str]) -> Digests:
    """Read a file that nothing else changes, and return its digests."""
    found = {}
    if "blake3" in kinds:
        from blake3 import blake3

        # Mapped: copying it in parts, too, took twice as long.
        found["blake3"] = blake3(max_threads=_MOST_THREADS).update_mmap(path).hexdigest()
    if "sha256" in kinds:
        with open(path, "rb") as file:
            found["sha256"] = hashlib.file_digest(file, "sha256").hexdigest()
    return Digests(**found)


def _new_hash(kind: str, nbytes: int) -> Any:
    if kind == "sha256":
        return hashlib.sha256()
    from blake3 import blake3

    # A pool of its own: the common one (`AUTO`) has no threads in a process that was forked, which
    # would wait for them for ever. Half of the threads, because coding takes more than hashing.
    threads = min(_MOST_THREADS, max(1, _core.get_num_threads() // 2))
    return blake3(max_threads=threads if nbytes >= _LARGE_FILE else 1)


class FileHash:
    """Computes digests of a file whose parts come from several threads, in nearly any order.

    A part that comes too early is kept, and hashed by the thread that brings what is missing: no
    thread waits for another. `start` has the file's first bytes.
    """

    def __init__(self, kinds: Sequence[str], nbytes: int, start: bytes = b"") -> None:
        self._kinds, self._nbytes, self._at = kinds, nbytes, 0
        # From the first part to the last one: of a thousand shards, each hash would have threads.
        self._hashes: list[Any] = []
        self._digests: Digests | None = None
        self._early: dict[int, tuple[NDArray[np.uint8] | bytes, Callable[[], object]]] = {}
        self._lock = make_lock()
        self._is_busy = False
        if start or nbytes == 0:
            self._early[0] = start, lambda: None

    def add(
        self,
        offset: int,
        part: NDArray[np.uint8] | bytes,
        release: Callable[[], object] = lambda: None,
    ) -> None:
        """Take the part of the file that begins at an offset.

        It must not change until `release` is called, perhaps by another thread.
        """
        if not len(part):
            release()
            return
        with self._lock:
            self._early[offset] = part, release
            if self._is_busy:
                return
            self._is_busy = True
        self._hash_what_is_next()

    def _hash_what_is_next(self) -> None:
        if not self._hashes:
            self._hashes = [_new_hash(kind, self._nbytes) for kind in self._kinds]
        while True:
            with self._lock:
                if self._at not in self._early:
                    self._is_busy = False
                    return
                part, release = self._early.pop(self._at)
            for digest in self._hashes:
                digest.update(part)
            self._at += len(part)
            release()
            if self._at == self._nbytes:
                hashes = zip(self._kinds, self._hashes, strict=True)
                self._digests = Digests(**{kind: digest.hexdigest() for kind, digest in hashes})
                self._hashes = []

    def digests(self) -> Digests:
        """Return the digests, once all parts were added."""
        if self._digests is None:
            self._hash_what_is_next()  # a file without tensors has its start alone
        assert self._digests is not None, f"{self._at} of {self._nbytes} bytes were hashed"
        return self._digests
