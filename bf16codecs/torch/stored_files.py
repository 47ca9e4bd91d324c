"""Safetensors files in one store, or each in its own store, as transformers loads them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bf16codecs.convert.checks import stored_index
from bf16codecs.errors import SafetensorsError
from bf16codecs.model.model import Model, open_model
from bf16codecs.safetensors import read_index
from bf16codecs.store.kinds import STORE_SUFFIXES
from bf16codecs.torch.tensors import TORCH_DTYPES

__all__ = ["FileInStore", "Files", "ShardIndex", "all_in", "files_in", "files_in_each"]


@dataclass(frozen=True)
class ShardIndex:
    """An index as transformers reads it."""

    #: The files that it names, in the order in which they are loaded: if several have a tensor, the
    #: last one counts.
    files: list[Path]
    #: The tensors that it lists.
    names: list[str]
    metadata: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> ShardIndex | None:
        """Read an index; return None if it is invalid, or names files in other folders."""
        # Not by this package's `weight_map`, which refuses indexes that transformers reads: in
        # UTF-16, or with a repeated key, NaN, a number out of range, or half of a surrogate pair.
        try:
            document = json.loads(read_index(path))
            weight_map, metadata = document["weight_map"], document.get("metadata")
            files = sorted(set(weight_map.values()))
            leads_out = any(os.path.isabs(name) or ".." in Path(name).parts for name in files)
        except (AttributeError, KeyError, RecursionError, SafetensorsError, TypeError, ValueError):
            return None
        if leads_out:
            return None
        metadata = metadata if isinstance(metadata, dict) else {}
        return cls([path.parent / name for name in files], list(weight_map), metadata)

    @property
    def has_files(self) -> bool:
        """Whether any of its files exists: otherwise they are in stores, or the index is a remnant.

        Files in other formats do not count, since packing keeps them.
        """
        return any(file.suffix == ".safetensors" and file.is_file() for file in self.files)

    def stores(self) -> list[Path]:
        """Return the stores to read instead of the files; an empty list if one is missing."""
        stores = [_store_of(file) for file in self.files]
        return [] if None in stores else [store for store in stores if store is not None]


def _store_of(file: Path) -> Path | None:
    stem = file.name.removesuffix(".safetensors")
    stores = (file.with_name(f"{stem}{suffix}") for suffix in STORE_SUFFIXES)
    return next((store for store in stores if store.exists()), None)


class FileInStore(str):
    """A stand-in for a safetensors file in a store.

    Its text is not a path: transformers itself opens names that end in ``.safetensors``.
    """

    #: The store, which is open until the last of its files and of their tensors is deleted.
    model: Model
    #: The file's tensors, as `safetensors.safe_open` lists them: unless it is stated, the model's
    #: dtype is the first floating one in this order.
    names: list[str]
    metadata: Mapping[str, str]

    def __new__(
        cls, model: Model, name: str, tensors: Iterable[str], metadata: Mapping[str, str]
    ) -> FileInStore:
        """Make the stand-in of a file."""
        file = super().__new__(cls, f"<{model.where}/{name}>")
        file.model, file.names, file.metadata = model, sorted(tensors), metadata
        return file

    def slices(self) -> dict[str, Any]:
        """Return slices of all tensors, which are read when they are indexed."""
        return {name: self.model.get_slice(name) for name in self.names}

    def load(self, device: Any) -> dict[str, torch.Tensor]:
        """Read all tensors to a device; to "meta", only their dtypes and shapes."""
        if str(device) != "meta":
            return self.model.load(names=self.names, device=device)
        tensors = {name: self.model[name] for name in self.names}
        return {
            name: torch.empty(tensor.shape, dtype=TORCH_DTYPES[tensor.get_dtype()], device="meta")
            for name, tensor in tensors.items()
        }


#: The files that transformers loads, in its order, and what it keeps of an index: the metadata, the
#: tensors that it lists, and the file of each; None without an index.
Files = tuple[list[FileInStore], dict[str, Any] | None]


def all_in(location: str, opening: Mapping[str, Any]) -> FileInStore:
    """Return all files in a store as one."""
    model = open_model(location, framework="torch", **opening)
    return FileInStore(model, "*", model, {})


def files_in(location: str, opening: Mapping[str, Any]) -> Files:
    """Return the files in a store, in the order of their names, and the entries of their index."""
    model = open_model(location, framework="torch", **opening)
    try:
        reader = model._handle.opened
        stored = zip(reader.info.files, reader.headers, strict=True)
        headers = sorted(((file.name, header) for file, header in stored), key=lambda pair: pair[0])
        files = [
            FileInStore(
                model,
                name,
                (tensor.name for tensor in header.tensors),
                header.metadata if header.has_metadata else {},
            )
            for name, header in headers
        ]
        if reader.info.index is None:
            return files, None
        index = json.loads(stored_index(reader))
    except BaseException:
        model.close()
        raise
    return files, _index_entries(files, index["weight_map"], index.get("metadata") or {})


def files_in_each(stores: Sequence[Path], index: ShardIndex, opening: Mapping[str, Any]) -> Files:
    """Return the files in several stores, in their order, and the entries of an index of them."""
    files: list[FileInStore] = []
    try:
        for store in stores:
            files += files_in(str(store), opening)[0]
    except BaseException:
        for file in files:
            file.model.close()
        raise
    return files, _index_entries(files, index.names, index.metadata)


def _index_entries(
    files: Iterable[FileInStore], names: Iterable[str], metadata: Mapping[str, Any]
) -> dict[str, Any]:
    weight_map = {name: os.path.basename(file) for file in files for name in file.names}
    return {**metadata, "all_checkpoint_keys": list(names), "weight_map": weight_map}
