"""Batches of blocks that are sent to a GPU and decoded together."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator
from enum import IntEnum, IntFlag
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bf16codecs import _core
from bf16codecs._base.buffers import aligned
from bf16codecs.cuda.device import Device
from bf16codecs.cuda.memory import Memory
from bf16codecs.cuda.streams import Event, Stream

__all__ = [
    "BATCH_BYTES",
    "COUNTERS",
    "Batch",
    "Kernels",
    "Needs",
    "Verdict",
    "block_ranges",
    "launch",
    "most_warps",
]

#: Size of a batch, some fifty blocks. When each batch was new memory, an H200 loaded 10.7 GB/s in
#: batches of 16 MiB, 7.7 in batches of 8, and 9.3 in batches of 32.
BATCH_BYTES = 1 << 24

_JOB_ALIGNMENT, _MODEL_ALIGNMENT = 64, 8
#: Bytes of the job counters before the verdicts: a counter for each of at most seven launches.
COUNTERS = 32
_COUNTER = 4
# Warps that a multiprocessor holds at a time.
_WARPS = 32
# Blocks for each multiprocessor from which the Huffman kernel pays. Fewer blocks finish sooner with
# one warp each.
_MANY_BLOCKS = 8


class Verdict(IntEnum):
    """State of a block, as the kernels write it (``_native/cuda/job.h``)."""

    PENDING = 0
    DONE = 1
    CORRUPT = 2
    ELSEWHERE = 3
    OTHER_BASE = 4
    TO_MERGE = 5
    TO_MULTIPLY = 6


class Kernels(IntFlag):
    """Kernels that decode blocks, in the order of their launches (``_native/cuda/job.h``)."""

    DECODE_FUSED = 1
    DECODE_FUSED_DELTA = 2
    DECODE_HUFFMAN = 4
    DECODE_ANY = 8
    MERGE_PLANES = 16
    MULTIPLY_LEVELS = 32
    #: For all blocks but grids, parts of which the host has to read.
    UNREAD = DECODE_FUSED | DECODE_FUSED_DELTA | DECODE_HUFFMAN | DECODE_ANY | MERGE_PLANES


class Needs(NamedTuple):
    """Needs of blocks to decode: bytes of memory for each warp's planes, and kernels."""

    scratch: int = 0
    kernels: Kernels = Kernels(0)

    @classmethod
    def of(cls, plan: _core.DevicePlan, payload: NDArray[np.uint8], items: int) -> Needs | None:
        """Return the needs of a plan's blocks, decoded to an address; None if the host has to."""
        needs = plan.needs(payload, items)
        return None if needs is None else cls(needs[0], Kernels(needs[1]))

    def __or__(self, other: Needs) -> Needs:
        return Needs(max(self.scratch, other.scratch), self.kernels | other.kernels)


def block_ranges(index: _core.Index, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of a frame's blocks, each of one block, or half of a batch at most.

    Decoded, they are a batch at most: what the host reads of grids is to fit as well.
    """
    start, most = first, BATCH_BYTES // (index.block_items * index.item_size)
    for block in range(first + 1, last):
        nbytes = index.offset(block + 1) - index.offset(start)
        if nbytes > BATCH_BYTES // 2 or block - start >= most:
            yield start, block
            start = block
    if start < last:
        yield start, last


def most_warps(device: Device) -> int:
    """Return how many warps the GPU runs at a time; each takes one job after the other."""
    return _WARPS * device.multiprocessors


def launch(
    device: Device,
    stream: Stream,
    jobs: int,
    count: int,
    counters: int,
    verdicts: int,
    scratch: tuple[int, int, int] = (0, 0, 0),
    kernels: Kernels = Kernels.UNREAD,
) -> None:
    """Launch the kernels that decode blocks.

    `jobs` and `count` are the address and number of jobs (`_core.DevicePlan.jobs`). `counters` and
    `verdicts` are addresses of `COUNTERS` bytes, and of a byte for each job; all are 0. `scratch`
    is memory for blocks with several coded planes: its address, bytes for each warp, and number of
    warps. `kernels` are those that the blocks need.
    """
    n, none, most = np.uint32(count), np.uint64(0), most_warps(device)
    # Each kernel has a counter of the jobs that its warps have taken.
    counter = itertools.count(counters, _COUNTER)

    def start(kernel: Kernels, warps: int, *memory: Any) -> None:
        if kernel in kernels:
            name = f"bf16codecs_{kernel.name}".lower()
            device.launch(name, warps, stream, jobs, n, next(counter), verdicts, *memory)

    if Kernels.DECODE_HUFFMAN in kernels and count < _MANY_BLOCKS * device.multiprocessors:
        # A warp decodes four blocks at a time: few blocks would occupy too few warps.
        kernels = kernels & ~Kernels.DECODE_HUFFMAN | Kernels.DECODE_ANY
    start(Kernels.DECODE_FUSED, min(count, most))
    start(Kernels.DECODE_FUSED_DELTA, min(count, most))
    start(Kernels.DECODE_HUFFMAN, min(-(-count // 4), most))
    start(Kernels.DECODE_ANY, min(count, most), 0, none)
    address, warp_bytes, warps = scratch
    if warps:
        start(Kernels.DECODE_ANY, min(count, warps), address, np.uint64(warp_bytes))
    start(Kernels.MERGE_PLANES, min(count, most))
    start(Kernels.MULTIPLY_LEVELS, min(count, most))


class Batch:
    """Memory for blocks that are sent to a GPU, filled again and again."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._host = device.pinned(BATCH_BYTES)
        self._on_gpu = device.allocate(BATCH_BYTES)
        self._event: Event | None = None
        self._clear()

    def _clear(self) -> None:
        self._used = 0
        self._jobs: list[bytes] = []
        #: Owner of each job.
        self._owners: list[Hashable] = []
        #: Bytes that are not blocks: offset in the batch, address on the GPU, size.
        self._copies: list[tuple[int, int, int]] = []
        self._verdicts = 0
        #: Owners of memory that must stay until the batch is done.
        self.kept: list[Any] = []
        #: Needs of the jobs.
        self.needs = Needs()

    @property
    def is_empty(self) -> bool:
        """Whether the batch has nothing to send."""
        return not self._owners and not self._copies

    def room(self, jobs: int = 0) -> int:
        """Return how many bytes fit beside `jobs` more jobs."""
        count = len(self._owners) + jobs
        taken = self._used + 2 * _JOB_ALIGNMENT + COUNTERS + (_core.DEVICE_JOB_BYTES + 1) * count
        return max(0, self._host.nbytes - taken)

    def put(self, content: NDArray[np.uint8], alignment: int = 1) -> int:
        """Add bytes; return the address that they will have on the GPU."""
        offset = aligned(self._used, alignment)
        self._host.array[offset : offset + content.size] = content
        self._used = offset + content.size
        return self._on_gpu.address + offset

    def put_model(self, plan: _core.DevicePlan) -> int:
        """Add the model of a plan's jobs, and their grids; return its address, or 0 without one."""
        offset = aligned(self._used, _MODEL_ALIGNMENT)
        model = plan.model(self._on_gpu.address + offset)
        return self.put(np.frombuffer(model, np.uint8), _MODEL_ALIGNMENT) if model else 0

    def add_jobs(self, jobs: bytes, owner: Hashable) -> None:
        """Add jobs, whose blocks are in the batch already."""
        self._jobs.append(jobs)
        self._owners += [owner] * (len(jobs) // _core.DEVICE_JOB_BYTES)

    def add_copy(self, content: NDArray[np.uint8], address: int) -> None:
        """Add bytes to copy to an address of the GPU unchanged."""
        offset = self._used
        self.put(content)
        self._copies.append((offset, address, content.size))

    def send(self, stream: Stream, scratch: Memory | None) -> None:
        """Copy and decode the batch on a stream, without waiting."""
        for offset, address, size in self._copies:
            stream.copy(address, self._host.address + offset, size)
        if self._jobs:
            self._send_jobs(stream, scratch)
        self._event = stream.record()

    def _send_jobs(self, stream: Stream, scratch: Memory | None) -> None:
        count = len(self._owners)
        jobs = aligned(self._used, _JOB_ALIGNMENT)
        counters = jobs + _core.DEVICE_JOB_BYTES * count
        self._verdicts = counters + COUNTERS
        end = self._verdicts + count
        host, on_gpu = self._host, self._on_gpu.address
        host.array[jobs:counters] = np.frombuffer(b"".join(self._jobs), np.uint8)
        host.array[counters:end] = Verdict.PENDING
        stream.copy(on_gpu, host.address, end)
        warps = (0, 0, 0)
        warp_bytes, kernels = self.needs
        if warp_bytes and scratch is not None:
            warps = scratch.address, warp_bytes, scratch.nbytes // warp_bytes
        verdicts = on_gpu + self._verdicts
        at = on_gpu + jobs, count, on_gpu + counters, verdicts
        launch(self._device, stream, *at, warps, kernels)
        stream.copy(host.address + self._verdicts, verdicts, count)

    @property
    def is_done(self) -> bool:
        """Whether everything that was sent is decoded."""
        return self._event is None or self._event.is_past

    def wait(self) -> set[Hashable]:
        """Wait until it is done, and empty it; return the owners of blocks that failed."""
        if self._event is not None:
            self._event.synchronize()
            self._event = None
        count = len(self._owners) if self._verdicts else 0
        verdicts = self._host.array[self._verdicts : self._verdicts + count]
        failed = {self._owners[i] for i in np.flatnonzero(verdicts != Verdict.DONE)}
        self._clear()
        return failed
