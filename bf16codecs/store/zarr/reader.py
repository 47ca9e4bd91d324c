"""Reads the model store from Zarr, opened with one request and without zarr's opening of arrays.

zarr-python takes 0.1 ms to make an array of its metadata, even from consolidated ones; a model
has hundreds. So this module takes what it needs from the documents, and zarr opens an array when
a caller asks for one, or when its chunks are not read directly: rechunked, sharded or recompressed
by another program.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from bf16codecs import _core
from bf16codecs._arrays.array import ChunkedArray, Located, RangeReader, UnitArray
from bf16codecs._arrays.formats import (
    RAW,
    Crc32cFormat,
    DeflateFormat,
    DeltaFormat,
    Format,
    GzipFormat,
    RunLengthFormat,
    ZstdFormat,
)
from bf16codecs._arrays.frames import FrameFormat
from bf16codecs._arrays.grid import ChunkIndex, chunk_counts, grid_indices
from bf16codecs._arrays.storage import KeyStorage, LocalStorage
from bf16codecs._arrays.views import StepView
from bf16codecs._base.forks import make_lock
from bf16codecs._base.limits import Limits
from bf16codecs._base.messages import advised, damaged, named_errors
from bf16codecs._base.names import ARITHMETIC_ID, BLOCKS_ID, DELTA_ID, FRAME_IDS, RUN_LENGTH_ID
from bf16codecs._base.threads import run_ahead
from bf16codecs.errors import StoreError
from bf16codecs.store.arrays import CheckSize, Fault, StoredArrays, faults
from bf16codecs.store.attributes import ROUNDED, Difference
from bf16codecs.store.layout import ATTRIBUTES_KEY, StoreInfo
from bf16codecs.store.plan import difference_spec
from bf16codecs.store.published.layout import is_published, published_info
from bf16codecs.store.published.storage import PackedStorage, Window
from bf16codecs.store.zarr.library import library_array
from bf16codecs.store.zarr.metadata import (
    ARRAY_DOCUMENTS,
    GROUP_DOCUMENTS,
    OTHER_GROUP,
    ParsedArray,
    array_codecs,
    check_keys,
    check_refusals,
    chunk_key,
    growing_steps,
    leads_elsewhere,
    named_shape,
    parse_array,
    read_json,
    read_root,
    shown_codecs,
    stated_versions,
)

if TYPE_CHECKING:
    import zarr

    from bf16codecs.zarr.strict import StrictStore

__all__ = ["ZarrArrays"]


class ZarrArrays(StoredArrays):
    """The arrays of a model store in Zarr; `make_store` opens the same keys as a zarr store."""

    def __init__(
        self, where: str, storage: KeyStorage, make_store: Callable[[], StrictStore], limits: Limits
    ) -> None:
        self._storage = storage
        self._make_store = make_store
        self._store: StrictStore | None = None
        self._lock = make_lock()
        self._seen_size = 0
        self._asked_sizes: dict[str, int] = {}
        self._frames = FrameFormat()
        # By the codecs after "bytes". Not a dict: metadata may have anything as a name.
        self._formats: list[tuple[list[str], Format]] = [
            ([], RAW),
            (["zstd"], ZstdFormat()),
            *(([name], self._frames) for name in FRAME_IDS),
            ([DELTA_ID, RUN_LENGTH_ID, "crc32c"], DeltaFormat(Crc32cFormat(RunLengthFormat()))),
            ([DELTA_ID, RUN_LENGTH_ID], DeltaFormat(RunLengthFormat())),
            ([DELTA_ID, "gzip"], DeltaFormat(GzipFormat())),
            ([DELTA_ID, "zlib"], DeltaFormat(DeflateFormat())),
        ]
        self.concurrency, self.is_near = storage.concurrency, storage.concurrency == 1
        root = read_root(where, storage)
        if not isinstance(storage, PackedStorage) and is_published(root.attributes):
            published = published_info(where, root.attributes)
            self._storage = PackedStorage(where, storage, published)
            root = read_root(where, self._storage)
        self.is_published = isinstance(self._storage, PackedStorage)
        self.zarr_format, self._documents = root.zarr_format, root.arrays
        self._attributes = root.attributes
        info = StoreInfo.from_attributes(root.attributes, where, OTHER_GROUP)
        super().__init__(where, info, limits)

    def attributes(self, path: str) -> Mapping[str, Any]:
        """Return the attributes of an array under `bf16codecs`."""
        attributes = self._document(path).get("attributes")
        ours = attributes.get(ATTRIBUTES_KEY) if isinstance(attributes, Mapping) else None
        return ours if isinstance(ours, Mapping) else {}

    def _zarr_store(self) -> StrictStore:
        with self._lock:
            if self._store is None:
                self._store = self._make_store()
            return self._store

    @property
    def knows_sizes(self) -> bool:
        """Whether the storage lists its keys with their sizes."""
        return self._storage.folder_size("") is not None

    def stored_nbytes(self, path: str) -> int:
        """Return the size that an array takes in the store, metadata included."""
        is_array = path not in self.info.differences
        if is_array:
            self._document(path)
        try:
            size = self._storage.folder_size(path)
        except FileNotFoundError as e:
            raise StoreError(f"{self.label(path)}: {damaged(f'{path} is missing')}") from e
        return self._asked_size(path, is_array) if size is None else size

    def _asked_size(self, path: str, is_array: bool) -> int:
        """Ask for the size of each key of an array, once."""
        if path not in self._asked_sizes:
            names = ARRAY_DOCUMENTS[self.zarr_format] if is_array else ()
            size = sum(self._document_size(f"{path}/{name}") for name in names)
            jobs = (partial(self._chunk_size, path, key) for key in self._chunk_keys(path))
            with closing(run_ahead(jobs, self._storage.concurrency)) as sizes:
                self._asked_sizes[path] = size + sum(sizes)
        return self._asked_sizes[path]

    def needs_header(self, path: str) -> bool:
        """Return whether to compare an array with the header of its tensor."""
        # At a server, the header is read only for arrays that do not repeat their shape, or do not
        # name their tensor and dtype.
        if path.endswith(ROUNDED) or path in self.info.differences:
            return self.is_near
        if self.is_near or named_shape(self._document(path)) is None:
            return True
        return not {"tensor", "dtype"} <= self.attributes(path).keys()

    def _chunk_keys(self, path: str) -> Iterator[str]:
        """Yield the keys of an array's chunks lazily, since a damaged shape may have any number."""
        difference = self.info.differences.get(path)
        if difference is not None:
            parsed = self._parsed_difference(path, difference)
            shape, stored, encode = parsed.shape, parsed.chunks, parsed.key
        else:
            array = self._made_array(path)
            shape, stored = array.shape, array.shards or array.chunks
            encode = array.metadata.encode_chunk_key
        for index in self._chunk_indices(path, chunk_counts(shape, stored), stored):
            yield f"{path}/{encode(index)}"

    def _document_size(self, key: str) -> int:
        with named_errors(f"{self.where}: {key}", OSError):
            return self._storage.size(key)

    def _chunk_size(self, path: str, key: str) -> int:
        label = f"{self.label(path)}, chunk {key}"
        with named_errors(label, OSError):
            size = self._storage.size(key)
        if refusal := self._storage.refusal(key):
            raise OSError(f"{label}: {refusal}")
        if size == 0:
            raise StoreError(advised(f"{label}: it is missing"))
        return size

    def _chunk_indices(
        self, path: str, counts: tuple[int, ...], chunks: tuple[int, ...]
    ) -> Iterator[ChunkIndex]:
        """Yield the indices of chunks that must exist: in a run, those of the tensor's steps."""
        run = self.info.run
        placements = run.arrays.get(path) if run is not None else None
        if run is None or placements is None or not counts:
            yield from grid_indices(counts)
            return
        indices = chain.from_iterable(p.indices(len(run.steps)) for p in placements)
        for group in dict.fromkeys(index // chunks[0] for index in indices):
            for rest in grid_indices(counts[1:]):
                yield (group, *rest)

    def size_of_at_least(self, enough: int) -> int:
        """Return the store's size, or that of some chunks if that is enough."""
        if not self.is_near and self._seen_size < enough:
            # A few chunks of large models are enough, and each is a request.
            self._seen_size = 0
            for path in sorted(self.info.arrays):
                for key in self._chunk_keys(path):
                    self._seen_size += self._chunk_size(path, key)
                    if self._seen_size >= enough:
                        return self._seen_size
        return self._seen_size or self.total_nbytes()

    def total_nbytes(self) -> int:
        """Return the size of the whole store."""
        size = self._storage.folder_size("")
        if size is None:
            # Without the groups inside, some 50 bytes each: they would double the requests.
            size = sum(map(self._document_size, GROUP_DOCUMENTS[self.zarr_format]))
            size += sum(map(self.stored_nbytes, sorted(self.info.arrays)))
        return size

    def codec_name(self, path: str) -> str:
        """Return the name of an array's codec."""
        with named_errors(self.label(path)):
            return shown_codecs(self._codecs(path))

    def codec_level(self, path: str) -> str:
        """Return the level of an array's arithmetic codec; of other codecs ``""``."""
        with named_errors(self.label(path)):
            for codec in self._codecs(path):
                if codec["name"] == ARITHMETIC_ID:
                    level = codec.get("configuration", {}).get("level", "fast")
                    return level if level in list(_core.LEVELS) else ""
        return ""

    def growing_steps(self, path: str) -> int:
        """Return for how many steps an array has growing frames; 0 if it has others."""
        return growing_steps(self.zarr_format, self._document(path))

    def _codecs(self, path: str) -> list[dict[str, Any]]:
        return array_codecs(self.zarr_format, self._document(path))

    def close(self) -> None:
        """Close files and connections."""
        self._storage.close()
        if self._store is not None:
            self._store.close()

    def node_attributes(self) -> Iterator[tuple[str, Collection[str]]]:
        """Yield the root, and what it has copies of, with the names of their attributes."""
        yield "", self._attributes
        for path, document in self._documents.items():
            attributes = document.get("attributes") if isinstance(document, dict) else None
            yield path, attributes if isinstance(attributes, dict) else ()

    def document_faults(self) -> Iterator[Fault]:
        """Yield faults of metadata that zarr refuses, or that differ: see `copy_faults`."""
        from bf16codecs.store.zarr.copies import copy_faults, root_faults

        stored = self.info.arrays - self.info.differences.keys()
        found = list(faults(sorted(stored), self._made_array))
        if self.is_published:  # all documents are in one object
            return iter(found)
        if self.is_near:  # of others, each would be a request
            # Read again, as the documents are now: steps may have been appended since opening.
            root = read_root(self.where, self._storage)
            found += copy_faults(self, root, self._storage, self._zarr_store(), stored)
            if not found:
                found += root_faults(self.where, root, self._zarr_store())
        return iter(found)

    def open_zarr(self, path: str, check_size: CheckSize) -> zarr.Array:
        """Open an array with zarr, by the root's copy of its metadata: that was checked.

        The size of its chunks is bounded, stored and decoded.
        """
        if self.is_published:
            raise ValueError(f"{self.label(path)}: has no Zarr array: its chunks are in packs")
        import zarr
        from zarr.storage import StorePath

        from bf16codecs.store.remote.storage import ask
        from bf16codecs.zarr.inflation import chunk_check
        from bf16codecs.zarr.shards import complete_shards

        array = self._made_array(path)
        inner = math.prod(array.chunks) * array.dtype.itemsize
        nbytes = math.prod(array.shards or array.chunks) * array.dtype.itemsize
        check_size(nbytes, f"a chunk of {path:.300}")
        with named_errors(self.label(path)):
            check = chunk_check(self._document(path), inner, nbytes // inner, self.limits)
            complete = complete_shards(self._document(path), array)
            store = self._zarr_store().for_chunks_of(nbytes, check, complete)
            store_path = ask(partial(StorePath.open, store, path, mode="r"))
            return zarr.Array.from_dict(store_path, self._with_attributes(path))

    def _made_array(self, path: str) -> zarr.Array:
        """Return zarr's array for the metadata that were already read, without reading more."""
        import zarr
        from zarr.storage import StorePath

        document = self._with_attributes(path)
        with named_errors(self.label(path)):
            check_keys(self.zarr_format, document)
            return zarr.Array.from_dict(StorePath(self._zarr_store(), path), document)

    def _with_attributes(self, path: str) -> dict[str, Any]:
        # With the attributes in consolidated metadata, which all of this class reads.
        document = self._document(path)
        return {**document, "attributes": document.get("attributes") or {}}

    def open(self, path: str, check_size: CheckSize) -> UnitArray:
        """Open an array, which must not contradict the names of its dimensions."""
        array = self._open_array(path, check_size)
        named = named_shape(self._document(path))
        # The name of the first axis of a run has no size.
        expected = (None, *array.shape[1:]) if named and named[0] is None else array.shape
        if named not in (None, expected):
            label = self.label(path)
            raise StoreError(f"{label}: shape {array.shape}, but its dimensions are named {named}")
        return array

    def _open_array(self, path: str, check_size: CheckSize) -> UnitArray:
        document, label = self._document(path), self.label(path)
        with named_errors(label):
            parsed = parse_array(self.zarr_format, document)
        chunk_format = None if parsed is None else self._format_of(parsed.codecs)
        if parsed is None or chunk_format is None:
            array = self.open_zarr(path, check_size)
            with named_errors(label):
                return library_array(label, array, isinstance(self._storage, LocalStorage))
        locate = partial(self._locate, chunk_format, path, parsed)
        with named_errors(label):
            versions = stated_versions(self._codecs(path))
        return ChunkedArray(
            label,
            parsed.shape,
            parsed.dtype,
            parsed.chunks,
            locate,
            chunk_format.in_blocks,
            self._storage.concurrency,
            versions=versions,
        )

    def open_difference(
        self, path: str, difference: Difference, find_base: Callable[[], RangeReader]
    ) -> UnitArray:
        """Open what is stored as a difference to what `find_base` returns."""
        self._check_path(path)
        parsed = self._parsed_difference(path, difference)
        return ChunkedArray(
            self.label(path),
            parsed.shape,
            parsed.dtype,
            parsed.chunks,
            partial(self._locate, self._frames, path, parsed),
            in_blocks=True,
            concurrency=self._storage.concurrency,
            find_base=find_base,
        )

    def read_up_to(self, index: int) -> None:
        """Read only steps up to an index."""
        if isinstance(self._storage, PackedStorage):
            self._storage.read_up_to(index)

    def step_key(self, index: int) -> str:
        """Return what tells a step of a run from others of this number; "" if nothing does."""
        storage = self._storage
        return storage.info.steps[index].key if isinstance(storage, PackedStorage) else ""

    def between(self, path: str, known: int, wanted: int) -> StepView | None:
        """Return an array of a published run, decoded against its values at an earlier step."""
        storage = self._storage
        if not isinstance(storage, PackedStorage) or path.endswith(ROUNDED):
            return None
        steps = storage.window(known, wanted)
        if steps is None:
            return None
        self._check_path(path)
        array = storage.plan.arrays[path]
        chunked = ChunkedArray(
            self.label(path),
            (len(steps), *array.shape[1:]),
            array.dtype,
            (len(steps), *array.chunks[1:]),
            lambda index: Located(self._frames, storage, Window(path, index[1:], steps)),
            in_blocks=True,
            concurrency=storage.concurrency,
            versions=len(steps),
        )
        return StepView(chunked, len(steps) - 1)

    def _parsed_difference(self, path: str, difference: Difference) -> ParsedArray:
        """Return the metadata that an array of a difference would have."""
        dtype, shape = difference_spec(difference)
        with named_errors(self.label(path)):
            if len(difference.chunks) != len(shape):
                raise StoreError(f"chunks of {difference.chunks!r:.80}, array of {shape!r:.80}")
        key = chunk_key(self.zarr_format)
        return ParsedArray(shape, np.dtype(dtype), difference.chunks, key, [BLOCKS_ID])

    def _locate(
        self, chunk_format: Format, path: str, array: ParsedArray, index: ChunkIndex
    ) -> Located:
        return Located(chunk_format, self._storage, f"{path}/{array.key(index)}")

    def _format_of(self, codecs: list[str]) -> Format | None:
        """Return how chunks are stored, or None if only zarr can read them."""
        if codecs == [BLOCKS_ID]:
            return self._frames
        if codecs[:1] != ["bytes"]:
            return None
        return next((found for names, found in self._formats if names == codecs[1:]), None)

    def _document(self, path: str) -> dict[str, Any]:
        """Return the metadata of an array, in format 2 with its attributes."""
        self._check_path(path)
        if path not in self._documents:
            self._documents[path] = self._fetch(path)
        document = self._documents[path]
        if document is None:
            name = ARRAY_DOCUMENTS[self.zarr_format][0]
            check_refusals(self.where, self._storage, f"{path}/{name}")
            is_group = self._storage.read(f"{path}/.zgroup") is not None
            what = "is a group, not an array" if is_group else "is missing"
            raise StoreError(advised(f"{self.where}: array {path!r:.300} {what}"))
        if not isinstance(document, dict):
            raise StoreError(f"{self.where}: metadata of array {path!r:.300} are not a JSON object")
        return document

    def _check_path(self, path: str) -> None:
        # Keys are made from the path, which must not lead out of the store.
        if leads_elsewhere(path):
            raise StoreError(f"{self.where}: {path!r:.80} is not a path in the store")

    def _fetch(self, path: str) -> dict[str, Any] | None:
        if self.zarr_format == 3:
            return read_json(self.where, self._storage, f"{path}/zarr.json")
        document = read_json(self.where, self._storage, f"{path}/.zarray")
        if document is not None:
            document["attributes"] = read_json(self.where, self._storage, f"{path}/.zattrs")
        return document
