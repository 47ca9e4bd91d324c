"""How little is read of a large tensor, and how much memory that takes."""

from __future__ import annotations

import numpy as np
import pytest
import zarr
from zarr.storage import LocalStore

import bf16codecs
from bf16codecs.zarr import BF16BlocksCodec
from bits import PIPELINES, assert_same_bits
from lazy_models import weights, write_store
from measured_reads import linux

pytestmark = pytest.mark.slow

BLOCK = 1 << 19
CHUNK = 64 << 20
SHAPE = (24576, 4096)  # 192 MiB, in three chunks of 128 blocks
PREFIX = 4096


@pytest.fixture(scope="module")
def array():
    return np.tile(weights((1024, 4096)), (24, 1)) * np.arange(1, 25).repeat(1024)[:, None].astype(
        "bfloat16"
    )


@pytest.fixture(scope="module")
def store(array, tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("large") / "m.zarr", {"w": array}, chunk_size=CHUNK)


def test_one_row_is_an_index_and_at_most_two_blocks(store, array, reads):
    for row in (0, 63, 64, 8191, 8192, 20000, -1):
        with bf16codecs.open_model(store) as model:
            reads.clear()
            assert_same_bits(model["w"][row], array[row])
            header, (head_key, head), (key, blocks) = reads
            assert header[0] == "safetensors/header/0/c.0"
            assert head_key == key == f"w/c.{(row % SHAPE[0]) // 8192}.0"
            assert head == [(0, PREFIX)]
            assert sum(stop - start for start, stop in blocks) < 2 * BLOCK


def test_what_says_where_blocks_are_is_read_once(store, array, reads):
    with bf16codecs.open_model(store) as model:
        tensor = model["w"]
        reads.clear()
        for row in range(100, 8000, 777):
            assert_same_bits(tensor[row], array[row])
        assert len(reads) == 2 + len(range(100, 8000, 777)), "and the safetensors header"
        assert_same_bits(model["w"][5], array[5])
        assert reads[-1][1] != [(0, PREFIX)], "not for each LazyTensor either"


def test_a_selection_reads_the_blocks_it_touches(store, array, reads):
    with bf16codecs.open_model(store) as model:
        tensor = model["w"]
        tensor[0], tensor[8192], tensor[16384]
        for selection, blocks in [
            (np.s_[100:110, ::7], 1),
            (np.s_[60:70], 2),
            (np.s_[:24000:8000, 5], 3),
            (np.s_[[5, 10000, 6, 20000]], 3),
            (np.s_[[5, 10000], [3, 4]], 2),
            (np.s_[8190:8194], 2),
        ]:
            reads.clear()
            assert_same_bits(tensor[selection], array[selection])
            ranges = [r for _, ranges in reads for r in ranges]
            assert sum(stop - start for start, stop in ranges) < blocks * BLOCK


def test_random_rows_are_one_block_each(store, array, reads):
    """Where blocks are is read once for each of the three chunks, and nothing is read twice."""
    rows = np.random.default_rng(0).integers(0, SHAPE[0], 300).tolist()
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
