"""How much of a chunk the serializer fetches to read part of it."""

import ml_dtypes
import numpy as np
import pytest
import zarr
from zarr.abc.store import RangeByteRequest

import bf16codecs
from bf16codecs import BF16Arithmetic
from bf16codecs.zarr import BF16BlocksCodec
from bits import assert_same_bits
from contents import gaussian
from counting_store import CountingStore
from looping import for_each
from native_core import core

pytestmark = pytest.mark.usefixtures("pipeline")

BF16 = np.dtype(ml_dtypes.bfloat16)
BLOCK_BYTES = 1 << 19


def weights(shape):
    return np.random.default_rng(0).normal(0, 0.02, shape).astype(BF16)


def create(store, data, codec="huffman"):
    serializer = BF16BlocksCodec(codec)
    return zarr.create_array(
        store, data=data, chunks=data.shape, serializer=serializer, compressors=None
    )


@pytest.fixture
def rows():
    """2048 rows of 4 KiB: 16 blocks of 128 rows."""
    store = CountingStore()
    data = weights((2048, 2048))
    array = create(store, data)
    store.requests.clear()
    return store, data, array


def index_of(store):
    return core.Index(store.content["c/0/0"].to_bytes())


@for_each(
    "selection, blocks",
    [
        (np.s_[5], [(0, 1)]),
        (np.s_[127:129], [(0, 2)]),
        (np.s_[200:210, ::5], [(1, 2)]),
        (np.s_[2047, 2047], [(15, 16)]),
        (np.s_[0:2048:600, :3], [(0, 1), (4, 5), (9, 10), (14, 15)]),
    ],
)
def test_fetches_the_header_and_the_touched_blocks(rows, selection, blocks):
    store, data, array = rows
    store.requests.clear()
    assert_same_bits(array[selection], data[selection])
    offsets = index_of(store).offsets
    expected = [RangeByteRequest(offsets[a], offsets[b]) for a, b in blocks]
    (first, _), *rest = store.requests
    assert (first.start, first.end) == (0, 4096)
    assert sorted((r.start, r.end) for r, _ in rest) == [(r.start, r.end) for r in expected]


def test_one_row_costs_at_most_two_blocks(rows):
    store, data, array = rows
    for row in range(0, 2048, 61):
        store.requests.clear()
        assert_same_bits(array[row], data[row])
        assert len(store.requests) == 2
        assert store.fetched() < 2 * BLOCK_BYTES


def test_parts_of_a_chunk_that_has_a_model():
    """Neither rows nor columns begin where blocks do."""
    data = np.frombuffer(gaussian(1100, 1100), BF16).reshape(1100, 1100)
    store = CountingStore()
    array = create(store, data, BF16Arithmetic(level="best"))
    index, frame = index_of(store), store.content["c/0/0"].to_bytes()
    assert bf16codecs.inspect(frame)["version"] == 2
    for selection, blocks in (
        (np.s_[3], [(0, 1)]),
        (np.s_[235:243, 1050:], [(0, 2)]),
        (np.s_[-1, ::7], [(4, 5)]),
        (np.s_[600:602], [(2, 3)]),
    ):
        store.requests.clear()
        assert_same_bits(array[selection], data[selection])
        expected = [(index.offsets[a], index.offsets[b]) for a, b in blocks]
        found = {(r.start, r.end) for r, _ in store.requests[-len(blocks) :]}
        assert found == {*expected}, selection
        assert store.fetched() < len(frame) / 2 + 4096, selection
    assert_same_bits(array[:], data)


def test_rows_at_a_time(rows):
    store, data, array = rows
    picked = [3, 2000, 4, 130]
    assert_same_bits(array.oindex[picked], data[picked])
    assert len(store.requests) == 3
    store.requests.clear()
    assert_same_bits(array.vindex[picked, [0, 1, 2, 3]], data[picked, [0, 1, 2, 3]])
    assert len(store.requests) == 3


@for_each("selection", [np.s_[:], np.s_[10:], np.s_[:, 0], np.s_[::100]])
def test_most_of_a_chunk_is_one_request(rows, selection):
    store, data, array = rows
    store.requests.clear()
    assert_same_bits(array[selection], data[selection])
    assert [byte_range for byte_range, _ in store.requests] == [None]


def test_chunks_of_one_block_are_one_request():
    store = CountingStore()
    data = weights((512, 512))
    array = create(store, data)
    store.requests.clear()
    assert_same_bits(array[3, 4:9], data[3, 4:9])
    assert [byte_range for byte_range, _ in store.requests] == [None]


def test_a_block_table_longer_than_the_first_read_is_fetched(rows):
    """Of blocks of two rows, as another encoder may make them."""
    store, data, array = rows
    frame = core.encode(data.view(np.uint16), 2, 0, block=4096)
    store.content["c/0/0"] = store.content["c/0/0"].from_bytes(frame)
    assert_same_bits(array[500], data[500])
    index = index_of(store)
    assert index.header_size > 8192
    asked = [(r.start, r.end) for r, _ in store.requests]
    block = (index.offsets[250], index.offsets[251])
    assert asked == [(0, 4096), (4096, index.header_size), block]


def test_a_chunk_that_disappears_while_it_is_read_raises(rows):
    store, _, array = rows

    def note(key, byte_range, reply):
        store.content.pop(key, None)
        return reply

    store.note = note
    with pytest.raises(bf16codecs.errors.CorruptDataError, match="disappeared"):
        array[5]
