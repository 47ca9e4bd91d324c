"""Decode frames that lie on a GPU to memory of the same GPU."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bf16codecs import _core
from bf16codecs.cuda.batches import COUNTERS, Verdict, launch
from bf16codecs.cuda.device import Device
from bf16codecs.cuda.streams import Stream
from bf16codecs.errors import CodecError, CorruptDataError

__all__ = ["Allocate", "FrameOnGpu", "Outcome"]

#: Allocates memory of the GPU; returns its address, a multiple of 64, and its owner.
Allocate = Callable[[int], tuple[int, Any]]

# Most memory for planes, unless one block needs more.
_MOST_SCRATCH = 1 << 26


class Outcome(Enum):
    """The outcome of decoding a frame on a GPU."""

    #: The whole frame is decoded.
    DONE = "done"
    #: The host has to decode it: it has modes that the GPU lacks.
    ELSEWHERE = "elsewhere"
    #: It is damaged; decoding on the host finds out how.
    DAMAGED = "damaged"


class _Version(NamedTuple):
    """Blocks of a frame that share a parent, or have none."""

    plan: _core.DevicePlan
    level: int  # number of its ancestors
    jobs: int
    payload: int
    items: int
    base: int


class FrameOnGpu:
    """A frame at `address` on a GPU; `allocate` allocates memory that `stream` may use at once."""

    def __init__(
        self, device: Device, stream: Stream, address: int, nbytes: int, allocate: Allocate
    ) -> None:
        self._device, self._stream = device, stream
        self._address, self._nbytes = address, nbytes
        self._allocate = allocate

    def index(self, head_nbytes: int) -> _core.Index | None:
        """Read the frame's head, `head_nbytes` first, and more if it is longer.

        None if the host has to decode it: it is growing, damaged, or needs a base outside of it.
        """
        head = self._head(head_nbytes)
        try:
            if _core.is_growing(head):
                return None
            size = _core.header_size(head)
            if size > self._nbytes:
                return None
            index = _core.Index(head if size <= head.size else self._head(size))
        except CodecError:
            return None
        if index.needs_base or index.frame_size != self._nbytes:
            return None
        return index

    def _head(self, size: int) -> NDArray[np.uint8]:
        head = np.empty(min(size, self._nbytes), np.uint8)
        self._stream.copy(head.ctypes.data, self._address, head.size)
        self._stream.synchronize()
        return head

    def decode(self, index: _core.Index, items: int) -> Outcome:
        """Decode to the GPU address `items`, and wait; bytes there are undefined unless `DONE`."""
        try:
            versions = self._versions(index, items)
        except CorruptDataError:
            return Outcome.DAMAGED
        if not versions:
            return Outcome.ELSEWHERE
        jobs = _Jobs(self._device, self._stream, self._allocate, versions)
        tail = np.frombuffer(max((v.plan.tail for v in versions), key=len), np.uint8)
        self._stream.copy(items + index.raw_size - tail.size, tail.ctypes.data, tail.size)
        # Versions with parents need scratch memory at once: without it, a parent may stay
        # undecoded, and its child would take undefined bytes as its base.
        verdicts = jobs.run(with_scratch=versions[-1].level > 0)
        if (verdicts == Verdict.PENDING).any() and versions[-1].level == 0:
            verdicts = jobs.run(with_scratch=True)
        if ((verdicts == Verdict.ELSEWHERE) | (verdicts == Verdict.PENDING)).any():
            return Outcome.ELSEWHERE
        return Outcome.DONE if (verdicts == Verdict.DONE).all() else Outcome.DAMAGED

    def _versions(self, index: _core.Index, items: int) -> list[_Version]:
        """Return the frame's versions, each after its parent."""
        parents = index.parents or [None]
        count, nbytes = index.n_blocks // len(parents), index.raw_size // len(parents)
        versions: list[_Version] = []
        for number, parent in enumerate(parents if count else []):
            first = number * count
            plan = _core.DevicePlan(index, first, first + count)
            level = 0 if parent is None else versions[parent].level + 1
            base = 0 if parent is None else items + parent * nbytes
            payload = self._address + index.offset(first)
            versions.append(_Version(plan, level, count, payload, items + number * nbytes, base))
        return sorted(versions, key=lambda version: version.level)


class _Jobs:
    """Jobs on a GPU, one after the other; then counters for each level, models, and verdicts."""

    def __init__(
        self,
        device: Device,
        stream: Stream,
        allocate: Allocate,
        versions: list[_Version],
    ) -> None:
        self._device, self._stream, self._allocate = device, stream, allocate
        self._plane_bytes = versions[0].plan.most_scratch
        levels = versions[-1].level + 1
        self._level_jobs = [0] * levels
        for version in versions:
            self._level_jobs[version.level] += version.jobs
        self._count = sum(self._level_jobs)
        counters = _core.DEVICE_JOB_BYTES * self._count
        model = counters + COUNTERS * levels
        verdicts = model + sum(version.plan.model_nbytes for version in versions)
        content = np.zeros(verdicts + self._count, np.uint8)
        self._jobs, self._memory = allocate(content.size)
        self._counters, self._verdicts = self._jobs + counters, self._jobs + verdicts
        end = 0
        for version in versions:
            plan, size = version.plan, version.plan.model_nbytes
            address = self._jobs + model if size else 0
            jobs = plan.jobs(version.payload, version.items, version.base, address)
            content[end : end + len(jobs)] = np.frombuffer(jobs, np.uint8)
            end += len(jobs)
            if size:
                content[model : model + size] = np.frombuffer(plan.model(address), np.uint8)
                model += size
        stream.copy(self._jobs, content.ctypes.data, content.size)
        self._content = content  # kept until it is copied

    def run(self, with_scratch: bool) -> NDArray[np.uint8]:
        """Decode pending blocks, and return the verdicts of all."""
        scratch, kept = self._scratch() if with_scratch else ((0, 0, 0), None)
        self._stream.fill(self._counters, 0, COUNTERS * len(self._level_jobs))
        done = 0
        for level, count in enumerate(self._level_jobs):
            launch(
                self._device,
                self._stream,
                self._jobs + _core.DEVICE_JOB_BYTES * done,
                count,
                self._counters + COUNTERS * level,
                self._verdicts + done,
                scratch,
            )
            done += count
        verdicts = np.empty(self._count, np.uint8)
        self._stream.copy(verdicts.ctypes.data, self._verdicts, verdicts.size)
        self._stream.synchronize()
        del kept
        return verdicts

    def _scratch(self) -> tuple[tuple[int, int, int], Any]:
        """Return memory for the planes of blocks that are decoded at a time, and its owner."""
        warps = max(1, min(self._count, _MOST_SCRATCH // self._plane_bytes))
        address, kept = self._allocate(warps * self._plane_bytes)
        return (address, self._plane_bytes, warps), kept
