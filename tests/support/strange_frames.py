"""Frames that every decoder has to agree on: goldens, damaged ones, and findings of fuzzing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import bf16codecs
from bf16codecs.errors import CodecError
from make_goldens import GOLDENS, path_of

CORPUS = Path(__file__).parents[1] / "native" / "fuzz" / "corpus"
FRAME_TARGETS = ("decode", "index", "partial")  # whose inputs are frames
DAMAGES = 12
# A damaged header may claim more; a test reads thousands of frames, so these are left out.
MOST_DECODED = 1 << 26


class Strange(NamedTuple):
    """Bytes that may be a frame, and the base that it may need."""

    name: str
    frame: bytes
    base: bytes | None


def damaged(frame: bytes, seed: int) -> Iterator[bytes]:
    """Yield a frame with a few bits or bytes changed, cut off, and with a byte too many."""
    chance = random.Random(seed)
    for _ in range(DAMAGES):
        other = bytearray(frame)
        # Most of a frame is payload; damage before it takes other ways.
        at = chance.randrange(min(len(frame), chance.choice([64, len(frame)])))
        other[at] ^= chance.choice([1, 16, 128, 255])
        yield bytes(other)
    for end in {0, 3, 5, 23, len(frame) // 2, len(frame) - 1}:
        yield frame[:end]
    yield frame + b"\0"


def strange_frames() -> Iterator[Strange]:
    """Yield all of them, in the same order each time."""
    for name, golden in GOLDENS.items():
        frame, base = path_of(name).read_bytes(), golden.base_bytes()
        yield Strange(name, frame, base)
        for i, other in enumerate(damaged(frame, crc32(name.encode()))):
            yield Strange(f"{name}, damage {i}", other, base)
        if base is not None:
            yield Strange(f"{name}, no base", frame, None)
            yield Strange(f"{name}, another base", frame, bytes(len(base)))
    for target in FRAME_TARGETS:
        for path in sorted((CORPUS / target).iterdir()):
            yield Strange(f"{target}/{path.name}", path.read_bytes(), None)


def verdict(strange: Strange) -> bytes | tuple[str, str]:
    """Return Python's verdict: the decoded bytes, or an error's class and message."""
    try:
        return bf16codecs.decode(strange.frame, base=strange.base)
    except CodecError as error:
        return type(error).__name__, str(error)
