"""Indexes of models whose files have a store each."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bf16codecs.errors import SafetensorsError
from bf16codecs.safetensors import read_index
from bf16codecs.store.kinds import STORE_SUFFIXES

__all__ = ["ShardIndex"]


@dataclass(frozen=True)
class ShardIndex:
    """An index as transformers reads it.

    Attributes
    ----------
    files
        The files that it names, in the order in which they are loaded: of a tensor that several
        have, the last one counts.
    names
        The tensors that it lists.
    metadata
        Its metadata.
    """

    files: list[Path]
    names: list[str]
    metadata: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> ShardIndex | None:
        """Read an index; None if it is none, or its files are elsewhere than in its folder."""
        # Not by `weight_map`, which refuses indexes that transformers reads: with a key twice, NaN,
        # a number that is out of range, half of a surrogate pair, or in UTF-16.
        try:
            document = json.loads(read_index(path))
            where, metadata = document["weight_map"], document.get("metadata")
            files = sorted(set(where.values()))
            leads_out = any(os.path.isabs(name) or ".." in Path(name).parts for name in files)
        except (AttributeError, KeyError, RecursionError, SafetensorsError, TypeError, ValueError):
            return None
        if leads_out:
            return None
        metadata = metadata if isinstance(metadata, dict) else {}
        return cls([path.parent / name for name in files], list(where), metadata)

    @property
    def is_there(self) -> bool:
        """Whether any of its files is: otherwise it was left behind, or they are in stores.

        Files in other formats are no reason: packing leaves them where they are.
        """
        return any(file.suffix == ".safetensors" and file.is_file() for file in self.files)

    def stores(self) -> list[Path]:
        """Return the stores in the places of the files; none at all where one is missing."""
        found = [_store_of(file) for file in self.files]
        return [] if None in found else [store for store in found if store is not None]


def _store_of(file: Path) -> Path | None:
    stem = file.name.removesuffix(".safetensors")
    stores = (file.with_name(f"{stem}{suffix}") for suffix in STORE_SUFFIXES)
    return next((store for store in stores if store.exists()), None)
