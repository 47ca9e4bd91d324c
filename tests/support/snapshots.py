"""Folders as huggingface_hub downloads them: files are links to files beside all snapshots."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def snapshot_of(source: Path, root: Path) -> Path:
    """Return a file or a folder as a part of a snapshot, in a repository's folder in the cache."""
    blobs, snapshot = root / "blobs", root / "snapshots" / ("0" * 40)
    blobs.mkdir(parents=True)
    for path in [source, *sorted(source.rglob("*"))]:
        link = snapshot / path.relative_to(source.parent)
        if path.is_dir():
            link.mkdir(parents=True, exist_ok=True)
            continue
        content = path.read_bytes()
        blob = blobs / hashlib.sha256(content).hexdigest()
        blob.write_bytes(content)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return snapshot / source.name
