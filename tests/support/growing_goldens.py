"""Contents of the goldens of growing frames, from integer arithmetic alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from contents import gaussian, weights
from difference_goldens import moved
from makers.growing import grown, lowest_bit_parents
from native_core import core
from reference_growing import read_directory


@dataclass(frozen=True)
class GrowingGolden:
    contents: Callable[[], list[bytes]]
    room: int
    dtype: str = "bfloat16"
    block: int = 1024
    parents: Sequence[int | None] | None = None
    #: Of all versions; of single ones, by number.
    options: dict[str, Any] = field(default_factory=dict)
    special: dict[int, dict[str, Any]] = field(default_factory=dict)
    has: frozenset[str] = frozenset()
    #: Bytes behind the last frame, which nobody looks at.
    rest: bytes = b""

    codec = "growing"
    version = 2
    is_written_alike = True

    def raw(self) -> bytes:
        return b"".join(self.contents())

    def base_bytes(self) -> None:
        return None

    def encode(self) -> bytes:
        contents = self.contents()
        parents = lowest_bit_parents(len(contents)) if self.parents is None else self.parents
        frames = []
        for number, (content, parent) in enumerate(zip(contents, parents, strict=True)):
            options = {"codec": 3, **self.options, **self.special.get(number, {})}
            base = None if parent is None else contents[parent]
            options |= {"dtype": core.DTYPES[self.dtype], "block": self.block}
            frames.append(core.encode(content, base=base, **options))
        size = len(contents[0])
        return grown(frames, parents, self.room, size, self.dtype, self.block) + self.rest


def walk(n: int, dtype: int, down: int) -> list[bytes]:
    """Return contents of which each is the one before with some noise."""
    found = [gaussian(34, 64, dtype)]
    for seed in range(1, n):
        found.append(moved(found[-1], dtype, down, 20 + 2 * seed))
    return found


def of_all_kinds() -> list[bytes]:
    first = weights(700)
    other = weights(1400)[1400:]
    return [first, moved(first, 0, 13), other, first, bytes(len(first))]


def growing() -> dict[str, GrowingGolden]:
    return {
        "growing": GrowingGolden(
            partial(walk, 6, 0, 13), 8, has=frozenset({"6 of 8 versions", "difference", "3 blocks"})
        ),
        "growing-first-version": GrowingGolden(
            partial(walk, 1, 0, 13), 3, has=frozenset({"1 of 3 versions"})
        ),
        "growing-full": GrowingGolden(
            partial(walk, 3, 2, 13), 3, "float32", has=frozenset({"3 of 3 versions", "difference"})
        ),
        "growing-chain": GrowingGolden(
            partial(walk, 4, 4, 13),
            6,
            "float8_e4m3fn",
            parents=[None, 0, 1, 2],
            has=frozenset({"4 of 6 versions"}),
        ),
        "growing-best": GrowingGolden(
            partial(walk, 3, 0, 13),
            4,
            block=2048,
            options={"level": 1, "row": 64},
            has=frozenset({"tiles", "difference"}),
        ),
        "growing-of-all-kinds": GrowingGolden(
            of_all_kinds,
            5,
            block=256,
            parents=[None, 0, None, 0, None],
            special={
                0: {"codec": 2},
                1: {"checksum": False},
                2: {"codec": 1, "by_byte": True},
                4: {"codec": 2, "checksum": False},
            },
            has=frozenset({"by byte", "no checksums", "same", "constant", "huffman of 1"}),
        ),
        "growing-unfinished": GrowingGolden(
            partial(walk, 2, 0, 13), 4, rest=bytes(range(256)), has=frozenset({"bytes behind"})
        ),
    }


def features_of_growing(growing_frame: bytes, features: Callable[[bytes], set[str]]) -> set[str]:
    """Name the features of the format that a growing frame and its versions' frames use."""
    directory = read_directory(growing_frame)
    found = {f"{len(directory.ends)} of {directory.room} versions"}
    if directory.ends[-1] < len(growing_frame):
        found.add("bytes behind")
    for begin, end in zip(directory.begins, directory.ends, strict=True):
        found |= features(growing_frame[begin:end])
    return found
