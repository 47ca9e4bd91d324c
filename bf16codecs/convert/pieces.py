"""Process the pieces of a model's files in several threads, and hash the files on the way."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import TypeVar

import numpy as np

from bf16codecs._arrays.grid import ArrayPlan, Piece
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.limits import IN_FLIGHT_BYTES
from bf16codecs._base.threads import run_ahead, worker_count
from bf16codecs._files.digests import FileHash
from bf16codecs.convert.plan import pad
from bf16codecs.convert.summary import BytesDone
from bf16codecs.safetensors import Header
from bf16codecs.store.reader import ModelReader

__all__ = ["do_pieces", "file_hash", "read_chunk"]

Result = TypeVar("Result")


def read_chunk(source: ModelReader, piece: Piece, chunk: Bytes) -> Bytes:
    """Read a chunk from its file, fill its padding, and return the part that was read."""
    data = chunk[: piece.nbytes]
    source.read_range(piece.array.file, piece.offset, data)
    pad(piece, chunk)
    return data


def file_hash(header: Header, kinds: Sequence[str]) -> FileHash:
    """Return the hash of a file, to which all but its tensors is already added."""
    hasher = FileHash(kinds, header.file_size, header.prefix)
    for offset, part in header.gaps:
        hasher.add(offset, part)
    return hasher


def do_pieces(
    work: Callable[[Piece, Bytes], Result],
    arrays: Sequence[ArrayPlan],
    hashes: Sequence[FileHash],
    progress: BytesDone | None,
    at_once: int = 1,
) -> Generator[tuple[Piece, Result], None, None]:
    """Call `work` for all pieces in several threads, and yield pieces and results.

    The pieces of one file come in the order of its bytes, as its digest requires; files take turns,
    so that no digest holds up the others. `work` stores its piece in the first bytes of memory for
    a whole chunk; they are hashed unless `hashes` is empty. `at_once` is how many reads at a time
    pay off, which is more than there are processors if a server answers them.
    """
    largest = max((array.chunk_nbytes for array in arrays if array.nbytes), default=0)
    free: list[Bytes] = []  # memory is reused: fresh pages cost more than decoding into them

    def job(piece: Piece, memory: Bytes) -> tuple[Piece, Result]:
        result = work(piece, memory[: piece.array.chunk_nbytes])
        release = partial(free.append, memory)
        if hashes:
            hashes[piece.array.file].add(piece.offset, memory[: piece.nbytes], release)
        else:
            release()
        return piece, result

    done, total = 0, sum(array.nbytes for array in arrays)
    workers = min(max(worker_count(), at_once), max(1, IN_FLIGHT_BYTES // max(1, largest)))
    jobs = (
        partial(job, piece, free.pop() if free else np.empty(largest, np.uint8))
        for piece in _side_by_side(arrays, workers)
    )
    with closing(run_ahead(jobs, workers)) as results:
        for piece, result in results:
            yield piece, result
            done += piece.nbytes
            if progress is not None:
                progress(done, total)


def _side_by_side(arrays: Sequence[ArrayPlan], files: int) -> Iterator[Piece]:
    """Yield the pieces of each file in their order, while up to `files` files take turns."""
    by_file: dict[int, list[ArrayPlan]] = {}
    for array in arrays:
        by_file.setdefault(array.file, []).append(array)
    waiting = (
        (piece for array in file_arrays for piece in array.pieces())
        for file_arrays in by_file.values()
    )
    turns = deque(itertools.islice(waiting, files))
    while turns:
        pieces = turns.popleft()
        piece = next(pieces, None)
        if piece is not None:
            yield piece
            turns.append(pieces)
        else:
            turns.extend(itertools.islice(waiting, 1))
