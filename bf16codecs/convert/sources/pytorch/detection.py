"""Recognition of what PyTorch saved. Conversions of all other sources run it, too."""

from __future__ import annotations

import zipfile
from pathlib import Path

__all__ = [
    "INDEX_SUFFIX",
    "MAGIC_NUMBER",
    "METADATA",
    "RECORD",
    "ZIP_START",
    "is_checkpoint",
    "is_pytorch_file",
    "models_in",
]

#: The end of the name of an index.
INDEX_SUFFIX = ".bin.index.json"
#: The metadata of a checkpoint of several processes.
METADATA = ".metadata"
#: The first bytes of a ZIP file, and the end of the name of the pickle in it.
ZIP_START = b"PK\x03\x04"
RECORD = "/data.pkl"
#: The number that the older form begins with.
MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
# Its pickle, of the second protocol, and of later ones.
_OLDER_STARTS = tuple(
    bytes([0x80, protocol]) + prefix + b"\x8a\x0a" + MAGIC_NUMBER.to_bytes(10, "little") + b"."
    for protocol, prefix in ((2, b""), (3, b""), *((p, b"\x95\x0d" + bytes(7)) for p in (4, 5)))
)
_START_BYTES = 512
_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
_PART_SUFFIX = ".distcp"


def is_pytorch_file(path: Path) -> bool:
    """Return whether `torch.save` may have written a file."""
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        start = file.read(_START_BYTES)
    if start.startswith(_OLDER_STARTS):
        return True
    if not start.startswith(ZIP_START):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith(RECORD) for name in archive.namelist())
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError):
        return RECORD.encode() in start  # cut short: its first member's name


def models_in(folder: Path) -> list[str]:
    """Return the indexes, or else the files of `torch.save`, in a folder without safetensors."""
    names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    if any(name.endswith(".safetensors") for name in names):
        return []
    indexes = [name for name in names if name.endswith(INDEX_SUFFIX)]
    return indexes or [
        name for name in names if name.endswith(_SUFFIXES) and is_pytorch_file(folder / name)
    ]


def is_checkpoint(folder: Path) -> bool:
    """Return whether a folder is a checkpoint of `torch.distributed.checkpoint`."""
    if not (folder / METADATA).is_file():
        return False
    return any(entry.suffix == _PART_SUFFIX for entry in folder.iterdir())
