"""Gives each of a test's many cases the same store to begin with."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from folders import content_of, write_files


@contextmanager
def put_back(store: Path) -> Iterator[None]:
    """Restore a store, a folder or a file, on exit."""
    content = content_of(store)
    try:
        yield
    finally:
        # A new file, so that whoever still has the old one open keeps that.
        shutil.rmtree(store) if store.is_dir() else store.unlink(missing_ok=True)
        if isinstance(content, bytes):
            store.write_bytes(content)
        else:
            write_files(content, store)
