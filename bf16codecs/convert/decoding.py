"""Decode a store and check it, in this process or on a cluster."""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from bf16codecs import _core
from bf16codecs._arrays.grid import Piece
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.cluster import Cluster, current_cluster, run_batches
from bf16codecs._base.messages import causes, counted, one_line
from bf16codecs._files.digests import Digests
from bf16codecs.convert.damages import NO_DAMAGE
from bf16codecs.convert.packing import Packed
from bf16codecs.convert.pieces import all_pieces, do_pieces, file_hash
from bf16codecs.convert.summary import BytesDone
from bf16codecs.convert.workers import Shared, on_pieces, sharing
from bf16codecs.errors import BF16CodecsError, CorruptDataError, StoreError
from bf16codecs.safetensors import Header
from bf16codecs.store.attributes import StoredFile
from bf16codecs.store.kinds import path_of
from bf16codecs.store.reader import ModelReader, stored_arrays

__all__ = ["Failed", "digest_error", "unpack", "verify_packed"]

#: Called by several threads with a piece, its decoded bytes, and its bytes in the original model,
#: if that was given.
Consume = Callable[[Piece, Bytes, Bytes | None], None]
#: Called with an error, and with the damaged piece, None if the error concerns a whole file.
Failed = Callable[[BF16CodecsError, Piece | None], None]


def unpack(
    reader: ModelReader,
    headers: Sequence[Header],
    consume: Consume,
    expected: Sequence[Digests],
    progress: BytesDone | None = None,
    failed: Failed | None = None,
    original: ModelReader | None = None,
    only: int | None = None,
) -> None:
    """Decode a store, each file in the order of its bytes, and read `original` beside it.

    By default these are all files; `only` is the number of a single one.

    The calling thread passes damage to `failed`, and the rest is decoded; without `failed`, damage
    is raised. `expected` has the digests of each file, or is empty. Raises CorruptDataError if a
    file's digests differ, after all of it was consumed.
    """
    hashes = [
        file_hash(header, digests.kinds)
        for digests, header in zip(expected, headers, strict=bool(expected))
    ]

    def work(piece: Piece, chunk: Bytes, copy: Bytes | None) -> BF16CodecsError | None:
        try:
            reader.read(piece, chunk)
        except OSError as e:
            if not is_on_disk or _is_of_process(e):
                raise  # every other chunk would fail alike
            return StoreError(one_line(e))
        except BF16CodecsError as e:
            if failed is None or isinstance(e, NO_DAMAGE):
                raise
            return e
        consume(piece, chunk[: piece.nbytes], copy)
        return None

    is_on_disk = failed is not None and bool(path_of(reader.location[0]))
    arrays, damaged = stored_arrays(reader, headers), set[int]()
    todo = all_pieces([array for array in arrays if only in (None, array.file)])
    at_once = reader.stored.concurrency
    with closing(do_pieces(work, todo, hashes, progress, at_once, original)) as pieces:
        for piece, error in pieces:
            if error is not None and failed is not None:
                damaged.add(piece.array.file)
                failed(error, piece)
    files = zip(reader.info.files, expected, hashes, strict=bool(expected))
    for number, (file, digests, hasher) in enumerate(files):
        # The hash lacks what could not be decoded.
        if number in damaged or only not in (None, number):
            continue
        difference = digests.difference(hasher.digests())
        if difference is not None:
            error = digest_error(reader, file, difference[0])
            if failed is None:
                raise error
            failed(error, None)


def digest_error(reader: ModelReader, file: StoredFile, kind: str) -> CorruptDataError:
    """Return the error for a restored file with another digest."""
    then = "the original" if reader.info.loss is None else "when it was stored"
    return CorruptDataError(f"{reader.where}: {file.name} has another {kind} than {then}")


def _is_of_process(error: OSError) -> bool:
    """Return whether this process has too many files open; the store is not at fault then."""
    limits = (errno.EMFILE, errno.ENFILE)
    return any(getattr(cause, "errno", None) in limits for cause in causes(error))


def verify_packed(
    reader: ModelReader,
    headers: Sequence[Header],
    packed: Packed,
    progress: BytesDone | None = None,
) -> None:
    """Decode a new store, and compare each piece with the checksum of its source."""
    cluster = current_cluster()
    if cluster is not None:
        _verify_on(cluster, reader, headers, packed, progress)
        return
    remaining = dict(packed.checksums)

    def consume(piece: Piece, data: Bytes, _: Bytes | None) -> None:
        _check(reader, piece, data, remaining.pop((piece.array.file, piece.offset), None))

    unpack(reader, headers, consume, [], progress)
    _check_all_read(reader, remaining)


def _check(reader: ModelReader, piece: Piece, data: Bytes, expected: int | None) -> None:
    if expected != _core.checksum(data):
        raise CorruptDataError(f"{reader.label(piece.array.path)} differs from its source")


def _check_all_read(reader: ModelReader, remaining: Collection[Any]) -> None:
    if remaining:
        raise CorruptDataError(f"{reader.where}: not read back: {counted(len(remaining), 'chunk')}")


def _verify_on(
    cluster: Cluster,
    reader: ModelReader,
    headers: Sequence[Header],
    packed: Packed,
    progress: BytesDone | None,
) -> None:
    remaining = dict(packed.checksums)
    pieces = [piece for array in stored_arrays(reader, headers) for piece in array.pieces()]
    sums = [remaining.pop((piece.array.file, piece.offset), None) for piece in pieces]
    _check_all_read(reader, remaining)
    with sharing(cluster, reader) as (store,):
        assert store is not None
        run_batches(
            cluster,
            partial(_verify_pieces, store, cluster.threads),
            zip(pieces, sums, strict=True),
            lambda pair: pair[0].nbytes,
            progress,
            sum(piece.nbytes for piece in pieces),
        )


def _verify_pieces(store: Shared, threads: int, pieces: Sequence[tuple[Piece, int | None]]) -> int:
    """Decode pieces on a worker, and compare their checksums; return their size."""
    reader, expected = store.model(), {(p.array.file, p.offset): sum_ for p, sum_ in pieces}

    def work(piece: Piece, data: Bytes) -> None:
        _check(reader, piece, data, expected[piece.array.file, piece.offset])

    return on_pieces(reader, work, [piece for piece, _ in pieces], threads)
