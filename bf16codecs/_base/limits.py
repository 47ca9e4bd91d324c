"""Limits of what a store from a stranger may make its reader take.

Every allocation and loop is justified beforehand: by bytes that exist, or by a limit that the
caller can raise. Ratios and floors are such that no real model meets them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bf16codecs import _core
from bf16codecs._base.arguments import argument, positive
from bf16codecs.errors import LimitError, StoreError

__all__ = [
    "CACHE_BYTES",
    "CONNECT_SECONDS",
    "DEFAULT_LIMITS",
    "IN_FLIGHT_BYTES",
    "LEAST_CACHE",
    "LEAST_RATE",
    "MANY_FILES",
    "MAX_BODY_BYTES",
    "MAX_DEPTH",
    "MAX_GROUP",
    "MAX_METADATA_BYTES",
    "MAX_NDIM",
    "READ_SECONDS",
    "REMOTE_IN_FLIGHT_BYTES",
    "Limits",
    "check_ancestors",
    "check_metadata",
    "check_parsed",
    "frame_limit",
    "is_addressable",
    "stored_limit",
]

#: The most bytes of one document: a group's or an array's metadata, a safetensors header. The
#: reference implementation of safetensors has this limit for headers.
MAX_METADATA_BYTES = 100_000_000
#: Bytes of chunks that a conversion works on at a time, at least one.
IN_FLIGHT_BYTES = 1 << 30
#: Making or removing more files than this warns: 10,000 take some seconds on many disks.
MANY_FILES = 10_000
#: Bytes of a server's chunks that are read at a time, at least two.
REMOTE_IN_FLIGHT_BYTES = 1 << 28
#: Decoded bytes that a mount keeps by default, and at least.
CACHE_BYTES, LEAST_CACHE = 1 << 28, 1 << 25
#: The most bytes of a server's reply whose size is not known beforehand.
MAX_BODY_BYTES = 1 << 30
#: Levels of folders below a store, or in a model's folder. An array's path has 32 parts at most,
#: and a chunk's key "c" and 31 folders more. A walk may hold a descriptor for each level, of which
#: systems allow 256 and more.
MAX_DEPTH = 64
#: How many steps of a run a chunk can hold.
MAX_GROUP = 4096
#: How long a server may take to accept a connection, to begin a reply, and be silent in it.
CONNECT_SECONDS, READ_SECONDS = 30, 60
#: Bytes a second: a server that is slower for `READ_SECONDS` counts as silent. It is low because
#: several replies share a line.
LEAST_RATE = 100

#: HDF5 and older NumPy allow this many dimensions.
MAX_NDIM = 32
# Of models of 10 to 3,000 tensors, Zstandard shrinks headers 4 to 13 times, and ZIP (deflate, level
# 9) the consolidated metadata 12 to 51 times.
_METADATA_RATIO, _SMALL_METADATA = 128, 1 << 20
# Python makes up to 40 bytes of each of these signs. They are a tenth of real metadata, and can be
# two thirds of others. Counted with 80 bytes each, real metadata grow 466 times in a ZIP file.
_SIGNS, _SIGN_BYTES = b",:[{", 80
_PARSED_RATIO, _SMALL_PARSED = 768, 1 << 26
# Weights shrink 3 times at most; data that shrink more are constant, such as the moments of an
# optimizer before its first step, and beside these a store has weights.
_RATIO, _SMALL = 256, 1 << 30
# Bytes of a version in a growing frame, beside its items: docs/format_growing.md.
_VERSION_BYTES = 128
# Versions of a frame that this package wrote come from at most 15 others.
_MOST_ANCESTORS = 15


def is_addressable(shape: Sequence[int], item_bits: int) -> bool:
    """Tell whether an array can exist: its dimensions, and its bits counted in 63 bits."""
    # An empty array may have other dimensions that are larger than any memory.
    return len(shape) <= MAX_NDIM and math.prod(max(1, n) for n in shape) * item_bits < 2**63


def check_metadata(nbytes: int, stored: Callable[[], int] | None = None) -> None:
    """Raise StoreError for metadata that are too large, or too large for their stored size.

    `stored` returns their stored size, if they are compressed; it is called for large ones only.
    """
    if nbytes > MAX_METADATA_BYTES:
        raise StoreError(f"{nbytes} bytes of metadata, more than {MAX_METADATA_BYTES}")
    if stored is not None and nbytes > _SMALL_METADATA:
        size = stored()
        if nbytes > _METADATA_RATIO * size:
            raise StoreError(f"{nbytes} bytes of metadata made of {size}: not credible")


def check_parsed(document: Any, stored: Callable[[], int]) -> None:
    """Raise StoreError for JSON that was compressed if its values would take too much memory.

    `document` is the text, in any buffer. `stored` returns its stored size; it is called for large
    ones only.
    """
    if memoryview(document).nbytes <= _SMALL_METADATA:
        return
    text = bytes(document)
    nbytes = len(text) + _SIGN_BYTES * sum(map(text.count, _SIGNS))
    if nbytes > _SMALL_PARSED:
        size = stored()
        if nbytes > _PARSED_RATIO * size:
            raise StoreError(f"{len(text)} bytes of metadata made of {size}: not credible")


def stored_limit(nbytes: int) -> int:
    """Return the most bytes that a stored chunk of `nbytes` can have."""
    # No codec grows a chunk by more than a few bytes in a thousand.
    return 2 * nbytes + 4096


def frame_limit(nbytes: int) -> int:
    """Return the most bytes that a frame of `nbytes` can have, a growing one with its directory."""
    # Each version has an entry of 16 bytes, and a head, however small its items are.
    return stored_limit(nbytes) + _VERSION_BYTES * min(nbytes, _core.MAX_STEPS)


def check_ancestors(nbytes: int, wanted: int) -> None:
    """Raise StoreError if the versions that a part comes from have far more bytes than it."""
    if nbytes > max(_SMALL, (1 + _MOST_ANCESTORS) * wanted):
        raise StoreError(
            f"a part with {wanted} bytes in blocks comes from versions with more than"
            f" {_MOST_ANCESTORS} times as many: read the whole chunk"
        )


@dataclass(frozen=True)
class Limits:
    """Limits on the data that reading a model may expand to.

    Attributes
    ----------
    max_bytes : int or None
        The most bytes that the data of one call, or of restored files, may have once decoded. By
        default 1 GiB, or 256 times the store's size if that is more.
    """

    max_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.max_bytes is not None:
            positive("max_bytes", self.max_bytes)

    def check(self, nbytes: int, stored: Callable[[int], int], what: str) -> None:
        """Raise LimitError for data that are too large once decoded.

        `stored` returns the size of the store, or the part counted so far once that is more than
        its argument; it is called for large data only. `what` names the store and the data.
        """
        if self.max_bytes is not None:
            if nbytes > self.max_bytes:
                raise LimitError(
                    f"{what}: {nbytes} bytes once decoded, more than"
                    f" {argument('max_bytes')} allows ({self.max_bytes})"
                )
        elif nbytes > _SMALL:
            size = stored(-(-nbytes // _RATIO))
            if nbytes > _RATIO * size:
                raise LimitError(
                    f"{what}: {nbytes} bytes once decoded, in a store of {size} bytes: no model"
                    " shrinks so much; if you trust this one, allow it with"
                    f" {argument('max_bytes')}"
                )


DEFAULT_LIMITS = Limits()
