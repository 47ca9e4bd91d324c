"""Frames that lie on a GPU, and are decoded there to the same GPU."""

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

#: Returns the address of memory of the GPU, a multiple of 64, and what keeps it.
Allocate = Callable[[int], tuple[int, Any]]

# Of memory for planes, there is no more, unless one block takes it.
_MOST_SCRATCH = 1 << 26


class Outcome(Enum):
    """The outcome of decoding a frame on a GPU."""

    #: All of it is decoded.
    DONE = "done"
    #: The host has to decode it: it has modes that the GPU lacks.
    ELSEWHERE = "elsewhere"
    #: It is damaged, and the host can say how.
    DAMAGED = "damaged"


class _Version(NamedTuple):
    """Blocks of a frame that have one base, or none."""

    plan: _core.DevicePlan
    level: int  # how many versions have to be there before
    jobs: int
    payload: int
    items: int
    base: int


class FrameOnGpu:
    """A frame that lies on a GPU.

    Parameters
    ----------
    device, stream
        Where and when.
    address, nbytes
        The frame.
    allocate
        Gives memory that the stream may use at once.
    """

    def __init__(
        self, device: Device, stream: Stream, address: int, nbytes: int, allocate: Allocate
    ) -> None:
        self._device, self._stream = device, stream
        self._address, self._nbytes = address, nbytes
        self._allocate = allocate

    def index(self, head_nbytes: int) -> _core.Index | None:
        """Read its head.

        Parameters
        ----------
        head_nbytes
            How much of the frame to look at first.

        Returns
        -------
        Index or None
            None if it has to be decoded on the host: it is a growing one, needs a base that is not
            in it, or is damaged, as the host will say.
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
        """Decode it, and wait until that is done.

        Parameters
        ----------
        index
            What `index` returned.
        items
            Where the decoded bytes go: an address on the GPU. If not all is decoded, what is there
            is undefined.
        """
        try:
            versions = self._versions(index, items)
        except CorruptDataError:
            return Outcome.DAMAGED
        if not versions:
            return Outcome.ELSEWHERE
        jobs = _Jobs(self._device, self._stream, self._allocate, versions)
        tail = np.frombuffer(max((v.plan.tail for v in versions), key=len), np.uint8)
        self._stream.copy(items + index.raw_size - tail.size, tail.ctypes.data, tail.size)
        # What waits for others takes their undefined bytes for its base.
        verdicts = jobs.run(with_scratch=versions[-1].level > 0)
        if (verdicts == Verdict.PENDING).any() and versions[-1].level == 0:
            verdicts = jobs.run(with_scratch=True)
        if ((verdicts == Verdict.ELSEWHERE) | (verdicts == Verdict.PENDING)).any():
            return Outcome.ELSEWHERE
        return Outcome.DONE if (verdicts == Verdict.DONE).all() else Outcome.DAMAGED

    def _versions(self, index: _core.Index, items: int) -> list[_Version]:
        """Return the frame's versions, each after all those that it waits for."""
        parents = index.parents or [None]
        count, nbytes = index.n_blocks // len(parents), index.raw_size // len(parents)
        versions: list[_Version] = []
        for number, parent in enumerate(parents if count else []):
            first = number * count
            plan = _core.DevicePlan(index, first, first + count)
            level = 0 if parent is None else versions[parent].level + 1
            base = 0 if parent is None else items + parent * nbytes
            at = self._address + index.offset(first)
            versions.append(_Version(plan, level, count, at, items + number * nbytes, base))
        return sorted(versions, key=lambda version: version.level)


class _Jobs:
    """Jobs on a GPU, with all that they need beside their blocks.

    They lie there one after the other, and behind them: counters for each level, models, verdicts.
    """

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
        self._of_level = [0] * levels
        for version in versions:
            self._of_level[version.level] += version.jobs
        self._count = sum(self._of_level)
        counters = _core.DEVICE_JOB_BYTES * self._count
        model = counters + COUNTERS * levels
        verdicts = model + sum(version.plan.model_nbytes for version in versions)
        content = np.zeros(verdicts + self._count, np.uint8)
        self._jobs, self._memory = allocate(content.size)
        self._counters, self._verdicts = self._jobs + counters, self._jobs + verdicts
        at = 0
        for version in versions:
            plan, size = version.plan, version.plan.model_nbytes
            address = self._jobs + model if size else 0
            jobs = plan.jobs(version.payload, version.items, version.base, address)
            content[at : at + len(jobs)] = np.frombuffer(jobs, np.uint8)
            at += len(jobs)
            if size:
                content[model : model + size] = np.frombuffer(plan.model(address), np.uint8)
                model += size
        stream.copy(self._jobs, content.ctypes.data, content.size)
        self._content = content  # until it is there

    def run(self, with_scratch: bool) -> NDArray[np.uint8]:
        """Let those that are pending be decoded, and return the verdicts."""
        scratch, kept = self._scratch() if with_scratch else ((0, 0, 0), None)
        self._stream.fill(self._counters, 0, COUNTERS * len(self._of_level))
        done = 0
        for level, count in enumerate(self._of_level):
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
        """Return memory for all planes of as many blocks at a time as it pays to have it for."""
        warps = max(1, min(self._count, _MOST_SCRATCH // self._plane_bytes))
        address, kept = self._allocate(warps * self._plane_bytes)
        return (address, self._plane_bytes, warps), kept
