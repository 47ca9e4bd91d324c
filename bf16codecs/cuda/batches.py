"""Batches of blocks: what a GPU is sent at a time, and decodes at once."""

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
    "block_runs",
    "launch",
    "most_warps",
]

#: What is sent at a time: some twenty blocks, which a GPU decodes in less time than they take to
#: arrive. Several batches are on their way at a time.
BATCH_BYTES = 1 << 23

_JOB_ALIGNMENT, _MODEL_ALIGNMENT = 64, 8
#: Bytes before the verdicts: how far each of four kernels has come.
COUNTERS = 16
_COUNTER = 4
# Of each multiprocessor, as many as it has at a time.
_WARPS = 32
# For each multiprocessor: of fewer, one for each warp are done sooner.
_MANY_BLOCKS = 8


class Verdict(IntEnum):
    """How far a block is decoded, as the kernels say it (``_native/cuda/job.h``)."""

    PENDING = 0
    DONE = 1
    CORRUPT = 2
    ELSEWHERE = 3
    OTHER_BASE = 4


def block_runs(index: _core.Index, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield blocks of a frame in runs that take half of a batch at most, or are one block."""
    start = first
    for block in range(first + 1, last):
        if index.offset(block + 1) - index.offset(start) > BATCH_BYTES // 2:
            yield start, block
            start = block
    if start < last:
        yield start, last


def most_warps(device: Device) -> int:
    """Return how many warps there can be at a time: each goes from job to job."""
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
    """Let the kernels decode blocks.

    Parameters
    ----------
    device, stream
        Where and when.
    jobs, count
        Address of the jobs (`_core.DevicePlan.jobs`), and how many they are.
    counters, verdicts
        Addresses of 16 bytes, and of a byte for each job; all of them 0.
    scratch
        Memory for blocks with several coded planes: its address, how much of it a warp has, and how
        many warps that is enough for.
    """
    n, none, most = np.uint32(count), np.uint64(0), most_warps(device)
    # Each kernel counts the jobs that its warps have taken.
    counter = itertools.count(counters, _COUNTER)

    def start(kernel: str, warps: int, *memory: Any) -> None:
        device.launch(kernel, warps, stream, jobs, n, next(counter), verdicts, *memory)

    start("bf16codecs_decode_fused", min(count, most))
    if count >= _MANY_BLOCKS * device.multiprocessors:
        # It has four blocks in a warp: of few, too few warps would be at work.
        start("bf16codecs_decode_huffman", min(-(-count // 4), most))
    start("bf16codecs_decode_any", min(count, most), 0, none)
    address, each, enough = scratch
    if enough:
        start("bf16codecs_decode_any", min(count, enough), address, np.uint64(each))


class Batch:
    """Memory for blocks on their way to a GPU, which is filled, sent, and filled again.

    Parameters
    ----------
    device
        The GPU.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._host = device.pinned(BATCH_BYTES)
        self._there = device.allocate(BATCH_BYTES)
        self._event: Event | None = None
        self._clear()

    def _clear(self) -> None:
        self._used = 0
        self._jobs: list[bytes] = []
        #: Whose each job is; and where bytes go that are no blocks: place, address, size.
        self._owners: list[Hashable] = []
        self._copies: list[tuple[int, int, int]] = []
        self._verdicts = 0
        #: Memory that is not to go before all is done.
        self.kept: list[Any] = []
        #: What a warp needs for planes, at most.
        self.scratch = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to send."""
        return not self._owners and not self._copies

    def room(self, jobs: int = 0) -> int:
        """Return how many bytes it has room for, with so many jobs."""
        count = len(self._owners) + jobs
        taken = self._used + 2 * _JOB_ALIGNMENT + COUNTERS + (_core.DEVICE_JOB_BYTES + 1) * count
        return max(0, self._host.nbytes - taken)

    def put(self, content: NDArray[np.uint8], alignment: int = 1) -> int:
        """Put bytes there; return their address on the GPU, once they are sent."""
        at = aligned(self._used, alignment)
        self._host.array[at : at + content.size] = content
        self._used = at + content.size
        return self._there.address + at

    def put_model(self, plan: _core.DevicePlan) -> int:
        """Put there what the jobs of a plan need beside their blocks; return its address."""
        at = aligned(self._used, _MODEL_ALIGNMENT)
        model = plan.model(self._there.address + at)
        return self.put(np.frombuffer(model, np.uint8), _MODEL_ALIGNMENT) if model else 0

    def add_jobs(self, jobs: bytes, owner: Hashable) -> None:
        """Add jobs, whose blocks have been put there."""
        self._jobs.append(jobs)
        self._owners += [owner] * (len(jobs) // _core.DEVICE_JOB_BYTES)

    def add_copy(self, content: NDArray[np.uint8], address: int) -> None:
        """Add bytes that go to an address of the GPU as they are."""
        at = self._used
        self.put(content)
        self._copies.append((at, address, content.size))

    def send(self, stream: Stream, scratch: Memory | None) -> None:
        """Let it be copied and decoded, in the order of a stream; returns at once."""
        for at, address, size in self._copies:
            stream.copy(address, self._host.address + at, size)
        if self._jobs:
            self._send_jobs(stream, scratch)
        self._event = stream.record()

    def _send_jobs(self, stream: Stream, scratch: Memory | None) -> None:
        count = len(self._owners)
        jobs = aligned(self._used, _JOB_ALIGNMENT)
        counters = jobs + _core.DEVICE_JOB_BYTES * count
        self._verdicts = counters + COUNTERS
        end = self._verdicts + count
        host, there = self._host, self._there.address
        host.array[jobs:counters] = np.frombuffer(b"".join(self._jobs), np.uint8)
        host.array[counters:end] = Verdict.PENDING
        stream.copy(there, host.address, end)
        warps = (0, 0, 0)
        if self.scratch and scratch is not None:
            warps = scratch.address, self.scratch, scratch.nbytes // self.scratch
        verdicts = there + self._verdicts
        launch(self._device, stream, there + jobs, count, there + counters, verdicts, warps)
        stream.copy(host.address + self._verdicts, verdicts, count)

    def wait(self) -> set[Hashable]:
        """Wait until it is done, and empty it; return the owners of blocks that are not decoded."""
        if self._event is not None:
            self._event.synchronize()
            self._event = None
        count = len(self._owners) if self._verdicts else 0
        verdicts = self._host.array[self._verdicts : self._verdicts + count]
        failed = {self._owners[i] for i in np.flatnonzero(verdicts != Verdict.DONE)}
        self._clear()
        return failed
