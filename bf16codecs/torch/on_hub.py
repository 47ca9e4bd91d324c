"""Packed folders on a hub of Hugging Face: the weights are read there, and the rest is fetched."""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bf16codecs.errors import StoreError
from bf16codecs.store.kinds import STORE_SUFFIXES

__all__ = ["CONFIG", "packed_on_hub"]

#: The name of a configuration.
CONFIG = "config.json"
# Configurations and code are smaller; tokenizers, which no model needs, may be larger.
_MOST_BYTES = 1 << 20


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
    # A store in a folder has a file below it.
    there = [s for s in stores if any(n == s or n.startswith(f"{s}/") for n in place.sizes)]
    if not there:
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
    return f"{place.fixed.rstrip('/')}/{there[0]}", folder
