"""Writes the golden frames of tests/format/test_goldens.py.

    python tests/support/make_goldens.py [--force]

Goldens pin the format: frames of a version that has been released never change, and a decoder
reads them for ever. So existing files are kept unless --force is given, which is for those of
versions that have not been released.

What a frame decodes to is not stored but computed, with integers alone (see contents.py). `has`
names what the frame is the golden of; the tests check that it still is. Later encoders may write
other frames: the goldens of what they do not write any more are only decoded.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import difference_goldens
import growing_goldens
import reference_decoder as reference
import reference_growing
from contents import (
    SIGNED,
    SUBNORMAL,
    choose,
    column_bytes,
    gaussian,
    in_super_blocks,
    lcg_bytes,
    lcg_words,
    matrix,
    on_grid,
    on_lines,
    pruned,
    weights,
)
from golden_features import features
from native_core import core
from reference_grid import SECTION

RELEASED = 2  # the last version whose goldens never change
FOLDER = Path(__file__).parents[1] / "goldens"
CODECS = {"split": 1, "huffman": 2, "arithmetic": 3, "zstd": 4}
DTYPES = ["bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"]
LEVELS = {"zstd": 3}


@dataclass(frozen=True)
class Golden:
    codec: str
    raw: Callable[[], bytes]
    dtype: str = "bfloat16"
    options: dict[str, Any] = field(default_factory=dict)
    has: frozenset[str] = frozenset()
    version: int = 1
    has_tiles_now: bool = False  # level "best" prefers them
    has_other_numbers_now: bool = False  # scales and offsets that do as well
    base: Callable[[], bytes] | None = None

    @property
    def is_written_alike(self) -> bool:
        """Whether encoders still write these bytes. Releases of Zstandard compress differently."""
        is_other_now = self.has_tiles_now or self.has_other_numbers_now
        return self.codec != "zstd" and not is_other_now

    def base_bytes(self) -> bytes | None:
        return None if self.base is None else self.base()

    def encode(self) -> bytes:
        options = {"level": LEVELS.get(self.codec, 0), **self.options, "base": self.base_bytes()}
        return core.encode(self.raw(), CODECS[self.codec], DTYPES.index(self.dtype), **options)


def plane(n: int, symbols: list[int], odds: list[int]) -> Callable[[], bytes]:
    """Return a function that makes `n` one-byte items with random symbols."""
    return lambda: choose(n, symbols, odds).astype(np.uint8).tobytes()


def numbers(width: int, n: int, tail: int) -> Callable[[], bytes]:
    """Return a function that makes `n` numbers of `width` bytes with exponents like weights'.

    The middle planes are random, the last of wide numbers is constant, as if they had been
    converted from a narrower type.
    """

    def make() -> bytes:
        high = (np.frombuffer(weights(n), "<u2") >> 7 & 255).astype(np.uint8).tobytes()
        planes = [high, *(lcg_bytes(n, seed) for seed in range(1, width))]
        if width > 2:
            planes[-1] = bytes(n)
        return reference.join_planes(planes, by_byte=False) + lcg_bytes(tail, 99)

    return make


def nans(unsigned: str, lowest: int) -> Callable[[], bytes]:
    """Return a function that makes NaNs of either sign with every kind of payload."""
    width = np.dtype(unsigned).itemsize * 8
    sign = 1 << (width - 1)

    def make() -> bytes:
        bits = lcg_words(500, 3) % sign | lowest | (lcg_words(500, 4) >> 31) * sign
        return bits.astype(unsigned).tobytes()

    return make


def every_codec_and_dtype() -> dict[str, Golden]:
    coded = {"split": "stored", "huffman": "huffman", "arithmetic": "pairs", "zstd": "zstandard"}
    goldens = {}
    for dtype, width in zip(DTYPES, reference.WIDTHS, strict=True):
        raw = numbers(width, 1200, width - 1)
        has = {f"tail {width - 1}", "3 blocks", "by field"}
        if width > 1:
            has.add("stored")
        for codec in CODECS:
            goldens[f"{codec}-{dtype}"] = Golden(
                codec, raw, dtype, {"block": 512}, frozenset(has | {coded[codec]})
            )
    return goldens


def rans() -> dict[str, Golden]:
    two = [97, 120], [98, 2]
    rare = [120, *range(20, 40)], [400, *[1] * 20]
    many = [120, *range(0, 256, 4)], [448, *[1] * 64]
    kinds = {
        # The encoder sees only a sample of long planes, so it leaves room for escapes.
        "pairs": (two, {1: 1000, 2: (1 << 15) + 77, 4: (1 << 17) + 300}),
        "pairs-escapes": (rare, {1: 1000, 2: (1 << 15) + 77, 4: (1 << 17) + 300}),
        "wide": (many, {1: 4000, 2: (1 << 15) + 77, 4: (1 << 17) + 300}),
    }
    goldens = {}
    for kind, (odds, lengths) in kinds.items():
        for groups, n in lengths.items():
            has = {f"{kind.split('-')[0]} of {groups}"}
            if kind == "pairs" and groups == 1:
                has.add("no escapes")
            if kind == "pairs-escapes":
                has.add("escapes")
            goldens[f"arithmetic-{kind}-{groups}"] = Golden(
                "arithmetic",
                plane(n, *odds),
                "float8_e4m3fn",
                {"by_byte": True},
                frozenset(has),
            )
    goldens["arithmetic-all-symbols"] = Golden(
        "arithmetic",
        plane(8000, list(range(256)), [(256 - s) ** 3 // 1000 + 1 for s in range(256)]),
        "float8_e4m3fn",
        has=frozenset({"wide of 1"}),
    )
    goldens["arithmetic-short-remainder"] = Golden(
        "arithmetic", lambda: weights(512 + 63), options={"block": 1024}, has=frozenset({"pairs"})
    )
    return goldens


def huffman() -> dict[str, Golden]:
    two = [97, 120], [9, 1]
    many = list(range(256)), [1 << max(0, 20 - i) for i in range(256)]
    sizes = {"huffman-1-stream": (4095, two, 1), "huffman-8-streams": (4096, two, 8)}
    sizes["huffman-longest-codes"] = (20_000, many, 8)
    sizes["huffman-wide-sizes"] = (382_000, two, 8)
    return {
        name: Golden(
            "huffman",
            plane(n, *odds),
            "float8_e5m2",
            {"by_byte": True},
            frozenset({f"huffman of {streams}"}),
        )
        for name, (n, odds, streams) in sizes.items()
    }


def every_codec() -> dict[str, Golden]:
    goldens = {}
    for codec in CODECS:
        goldens |= {
            f"{codec}-empty": Golden(codec, bytes, has=frozenset({"0 blocks", "tail 0"})),
            f"{codec}-tail-alone": Golden(
                codec, lambda: b"abc", "float32", has=frozenset({"0 blocks", "tail 3"})
            ),
            f"{codec}-one-item": Golden(
                codec, lambda: b"\xc0\x3f", has=frozenset({"1 blocks", "tail 0"})
            ),
            f"{codec}-last-block-of-one-item": Golden(
                codec, lambda: weights(513), options={"block": 256}, has=frozenset({"3 blocks"})
            ),
            f"{codec}-no-checksums": Golden(
                codec,
                lambda: weights(700),
                options={"block": 256, "checksum": False},
                has=frozenset({"no checksums", "3 blocks"}),
            ),
            f"{codec}-by-byte": Golden(
                codec, lambda: weights(700), options={"by_byte": True}, has=frozenset({"by byte"})
            ),
            f"{codec}-random": Golden(
                codec, lambda: lcg_bytes(1500), has=frozenset({"stored", "checksums"})
            ),
            f"{codec}-nans": Golden(codec, nans("<u2", 0x7F80)),
        }
    return goldens


def best() -> dict[str, Golden]:
    """Return goldens of the scale model, which pays where rows and columns differ in scale."""
    goldens = {
        f"best-{dtype}": Golden(
            "arithmetic",
            partial(matrix, 60, 64, number),
            dtype,
            {"level": 1, "block": 1024, "row": 64},
            frozenset({"scale", "rows", "columns", "4 blocks"}),
            has_tiles_now=True,
        )
        for number, dtype in enumerate(DTYPES)
    }
    odd = {
        "best-tail": (lambda: matrix(60, 64, 0) + b"t", {"row": 64}, {"scale", "tail 1"}),
        "best-row-unknown": (partial(matrix, 100, 64), {}, {"scale", "no rows", "columns"}),
        "best-odd-row": (partial(matrix, 33, 100), {"row": 100}, {"scale"}),
        "best-zeros-and-nans": (with_zeros_and_nans, {"row": 64}, {"scale"}),
        "best-no-checksums": (partial(matrix, 60, 64), {"row": 64, "checksum": False}, {"scale"}),
        "best-by-byte": (partial(matrix, 60, 64), {"by_byte": True}, {"by byte"}),
        "best-random": (lambda: lcg_bytes(1500), {}, {"stored"}),
        "best-zeros": (lambda: bytes(3001), {}, {"constant"}),
        "best-empty": (bytes, {}, {"0 blocks"}),
    }
    for name, (raw, options, has) in odd.items():
        goldens[name] = Golden(
            "arithmetic",
            raw,
            options={"level": 1, **options},
            has=frozenset(has),
            has_tiles_now="scale" in has and raw is not with_zeros_and_nans,
        )
    return goldens


def with_zeros_and_nans() -> bytes:
    items = np.frombuffer(matrix(100, 64), "<u2").copy()
    items[::41] = 0
    items[5::1000] = lcg_words(len(items[5::1000]), 7) >> 16 | 0x7F80
    return items.tobytes()


def tiles() -> dict[str, Golden]:
    """Return goldens of tiles, with contents for which the encoder chooses every form and lanes."""
    plain = {"Gaussian, one class", "tiles of 1", "rows", "columns", "escaped keys"}
    goldens = {
        f"tiles-{dtype}": tiles_golden(partial(gaussian, 60, 64, number, 4), plain, dtype, row=64)
        for number, dtype in enumerate(DTYPES)
    }
    e4m3fn, e5m2 = "float8_e4m3fn", "float8_e5m2"
    return goldens | {
        "tiles-four-classes": tiles_golden(
            partial(gaussian, 150, 64), {"Gaussian, four classes", "one tile"}, row=64
        ),
        "tiles-explicit": tiles_golden(
            partial(gaussian, 100, 64, 4, 4), {"explicit, one class", "no escaped keys"}, e4m3fn
        ),
        "tiles-explicit-four-classes": tiles_golden(
            partial(column_bytes, 20_000, 1),
            {"explicit, four classes", "no rows", "several tiles", "stored keys"},
            e4m3fn,
            row=64,
        ),
        "tiles-2-groups": tiles_golden(
            partial(column_bytes, (1 << 15) + 77, 4), {"tiles of 2"}, e5m2, row=64
        ),
        "tiles-4-groups": tiles_golden(
            partial(column_bytes, (1 << 18) + 300, 4), {"tiles of 4"}, e5m2, row=64
        ),
        "tiles-blocks": tiles_golden(
            lambda: gaussian(60, 64)[: 2 * 3647] + b"t",
            {"4 blocks", "escaped keys", "stored keys", "tail 1"},
            block=1024,
            row=64,
        ),
        "tiles-last-block-of-one-item": tiles_golden(
            lambda: gaussian(33, 64)[: 2 * 2049], {"3 blocks", "constant"}, block=1024, row=64
        ),
        "tiles-row-unknown": tiles_golden(partial(gaussian, 60, 64), {"no columns"}),
        "tiles-two-sections": tiles_golden(
            lambda: b"\x3c" * SECTION + gaussian(60, 64, 4),
            {"2 sections", "constant"},
            e4m3fn,
            block=SECTION,
            row=64,
        ),
        "tiles-zeros-and-nans": tiles_golden(
            partial(few_zeros_and_nans, 60), {"escaped keys"}, row=64
        ),
        "tiles-no-checksums": tiles_golden(
            partial(gaussian, 30, 64), {"no checksums"}, row=64, checksum=False
        ),
    }


def sparse() -> dict[str, Golden]:
    """Return goldens of weights with many zeros, over a plane 0 of every mode that encoders use."""
    goldens = {}
    for name, dtype, options, has in (
        ("arithmetic-sparse", 0, {}, {"sparse, no signs", "no sparse exceptions"}),
        ("arithmetic-sparse-blocks", 0, {"block": 1024}, {"3 blocks", "stored"}),
        ("arithmetic-sparse-float16", 1, {}, {"wide"}),
        ("arithmetic-sparse-float32", 2, {}, {"pairs"}),
        ("arithmetic-sparse-float64", 3, {}, {"tail 0"}),
        ("huffman-sparse", 0, {}, {"huffman"}),
        ("huffman-sparse-float32", 2, {"checksum": False}, {"huffman", "no checksums"}),
        ("arithmetic-sparse-best", 2, {"level": 1, "row": 64}, {"pairs"}),
    ):
        codec, parts = name.partition("-")[0], {"dtype": DTYPES[dtype], "options": options}

        def raw(dtype: int = dtype, name: str = name) -> bytes:
            items = pruned(3000, dtype)
            if name.endswith("blocks"):  # one block without zeros
                items[1024:2048] = np.frombuffer(weights(1024), "<u2")
            return items.tobytes()

        goldens[name] = Golden(codec, raw, has=frozenset({"sparse", *has}), version=2, **parts)
    signs, exceptions = {"sparse signs"}, {"sparse signs", "sparse exceptions"}
    for name, how, has in (("signs", SIGNED, signs), ("exceptions", SUBNORMAL, exceptions)):
        for dtype in (0, 2):
            goldens[f"arithmetic-sparse-{name}-{DTYPES[dtype]}"] = Golden(
                "arithmetic",
                lambda dtype=dtype, how=how: pruned(2999, dtype, 2, how).tobytes() + b"t",
                DTYPES[dtype],
                has=frozenset({"sparse", "tail 1", *has}),
                version=2,
            )
    return goldens


def tiles_golden(
    raw: Callable[[], bytes], has: set[str], dtype: str = "bfloat16", **options: Any
) -> Golden:
    has = {"tiles", *has}
    return Golden("arithmetic", raw, dtype, {"level": 1, **options}, frozenset(has), version=2)


def grids() -> dict[str, Golden]:
    """Return goldens of levels and scales, in blocks of 1024 items."""
    goldens = {}
    for name, dtype, most, width, has in (
        ("int4", 0, 7, 128, "integers, 0 low bits"),
        ("int4-float16", 1, 7, 32, "integers, 0 low bits"),
        ("int4-float32", 2, 7, 128, "integers, 0 low bits"),
        ("int5", 0, 15, 32, "integers, 1 low bits"),
        ("int6", 1, 31, 64, "integers, 2 low bits"),
        ("int8", 0, 127, 256, "integers, 4 low bits"),
        ("int8-float32", 2, 127, 256, "integers, 4 low bits"),
        ("ternary", 0, 1, 256, "integers, 0 low bits"),
    ):
        raw = partial(on_grid, 8, 256, dtype, most, width)
        goldens[f"grid-{name}"] = grid_golden(raw, {f"levels: {has}"}, DTYPES[dtype])
    int4 = partial(on_grid, 8, 256, 0, 7, 128)
    few = frozenset({"grid", "levels: integers, 0 low bits"})
    goldens |= {
        "grid-fp8": grid_golden(partial(float8, 8, 256), {"levels: floats, 4 low bits"}),
        "grid-palette": grid_golden(palette, {"levels: table, 0 low bits"}),
        "grid-twice-rounded": grid_golden(
            lambda: widened(on_grid(8, 256, 1, 7, 128)), {"rounding 1"}, "float32"
        ),
        "grid-plain": grid_golden(
            lambda: int4() + gaussian(1, 256) + int4(), {"plain items"}, block=4096
        ),
        "grid-huffman": Golden("huffman", int4, options={"row": 256}, has=few, version=2),
        "grid-best": grid_golden(int4, set(few), level=1),
        "grid-q4-1": replace(
            grid_golden(partial(on_lines, 8, 256, 0, "sum"), {"offsets: sum"}),
            has_other_numbers_now=True,
        ),
        "grid-sums": grid_golden(partial(on_lines, 8, 256, 0, "sum"), {"offsets: sum"}),
        "grid-k": grid_golden(
            partial(in_super_blocks, 9, 256),
            {"offsets: sum", "scales on a grid", "offsets on a grid"},
            "float32",
            block=4096,
        ),
        "grid-shift": grid_golden(
            partial(on_lines, 8, 256, 0, "rounded sum", width=128), {"offsets: rounded sum"}
        ),
        "grid-zero": grid_golden(
            partial(on_lines, 8, 256, 1, "difference", width=64),
            {"offsets: difference"},
            "float16",
        ),
        "grid-tail": grid_golden(
            lambda: int4() + b"\1", {"tail 1", "no checksums"}, checksum=False
        ),
    }
    return goldens


def grid_golden(
    raw: Callable[[], bytes], has: set[str], dtype: str = "bfloat16", **options: Any
) -> Golden:
    has = {"grid", *has}
    options = {"row": 256, "block": 1024, **options}
    return Golden("arithmetic", raw, dtype, options, frozenset(has), version=2)


def float8(rows: int, columns: int) -> bytes:
    """Return FP8 numbers (E4M3) times a scale for each row, as bfloat16."""
    codes = np.frombuffer(lcg_bytes(rows * columns, 3), np.uint8).reshape(rows, columns) & 0xBF
    codes[:, 5] = 0x7E
    exponents = np.maximum(codes >> 3 & 15, 1).astype(np.int32)
    numbers = (codes & 7) + np.where(codes >> 3 & 15, 8, 0)
    levels = np.ldexp(np.where(codes & 128, -1.0, 1.0) * numbers, exponents - 10)
    scales = (lcg_words(rows, 9) >> 8 | 1 << 23).astype(np.float32) * np.float32(2**-34)
    words = (levels.astype(np.float32) * scales[:, None]).view(np.uint32)
    return ((words + 0x7FFF + (words >> 16 & 1)) >> 16).astype("<u2").tobytes()


def palette() -> bytes:
    """Return sixteen numbers in any order."""
    numbers = np.frombuffer(weights(16, 3), "<u2")
    return numbers[lcg_words(2048, 1) >> 28].tobytes()


def widened(half: bytes) -> bytes:
    """Return float16 numbers as float32."""
    return np.frombuffer(half, "<f2").astype("<f4").tobytes()


def with_differences() -> dict[str, Golden]:
    return {
        name: Golden("arithmetic", version=2, **{**parts, "dtype": DTYPES[parts["dtype"]]})
        for name, parts in (
            difference_goldens.differences() | difference_goldens.versions()
        ).items()
    }


def few_zeros_and_nans(rows: int) -> bytes:
    """Return a matrix with some NaNs and one zero: with many, the encoder writes no tiles."""
    items = np.frombuffer(gaussian(rows, 64, quarters=4), "<u2").copy()
    items[99] = 0
    items[5::1000] = lcg_words(len(items[5::1000]), 7) >> 16 | 0x7F80
    return items.tobytes()


def others() -> dict[str, Golden]:
    constant = frozenset({"constant"})
    return {
        "huffman-zeros": Golden("huffman", lambda: bytes(3001), has=constant),
        "arithmetic-zeros": Golden("arithmetic", lambda: bytes(3001), has=constant),
        "zstd-zeros": Golden("zstd", lambda: bytes(3001), has=constant),
        "arithmetic-float64-zeros": Golden("arithmetic", lambda: bytes(4004), "float64"),
        "arithmetic-ones": Golden("arithmetic", lambda: b"\x80\x3f" * 2000, has=constant),
        "arithmetic-float32-nans": Golden("arithmetic", nans("<u4", 0x7F800000), "float32"),
        "arithmetic-float32-by-byte": Golden(
            "arithmetic", numbers(4, 700, 1), "float32", {"by_byte": True}
        ),
        "zstd-all-bfloat16": Golden("zstd", lambda: np.arange(65536, dtype="<u2").tobytes()),
        "zstd-level-1": Golden("zstd", lambda: weights(700), options={"level": 1}),
        "zstd-level-22": Golden("zstd", lambda: weights(700), options={"level": 22}),
    }


GOLDENS = {
    **every_codec_and_dtype(),
    **rans(),
    **huffman(),
    **best(),
    **tiles(),
    **sparse(),
    **with_differences(),
    **grids(),
    **every_codec(),
    **others(),
    **growing_goldens.growing(),
}


def path_of(name: str) -> Path:
    return FOLDER / f"v{GOLDENS[name].version}-{name}.frame"


def write(name: str, force: bool) -> int:
    """Write a golden, or check the existing one, and return its size."""
    golden, path = GOLDENS[name], path_of(name)
    is_kept = path.exists() and not (force and golden.version > RELEASED)
    frame = path.read_bytes() if is_kept else golden.encode()
    missing = golden.has - features(frame)
    if missing or reference_growing.decode(frame, golden.base_bytes()) != golden.raw():
        raise SystemExit(
            f"{name}: is no golden of {', '.join(sorted(missing))}: {sorted(features(frame))}"
        )
    if is_kept and golden.is_written_alike and golden.encode() != frame:
        raise SystemExit(f"{path.name} is written with other bytes")
    if not is_kept:
        path.write_bytes(frame)
    return len(frame)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the golden frames.")
    parser.add_argument("--force", action="store_true", help="replace those of draft versions")
    force = parser.parse_args().force
    FOLDER.mkdir(exist_ok=True)
    total = sum(write(name, force) for name in GOLDENS)
    print(f"{len(GOLDENS)} goldens, {total} bytes")


if __name__ == "__main__":
    main()
