"""Reads the objects of a checkpoint that are not tensors."""

from __future__ import annotations

import numpy as np

from bf16codecs.errors import StoreError
from bf16codecs.store.checkpoint import Checkpoint
from bf16codecs.store.reader import ModelReader

__all__ = ["read_checkpoint", "read_object", "read_parts", "sizes_of_objects"]


def read_checkpoint(reader: ModelReader) -> Checkpoint | None:
    """Return a store's objects and names, or None if it is not a checkpoint of a training job.

    Raises StoreError if it is damaged.
    """
    paths = reader.info.checkpoint
    if paths is None:
        return None
    nbytes = 0
    if paths.objects is not None:
        objects = reader.array(paths.objects)
        if objects.dtype != np.uint8 or len(objects.shape) != 1:
            raise StoreError(f"{reader.label(paths.objects)}: is not an array of bytes")
        nbytes = objects.shape[0]
    text = reader.text(paths.text)
    try:
        return Checkpoint.from_text(text, nbytes)
    except (ValueError, RecursionError) as e:
        raise StoreError(f"{reader.label(paths.text)}: {e}") from None


def read_object(reader: ModelReader, extent: tuple[int, int]) -> bytes:
    """Read an object's bytes, given its offset and size from `read_checkpoint`.

    Raises CodecError or StoreError if they are damaged, or more than the caller allows.
    """
    paths, (start, size) = reader.info.checkpoint, extent
    assert paths is not None
    if paths.objects is None:
        return b""
    reader.check_size(size, "an object")
    out = np.empty(size, np.uint8)
    reader.array(paths.objects).read_range(start, start + size, out)
    return out.tobytes()


def read_parts(reader: ModelReader) -> tuple[bytes, bytes] | None:
    """Return the text and all objects, as another store has them, or None; errors are as above."""
    paths = reader.info.checkpoint
    if paths is None or read_checkpoint(reader) is None:
        return None
    nbytes = 0 if paths.objects is None else reader.array(paths.objects).shape[0]
    return reader.text(paths.text), read_object(reader, (0, nbytes))


def sizes_of_objects(reader: ModelReader) -> dict[str, int] | None:
    """Return the size of each object in bytes, by name, or None; errors are as above."""
    checkpoint = read_checkpoint(reader)
    if checkpoint is None:
        return None
    return {name: size for name, (_, size) in checkpoint.objects.items()}
