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
from bf16codecs.mount import cache as cache_module
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


def test_units_larger_than_the_cache_are_decoded_once_by_who_reads_on() -> None:
    for size in (3 * MiB, 9 * MiB):
        units = Units([size] * 8)
        cache, file = units.opened(8 * MiB, ahead=8)
        for start in range(0, len(units.content), MiB // 2):
            part = units.content[start : start + MiB // 2]
            assert file.read(start, MiB // 2) == part
        cache.close()
        assert set(units.decoded.values()) == {1}


def test_parts_ahead_of_many_readers_do_not_push_each_other_out() -> None:
    files = [Units([MiB // 2] * 32) for _ in range(10)]
    cache = Cache(32 * MiB, 8)
    opened = [CachedFile(cache, len(u.content), u.unit_at, u.decode) for u in files]

    def read(number: int) -> None:
        for start in range(0, len(files[number].content), MiB // 4):
            part = files[number].content[start : start + MiB // 4]
            assert opened[number].read(start, MiB // 4) == part

    threads = [threading.Thread(target=read, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    cache.close()
    decoded = sum(sum(units.decoded.values()) for units in files)
    assert decoded <= 1.2 * 10 * 32


def test_parts_ahead_of_a_reader_that_stopped_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "_SECONDS_EXPECTED", 0.0)
    stopped, going = Units([MiB // 2] * 64), Units([MiB // 2] * 64)
    cache = Cache(8 * MiB, 2)
    for units, nbytes in ((stopped, 2 * MiB), (going, 32 * MiB)):
        file = CachedFile(cache, len(units.content), units.unit_at, units.decode)
        for start in range(0, nbytes, MiB // 2):
            file.read(start, MiB // 2)
    assert going.most == cache.part_nbytes
    cache.close()


def test_without_threads_readers_decode_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    units = Units([MiB // 2] * 16)
    cache, file = units.opened()

    def refuse(*args: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(cache._threads, "submit", refuse)
    assert file.read(0, MiB) == units.content[:MiB]
    assert file.read(MiB, len(units.content)) == units.content[MiB:]
    cache.close()
    # Nor does anybody wait for a cache that was closed.
    assert file.read(0, MiB) == units.content[:MiB]


def test_of_many_readers_only_those_of_a_damaged_unit_get_errors() -> None:
    for _ in range(20):
        units = Units([MiB // 8] * 16, frozenset([5]))
        cache, file = units.opened()
        failed: list[int] = []

        def read(failed: list[int] = failed, file: CachedFile = file, units: Units = units) -> None:
            for number, (start, stop) in enumerate(units.ends):
                try:
                    assert file.read(start, stop - start) == units.content[start:stop]
                except ValueError:
                    failed.append(number)

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        cache.close()
        assert failed == [5] * 4
