"""Conversion on a dask cluster: many processes or machines encode and verify the chunks.

The workers must see the source and the target under the same paths as the client, and have this
package installed. The store is byte for byte what one process would make. When a worker dies, dask
runs its tasks elsewhere; the target still appears only when it is complete and verified.
"""

from __future__ import annotations

import functools
import os
import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import numpy as np

from bf16codecs import _core
from bf16codecs._arrays.grid import Piece
from bf16codecs._base.arguments import for_caller
from bf16codecs._base.messages import counted, from_extra
from bf16codecs._base.paths import absolute, given_path
from bf16codecs._base.threads import codec_threads
from bf16codecs._files.digests import Digests, FileHash
from bf16codecs.convert import safetensors_to_zarr as _safetensors_to_zarr
from bf16codecs.convert.pieces import read_chunk
from bf16codecs.convert.pipeline import Encoded, Engine, Packed
from bf16codecs.convert.plan import ModelPlan
from bf16codecs.convert.sources import opened_source
from bf16codecs.convert.summary import BytesDone, Summary
from bf16codecs.errors import CorruptDataError
from bf16codecs.safetensors import Header
from bf16codecs.store.opening import open_store
from bf16codecs.store.reader import ModelReader, stored_arrays
from bf16codecs.store.zarr.writer import ChunkWriter, ZarrWriter

with from_extra("dask", for_caller("bf16codecs.dask", "--dask")):
    from distributed import Client, Future, KilledWorker, as_completed

__all__ = ["cluster", "safetensors_to_zarr"]

# A task's overhead is about a millisecond; encoding this much takes a hundred.
_BATCH_BYTES = 1 << 27
_READ_BYTES = 1 << 22

Item = TypeVar("Item")


def safetensors_to_zarr(
    src: str | os.PathLike[str],
    store: str | os.PathLike[str],
    client: Client | str,
    **options: Any,
) -> Summary:
    """Convert safetensors files to a model store on a dask cluster.

    Parameters
    ----------
    src, store
        As for `bf16codecs.convert.safetensors_to_zarr`, on a file system that all workers see, or
        for the source at an address. The target is a folder, or one in an object store.
    client
        A client, or the address of a scheduler.
    options
        Other arguments of `bf16codecs.convert.safetensors_to_zarr`, except `engine`. `threads` is
        the number for each task, by default one.

    Returns
    -------
    Summary

    Raises
    ------
    ConnectionError
        If no scheduler answers, or the cluster fails.
    """
    # Workers may have other working folders.
    src = given_path(src, "source")
    src = src if "://" in src else absolute(src)
    store = given_path(store, "target")
    store = store if "://" in store else absolute(store)
    with cluster(client, options.pop("threads", None) or 1) as engine:
        return _safetensors_to_zarr(src, store, engine=engine, **options)


@contextmanager
def cluster(client: Client | str, threads: int = 1) -> Iterator[Engine]:
    """Yield an engine for conversions that runs on a cluster.

    Parameters
    ----------
    client
        A client, or the address of a scheduler; then the connection is closed at the end.
    threads
        How many threads each task uses. A worker runs one task for each of its threads.
    """
    if not isinstance(client, str):
        yield _engine(client, threads)
        return
    if not re.fullmatch(r"(\w+://)?.+:\d+/?", client):
        raise ValueError(
            f"{client!r} is not the address of a dask scheduler, such as tcp://host:8786"
        )
    try:
        connected = Client(client, set_as_default=False)
    except (OSError, ValueError) as e:
        reason = " ".join(str(e).split())
        raise ConnectionError(f"{client}: no dask scheduler answers: {reason}") from e
    with connected:
        yield _engine(connected, threads)


def _engine(client: Client, threads: int) -> Engine:
    return Engine(partial(_encode, client, threads), partial(_verify, client, threads))


def _encode(
    client: Client,
    threads: int,
    source: ModelReader,
    writer: Any,
    plan: ModelPlan,
    kinds: Sequence[str],
    keep_checksums: bool,
    progress: BytesDone | None,
) -> Encoded:
    """Encode all tensors on the cluster."""
    if not isinstance(writer, ZarrWriter):
        raise ValueError("only Zarr stores can be written by several processes")
    if plan.differences:
        raise ValueError("on a dask cluster, no differences to a base can be made")
    pieces = (piece for array in plan.arrays for piece in array.pieces())
    batches = list(_batches(pieces, lambda piece: piece.nbytes))
    # Workers open the source themselves, and again if another file takes its path.
    where = source.location[0], repr(source.state()), pickle.dumps(source.storage_options)
    task = partial(_encode_batch, where, writer.shared(), keep_checksums, threads)
    # Digests take longest, since a file is hashed in one go: they start first.
    numbers = range(len(source.headers))
    digests = client.map(partial(_digests, where, kinds, threads), numbers, pure=False)
    results = client.map(task, batches, pure=False)
    with _cancelled_after_errors(client, [*digests, *results]):
        done, stored, total = 0, 0, sum(array.nbytes for array in plan.arrays)
        checksums: dict[tuple[int, int], int] = {}
        for nbytes, stored_nbytes, sums in _completed(client, results):
            done, stored = done + nbytes, stored + stored_nbytes
            checksums.update(sums)
            if progress is not None:
                progress(done, total)
        return Encoded(client.gather(digests), stored, checksums)


def _verify(
    client: Client,
    threads: int,
    reader: ModelReader,
    headers: Sequence[Header],
    packed: Packed,
    progress: BytesDone | None,
) -> None:
    """Decode the store on the cluster and compare it with what was packed."""
    expected = dict(packed.checksums)
    pieces = [piece for array in stored_arrays(reader, headers) for piece in array.pieces()]
    sums = [expected.pop((piece.array.file, piece.offset), None) for piece in pieces]
    if expected:
        raise CorruptDataError(f"{reader.where}: not read back: {counted(len(expected), 'chunk')}")
    batches = _batches(zip(pieces, sums, strict=True), lambda pair: pair[0].nbytes)
    reopen = reader.reopen or partial(_reader, reader.where)
    results = client.map(partial(_verify_batch, reopen, threads), list(batches), pure=False)
    with _cancelled_after_errors(client, results):
        done, total = 0, sum(piece.nbytes for piece in pieces)
        for nbytes in _completed(client, results):
            done += nbytes
            if progress is not None:
                progress(done, total)


def _encode_batch(
    where: tuple[str, str, bytes],
    writer: ChunkWriter,
    keep_checksums: bool,
    threads: int,
    pieces: Sequence[Piece],
) -> tuple[int, int, dict[tuple[int, int], int]]:
    """Encode chunks, on a worker; return their size, stored size and checksums."""
    source, checksums = _source(*where), dict[tuple[int, int], int]()
    stored = 0
    buffer = np.empty(max(piece.array.chunk_nbytes for piece in pieces), np.uint8)
    with codec_threads(threads):
        for piece in pieces:
            chunk = buffer[: piece.array.chunk_nbytes]
            data = read_chunk(source, piece, chunk)
            if keep_checksums:
                checksums[piece.array.file, piece.offset] = _core.checksum(data)
            if piece.array.is_written:
                stored += writer.write(piece, chunk)
    return sum(piece.nbytes for piece in pieces), stored, checksums


def _verify_batch(
    reopen: Callable[[], ModelReader], threads: int, pieces: Sequence[tuple[Piece, int | None]]
) -> int:
    """Decode chunks and compare their checksums, on a worker; return their size."""
    reader = reopen()
    buffer = np.empty(max(piece.array.chunk_nbytes for piece, _ in pieces), np.uint8)
    with codec_threads(threads):
        for piece, expected in pieces:
            reader.read(piece, buffer[: piece.array.chunk_nbytes])
            if _core.checksum(buffer[: piece.nbytes]) != expected:
                raise CorruptDataError(
                    f"{reader.where}: {piece.array.path} differs from its source"
                )
    return sum(piece.nbytes for piece, _ in pieces)


def _digests(
    where: tuple[str, str, bytes], kinds: Sequence[str], threads: int, file: int
) -> Digests:
    """Return the digests of one of a source's files, on a worker."""
    source, buffer = _source(*where), np.empty(_READ_BYTES, np.uint8)
    header = source.headers[file]
    with codec_threads(threads):
        hashes = FileHash(kinds, header.file_size, header.prefix)
        for offset in range(header.data_start, header.file_size, _READ_BYTES):
            part = buffer[: header.file_size - offset]
            source.read_range(file, offset, part)
            hashes.add(offset, part)
        return hashes.digests()


# Also cached by the state, since another file may have the path by now. It is the client's, which
# compares it: other hosts may have other inodes and times.
@functools.lru_cache(maxsize=2)
def _source(where: str, state: str, options: bytes) -> ModelReader:
    return opened_source(where, options=pickle.loads(options))


# Cached by path: a store that is being made has a unique name.
@functools.lru_cache(maxsize=2)
def _reader(where: str) -> ModelReader:
    return open_store(where)


def _batches(items: Iterable[Item], size: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Group items into batches of at most `_BATCH_BYTES`."""
    batch: list[Item] = []
    total = 0
    for item in items:
        if batch and total + size(item) > _BATCH_BYTES:
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += size(item)
    if batch:
        yield batch


def _completed(client: Client, futures: Sequence[Future]) -> Iterator[Any]:
    """Yield results as they come; raise the first error."""
    for _, result in as_completed(futures, loop=client.loop, with_results=True):
        yield result


@contextmanager
def _cancelled_after_errors(client: Client, futures: Sequence[Future]) -> Iterator[None]:
    try:
        yield
    except BaseException as e:
        client.cancel(futures)
        if isinstance(e, (KilledWorker, CancelledError)):
            reason = " ".join(str(e).split())
            raise ConnectionError(f"the dask cluster failed: {reason}") from e
        raise
