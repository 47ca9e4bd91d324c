"""Decode the data of a store, and compare them with their digests and with their source."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import numpy as np

from bf16codecs._arrays.grid import Piece
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.cached import cached_property
from bf16codecs._base.cluster import Cluster, current_cluster
from bf16codecs._base.threads import codec_threads
from bf16codecs.convert.damages import MOST_DAMAGE, NO_DAMAGE, Damages
from bf16codecs.convert.decoding import Failed, unpack
from bf16codecs.convert.lossy import half_source
from bf16codecs.convert.summary import BytesDone, Progress
from bf16codecs.convert.workers import Shared, sharing
from bf16codecs.errors import BF16CodecsError
from bf16codecs.store.reader import ModelReader
from bf16codecs.store.runs.reader import RunReader

__all__ = ["Checks", "ModelData"]


#: What failed, each with its piece or None for a whole file; and pieces that differ.
_Found = tuple[list[tuple[BF16CodecsError, Piece | None]], list[Piece]]


@dataclass(frozen=True)
class ModelData:
    """The data of a model that is verified, and its source, if that was given."""

    reader: ModelReader
    source: ModelReader | None

    def examine(self, failed: Failed, progress: BytesDone | None, only: int | None) -> list[Piece]:
        """Decode all files, or a single one; return the pieces that differ from the source."""
        differing: list[Piece] = []
        source = self.source
        if source is not None and self.reader.info.loss is not None:
            source = half_source(source)

        def consume(piece: Piece, data: Bytes, original: Bytes | None) -> None:
            if original is not None and not np.array_equal(data, original):
                differing.append(piece)

        expected = [file.restored for file in self.reader.info.files]
        headers = self.reader.headers
        unpack(self.reader, headers, consume, expected, progress, failed, source, only)
        # In the order of the files: several threads have collected them.
        return sorted(differing, key=lambda piece: (piece.array.file, piece.offset))

    def note_failure(self, damages: Damages, error: BF16CodecsError, piece: Piece | None) -> None:
        """Note a piece that could not be decoded, or a file with another digest."""
        name = None if piece is None else self._names[piece.array.file, piece.array.offset]
        chunk = None if piece is None else piece.index
        damages.add(error, self.reader.location[1], name, chunk)

    def note_differences(self, damages: Damages, pieces: Iterable[Piece]) -> None:
        """Note pieces that differ from the source."""
        for piece in pieces:
            assert self.source is not None
            name = self._names[piece.array.file, piece.array.offset]
            path = self.source.file_path(piece.array.file)
            text = f"tensor {name!r:.300}, chunk {piece.index} differs from {path}"
            damages.differ(text, self.reader.location[1], name, piece.index)

    @cached_property
    def _names(self) -> dict[tuple[int, int], str]:
        # Several tensors may share an array, but not an offset in a file.
        return {
            (file, header.data_start + tensor.start): tensor.name
            for file, header in enumerate(self.reader.headers)
            for tensor in header.tensors
            if tensor.nbytes
        }


class Checks:
    """Examines data: here at once, or at the end, all files side by side on a cluster."""

    def __init__(
        self, damages: Damages, progress: Progress | None, total: int, run: RunReader | None = None
    ) -> None:
        self.damages, self._progress, self._total = damages, progress, total
        self._run = run
        self._cluster = current_cluster()
        self._todo: list[tuple[ModelData, int]] = []

    def add(self, data: ModelData, progress: BytesDone | None) -> None:
        """Examine the data of a model, or of a step of a run."""
        if self._cluster is not None:
            self._todo += ((data, file) for file in range(len(data.reader.headers)))
            return
        failed = partial(data.note_failure, self.damages)
        data.note_differences(self.damages, data.examine(failed, progress, None))

    def finish(self) -> None:
        """Examine what is left."""
        if self._cluster is None or not self._todo:
            return
        found = self._found_on(self._cluster)
        for number, (data, _) in enumerate(self._todo):
            failures, differing = found[number]
            for error, piece in failures:
                data.note_failure(self.damages, error, piece)
            data.note_differences(self.damages, differing)

    def _found_on(self, cluster: Cluster) -> dict[int, _Found]:
        """Examine all files on a cluster."""
        found: dict[int, _Found] = {}
        done, sources = 0, list(dict.fromkeys(data.source for data, _ in self._todo))
        store = self._run or self._todo[0][0].reader
        with sharing(cluster, store, *sources) as (opened, *others):
            assert opened is not None
            source_of = dict(zip(sources, others, strict=True))
            jobs = (
                partial(_examine_file, opened, step, source_of[data.source], cluster.threads, file)
                for data, file in self._todo
                for _, step in [data.reader.location]
            )
            with closing(cluster.run(jobs)) as results:
                for number, result in results:
                    found[number] = result
                    data, file = self._todo[number]
                    done += data.reader.info.files[file].size
                    if self._progress is not None:
                        self._progress("verify", min(done, self._total), self._total)
        return found


def _examine_file(
    store: Shared, step: int | None, source: Shared | None, threads: int, file: int
) -> _Found:
    """Decode a file on a worker; return what failed, and the pieces that differ."""
    failures: list[tuple[BF16CodecsError, Piece | None]] = []
    model = store.model()
    reader = model.step(step) if isinstance(model, RunReader) and step is not None else model
    data = ModelData(reader, None if source is None else source.model())

    def failed(error: BF16CodecsError, piece: Piece | None) -> None:
        # The worker has opened an absolute path, which the caller need not have given.
        text = str(error).replace(reader.stored.where, store.where, 1)
        failures.append((type(error)(text), piece))
        if len(failures) >= MOST_DAMAGE:
            raise error

    differing: list[Piece] = []
    with codec_threads(threads):
        try:
            differing = data.examine(failed, None, file)
        except NO_DAMAGE:
            raise
        except BF16CodecsError as e:
            if len(failures) < MOST_DAMAGE:
                failed(e, None)
    return failures, differing
