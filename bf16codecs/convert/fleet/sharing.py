"""Equal chunks of several stores, which become hard links to one file.

Frames are a function of the weights alone, so equal tensors have equal chunks. A pool of links, by
the digests of the contents, tells which chunks there are. Each store stays complete by itself.
"""

from __future__ import annotations

import errno
import filecmp
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path

from bf16codecs._files.digests import digests_of_file

__all__ = ["POOL", "prune_pool", "share_chunks"]

#: Name of the pool, in a folder above all stores.
POOL = ".bf16codecs-shared"
# A link takes room in two folders, and a block of the disk is this large.
_LEAST_BYTES = 1 << 12
_DIGEST = re.compile(r"[0-9a-f]{64}")


def share_chunks(store: Path, pool: Path) -> int:
    """Let the files of a store be those of the pool, where it has equal ones, and add the others.

    Returns how many of its bytes other stores have as well. Raises OSError if the disk has no hard
    links.
    """
    shared = 0
    for folder, _, names in os.walk(store):
        for name in names:
            path = Path(folder, name)
            size = path.stat().st_size
            if size >= _LEAST_BYTES and _share(path, pool):
                shared += size
    return shared


def _share(path: Path, pool: Path) -> bool:
    """Share a file; return whether another store has it."""
    digest = digests_of_file(path, ("blake3",)).blake3
    entry = pool / str(digest)[:2] / str(digest)
    entry.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(path, entry)
        return False
    except FileExistsError:
        pass
    except OSError as e:
        if e.errno == errno.EMLINK:
            return False
        raise OSError(e.errno, f"no hard link can be made here: {e.strerror}", str(path)) from e
    if os.path.samefile(path, entry):
        return _is_shared(entry)
    if not filecmp.cmp(path, entry, shallow=False):
        return False  # somebody has changed it
    # In the pool, where nobody takes it for a chunk if this process is killed.
    link = entry.with_name(f"{digest}.{secrets.token_hex(4)}")
    try:
        os.link(entry, link)
        os.replace(link, path)
    except OSError as e:
        if e.errno != errno.EMLINK:
            raise
        return False
    finally:
        with suppress(OSError):
            os.unlink(link)
    return _is_shared(entry)


def _is_shared(entry: Path) -> bool:
    """Return whether more than one store has an entry of the pool."""
    return entry.stat().st_nlink > 2


def prune_pool(pool: Path) -> None:
    """Remove what no store has any more, and what killed processes have left."""
    for folder in pool.glob("??"):
        for entry in folder.iterdir():
            with suppress(FileNotFoundError):
                if not _DIGEST.fullmatch(entry.name) or entry.stat().st_nlink == 1:
                    entry.unlink()
        with suppress(OSError):
            folder.rmdir()
    with suppress(OSError):
        pool.rmdir()
