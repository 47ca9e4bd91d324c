"""Process the pieces of a model's files in several threads, and hash the files on the way."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np

from bf16codecs._arrays.grid import ArrayPlan, Piece
from bf16codecs._base.buffers import Bytes, ThreadBuffer
from bf16codecs._base.limits import IN_FLIGHT_BYTES
from bf16codecs._base.messages import one_line
from bf16codecs._base.threads import run_ahead, worker_count
from bf16codecs._files.digests import FileHash
from bf16codecs.convert.plan import pad
from bf16codecs.convert.summary import BytesDone
from bf16codecs.errors import SafetensorsError
from bf16codecs.safetensors import Header
from bf16codecs.store.reader import ModelReader

__all__ = [
    "Todo",
    "all_pieces",
    "arrays_by_file",
    "do_pieces",
    "file_hash",
    "read_pieces",
    "these_pieces",
]

Result = TypeVar("Result")

# Bytes of small neighbours that are asked for together, with other bytes between them: a request of
# 4 KB to a server on the same machine took 1.2 ms of processor time, and one of 4 MB 8.
_SPAN_BYTES, _GAP_BYTES = 1 << 22, 1 << 16


class Todo(NamedTuple):
    """Pieces to work on, those of each file in the order of its bytes, and their sizes."""

    files: Iterable[Iterable[Piece]]
    nbytes: int
    #: Size of the largest chunk.
    largest: int
    #: Memory of earlier work that may be used, and is put back; None for memory of its own.
    spare: list[Bytes] | None = None


def arrays_by_file(arrays: Iterable[ArrayPlan]) -> dict[int, list[ArrayPlan]]:
    """Return the arrays of each file, by its number, in their order."""
    by_file: dict[int, list[ArrayPlan]] = {}
    for array in arrays:
        by_file.setdefault(array.file, []).append(array)
    return by_file


def all_pieces(arrays: Sequence[ArrayPlan]) -> Todo:
    """Return all pieces of arrays; a damaged store may promise more than fit into memory."""
    files = (
        itertools.chain.from_iterable(array.pieces() for array in file_arrays)
        for file_arrays in arrays_by_file(arrays).values()
    )
    largest = max((array.chunk_nbytes for array in arrays if array.nbytes), default=0)
    return Todo(files, sum(array.nbytes for array in arrays), largest)


# Of the jobs of a cluster's worker: dask lets each free() return memory to the system.
_spare: list[Bytes] = []


def these_pieces(pieces: Sequence[Piece]) -> Todo:
    """Return pieces of a job, which follow each other in each file."""
    by_file: dict[int, list[Piece]] = {}
    for piece in pieces:
        by_file.setdefault(piece.array.file, []).append(piece)
    largest = max((piece.array.chunk_nbytes for piece in pieces), default=0)
    return Todo(by_file.values(), sum(piece.nbytes for piece in pieces), largest, _spare)


def file_hash(header: Header, kinds: Sequence[str]) -> FileHash:
    """Return the hash of a file, to which all but its tensors is already added."""
    hasher = FileHash(kinds, header.file_size, header.prefix)
    for offset, part in header.gaps:
        hasher.add(offset, part)
    return hasher


def do_pieces(
    work: Callable[[Piece, Bytes, Bytes | None], Result],
    todo: Todo,
    hashes: Sequence[FileHash],
    progress: BytesDone | None,
    at_once: int = 1,
    original: ModelReader | None = None,
) -> Generator[tuple[Piece, Result], None, None]:
    """Call `work` for all pieces in several threads, and yield pieces and results.

    The pieces of one file come in the order of its bytes, as its digest requires; files take turns,
    so that no digest holds up the others. `work` stores its piece in the first bytes of memory for
    a whole chunk; they are hashed unless `hashes` is empty. Its third argument are the bytes of the
    piece in `original`, if that is given. `at_once` is how many reads at a time pay off, which is
    more than there are processors if a server answers them.
    """
    buffer = ThreadBuffer()

    def work_on(span: Sequence[Piece], memory: Bytes) -> list[Result]:
        chunks = _chunks(span, memory)
        if original is None:
            return [work(piece, chunk, None) for piece, chunk in chunks]
        copies = [part for _, part in _parts(span, buffer.get(sum(piece.nbytes for piece in span)))]
        try:
            _read_span(original, span, copies)
        except SafetensorsError as e:  # the file was truncated meanwhile, not the store
            raise OSError(one_line(e)) from e
        return [work(*chunk, copy) for chunk, copy in zip(chunks, copies, strict=True)]

    span_nbytes = 0
    if original is not None:
        at_once = max(at_once, original.stored.concurrency)
        span_nbytes = _span_nbytes(original)
    return _do_spans(work_on, todo, hashes, progress, at_once, span_nbytes)


def read_pieces(
    source: ModelReader,
    work: Callable[[Piece, Bytes], Result],
    todo: Todo,
    hashes: Sequence[FileHash],
    progress: BytesDone | None,
    at_once: int = 1,
) -> Generator[tuple[Piece, Result], None, None]:
    """Call `work` for all pieces of a source as `do_pieces` does, with their chunks.

    Chunks are padded. Several small ones that are near each other at an address are read together.
    """

    def work_on(span: Sequence[Piece], memory: Bytes) -> list[Result]:
        _read_span(source, span, [part for _, part in _parts(span, memory)])
        chunks = _chunks(span, memory)
        for piece, chunk in chunks:
            pad(piece, chunk)
        return [work(piece, chunk) for piece, chunk in chunks]

    at_once = max(at_once, source.stored.concurrency)
    return _do_spans(work_on, todo, hashes, progress, at_once, _span_nbytes(source))


def _span_nbytes(source: ModelReader) -> int:
    """Return how many bytes of a source to read together at most; 0 for piece by piece."""
    return _SPAN_BYTES if source.stored.concurrency > 1 else 0


def _read_span(source: ModelReader, span: Sequence[Piece], parts: Sequence[Bytes]) -> None:
    """Read pieces of one file, each into memory of its own."""
    if len(span) == 1:
        source.read_range(span[0].array.file, span[0].offset, parts[0])
        return
    offsets = [piece.offset for piece in span]
    source.read_ranges(span[0].array.file, list(zip(offsets, parts, strict=True)))


def _do_spans(
    work: Callable[[Sequence[Piece], Bytes], Sequence[Result]],
    todo: Todo,
    hashes: Sequence[FileHash],
    progress: BytesDone | None,
    at_once: int,
    span_nbytes: int,
) -> Generator[tuple[Piece, Result], None, None]:
    largest = max(todo.largest, span_nbytes)
    # Memory is reused: fresh pages cost more than decoding into them.
    free = [] if todo.spare is None else todo.spare

    def job(span: Sequence[Piece], memory: Bytes) -> list[tuple[Piece, Result]]:
        results = work(span, memory)
        release = _after(len(span), partial(free.append, memory))
        for piece, part in _parts(span, memory):
            if hashes:
                hashes[piece.array.file].add(piece.offset, part, release)
            else:
                release()
        return list(zip(span, results, strict=True))

    done = 0
    workers = min(max(worker_count(), at_once), max(1, IN_FLIGHT_BYTES // max(1, largest)))
    jobs = (
        partial(job, span, _taken(free, largest))
        for span in _side_by_side(todo.files, workers, span_nbytes)
    )
    with closing(run_ahead(jobs, workers)) as results:
        for span in results:
            for piece, result in span:
                yield piece, result
                done += piece.nbytes
                if progress is not None:
                    progress(done, todo.nbytes)


def _taken(free: list[Bytes], nbytes: int) -> Bytes:
    """Take memory that is free, and large enough, or new memory; other threads may take as well."""
    try:
        memory = free.pop()  # one operation, with the GIL and without
    except IndexError:
        return np.empty(nbytes, np.uint8)
    return memory if memory.size >= nbytes else np.empty(nbytes, np.uint8)


def _side_by_side(
    files: Iterable[Iterable[Piece]], at_once: int, span_nbytes: int
) -> Iterator[Sequence[Piece]]:
    """Yield spans of each file in their order, while so many files take turns."""
    waiting = (_spans(pieces, span_nbytes) for pieces in files)
    turns = deque(itertools.islice(waiting, at_once))
    while turns:
        spans = turns.popleft()
        span = next(spans, None)
        if span is not None:
            yield span
            turns.append(spans)
        else:
            turns.extend(itertools.islice(waiting, 1))


def _parts(span: Sequence[Piece], memory: Bytes) -> Iterator[tuple[Piece, Bytes]]:
    """Yield the pieces of a span with their memory, in which they follow each other."""
    start = 0
    for piece in span:
        yield piece, memory[start : start + piece.nbytes]
        start += piece.nbytes


def _chunks(span: Sequence[Piece], memory: Bytes) -> list[tuple[Piece, Bytes]]:
    """Return the pieces of a span with memory for their whole chunks: one alone may be padded."""
    if len(span) == 1:
        return [(span[0], memory[: span[0].array.chunk_nbytes])]
    return list(_parts(span, memory))


def _after(calls: int, function: Callable[[], object]) -> Callable[[], None]:
    """Return a function that calls another the last of so many times, whichever threads call it."""
    left = [None] * (calls - 1)

    def call() -> None:
        try:
            left.pop()  # one operation, with the GIL and without
        except IndexError:
            function()

    return call


def _spans(pieces: Iterable[Piece], most_nbytes: int) -> Iterator[Sequence[Piece]]:
    """Group the pieces of a file that are near each other, up to a size; padded ones are alone."""
    span: list[Piece] = []
    start = end = 0  # in memory, and in the file
    for piece in pieces:
        fits = (
            0 <= piece.offset - end <= _GAP_BYTES
            and start + piece.nbytes <= most_nbytes
            and start % piece.array.item_size == 0  # aligned in memory
            and piece.nbytes == piece.array.chunk_nbytes
        )
        if span and not fits:
            yield span
            span, start = [], 0
        span.append(piece)
        start, end = start + piece.nbytes, piece.offset + piece.nbytes
        if piece.nbytes != piece.array.chunk_nbytes:
            yield span
            span, start = [], 0
    if span:
        yield span
