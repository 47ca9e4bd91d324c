"""Versions in one frame: arrays with a leading axis of time, and frames with other parents."""

from __future__ import annotations

import struct

import numpy as np

from native_core import core

HEADER, MODEL_SIZE, BASE_FIELD, ENTRY, NO_PARENT = 24, 8, 16, 7, 65535


def fields(steps: int, *shape: int, seed: int = 0) -> np.ndarray:
    """Return a smooth field, such as a temperature, that changes a little from step to step."""
    rng = np.random.default_rng(seed)
    first = 280 + 5 * np.sin(np.linspace(0, 9, int(np.prod(shape)))).reshape(shape)
    return (first + rng.normal(0, 0.01, (steps, *shape)).cumsum(axis=0)).astype("float32")


def weights(steps: int, *shape: int, dtype="bfloat16", seed: int = 0) -> np.ndarray:
    """Return weights, and their values after each few hundred updates."""
    rng = np.random.default_rng(seed)
    changes = rng.normal(0, 0.0002, (steps, *shape)).cumsum(axis=0)
    return (rng.normal(0, 0.02, shape) + changes).astype(dtype)


def ancestors(version: int) -> list[int]:
    """Return a version's ancestors, from its parent on."""
    found = []
    while version:
        version &= version - 1
        found.append(version)
    return found


def with_parents(frame: bytes, parents: list[int]) -> bytes:
    """Give the versions of a frame without checksums of blocks other parents, if they have any.

    What it decodes to changes with that.
    """
    index = core.Index(frame)
    size = struct.unpack_from("<I", frame, HEADER)[0]
    changed = bytearray(frame)
    table = index.header_size - size
    for version, parent in enumerate(parents):
        if struct.unpack_from("<H", changed, table + ENTRY * version)[0] != NO_PARENT:
            struct.pack_into("<H", changed, table + ENTRY * version, parent)
    head = bytes(changed[HEADER : index.header_size])
    struct.pack_into("<I", changed, 20, core.checksum(head))
    return bytes(changed)
