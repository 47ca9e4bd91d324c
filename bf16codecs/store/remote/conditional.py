"""Requests for what may not have changed."""

from __future__ import annotations

from typing import Any

from zarr.abc.store import Store
from zarr.core.buffer import default_buffer_prototype

from bf16codecs._arrays.http import largest_body
from bf16codecs._base.limits import MAX_METADATA_BYTES, check_metadata
from bf16codecs.store.remote.storage import ask

__all__ = ["get_if_changed"]

#: What a server calls a version of a document, and the document; "" if it has no name for it.
Seen = tuple[str, bytes]

_GONE, _UNCHANGED = (404, 410), 304


def get_if_changed(store: Store, key: str, seen: Seen | None) -> Seen | None:
    """Return a document; `seen` itself if it is the same, and None if it does not exist.

    Web servers are asked for another version than the one that was seen. Others send it again.
    """
    return ask(_get_if_changed, store, key, seen)


async def _get_if_changed(store: Any, key: str, seen: Seen | None) -> Seen | None:
    fs = getattr(store, "fs", None)
    with largest_body(MAX_METADATA_BYTES):
        if fs is not None and "http" in fs.protocol:
            return await _over_http(fs, f"{store.path}/{key}", seen)
        found = await store.get(key, default_buffer_prototype())
    if found is None:
        return None
    document = found.to_bytes()
    return seen if seen is not None and seen[1] == document else ("", document)


async def _over_http(fs: Any, url: str, seen: Seen | None) -> Seen | None:
    session = await fs.set_session()
    given = dict(fs.kwargs)
    headers = dict(given.pop("headers", {}))
    if seen is not None and seen[0]:
        headers["If-None-Match"] = seen[0]
    # A cache on the way may keep a document for as long as it likes, unless it is asked not to.
    headers["Cache-Control"] = "no-cache"
    async with session.get(fs.encode_url(url), headers=headers, **given) as reply:
        if reply.status == _UNCHANGED:
            return seen
        if reply.status in _GONE:
            return None
        fs._raise_not_found_for_status(reply, url)
        document = await reply.read()
        check_metadata(len(document))
        if seen is not None and seen[1] == document:  # of a server without ETags
            return seen
        return reply.headers.get("ETag", ""), document
