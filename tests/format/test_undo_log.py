"""Blocks that are decoded in place, with a log of what they have overwritten."""

from __future__ import annotations

import numpy as np
import pytest

from bf16codecs.errors import BaseMismatchError, CodecError
from looping import for_each
from native_core import core

#: Around the log's groups of 512 bytes, and of several blocks; with less than an item at the end.
SIZES = (0, 2, 7, 510, 511, 512, 513, 1024, 4095, 70_000, 70_001)
BLOCK_ITEMS = 1 << 12


def changed(base, part, rng):
    raw = base.copy()
    raw[rng.random(raw.size) < part] ^= 1
    return raw


def parts_of(raw, base, dtype):
    """Return the index of a frame of differences, and all of its blocks."""
    frame = core.encode(raw, core.CODECS["arithmetic"], dtype, base=base, block=BLOCK_ITEMS)
    index = core.Index(frame)
    return index, np.frombuffer(frame, np.uint8)[index.offsets[0] :].copy()


@for_each("dtype", sorted(core.DTYPES.values()))
@for_each("part", [0, 0.01, 0.1, 1])
@for_each("threads", [1, 3])
def test_what_is_overwritten_is_put_back(dtype, part, threads):
    rng, before = np.random.default_rng(dtype), core.get_num_threads()
    core.set_num_threads(threads)
    try:
        for size in SIZES:
            base = rng.integers(0, 64, size, np.uint8)
            raw = changed(base, part, rng)
            index, payload = parts_of(raw, base, dtype)
            if index.n_blocks:
                items = size - size % index.item_size
                log, out = core.UndoLog(), base.copy()
                index.decode_block_range(payload, 0, index.n_blocks, out, out[:items], log)
                assert out.tobytes() == raw.tobytes()
                log.undo()
                assert out.tobytes() == base.tobytes()
                # From a base in other memory, to what has nothing to do with it.
                noise = rng.integers(0, 256, size, np.uint8)
                log.clear()
                out = noise.copy()
                index.decode_block_range(payload, 0, index.n_blocks, out, base[:items], log)
                assert out.tobytes() == raw.tobytes()
                log.undo()
                assert out.tobytes() == noise.tobytes()
    finally:
        core.set_num_threads(before)


def test_damage_is_undone_wherever_it_is():
    rng = np.random.default_rng(1)
    base = rng.integers(0, 256, 70_001, np.uint8)
    index, payload = parts_of(changed(base, 0.01, rng), base, core.DTYPES["bfloat16"])
    log, n, nbytes = core.UndoLog(), index.n_blocks, index.block_items * index.item_size
    bounds = [offset - index.offsets[0] for offset in index.offsets]
    for block in range(n):
        for at in range(bounds[block], bounds[block + 1], 7):
            damaged, out = payload.copy(), base.copy()
            damaged[at] ^= 1 << at % 8
            log.clear()
            with pytest.raises(CodecError):
                index.decode_block_range(damaged, 0, n, out, out[:-1], log)
            # The block itself is as it was.
            part = slice(block * nbytes, (block + 1) * nbytes)
            assert (out[part] == base[part]).all()
            log.undo()
            assert (out == base).all()


def test_another_base_is_refused_and_put_back():
    rng = np.random.default_rng(2)
    base = rng.integers(0, 256, 70_000, np.uint8)
    index, payload = parts_of(changed(base, 0.01, rng), base, core.DTYPES["bfloat16"])
    other = base.copy()
    other[-1] ^= 1  # in the last block
    log, out = core.UndoLog(), other.copy()
    with pytest.raises(BaseMismatchError):
        index.decode_block_range(payload, 0, index.n_blocks, out, out, log)
    log.undo()
    assert (out == other).all()
    # Without a log, nothing is overwritten by then.
    with pytest.raises(BaseMismatchError):
        index.decode_block_range(payload, 0, index.n_blocks, out, out)
    assert (out == other).all()


@for_each("size", [0, 1, 511, 512, 513, 5000])
def test_memory_that_is_logged_whole(size):
    rng = np.random.default_rng(3)
    memory = rng.integers(0, 256, size, np.uint8)
    before, log = memory.copy(), core.UndoLog()
    log.add(memory[: size // 2])
    log.add(memory[size // 2 :])
    memory[:] = 0
    log.undo()
    assert (memory == before).all()
    memory[:] = 0
    log.clear()
    log.undo()
    assert not memory.any()
