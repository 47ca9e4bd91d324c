"""Memory that is lent, and returned with the last array that refers to it."""

import threading
import tracemalloc
from contextlib import contextmanager

import numpy as np
import pytest

from bf16codecs._base.buffers import LentMemory

SIZE = 1 << 20


@contextmanager
def traced():
    """Yield a function that returns the bytes that were allocated and not freed since then."""
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def address(array):
    return array.ctypes.data


def test_memory_is_lent_again():
    memory = LentMemory(most=SIZE)
    array = memory.array(SIZE)
    array[:] = 7
    first = address(array)
    del array
    again = memory.array(SIZE)
    assert address(again) == first
    assert again.flags.writeable


def test_not_while_a_view_is_left():
    memory = LentMemory(most=4 * SIZE)
    array = memory.array(SIZE)
    view = np.frombuffer(array.data, "<u2")[5:].reshape(-1, 1)
    view[:] = 0x1234
    del array
    others = [memory.array(SIZE) for _ in range(4)]
    for other in others:
        assert not np.shares_memory(view, other)
        other[:] = 0
    assert (view == 0x1234).all()


def test_no_more_is_kept_than_allowed():
    memory = LentMemory(most=2 * SIZE)
    with traced() as allocated:
        arrays = [memory.array(SIZE) for _ in range(5)]
        assert allocated() == pytest.approx(5 * SIZE, abs=SIZE / 2)
        del arrays
        assert allocated() == pytest.approx(2 * SIZE, abs=SIZE / 2)
        too_large = memory.array(3 * SIZE)
        del too_large
        assert allocated() < 2.5 * SIZE


def test_another_size_is_another_memory():
    memory = LentMemory(most=8 * SIZE)
    memory.array(SIZE)
    larger = memory.array(2 * SIZE)
    assert larger.size == 2 * SIZE
    larger[:] = 1
    small = memory.array(10)
    assert small.size == 10


def test_threads_have_memory_of_their_own():
    memory = LentMemory(most=3 * SIZE)
    wrong = []

    def work(number):
        for _ in range(50):
            array = memory.array(SIZE)
            array[:] = number
            if (array[::4096] != number).any():
                wrong.append(number)
            del array

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
