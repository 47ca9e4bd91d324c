"""Writes the model store in Zarr.

zarr-python makes the metadata of arrays, and this module writes them and the chunks itself:
zarr's own writing costs 1 ms for each small array and several copies of each chunk. What lands
in the store is what zarr would have written; tests hold the two against each other.
"""

from __future__ import annotations

import json
import os
import threading
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import zarr
from numcodecs.abc import Codec
from numpy.typing import NDArray
from zarr.codecs import ZstdCodec
from zarr.storage import MemoryStore

from bf16codecs._chunks import ArrayPlan, Piece
from bf16codecs.codecs import FrameCodec
from bf16codecs.store import CodecChoice, StoreInfo
from bf16codecs.zarr import BF16BlocksCodec

__all__ = ["ZarrWriter"]


class _Sink(Protocol):
    """Where keys are put; several threads do."""

    def put(self, key: str, data: Any) -> None: ...

    def close(self) -> None: ...


class _Folder:
    """Keys as files in a folder."""

    def __init__(self, path: Path) -> None:
        self._root = path
        path.mkdir()

    def put(self, key: str, data: Any) -> None:
        path = os.path.join(self._root, key)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]

    def close(self) -> None:
        pass


class _Zip:
    """Keys as the uncompressed members of a ZIP file."""

    def __init__(self, path: Path) -> None:
        self._zip = zipfile.ZipFile(path, "x", zipfile.ZIP_STORED)
        self._lock = threading.Lock()

    def put(self, key: str, data: Any) -> None:
        # ZipInfo's own date is a constant: equal stores become equal files.
        member = zipfile.ZipInfo(key)
        member.file_size = len(data)
        member.external_attr = 0o644 << 16
        with self._lock, self._zip.open(member, "w") as file:
            file.write(data)

    def close(self) -> None:
        with self._lock:
            self._zip.close()


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
    """

    def __init__(self, path: Path, choice: CodecChoice, zarr_format: int, as_zip: bool) -> None:
        self._choice = choice
        self._format = zarr_format
        self._codecs: dict[str, Codec | None] = {}
        self._templates: dict[Any, dict[str, Any]] = {}
        #: Metadata documents of arrays by path and name, written at the end with the groups'.
        self._arrays: dict[str, dict[str, Any]] = {}
        self._sink: _Sink = (_Zip if as_zip else _Folder)(path)

    def create(self, array: ArrayPlan) -> None:
        """Prepare an array."""
        if array.dtype not in self._codecs:
            self._codecs[array.dtype] = self._choice.for_dtype(array.dtype)
        # Layers repeat: a model has few different shapes.
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
        codec = self._codecs[array.dtype]
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
        array = piece.array
        codec = self._codecs[array.dtype]
        # As the array that zarr would hand over: a codec may look at its shape.
        data = (
            chunk if codec is None else codec.encode(chunk.view(array.dtype).reshape(array.chunks))
        )
        self._sink.put(f"{array.path}/{self._chunk_key(piece.index)}", data)
        return len(data)

    def _chunk_key(self, index: tuple[int, ...]) -> str:
        if self._format == 3:
            return ".".join(["c", *map(str, index)])
        return ".".join(map(str, index)) or "0"

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


# Of a group's members nothing is repeated in its own entry: the root's lists all.
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
