"""Parts of files are decoded once, kept up to a size, and prepared for who reads on."""

from __future__ import annotations

import threading
from collections import Counter
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bf16codecs._base.buffers import Bytes
from bf16codecs.mount.cache import Cache, CachedFile
from contents import lcg_bytes
from waiting import wait_until

MiB = 1 << 20


class Units:
    """A file of units; those in `damaged` cannot be decoded. It counts what was."""

    def __init__(self, sizes: list[int], damaged: frozenset[int] = frozenset()) -> None:
        self.ends = list(pairwise([0, *accumulate(sizes)]))
        self.content = lcg_bytes(sum(sizes))
        self.damaged = damaged
        self.decoded: Counter[int] = Counter()
        self.most = 0
        self._lock = threading.Lock()

    def unit_at(self, at: int) -> tuple[int, int]:
        return next((start, stop) for start, stop in self.ends if start <= at < stop)

    def decode(self, start: int, out: Bytes) -> None:
        stop = start + out.size
        units = [n for n, (begin, end) in enumerate(self.ends) if begin >= start and end <= stop]
        assert self.ends[units[0]][0] == start
        assert self.ends[units[-1]][1] == stop
        with self._lock:
            self.decoded.update(units)
            self.most = max(self.most, out.size)
        if self.damaged & set(units):
            raise ValueError("damaged")
        out[:] = np.frombuffer(self.content[start:stop], np.uint8)

    def opened(self, most_nbytes: int = 64 * MiB, ahead: int = 2) -> tuple[Cache, CachedFile]:
        cache = Cache(most_nbytes, ahead)
        return cache, CachedFile(cache, len(self.content), self.unit_at, self.decode)


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=30),
    st.lists(st.tuples(st.integers(0, 1300), st.integers(0, 500)), max_size=20),
    st.sampled_from([1, 60, 10_000]),
)
def test_any_range_has_the_bytes_of_the_file(
    sizes: list[int], ranges: list[tuple[int, int]], kept: int
) -> None:
    units = Units(sizes)
    cache, file = units.opened(kept)
    for start, nbytes in ranges:
        assert file.read(start, nbytes) == units.content[start : start + nbytes]
    cache.close()


def test_who_reads_on_gets_parts_that_grow_and_are_prepared() -> None:
    units = Units([MiB // 2] * 64)
    cache, file = units.opened()
    for start in range(0, len(units.content), MiB // 8):
        part = units.content[start : start + MiB // 8]
        assert file.read(start, MiB // 8) == part
    cache.close()
    assert set(units.decoded.values()) == {1}, "each unit was decoded once"
    assert units.most == 4 * MiB


def test_what_comes_next_is_decoded_before_it_is_asked_for() -> None:
    units = Units([MiB // 2] * 64)
    cache, file = units.opened()
    file.read(0, MiB)
    assert wait_until(lambda: len(units.decoded) >= 8)
    before = units.decoded.copy()
    file.read(MiB, MiB // 2)
    assert units.decoded[2] == before[2] == 1
    cache.close()


def test_single_units_are_decoded_for_who_reads_at_random() -> None:
    units = Units([MiB // 2] * 64)
    cache, file = units.opened()
    order = np.random.default_rng(0).permutation(64)
    for unit in order.tolist():
        file.read(unit * MiB // 2 + 4096, 4096)
    cache.close()
    assert units.most == MiB // 2
    assert set(units.decoded.values()) == {1}


def test_the_parts_that_are_kept_have_a_limit() -> None:
    units = Units([MiB // 2] * 64)
    cache, file = units.opened(8 * MiB)
    for _ in range(2):
        for start in range(0, len(units.content), MiB):
            file.read(start, MiB)
            assert cache.nbytes <= 8 * MiB
    cache.close()
    assert max(units.decoded.values()) == 2
    assert cache.nbytes == 0


def test_only_reads_of_a_damaged_unit_fail() -> None:
    units = Units([MiB // 2] * 16, frozenset([5]))
    cache, file = units.opened()
    read = 0
    for number, (start, stop) in enumerate(units.ends):
        if number == 5:
            with pytest.raises(ValueError, match="damaged"):
                file.read(start, stop - start)
            continue
        assert file.read(start, stop - start) == units.content[start:stop]
        read += 1
    assert read == 15
    with pytest.raises(ValueError, match="damaged"):
        file.read(0, len(units.content))
    units.damaged = frozenset()  # as when a server answers again
    assert file.read(0, len(units.content)) == units.content
    cache.close()


def test_several_threads_wait_for_one_that_decodes() -> None:
    units = Units([MiB // 2] * 8)
    is_asked, goes_on = threading.Event(), threading.Event()
    decode = units.decode

    def slowly(start: int, out: Bytes) -> None:
        is_asked.set()
        assert goes_on.wait(60)
        decode(start, out)

    cache = Cache(64 * MiB, 2)
    file = CachedFile(cache, len(units.content), units.unit_at, slowly)
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(file.read(10, 100))) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert is_asked.wait(60)
    goes_on.set()
    for thread in threads:
        thread.join(60)
    assert found == [units.content[10:110]] * 4
    assert units.decoded == {0: 1}
    cache.close()
