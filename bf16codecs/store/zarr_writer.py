"""Writes the model store in Zarr.

zarr-python makes the metadata of arrays; this module writes the metadata and the chunks: zarr's
own writing takes 1 ms for each small array and copies each chunk several times. The store is what
zarr would have written; tests compare the two.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import threading
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import zarr
from numcodecs.abc import Codec
from numpy.typing import NDArray
from zarr.codecs import ZstdCodec
from zarr.storage import MemoryStore

from bf16codecs._chunks.grid import ArrayPlan, Piece
from bf16codecs._files import write_all
from bf16codecs._sync import sync
from bf16codecs.codecs import FrameCodec
from bf16codecs.store.choice import CodecChoice
from bf16codecs.store.layout import StoreInfo
from bf16codecs.zarr.blocks import BF16BlocksCodec

__all__ = ["ChunkWriter", "ZarrWriter"]


class _Sink(Protocol):
    """Where keys are written, by several threads."""

    def put(self, key: str, data: Any) -> None: ...

    def close(self) -> None: ...


class _Folder:
    """Keys as files in a folder."""

    def __init__(self, path: Path) -> None:
        self._root = path
        path.mkdir()

    def put(self, key: str, data: Any) -> None:
        _make_folder(self._root, os.path.dirname(key))
        _write_file(os.path.join(self._root, key), data)

    def shared(self, flush: bool) -> _SharedFolder:
        """Return this folder for other processes to write keys to, until it is closed."""
        (self._root / _SharedFolder.UNFINISHED).mkdir(exist_ok=True)
        return _SharedFolder(self._root, flush)

    def close(self) -> None:
        unfinished = self._root / _SharedFolder.UNFINISHED
        if unfinished.exists():
            # Renamed in one step: from now on no process can write a key.
            revoked = unfinished.rename(unfinished.with_name(".revoked"))
            shutil.rmtree(revoked)


class _SharedFolder:
    """Keys as files in a folder, written by processes that may die or be abandoned."""

    UNFINISHED = ".unfinished"

    def __init__(self, root: Path, flush: bool) -> None:
        self._root, self._flush = root, flush

    def put(self, key: str, data: Any) -> None:
        # A file gets its name when it is complete. Once the folder of unfinished files is gone the
        # store is finished, and a process that still writes does no harm.
        unfinished = os.path.join(self._root, self.UNFINISHED, secrets.token_hex(8))
        _write_file(unfinished, data)
        if self._flush:
            # Here, since no other machine can: it has nothing of the file in its memory.
            sync(unfinished)
        _make_folder(self._root, os.path.dirname(key))
        os.replace(unfinished, os.path.join(self._root, key))

    def close(self) -> None:
        pass


def _make_folder(root: Path, path: str) -> None:
    """Make a folder below the root, and those above it.

    Never the root itself: if that is gone, somebody has moved it, and what was written with it.
    """
    if not path:
        return
    whole = os.path.join(root, path)
    with suppress(FileExistsError):
        try:
            os.mkdir(whole)
        except FileNotFoundError:
            _make_folder(root, os.path.dirname(path))
            os.mkdir(whole)


def _write_file(path: str, data: Any) -> None:
    with open(path, "wb", buffering=0) as file:
        write_all(file, data)


class _Zip:
    """Keys as the uncompressed members of a ZIP file."""

    def __init__(self, path: Path) -> None:
        self._zip = zipfile.ZipFile(path, "x", zipfile.ZIP_STORED)
        self._lock = threading.Lock()

    def put(self, key: str, data: Any) -> None:
        # ZipInfo's default date is constant: with one thread, equal stores make equal files.
        member = zipfile.ZipInfo(key)
        member.file_size = len(data)
        member.external_attr = 0o644 << 16
        with self._lock, self._zip.open(member, "w") as file:
            file.write(data)

    def close(self) -> None:
        with self._lock:
            self._zip.close()


class ChunkWriter:
    """Encodes and writes chunks; it may be sent to another process if its sink may.

    Parameters
    ----------
    choice
        The codec.
    zarr_format
        2 or 3.
    sink
        Where chunks are put.
    """

    def __init__(self, choice: CodecChoice, zarr_format: int, sink: _Sink) -> None:
        self._choice = choice
        self._format = zarr_format
        self._sink = sink
        self._codecs: dict[str, Codec | None] = {}

    def codec(self, dtype: str) -> Codec | None:
        """Return the codec of arrays of a data type."""
        if dtype not in self._codecs:
            self._codecs[dtype] = self._choice.for_dtype(dtype)
        return self._codecs[dtype]

    def write(self, piece: Piece, chunk: NDArray[np.uint8]) -> int:
        """Encode and write a whole chunk, and return its stored size."""
        codec = self.codec(piece.array.dtype)
        try:
            data = chunk if codec is None else codec.encode(chunk)
        except RuntimeError as e:  # Zstandard's, which has no other reason to fail
            raise MemoryError(str(e)) from e
        self._sink.put(f"{piece.array.path}/{self._chunk_key(piece.index)}", data)
        return len(data)

    def _chunk_key(self, index: tuple[int, ...]) -> str:
        if self._format == 3:
            return ".".join(["c", *map(str, index)])
        return ".".join(map(str, index)) or "0"


class ZarrWriter:
    """Writes a model store into a new folder or ZIP file.

    Parameters
    ----------
    path
        What to create; it must not exist.
    choice
        The codec.
    zarr_format
        2 or 3.
    as_zip
        Write a ZIP file.
    sync_shared
        Let other processes flush each chunk that they write. This process's are not flushed here.
    """

    def __init__(
        self,
        path: Path,
        choice: CodecChoice,
        zarr_format: int,
        as_zip: bool,
        sync_shared: bool = False,
    ) -> None:
        self._choice = choice
        self._sync_shared = sync_shared
        self._format = zarr_format
        self._templates: dict[Any, dict[str, Any]] = {}
        #: Metadata documents of arrays by path and name, written at the end with the groups'.
        self._arrays: dict[str, dict[str, Any]] = {}
        self._sink: _Zip | _Folder = (_Zip if as_zip else _Folder)(path)
        self._chunks = ChunkWriter(choice, zarr_format, self._sink)

    def create(self, array: ArrayPlan) -> None:
        """Prepare an array."""
        # Layers repeat: a model has few distinct shapes.
        key = (array.dtype, array.shape, array.chunks)
        if key not in self._templates:
            self._templates[key] = self._make_documents(array)
        documents = dict(self._templates[key])
        if self._format == 3:
            documents["zarr.json"] = {**documents["zarr.json"], "attributes": array.attributes}
        else:
            documents[".zattrs"] = {
                "_ARRAY_DIMENSIONS": array.dimension_names,
                **array.attributes,
            }
        self._arrays[array.path] = documents

    def _make_documents(self, array: ArrayPlan) -> dict[str, Any]:
        """Let zarr make an array's metadata."""
        codec = self._chunks.codec(array.dtype)
        options: dict[str, Any] = {"compressors": codec, "chunk_key_encoding": {"name": "v2"}}
        if self._format == 3:
            options["chunk_key_encoding"] = {"name": "default", "separator": "."}
            options["dimension_names"] = array.dimension_names
            if isinstance(codec, FrameCodec):
                options.update(serializer=BF16BlocksCodec(codec), compressors=None)
            elif codec is not None:
                options["compressors"] = ZstdCodec(level=codec.level, checksum=codec.checksum)
        store = MemoryStore()
        zarr.create_array(
            store,
            shape=array.shape,
            chunks=array.chunks,
            dtype=array.dtype,
            fill_value=array.fill_value,
            zarr_format=self._format,  # type: ignore[arg-type]
            **options,
        )
        return {k: json.loads(v.to_bytes()) for k, v in store._store_dict.items()}

    def write(self, piece: Piece, chunk: NDArray[np.uint8]) -> int:
        """Encode and write a whole chunk, and return its stored size."""
        return self._chunks.write(piece, chunk)

    def shared(self) -> ChunkWriter:
        """Return a writer of chunks for other processes, valid until the store is finished."""
        if isinstance(self._sink, _Zip):
            raise ValueError(
                "several processes cannot write one ZIP file; use a folder as the target"
            )
        return ChunkWriter(self._choice, self._format, self._sink.shared(self._sync_shared))

    def finish(self, info: StoreInfo) -> int:
        """Write all metadata, close the store, and return the metadata's size."""
        size = 0
        nodes = {**{path: self._group({}) for path in self._group_paths()}, **self._arrays}
        for path, documents in nodes.items():
            for name, document in documents.items():
                size += self._put_json(f"{path}/{name}", document)
        root = self._group(info.to_attributes())
        ordered = dict(sorted(nodes.items(), key=lambda n: (n[0].count("/"), n[0].casefold())))
        if self._format == 3:
            root["zarr.json"]["consolidated_metadata"] = _consolidated_v3(ordered)
        else:
            root[".zmetadata"] = _consolidated_v2(root, ordered)
        for name, document in root.items():
            size += self._put_json(name, document)
        self._sink.close()
        return size

    def close(self) -> None:
        """Release what is open."""
        self._sink.close()

    def _put_json(self, key: str, document: Mapping[str, Any]) -> int:
        # Without the indentation that zarr writes, which doubles the size.
        data = json.dumps(document, separators=(",", ":")).encode()
        self._sink.put(key, data)
        return len(data)

    def _group_paths(self) -> list[str]:
        paths = set()
        for path in self._arrays:
            while (path := path.rpartition("/")[0]) and path not in paths:
                paths.add(path)
        return sorted(paths)

    def _group(self, attributes: dict[str, Any]) -> dict[str, dict[str, Any]]:
        if self._format == 3:
            return {"zarr.json": {"attributes": attributes, "zarr_format": 3, "node_type": "group"}}
        return {".zgroup": {"zarr_format": 2}, ".zattrs": attributes}


# Only the root lists members: a group's own entry repeats none.
_NO_MEMBERS = {"kind": "inline", "must_understand": False, "metadata": {}}


def _consolidated_v3(nodes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    metadata = {}
    for path, documents in nodes.items():
        node = documents["zarr.json"]
        if node["node_type"] == "group":
            node = {**node, "consolidated_metadata": _NO_MEMBERS}
        metadata[path] = node
    return {**_NO_MEMBERS, "metadata": metadata}


def _consolidated_v2(
    root: Mapping[str, Any], nodes: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    metadata = dict(root)
    for path, documents in nodes.items():
        for name, document in documents.items():
            if name == ".zgroup":
                document = {**document, "consolidated_metadata": _NO_MEMBERS}
            metadata[f"{path}/{name}"] = document
    return {"metadata": metadata, "zarr_consolidated_format": 1}
