"""Recognition of what PyTorch saved. Conversions of all other sources run it, too."""

from __future__ import annotations

import zipfile
from functools import partial

from bf16codecs.convert.places import Place
from bf16codecs.store.kinds import PYTORCH_INDEX_SUFFIX, PYTORCH_SUFFIXES, suffix_of

__all__ = [
    "MAGIC_NUMBER",
    "METADATA",
    "PICKLE_START",
    "RECORD",
    "ZIP_START",
    "is_checkpoint",
    "is_pytorch_file",
    "models_in",
]

#: The metadata of a checkpoint of several processes.
METADATA = ".metadata"
#: The first bytes of a ZIP file, and the end of the name of the pickle in it.
ZIP_START = b"PK\x03\x04"
RECORD = "/data.pkl"
#: The first byte of a pickle of protocol 2 or later; PyTorch writes no other.
PICKLE_START = b"\x80"
#: The number that the older form begins with.
MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
# Its pickle, of the second protocol, and of later ones.
_OLDER_STARTS = tuple(
    bytes([0x80, protocol]) + prefix + b"\x8a\x0a" + MAGIC_NUMBER.to_bytes(10, "little") + b"."
    for protocol, prefix in ((2, b""), (3, b""), *((p, b"\x95\x0d" + bytes(7)) for p in (4, 5)))
)
_START_BYTES = 512
_PART_SUFFIX = ".distcp"


def is_pytorch_file(place: Place, name: str) -> bool:
    """Return whether `torch.save` may have written a file."""
    start = place.begins(name, _START_BYTES)
    if start.startswith(_OLDER_STARTS):
        return True
    if not start.startswith(ZIP_START):
        return False
    try:
        with (
            place.open(name) as file,
            zipfile.ZipFile(file.as_file(0, file.size)) as archive,
        ):
            return any(member.endswith(RECORD) for member in archive.namelist())
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError):
        return RECORD.encode() in start  # cut short: its first member's name


def models_in(place: Place) -> list[str]:
    """Return the indexes, or else the files of `torch.save`, in a folder without other models."""
    names = [name for name in place.names() if not name.startswith(".")]
    # transformers puts training_args.bin beside a model of any kind.
    if any(suffix_of(name.rstrip("/"))[1] is not None for name in names):
        return []
    indexes = [name for name in names if name.endswith(PYTORCH_INDEX_SUFFIX)]
    if indexes:
        return indexes
    found = [name for name in names if name.lower().endswith(PYTORCH_SUFFIXES)]
    are_saved = place.each(partial(is_pytorch_file, place), found)
    return [name for name, is_saved in zip(found, are_saved, strict=True) if is_saved]


def is_checkpoint(place: Place) -> bool:
    """Return whether a place is a checkpoint of `torch.distributed.checkpoint`."""
    if place.name:
        return False
    names = place.names()
    has_others = any(name.endswith(".safetensors") for name in names)
    has_parts = any(name.endswith(_PART_SUFFIX) for name in names)
    return has_parts and (METADATA in names or not has_others)
