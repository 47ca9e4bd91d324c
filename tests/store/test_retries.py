"""Files at addresses: near ranges are requested together, and only what failed is repeated."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bf16codecs._arrays.storage import AtMost, Request, StoredChunk
from bf16codecs._base.buffers import Bytes
from bf16codecs.store.remote import retries
from bf16codecs.store.remote.retries import RetriedChunk

DATA = np.random.default_rng(0).integers(0, 256, 300_000, np.uint8)


class Counting(StoredChunk):
    """Bytes in memory; some of the next requests for several ranges fail."""

    def __init__(self, failures: int = 0) -> None:
        self.failures, self.asked = failures, list[list[tuple[int, int]]]()

    def read(self, request: Request) -> Sequence[Bytes]:
        assert not isinstance(request, AtMost)
        if self.failures:
            self.failures -= 1
            raise ConnectionResetError
        self.asked.append(list(request))
        return [DATA[start:stop] for start, stop in request]


def assert_right(ranges: list[tuple[int, int]], chunk: Counting) -> None:
    parts = RetriedChunk("u", chunk).read(ranges)
    for part, (start, stop) in zip(parts, ranges, strict=True):
        assert part.tobytes() == DATA[start:stop].tobytes()


@given(st.lists(st.tuples(st.integers(0, 310_000), st.integers(0, 90_000)), max_size=60))
def test_any_ranges(pairs: list[tuple[int, int]]) -> None:
    chunk = Counting()
    assert_right([(start, start + size) for start, size in pairs], chunk)
    asked = [span for spans in chunk.asked for span in spans]
    assert all(b - a > 1 << 16 for (_, a), (b, _) in itertools.pairwise(asked))


def test_near_ranges_take_one_request() -> None:
    chunk = Counting()
    assert_right([(70_000, 70_010), (0, 10), (10, 4000), (4, 8), (140_000, 290_000)], chunk)
    assert chunk.asked == [[(0, 4000), (70_000, 70_010), (140_000, 290_000)]]
    chunk = Counting()
    large = [(i << 21, (i + 1) << 21) for i in range(4)]
    RetriedChunk("u", chunk).read(large)
    assert chunk.asked == [[(0, 2 << 21), (2 << 21, 4 << 21)]]


def test_of_many_ranges_few_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "_WAITS", (0, 0))
    monkeypatch.setattr(retries, "_GAP_BYTES", 0)
    chunk = Counting(failures=2)
    assert_right([(i * 1000, i * 1000 + 10) for i in range(40)], chunk)
    assert [len(spans) for spans in chunk.asked] == [16, 16, 8]
    with pytest.raises(OSError, match="u: "):
        assert_right([(0, 1)], Counting(failures=3))
