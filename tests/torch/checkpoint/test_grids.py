"""Chunks of sharded tensors."""

from __future__ import annotations

import itertools
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from bf16codecs._arrays.grid import chunk_counts, chunk_shape
from lazy_imports import lazily
from tiers import by_tier

planning = lazily("bf16codecs.torch.checkpoint.planning")


def boxes_of(shape, counts):
    """Cut an array as torch.chunk does: equal shards, but for the last, which may be empty."""
    cuts = []
    for size, count in zip(shape, counts, strict=True):
        length = -(-size // count)
        starts = [min(size, i * length) for i in range(count)]
        cuts.append([(start, min(length, size - start)) for start in starts])
    for cut in itertools.product(*cuts):
        yield planning.Bounds(tuple(start for start, _ in cut), tuple(length for _, length in cut))


def shared_chunks(shape, chunks, boxes):
    """Return how many chunks are in several boxes."""
    count = 0
    for index in itertools.product(*map(range, chunk_counts(shape, chunks))):
        touched = 0
        for box in boxes:
            axes = zip(index, chunks, box.offsets, box.sizes, strict=True)
            touched += all(i * n < o + s and o < (i + 1) * n and s for i, n, o, s in axes)
        count += touched > 1
    return count


def is_indivisible(length):
    """Return whether no divisor of a length is an eighth of it or more, as for primes."""
    return length > 1 and all(length % n for n in range(max(1, -(-length // 8)), length))


@settings(max_examples=by_tier(50, 200))
@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=3),
    st.data(),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([100, 5000, 1 << 16]),
)
def test_chunks_are_within_shards(shape, data, item_size, chunk_size):
    counts = [data.draw(st.sampled_from([1, 1, 2, 3, 4])) for _ in shape]
    boxes = list(boxes_of(shape, counts))
    chunks = planning.chunk_grid(tuple(shape), item_size, boxes, chunk_size)
    assert all(1 <= n <= size for n, size in zip(chunks, shape, strict=True))
    nbytes = math.prod(chunks) * item_size
    cells = [-(-size // count) for size, count in zip(shape, counts, strict=True)]
    if math.prod(counts) == 1:
        assert chunks == chunk_shape(tuple(shape), item_size, chunk_size)
    # Small chunks, or very many, are shared by several processes.
    if chunk_size >= 1 << 16 and math.prod(cells) * item_size >= 4096 and nbytes >= 4096:
        assert shared_chunks(shape, chunks, boxes) == 0
        assert nbytes <= 8 * chunk_size or any(map(is_indivisible, chunks))


def test_shards_of_a_prime_number_of_rows():
    """Whole, since they could be cut into single rows alone."""
    boxes = list(boxes_of((4 * 10007, 1000), (4, 1)))
    assert planning.chunk_grid((4 * 10007, 1000), 2, boxes, 1 << 20) == (10007, 1000)
    # Unless they are too large for that: then several processes have parts of chunks.
    boxes = list(boxes_of((4 * 100003, 10000), (4, 1)))
    rows, columns = planning.chunk_grid((4 * 100003, 10000), 2, boxes, 1 << 24)
    assert columns == 10000
    assert rows * columns * 2 <= 1 << 24
    assert rows > 400


def test_a_prime_number_of_rows():
    """As of vocabularies: nothing shards it, so chunks need not be even."""
    shape = 50257, 4096
    assert planning.chunk_grid(shape, 2, [planning.Bounds((0, 0), shape)], 1 << 24)[0] <= 2048


def test_no_items():
    assert planning.chunk_grid((0, 7), 4, [planning.Bounds((0, 0), (0, 7))], 1 << 20) == (1, 1)
    assert planning.chunk_grid((), 4, [planning.Bounds((), ())], 1 << 20) == ()
