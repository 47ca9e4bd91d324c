"""How little is read of a large tensor, and how much memory that takes."""

from __future__ import annotations

import numpy as np
import pytest
import zarr
from zarr.storage import LocalStore

import bf16codecs
import tiers
from bf16codecs.zarr import BF16BlocksCodec
from bits import PIPELINES, assert_same_bits
from lazy_models import weights, write_store
from measured_reads import linux

BLOCK = 1 << 19  # 64 rows
#: Of a chunk: 16 blocks of 512 KiB, or 128.
ROWS = tiers.by_tier(1024, 8192)
SHAPE = (3 * ROWS, 4096)
PREFIX = 4096


@pytest.fixture(scope="module")
def array():
    count = SHAPE[0] // 1024
    factors = np.arange(1, count + 1).repeat(1024)[:, None].astype("bfloat16")
    return np.tile(weights((1024, 4096)), (count, 1)) * factors


@pytest.fixture(scope="module")
def store(array, tmp_path_factory):
    path = tmp_path_factory.mktemp("large") / "m.zarr"
    return write_store(path, {"w": array}, chunk_size=8192 * ROWS)


def test_one_row_is_an_index_and_at_most_two_blocks(store, array, reads):
    for row in (0, 63, 64, ROWS - 1, ROWS, 2 * ROWS + 500, -1):
        with bf16codecs.open_model(store) as model:
            reads.clear()
            assert_same_bits(model["w"][row], array[row])
            header, (head_key, head), (key, blocks) = reads
            assert header[0] == "safetensors/header/0/c.0"
            assert head_key == key == f"w/c.{(row % SHAPE[0]) // ROWS}.0"
            assert head == [(0, PREFIX)]
            assert sum(stop - start for start, stop in blocks) < 2 * BLOCK


def test_the_index_of_blocks_is_read_once(store, array, reads):
    with bf16codecs.open_model(store) as model:
        tensor = model["w"]
        reads.clear()
        rows = range(100, ROWS, ROWS // 10)
        for row in rows:
            assert_same_bits(tensor[row], array[row])
        assert len(reads) == 2 + len(rows), "and the safetensors header"
        assert_same_bits(model["w"][5], array[5])
        assert reads[-1][1] != [(0, PREFIX)], "not for each LazyTensor either"


def test_a_selection_reads_the_blocks_it_touches(store, array, reads):
    with bf16codecs.open_model(store) as model:
        tensor = model["w"]
        tensor[0], tensor[ROWS], tensor[2 * ROWS]
        for selection, blocks in [
            (np.s_[100:110, ::7], 1),
            (np.s_[60:70], 2),
            (np.s_[: 3 * ROWS - 64 : ROWS - 5, 5], 3),
            (np.s_[[5, ROWS + 500, 6, 2 * ROWS + 500]], 3),
            (np.s_[[5, ROWS + 500], [3, 4]], 2),
            (np.s_[ROWS - 2 : ROWS + 2], 2),
        ]:
            reads.clear()
            assert_same_bits(tensor[selection], array[selection])
            ranges = [r for _, ranges in reads for r in ranges]
            assert sum(stop - start for start, stop in ranges) < blocks * BLOCK


def test_random_rows_are_one_block_each(store, array, reads):
    """The index of blocks is read once for each of the three chunks, and nothing is read twice."""
    rng = tiers.rng("random rows")
    rows = [rng.randrange(SHAPE[0]) for _ in range(tiers.by_tier(60, 300))]
    header = ["safetensors/header/0/c.0"]
    with bf16codecs.open_model(store) as model:
        tensor = model["w"]
        reads.clear()
        for row in rows:
            assert_same_bits(tensor[row], array[row])
    heads = [key for key, ranges in reads if ranges == [(0, PREFIX)]]
    assert sorted(heads) == ["w/c.0.0", "w/c.1.0", "w/c.2.0"]
    blocks = [ranges for key, ranges in reads if key not in header and ranges != [(0, PREFIX)]]
    assert len(blocks) == len(rows)
    assert all(stop - start < BLOCK for ((start, stop),) in blocks)


def test_listing_300_tensors_reads_one_file(tmp_path, reads):
    arrays = {f"model.layers.{i // 10}.block.{i % 10}.weight": weights((4, 4)) for i in range(300)}
    path = write_store(tmp_path / "m.zarr", arrays)
    reads.clear()
    with bf16codecs.open_model(path) as model:
        assert len([(t.name, t.shape, t.dtype) for t in model.values()]) == 300
    assert reads == [("zarr.json", None)]


@linux
@pytest.mark.slow  # the array is too small in the quick tier, where test_bases measures memory
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_loading_takes_the_models_size_and_little_more(store, run_python, framework):
    pytest.importorskip(framework)
    code = """
import sys, resource
import bf16codecs, importlib
importlib.import_module(sys.argv[2])
import bf16codecs.model
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
bf16codecs.set_num_threads(2)
with bf16codecs.open_model(sys.argv[1]) as model:
    tensor = model.load(sys.argv[2])["w"]
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    extra = int(run_python(code, str(store), framework).stdout) * 1024 - SHAPE[0] * SHAPE[1] * 2
    assert extra < 40e6


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_row_of_a_sharded_array_is_one_inner_chunk(tmp_path, pipeline):
    """zarr fetches inner chunks whole: a shard's index, and one of them."""
    data = weights((4096, 1024))

    class CountingStore(LocalStore):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.fetched = []

        def note(self, key, reply):
            if not key.endswith("zarr.json") and reply is not None:
                self.fetched.append(len(reply))
            return reply

        async def get(self, key, prototype=None, byte_range=None):
            return self.note(key, await super().get(key, prototype, byte_range))

        def get_sync(self, key, **kwargs):
            return self.note(key, super().get_sync(key, **kwargs))

    with zarr.config.set({"codec_pipeline.path": pipeline}):
        store = CountingStore(tmp_path / "a.zarr")
        array = zarr.create_array(
            store,
            data=data,
            chunks=(1024, 1024),
            shards=(4096, 1024),
            serializer=BF16BlocksCodec("huffman"),
            compressors=None,
        )
        store.fetched.clear()
        assert_same_bits(array[1500], data[1500])
        assert len(store.fetched) == 2
        assert sum(store.fetched) < 1024 * 1024 * 2
