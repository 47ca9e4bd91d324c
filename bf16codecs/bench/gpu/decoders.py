"""Decoders of frames in a GPU's memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from bf16codecs import _core
from bf16codecs._base.messages import counted
from bf16codecs.bench.data import Bytes
from bf16codecs.bench.gpu.variants import Frame, Variant, frames_of, planes_of
from bf16codecs.bench.gpu.work import Work
from bf16codecs.cuda.batches import COUNTERS, Needs, Verdict, launch, most_warps
from bf16codecs.cuda.device import Device
from bf16codecs.cuda.memory import Memory
from bf16codecs.errors import DeviceError

__all__ = ["Decoder", "FrameDecoder", "check_verdicts", "encoded", "scratch_of"]


class Decoder:
    """A decoder of all copies of a work, prepared once and run repeatedly."""

    #: Encoded size of all copies.
    encoded_nbytes: int
    #: Modes of the planes.
    planes: str = ""
    #: Expected bytes of each tensor.
    contents: Sequence[Bytes]
    #: Addresses of the decoded copies, unless they are in the work's `out`.
    addresses: Sequence[int] | None = None

    def reset(self) -> None:
        """Prepare for the next round; not timed."""

    def decode(self) -> None:
        """Decode on the work's stream."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise `DeviceError` unless everything is decoded; not timed."""

    def close(self) -> None:
        """Free memory."""


class FrameDecoder(Decoder):
    """Frames of this package, one for each copy; all blocks are decoded at once.

    Parameters
    ----------
    work
        The copies.
    frames
        Frame of each tensor.
    """

    def __init__(self, work: Work, frames: Sequence[Frame]) -> None:
        self._work = work
        self._memory: list[Memory] = []
        self.contents = [frame.content for frame in frames]
        self.encoded_nbytes = sum(frames[copy.tensor].nbytes for copy in work.copies)
        self.planes = planes_of(frames)
        try:
            self._prepare(frames)
        except BaseException:
            self.close()
            raise

    def _prepare(self, frames: Sequence[Frame]) -> None:
        work = self._work
        plans = [_core.DevicePlan(f.index, 0, f.index.n_blocks, f.payload) for f in frames]
        payloads = self._copy_blocks(frames)
        models = [self._put(plan.model) for plan in plans]
        jobs = []
        for copy, payload in zip(work.copies, payloads, strict=True):
            plan = plans[copy.tensor]
            base = work.source.address + copy.offset if plan.needs_base else 0
            out = work.out.address + copy.offset
            jobs.append(plan.jobs(payload, out, base, models[copy.tensor]))
        self._jobs = self._put(lambda _: b"".join(jobs))
        self._count = sum(map(len, jobs)) // _core.DEVICE_JOB_BYTES
        self._control = self._allocate(COUNTERS + self._count)
        needs = Needs()
        for plan, frame in zip(plans, frames, strict=True):
            needs |= Needs.of(plan, frame.payload, work.out.address) or Needs()
        warp_bytes, self._kernels = needs
        self._scratch = (0, 0, 0)
        if warp_bytes:
            memory = scratch_of(work.device, warp_bytes, self._count)
            self._memory.append(memory)
            self._scratch = memory.address, warp_bytes, memory.nbytes // warp_bytes
        work.stream.synchronize()

    def _allocate(self, nbytes: int) -> Memory:
        self._memory.append(self._work.device.allocate(nbytes))
        return self._memory[-1]

    def _copy_blocks(self, frames: Sequence[Frame]) -> list[int]:
        """Send a frame's blocks to the GPU for each copy; return the addresses."""
        work = self._work
        sizes = [frames[copy.tensor].payload.size for copy in work.copies]
        start = self._allocate(sum(sizes)).address
        latest: dict[int, int] = {}
        addresses = []
        for copy, size in zip(work.copies, sizes, strict=True):
            source = frames[copy.tensor].payload.ctypes.data
            work.stream.copy(start, latest.setdefault(copy.tensor, source), size)
            latest[copy.tensor] = start
            addresses.append(start)
            start += size
        return addresses

    def _put(self, content_at: Callable[[int], bytes]) -> int:
        """Copy bytes, which depend on their address, to the GPU; return the address."""
        size = len(content_at(0))
        if not size:
            return 0
        address = self._allocate(size).address
        content = np.frombuffer(content_at(address), np.uint8)
        self._work.stream.copy(address, content.ctypes.data, size)
        self._work.stream.synchronize()
        return address

    def reset(self) -> None:
        """Mark all blocks as pending."""
        self._work.stream.fill(self._control.address, 0, COUNTERS + self._count)

    def decode(self) -> None:
        """Launch the kernels."""
        counters = self._control.address
        launch(
            self._work.device,
            self._work.stream,
            self._jobs,
            self._count,
            counters,
            counters + COUNTERS,
            self._scratch,
            self._kernels,
        )

    def check(self) -> None:
        """Raise `DeviceError` unless all blocks are decoded."""
        verdicts = np.empty(self._count, np.uint8)
        address = self._control.address + COUNTERS
        self._work.stream.copy(verdicts.ctypes.data, address, self._count)
        self._work.stream.synchronize()
        check_verdicts(verdicts)

    def close(self) -> None:
        """Free memory."""
        for memory in self._memory:
            memory.close()


def encoded(work: Work, variant: Variant) -> list[Frame]:
    """Encode the work's tensors, and copy their bases, if any, to the GPU.

    Raises
    ------
    OnHostError
        If the GPU cannot decode them.
    """
    frames = frames_of(variant, work.tensors)
    work.set_source([frame.content if frame.base is None else frame.base for frame in frames])
    return frames


def scratch_of(device: Device, warp_bytes: int, count: int) -> Memory:
    """Allocate memory for planes of all warps, at most a quarter of the free memory."""
    warps = min(count, most_warps(device), device.room.free // 4 // warp_bytes)
    return device.allocate(max(1, warps) * warp_bytes)


def check_verdicts(verdicts: Bytes) -> None:
    """Raise `DeviceError` unless all blocks are decoded."""
    failed = int(np.count_nonzero(verdicts != Verdict.DONE))
    if failed:
        raise DeviceError(f"{failed} of {counted(verdicts.size, 'block')} were not decoded")
