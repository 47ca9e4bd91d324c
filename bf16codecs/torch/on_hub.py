"""Packed folders on a hub of Hugging Face: the weights are read there, and the rest is fetched."""

from __future__ import annotations

import errno
import os
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from bf16codecs.errors import StoreError
from bf16codecs.store.kinds import STORE_SUFFIXES

if TYPE_CHECKING:
    from bf16codecs.store.remote.hub import HubPlace

__all__ = ["CONFIG", "packed_on_hub", "store_on_hub"]

#: The name of a configuration.
CONFIG = "config.json"
# Configurations and code are smaller; tokenizers, which no model needs, may be larger.
_MOST_BYTES = 1 << 20
# A repository's name with its owner, and a folder of it in huggingface_hub's cache.
_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_CACHED = re.compile(
    r".*/models--(?P<owner>[\w.-]+?)--(?P<name>[\w.-]+)"
    r"/snapshots/(?P<commit>[0-9a-f]{40})(/(?P<folder>.*))?"
)


def packed_on_hub(
    address: str, storage_options: Mapping[str, Any] | None, subfolder: str, variant: str | None
) -> tuple[str, Path]:
    """Return the address of a packed folder's store, and a folder with its configuration and code.

    Raises StoreError if the folder has no store of a model, FileNotFoundError if it has no
    configuration, and OSError if the hub fails.
    """
    # zarr is imported only for addresses.
    from bf16codecs.store.remote.hub import find_on_hub

    place = find_on_hub(address, storage_options or {})
    stem = "model" if variant is None else f"model.{variant}"
    stores = [posixpath.join(subfolder, f"{stem}{suffix}") for suffix in STORE_SUFFIXES]
    store = _first_of(stores, place)
    if store is None:
        raise StoreError(
            f"{address}: no store of a model in it: neither {' nor '.join(stores)}; of a store by"
            " another name, give its own address, and config="
        )
    config = posixpath.join(subfolder, CONFIG)
    if config not in place.sizes:
        raise FileNotFoundError(errno.ENOENT, f"No {config} in it: give config=", address)
    for name, size in place.sizes.items():
        is_beside = posixpath.dirname(name) in ("", posixpath.normpath(subfolder))
        if is_beside and name.endswith((".json", ".py")) and size <= _MOST_BYTES:
            place.fetch(name)
    folder = place.fetch(config).parents[len(Path(config).parts) - 1]
    return store, folder


def store_on_hub(
    name: Any, revision: str | None, stores: Iterable[Path], token: Any
) -> tuple[str, dict[str, Any]] | None:
    """Return the address of the first store that a repository has, and options of `open_model`.

    None is returned if it has none of them, the hub cannot be asked, or `name` is not that of a
    repository. A folder in huggingface_hub's cache stands for what it was downloaded from.
    """
    names = [store.as_posix() for store in stores]
    if cached := _CACHED.fullmatch(Path(name).as_posix()):
        name, revision = f"{cached['owner']}/{cached['name']}", cached["commit"]
        names = [posixpath.join(cached["folder"] or "", store) for store in names]
    elif os.path.lexists(name):  # a folder on this disk, which lacks a store
        return None
    if not names or not _NAME.fullmatch(str(name)):
        return None
    from bf16codecs.store.remote.hub import find_on_hub

    options = {} if token is None else {"token": token}
    at = "" if revision is None else f"@{quote(revision, safe='')}"
    try:
        place = find_on_hub(f"hf://{name}{at}", options)
    except (ImportError, OSError, StoreError):
        return None
    store = _first_of(names, place)
    return None if store is None else (store, {"storage_options": options})


def _first_of(stores: Sequence[str], place: HubPlace) -> str | None:
    """Return the address of the first store that is there; None if there is none."""
    # A store in a folder has a file below it.
    there = (s for s in stores if any(n == s or n.startswith(f"{s}/") for n in place.sizes))
    store = next(there, None)
    return None if store is None else f"{place.fixed.rstrip('/')}/{store}"
