"""Batches of blocks that are sent to a GPU and decoded together."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bf16codecs import _core
from bf16codecs.cuda.device import Device
from bf16codecs.cuda.memory import Memory, aligned
from bf16codecs.cuda.streams import Event, Stream

__all__ = [
    "BATCH_BYTES",
    "COUNTERS",
    "Batch",
    "Verdict",
    "block_ranges",
    "launch",
    "most_warps",
]

#: Size of a batch: about twenty blocks, which a GPU decodes in less time than they take to arrive.
#: Several batches are in flight at a time.
BATCH_BYTES = 1 << 23

_JOB_ALIGNMENT, _MODEL_ALIGNMENT = 64, 8
#: Bytes of the job counters before the verdicts, one for each of four kernels.
COUNTERS = 16
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


def block_ranges(index: _core.Index, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of a frame's blocks, each of one block or half of a batch at most."""
    start = first
    for block in range(first + 1, last):
        if index.offset(block + 1) - index.offset(start) > BATCH_BYTES // 2:
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
) -> None:
    """Launch the kernels that decode blocks.

    `jobs` and `count` are the address and number of jobs (`_core.DevicePlan.jobs`). `counters` and
    `verdicts` are addresses of 16 bytes, and of a byte for each job; all are 0. `scratch` is memory
    for blocks with several coded planes: its address, bytes for each warp, and number of warps.
    """
    n, none, most = np.uint32(count), np.uint64(0), most_warps(device)
    # Each kernel has a counter of the jobs that its warps have taken.
    counter = itertools.count(counters, _COUNTER)

    def start(kernel: str, warps: int, *memory: Any) -> None:
        device.launch(kernel, warps, stream, jobs, n, next(counter), verdicts, *memory)

    start("bf16codecs_decode_fused", min(count, most))
    if count >= _MANY_BLOCKS * device.multiprocessors:
        # A warp decodes four blocks at a time: few blocks would occupy too few warps.
        start("bf16codecs_decode_huffman", min(-(-count // 4), most))
    start("bf16codecs_decode_any", min(count, most), 0, none)
    address, warp_bytes, warps = scratch
    if warps:
        start("bf16codecs_decode_any", min(count, warps), address, np.uint64(warp_bytes))


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
        #: Most bytes that a warp needs for planes.
        self.scratch = 0

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
        """Add the statistical model of a plan's jobs; return its address, or 0 without one."""
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
        if self.scratch and scratch is not None:
            warps = scratch.address, self.scratch, scratch.nbytes // self.scratch
        verdicts = on_gpu + self._verdicts
        launch(self._device, stream, on_gpu + jobs, count, on_gpu + counters, verdicts, warps)
        stream.copy(host.address + self._verdicts, verdicts, count)

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
