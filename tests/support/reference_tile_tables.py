"""The tables of tiles of the reference decoder, written from docs/format_tiles.md alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from reference_planes import must

ENTRIES = 32
ESCAPE = 31  # the entry
TOTAL = 4096
BUCKET = 128
LARGEST_N = 5


@dataclass(frozen=True)
class Table:
    """The entries of a class: the intervals, then nothing, and the escape as the last."""

    n: tuple[int, ...]
    base: tuple[int, ...]
    f: tuple[int, ...]

    @property
    def slots(self) -> list[tuple[int, int]]:
        return alias_slots(self.f)


def table_of(intervals: list[tuple[int, int]], f: list[int], escape: int) -> Table:
    """Return the table of intervals, each a base and an n, and their frequencies."""
    unused = (0,) * (ESCAPE - len(intervals))
    return Table(
        n=(*(n for _, n in intervals), *unused, 0),
        base=(*(base for base, _ in intervals), *unused, 0),
        f=(*f, *unused, escape),
    )


@lru_cache(maxsize=64)
def alias_slots(f: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return entry and rank of every slot."""
    rest, threshold = list(f), [BUCKET] * ENTRIES
    alias, shift = list(range(ENTRIES)), [0] * ENTRIES
    large = (j for j in range(ENTRIES) if f[j] > BUCKET)
    g = next(large, ENTRIES)
    for s in range(ENTRIES):
        if f[s] >= BUCKET:
            continue
        b = s
        while True:
            threshold[b], alias[b] = rest[b], g
            rest[g] -= BUCKET - threshold[b]
            shift[b] = rest[g] - threshold[b]
            if rest[g] >= BUCKET:
                break
            b, g = g, next(large)

    def slot(a: int) -> tuple[int, int]:
        b, p = a % ENTRIES, a // ENTRIES
        return (b, p) if p < threshold[b] else (alias[b], p + shift[b])

    return [slot(a) for a in range(TOTAL)]


# --- Gaussian tables -----------------------------------------------------------------------------

GAUSSIAN_LO, GAUSSIAN_HI = 96, 240
CHANGE_LIMIT = 64
POWERS = [4096, 4467, 4871, 5312, 5793, 6317, 6889, 7512]  # of 2^(1/8)


def intervals_of(text: str) -> list[tuple[int, int]]:
    """Return n and w of each of the intervals."""
    return [(int(n), int(w)) for n, w in (interval.split(":") for interval in text.split())]


ONE_CLASS = intervals_of(
    "4:1 4:2 4:7 3:9 3:18 3:37 3:74 3:147 3:292 3:561 2:526 2:473 1:411 1:347 1:284 1:227 "
    "0:177 0:136 0:102 0:76 0:55 0:40 0:28 0:20 0:24 0:11 0:5 0:2 1:1 1:1 3:1"
)
FOUR_CLASSES = [
    intervals_of(
        "5:2 4:9 3:12 3:23 3:47 3:94 3:187 3:369 3:703 2:635 1:283 1:258 0:232 0:206 0:181 0:157 "
        "0:134 0:113 0:94 0:77 0:113 0:71 0:42 0:24 0:13 0:7 1:5 1:1 1:1 2:1 3:1"
    ),
    intervals_of(
        "5:2 4:7 3:10 3:20 3:39 3:79 3:157 3:312 3:602 2:560 2:501 1:431 0:188 0:170 0:152 0:135 "
        "0:118 0:103 0:164 0:118 0:82 0:55 0:35 0:22 0:13 0:8 0:7 0:2 1:1 2:1 3:1"
    ),
    intervals_of(
        "4:1 4:2 3:2 3:4 3:8 3:17 3:33 3:66 3:132 3:263 3:516 2:488 2:450 1:405 1:355 1:303 1:252 "
        "0:204 0:161 0:124 0:93 0:68 0:49 0:34 0:23 0:25 0:10 0:4 0:1 2:1 3:1"
    ),
    intervals_of(
        "5:2 4:5 3:7 3:14 3:28 3:56 3:111 3:222 3:437 2:420 2:397 1:369 1:336 1:300 1:263 0:227 "
        "0:192 0:159 0:130 0:104 0:82 0:63 0:48 0:62 0:32 0:16 0:7 0:3 0:1 1:1 3:1"
    ),
]


def classes_of(form: int) -> int:
    """Return the number of tables of a section, of any form."""
    return 4 if form % 2 else 1


def gaussian_tables(changes: list[list[int]], escape: int) -> list[Table]:
    """Return a section's tables, of which each has changes of its own."""
    weights = [ONE_CLASS] if len(changes) == 1 else FOUR_CLASSES
    return [gaussian_table(*both, escape) for both in zip(weights, changes, strict=True)]


def gaussian_table(intervals: list[tuple[int, int]], changes: list[int], escape: int) -> Table:
    room = TOTAL - escape
    weights = [
        (w * POWERS[d % 8]) << 8 + d // 8 for (_, w), d in zip(intervals, changes, strict=True)
    ]
    total = sum(weights)
    f = [(room * weight + total // 2) // total for weight in weights]
    f = [
        max(2, f[j] // 2 * 2) if n == LARGEST_N else max(1, f[j])
        for j, (n, _) in enumerate(intervals)
    ]
    largest = max((j for j, (n, _) in enumerate(intervals) if n < LARGEST_N), key=f.__getitem__)
    f[largest] += room - sum(f)
    must(f[largest] >= 1, "changes that leave nothing to the largest frequency")
    a, places = GAUSSIAN_LO, []
    for n, _ in intervals:
        places.append((a, n))
        a += 1 << n
    return table_of(places, f, escape)
