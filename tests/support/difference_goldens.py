"""Contents of the goldens of differences, from integer arithmetic alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from contents import SHAPES, gaussian, lcg_bytes, lcg_words, with_zeros
from reference_difference_model import DifferenceSection
from reference_differences import coded_items, read_payload
from reference_grid import SECTION

Contents = Callable[[], bytes]


def moved(raw: bytes, dtype: int, down: int, seed: int = 20) -> bytes:
    """Add noise of a size that does not depend on the items; `down` makes it smaller."""
    width, exponent_bits = SHAPES[dtype]
    items = np.frombuffer(raw[: len(raw) // width * width], f"<u{width}").astype(np.uint64)
    fraction = np.uint64(8 * width - 1 - exponent_bits)
    exponents = (items >> fraction & np.uint64((1 << exponent_bits) - 1)).astype(np.int64)
    above = np.minimum(exponents.max() - exponents, 24)
    noise = sum((lcg_words(len(items), seed + i) >> 17).astype(np.int64) for i in range(2)) - 32768
    by = ((noise << above) + (1 << down - 1) >> down) << max(0, 8 * width - 20)
    rest = raw[len(items) * width :]
    return (items + by.astype(np.uint64)).astype(f"<u{width}").tobytes() + rest


def to_base(
    base: Contents, change: Callable[[bytes], bytes], has: set[str], dtype: int = 0, **options: Any
) -> dict[str, Any]:
    """Return the parts of a golden of differences, made by a function that changes a base."""
    return {
        "base": base,
        "raw": lambda: change(base()),
        "dtype": dtype,
        "options": options,
        "has": frozenset(has),
    }


def counted(n: int, seed: int) -> bytes:
    """Return integers of 32 bits that go on from a random walk around zero."""
    steps = (lcg_words(n, seed) >> 28).astype(np.int64) - 8
    return np.cumsum(steps).astype("<i4").tobytes()


def flipped(raw: bytes) -> bytes:
    """Return the items with one of their bits flipped, in half of them."""
    items = np.frombuffer(raw, "<u4")
    return (items ^ lcg_words(len(items), 9) & 0x10000).astype("<u4").tobytes()


def in_three_ways(raw: bytes) -> bytes:
    """Change the second of three blocks, and make the third one constant."""
    block = 2 * 1024
    return raw[:block] + moved(raw[block : 2 * block], 0, 12) + b"\x80\x3f" * (len(raw) // 2 - 2048)


def by_rows(raw: bytes) -> bytes:
    """Change every other row of 256 items more than the others."""
    some, more = (np.frombuffer(moved(raw, 0, down), "<u2").reshape(-1, 256) for down in (17, 13))
    changed = some.copy()
    changed[::2] = more[::2]
    return changed.tobytes()


def by_columns(raw: bytes) -> bytes:
    """Change every other column of 256 more than the others."""
    rows = np.frombuffer(raw, "<u2").reshape(256, 256).T
    return np.frombuffer(by_rows(rows.tobytes()), "<u2").reshape(256, 256).T.tobytes()


def with_strangers(raw: bytes) -> bytes:
    """Change all items, and some of them to other numbers, NaNs and infinities among them."""
    items = np.frombuffer(moved(raw, 0, 13), "<u2").copy()
    items[7::97] = lcg_words(len(items[7::97]), 3) >> 16
    items[::501] = 0x7F80
    return items.tobytes()


def differences() -> dict[str, dict[str, Any]]:
    """Return goldens of differences to a base outside."""
    dense = [12, 14, 13, 14, 16, 16]  # how far noise goes down, so that numbers are of some size
    goldens = {
        f"difference-{name}": to_base(
            partial(gaussian, 60, 64, number),
            partial(moved, dtype=number, down=dense[number]),
            {"difference", "no rows"},
            number,
        )
        for number, name in enumerate(
            ["bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"]
        )
    }
    small = partial(gaussian, 60, 64)
    e5m2, long = 5, partial(gaussian, 1030, 64, 5)
    return goldens | {
        "difference-best": to_base(
            partial(gaussian, 40, 256), by_rows, {"difference", "rows"}, level=1, row=256
        ),
        "difference-best-columns": to_base(
            partial(gaussian, 256, 256), by_columns, {"difference", "columns"}, level=1, row=256
        ),
        "difference-sparse": to_base(small, partial(moved, dtype=0, down=17), {"difference"}),
        "difference-in-three-ways": to_base(
            small, in_three_ways, {"same", "difference", "constant", "4 blocks"}, block=1024
        ),
        "difference-strangers": to_base(
            small, with_strangers, {"difference", "escapes of differences", "near classes"}
        ),
        "difference-plain": to_base(
            partial(counted, 4000, 1),
            lambda raw: (
                (np.frombuffer(raw, "<i4") + 3 - 2 * np.frombuffer(counted(4000, 2), "<i4") % 7)
                .astype("<i4")
                .tobytes()
            ),
            {"difference", "plain"},
            2,
        ),
        "difference-exclusive-or": to_base(
            lambda: lcg_bytes(16_000, 4), flipped, {"difference", "exclusive or"}, 2
        ),
        "difference-2-groups": to_base(
            lambda: long()[: (1 << 15) + 77],
            partial(moved, dtype=e5m2, down=22),
            {"differences of 2", "last items"},
            e5m2,
        ),
        "difference-4-groups": to_base(
            long, partial(moved, dtype=e5m2, down=22), {"differences of 4"}, e5m2
        ),
        "difference-tail": to_base(
            lambda: small()[: 2 * 3001] + b"t",
            partial(moved, dtype=0, down=13),
            {"difference", "tail 1", "last items", "3 blocks"},
            block=1024,
        ),
        "difference-no-checksums": to_base(
            small, partial(moved, dtype=0, down=13), {"difference", "no checksums"}, checksum=False
        ),
        "difference-tiles": to_base(
            small, lambda raw: np.frombuffer(raw, "<u2")[::-1].tobytes(), {"tiles"}, level=1, row=64
        ),
        "difference-two-sections": to_base(
            lambda: b"\x3c" * SECTION + gaussian(60, 64, 4),
            lambda raw: raw[:SECTION] + moved(raw[SECTION:], 4, 16),
            {"same", "difference", "2 sections"},
            4,
            block=SECTION,
        ),
        "difference-nothing": to_base(lambda: b"", lambda raw: raw, set()),
        "difference-all-the-same": to_base(small, lambda raw: raw, {"same"}),
    }


def versions() -> dict[str, dict[str, Any]]:
    """Return goldens of versions in a frame."""

    def walk(n: int, dtype: int, down: int) -> bytes:
        found = [gaussian(30, 64, dtype)]
        for seed in range(1, n):
            found.append(moved(found[-1], dtype, down, 20 + 2 * seed))
        return b"".join(found)

    def then_zeros() -> bytes:
        first = gaussian(30, 64)
        return first + moved(first, 0, 13) + first + with_zeros(first, 0) + bytes(len(first))

    parts = [
        ("versions", partial(walk, 6, 0, 13), 0, 6, {"difference", "versions"}, {}),
        ("versions-best", partial(walk, 5, 0, 13), 0, 5, {"difference", "tiles"}, {"level": 1}),
        ("versions-float32", partial(walk, 3, 2, 13), 2, 3, {"difference"}, {"block": 512}),
        ("versions-of-all-kinds", then_zeros, 0, 5, {"same", "difference", "constant"}, {}),
    ]
    return {
        name: {
            "raw": raw,
            "dtype": dtype,
            "options": {"steps": steps, **({"row": 64} if "level" in options else {}), **options},
            "has": frozenset(has),
        }
        for name, raw, dtype, steps, has, options in parts
    }


def features_of_difference(section: DifferenceSection, payload: bytes, n: int) -> Iterator[str]:
    parts = read_payload(payload, section.width, n)
    yield f"differences of {parts.groups}"
    yield ["ordered", "plain", "exclusive or"][section.relation]
    yield "near classes" if any(own.is_signed for own in section.classes) else "no near classes"
    if parts.escapes:
        yield "escapes of differences"
    if coded_items(n, parts.groups) != n:
        yield "last items"
