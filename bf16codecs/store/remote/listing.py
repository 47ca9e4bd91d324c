"""What the keys of a store take, as servers list them: not one request for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from zarr.abc.store import Store
from zarr.storage import FsspecStore, ObjectStore

from bf16codecs.store.remote.reopening import ReopeningStore

__all__ = ["folder_sizes", "listed_sizes"]


async def listed_sizes(store: Store) -> dict[str, int] | None:
    """Ask for the sizes of all keys of a store; None if its server does not list them."""
    store = store.current if isinstance(store, ReopeningStore) else store
    try:
        if isinstance(store, ObjectStore):
            return await _listed_by_obstore(store) or None
        # Web servers have pages for people, if any, without sizes.
        if isinstance(store, FsspecStore) and "http" not in store.fs.protocol:
            return await _listed_by_fsspec(store.fs, store.path) or None
    except Exception:  # of any package: a server that has no lists, or no right to see them
        return None
    return None


async def _listed_by_fsspec(fs: Any, root: str) -> dict[str, int]:
    root = fs._strip_protocol(root).rstrip("/")
    try:
        found = await fs._find(root, detail=True)
    finally:
        fs.invalidate_cache()  # or sizes are still these when somebody has replaced the store
    return {key.removeprefix(f"{root}/"): int(info["size"]) for key, info in found.items()}


async def _listed_by_obstore(store: ObjectStore[Any]) -> dict[str, int]:
    import obstore

    sizes: dict[str, int] = {}
    async for batch in obstore.list(store.store):
        sizes |= {meta["path"]: meta["size"] for meta in batch}
    return sizes


def folder_sizes(sizes: Mapping[str, int]) -> dict[str, int]:
    """Return what there is below each folder, that of all being ""."""
    folders = Counter({"": 0})
    for key, size in sizes.items():
        while key:
            key = key.rpartition("/")[0]
            folders[key] += size
    return folders
