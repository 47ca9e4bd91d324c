"""Metadata documents of a Zarr store, as zarr would write them.

zarr itself takes longer to be imported than a conversion of 500 MB takes; tests compare the two.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numcodecs.abc import Codec

from bf16codecs import _core
from bf16codecs._arrays.grid import ArrayPlan
from bf16codecs._arrays.storage import KeyStorage
from bf16codecs._base.messages import damaged, one_line
from bf16codecs._base.names import BLOCKS_ID
from bf16codecs.codecs import FrameCodec
from bf16codecs.errors import StoreError
from bf16codecs.store.delta import DeltaChain
from bf16codecs.store.zarr.metadata import COPIES, DEFAULT_KEYS, read_json

__all__ = ["ZarrDocuments", "array_documents", "as_json", "parse_copies", "read_copies"]


def as_json(document: Mapping[str, Any]) -> bytes:
    """Return a document's text, without the indentation that zarr writes: that doubles the size."""
    return json.dumps(document, separators=(",", ":")).encode()


class ZarrDocuments:
    """The metadata of a store's arrays and groups."""

    def __init__(self, zarr_format: int, encoding: str = DEFAULT_KEYS) -> None:
        self._format, self._encoding = zarr_format, encoding
        self._templates: dict[Any, dict[str, Any]] = {}
        #: Documents of arrays, by path and name.
        self._arrays: dict[str, dict[str, Any]] = {}

    def add(self, array: ArrayPlan, codec: Codec | DeltaChain | None) -> None:
        """Add an array."""
        # Layers repeat: a model has few distinct shapes.
        key = (type(array), array.dtype, array.shape, array.chunks, array.level)
        if key not in self._templates:
            self._templates[key] = array_documents(array, codec, self._format, self._encoding)
        documents = dict(self._templates[key])
        if self._format == 3:
            documents["zarr.json"] = {**documents["zarr.json"], "attributes": array.attributes}
        else:
            documents[".zattrs"] = {
                "_ARRAY_DIMENSIONS": array.dimension_names,
                **array.attributes,
            }
        self._arrays[array.path] = documents

    def drop(self, path: str) -> None:
        """Take an array out again, if there is one."""
        self._arrays.pop(path, None)

    def take(self, nodes: Mapping[str, dict[str, dict[str, Any]]]) -> dict[str, bytes]:
        """Add the arrays of an existing store, and return all its keys and their contents."""
        for path, documents in nodes.items():
            if ".zarray" in documents or documents.get("zarr.json", {}).get("node_type") == "array":
                self._arrays[path] = documents
        return {
            f"{path}/{name}": as_json(document)
            for path, documents in nodes.items()
            for name, document in documents.items()
        }

    def extend(self, path: str, length: int) -> None:
        """Let the first axis of an array have another length."""
        name = "zarr.json" if self._format == 3 else ".zarray"
        documents = self._arrays[path]
        shape = [length, *documents[name]["shape"][1:]]
        self._arrays[path] = {**documents, name: {**documents[name], "shape": shape}}

    def keys(self, attributes: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
        """Yield all keys and what they hold, those of the root with these attributes last."""
        nodes = {**{path: self._group({}) for path in self._group_paths()}, **self._arrays}
        for path, documents in nodes.items():
            for name, document in documents.items():
                yield f"{path}/{name}", as_json(document)
        root = self._group(attributes)
        ordered = dict(sorted(nodes.items(), key=lambda n: (n[0].count("/"), n[0].casefold())))
        if self._format == 3:
            root["zarr.json"]["consolidated_metadata"] = _consolidated_v3(ordered)
        else:
            root[".zmetadata"] = _consolidated_v2(root, ordered)
        for name, document in root.items():
            yield name, as_json(document)

    def _group_paths(self) -> list[str]:
        paths = set()
        for path in self._arrays:
            while (path := path.rpartition("/")[0]) and path not in paths:
                paths.add(path)
        return sorted(paths)

    def _group(self, attributes: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        if self._format == 3:
            return {"zarr.json": {"attributes": attributes, "zarr_format": 3, "node_type": "group"}}
        return {".zgroup": {"zarr_format": 2}, ".zattrs": dict(attributes)}


def parse_copies(
    where: str, zarr_format: int, content: Any
) -> tuple[dict[str, Any], dict[str, dict[str, dict[str, Any]]]]:
    """Return a root's attributes, and documents below it by path and name, from its `COPIES`."""
    try:
        if zarr_format == 3:
            return dict(content["attributes"]), _nodes_v3(content)
        return dict(content["metadata"][".zattrs"]), _nodes_v2(content)
    except (KeyError, TypeError, AttributeError, ValueError) as e:
        why = e if isinstance(e, KeyError) else one_line(e)
        raise StoreError(f"{where}: {damaged(why, 'damaged consolidated metadata')}") from e


def read_copies(
    where: str, storage: KeyStorage, zarr_format: int
) -> tuple[dict[str, Any], dict[str, dict[str, dict[str, Any]]]]:
    """Read what `parse_copies` returns; nothing if the store is not there yet."""
    content = read_json(where, storage, COPIES[zarr_format])
    return ({}, {}) if content is None else parse_copies(where, zarr_format, content)


def _nodes_v3(content: Any) -> dict[str, dict[str, dict[str, Any]]]:
    nodes = {}
    for path, node in content["consolidated_metadata"]["metadata"].items():
        if node["node_type"] != "array":
            node = _without_members(node)
        nodes[path] = {"zarr.json": node}
    return nodes


def _nodes_v2(content: Any) -> dict[str, dict[str, dict[str, Any]]]:
    nodes: dict[str, dict[str, dict[str, Any]]] = {}
    for key, member in content["metadata"].items():
        path, _, name = key.rpartition("/")
        if path:
            nodes.setdefault(path, {})[name] = _without_members(member)
    return nodes


def _without_members(document: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key != "consolidated_metadata"}


# Only the root lists members: the entry of a group repeats none.
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


def array_documents(
    array: ArrayPlan,
    codec: Codec | DeltaChain | None,
    zarr_format: int,
    encoding: str = DEFAULT_KEYS,
) -> dict[str, Any]:
    """Return the metadata of an array by the names of their files, without attributes.

    The only codec that is not of this package is numcodecs' Zstandard. `encoding` is that of the
    keys of chunks, in format 3.
    """
    if zarr_format == 2:
        return {".zarray": _format_2(array, codec), ".zattrs": {}}
    return {"zarr.json": _format_3(array, codec, encoding)}


def _format_3(array: ArrayPlan, codec: Codec | DeltaChain | None, encoding: str) -> dict[str, Any]:
    document = {
        "shape": list(array.shape),
        "data_type": array.dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(array.chunks)}},
        "chunk_key_encoding": {"name": encoding, "configuration": {"separator": "."}},
        "fill_value": _fill_value(array),
        "codecs": _codecs(array, codec),
        "attributes": {},
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    }
    if array.dimension_names:
        document["dimension_names"] = array.dimension_names
    return document


def _codecs(array: ArrayPlan, codec: Codec | DeltaChain | None) -> list[dict[str, Any]]:
    if isinstance(codec, FrameCodec):
        return [{"name": BLOCKS_ID, "configuration": {"codec": dict(codec)}}]
    items: dict[str, Any] = {"name": "bytes"}
    if array.item_size > 1:
        items["configuration"] = {"endian": "little"}
    if codec is None:
        return [items]
    if isinstance(codec, DeltaChain):
        return [items, *codec.format_3()]
    zstd = {"level": codec.level, "checksum": codec.checksum}
    return [items, {"name": "zstd", "configuration": zstd}]


def _format_2(array: ArrayPlan, codec: Codec | DeltaChain | None) -> dict[str, Any]:
    filters, compressor = codec.format_2() if isinstance(codec, DeltaChain) else (None, codec)
    dtype = np.dtype(array.dtype)
    return {
        "shape": list(array.shape),
        "chunks": list(array.chunks),
        # NumPy names the data types of ml_dtypes by their size alone.
        "dtype": dtype.newbyteorder("<").str if dtype.isbuiltin == 1 else array.dtype,
        "fill_value": _fill_value(array),
        "order": "C",
        "filters": None if filters is None else [each.get_config() for each in filters],
        "dimension_separator": ".",
        "compressor": None if compressor is None else _compressor(compressor),
        "zarr_format": 2,
    }


def _compressor(codec: Codec) -> dict[str, Any]:
    config: dict[str, Any] = codec.get_config()
    if config["id"] == "zstd" and not config["checksum"]:
        del config["checksum"]  # a key that other libraries do not know
    return config


def _fill_value(array: ArrayPlan) -> Any:
    """Return the fill value as JSON, which has no NaN."""
    if np.dtype(array.dtype).kind == "c":
        return ["NaN", "NaN"]
    return "NaN" if array.dtype in _core.DTYPES else array.fill_value.item()
