"""The cache of huggingface_hub, where files of a snapshot are links to files beside all snapshots.

A snapshot is `ROOT/snapshots/COMMIT`, and its files are links to `ROOT/blobs/DIGEST`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

__all__ = ["blob_of"]

_IN_SNAPSHOT = re.compile(r"(?P<root>.*)/snapshots/[0-9a-f]{40}/.*", re.DOTALL)
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def blob_of(link: Path) -> Path | None:
    """Return the file that a link in a snapshot stands for; None for any other link.

    Only a link of exactly this form counts, so a stranger's folder reaches nothing but its own
    files.
    """
    found = _IN_SNAPSHOT.fullmatch(link.as_posix())
    if found is None:
        return None
    blobs = Path(found["root"], "blobs")
    try:
        target = os.readlink(link)
    except OSError:
        return None
    blob = blobs / os.path.basename(target)
    is_usual = Path(target) == Path(os.path.relpath(blob, link.parent))
    return blob if is_usual and _DIGEST.fullmatch(blob.name) else None
