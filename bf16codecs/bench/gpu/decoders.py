"""Frames in a GPU's memory, and what decodes them there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from bf16codecs import _core
from bf16codecs._base.messages import counted
from bf16codecs.bench.data import Bytes
from bf16codecs.bench.gpu.variants import Frame, Variant, frames_of, planes_of
from bf16codecs.bench.gpu.work import Work
from bf16codecs.cuda.batches import COUNTERS, Verdict, launch, most_warps
from bf16codecs.cuda.device import Device
from bf16codecs.cuda.memory import Memory
from bf16codecs.errors import DeviceError

__all__ = ["Decoder", "OwnFrames", "check_verdicts", "encoded", "scratch_of"]


class Decoder:
    """A decoder of all pieces of some work, prepared once and run again and again."""

    #: Of all pieces.
    encoded_nbytes: int
    #: How planes are coded.
    planes: str = ""
    #: What each tensor becomes.
    contents: Sequence[Bytes]
    #: Where the pieces are then, if not where the work has them.
    addresses: Sequence[int] | None = None

    def reset(self) -> None:
        """Get ready to decode once more; not timed."""

    def decode(self) -> None:
        """Let the work's stream decode."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise `DeviceError` unless all is decoded; not timed."""

    def close(self) -> None:
        """Give memory back."""


class OwnFrames(Decoder):
    """Frames of this package: each piece has its own, and all blocks are decoded at once.

    Parameters
    ----------
    work
        The pieces.
    frames
        Of each tensor.
    """

    def __init__(self, work: Work, frames: Sequence[Frame]) -> None:
        self._work = work
        self._memory: list[Memory] = []
        self.contents = [frame.content for frame in frames]
        self.encoded_nbytes = sum(frames[piece.tensor].nbytes for piece in work.pieces)
        self.planes = planes_of(frames)
        try:
            self._prepare(frames)
        except BaseException:
            self.close()
            raise

    def _prepare(self, frames: Sequence[Frame]) -> None:
        work = self._work
        plans = [_core.DevicePlan(frame.index, 0, frame.index.n_blocks) for frame in frames]
        payloads = self._place(frames)
        models = [self._put(plan.model) for plan in plans]
        jobs = []
        for piece, payload in zip(work.pieces, payloads, strict=True):
            plan = plans[piece.tensor]
            base = work.source.address + piece.offset if plan.needs_base else 0
            out = work.out.address + piece.offset
            jobs.append(plan.jobs(payload, out, base, models[piece.tensor]))
        self._jobs = self._put(lambda _: b"".join(jobs))
        self._count = sum(map(len, jobs)) // _core.DEVICE_JOB_BYTES
        self._control = self._allocate(COUNTERS + self._count)
        each = max(
            plan.scratch(frame.payload) or 0 for plan, frame in zip(plans, frames, strict=True)
        )
        self._scratch = (0, 0, 0)
        if each:
            memory = scratch_of(work.device, each, self._count)
            self._memory.append(memory)
            self._scratch = memory.address, each, memory.nbytes // each
        work.stream.synchronize()

    def _allocate(self, nbytes: int) -> Memory:
        self._memory.append(self._work.device.allocate(nbytes))
        return self._memory[-1]

    def _place(self, frames: Sequence[Frame]) -> list[int]:
        """Put a frame's blocks there for each piece; return the addresses."""
        work = self._work
        sizes = [frames[piece.tensor].payload.size for piece in work.pieces]
        start = self._allocate(sum(sizes)).address
        there: dict[int, int] = {}
        addresses = []
        for piece, size in zip(work.pieces, sizes, strict=True):
            source = frames[piece.tensor].payload.ctypes.data
            work.stream.copy(start, there.setdefault(piece.tensor, source), size)
            there[piece.tensor] = start
            addresses.append(start)
            start += size
        return addresses

    def _put(self, content_at: Callable[[int], bytes]) -> int:
        """Put bytes there that depend on where they are; return the address."""
        size = len(content_at(0))
        if not size:
            return 0
        address = self._allocate(size).address
        content = np.frombuffer(content_at(address), np.uint8)
        self._work.stream.copy(address, content.ctypes.data, size)
        self._work.stream.synchronize()
        return address

    def reset(self) -> None:
        """Forget what was decoded."""
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
        )

    def check(self) -> None:
        """Raise `DeviceError` unless the GPU says of all blocks that they are decoded."""
        verdicts = np.empty(self._count, np.uint8)
        address = self._control.address + COUNTERS
        self._work.stream.copy(verdicts.ctypes.data, address, self._count)
        self._work.stream.synchronize()
        check_verdicts(verdicts)

    def close(self) -> None:
        """Give memory back."""
        for memory in self._memory:
            memory.close()


def encoded(work: Work, variant: Variant) -> list[Frame]:
    """Encode the work's tensors, and put on the GPU what they are encoded against.

    Raises
    ------
    OnHostError
        If the GPU cannot decode them.
    """
    frames = frames_of(variant, work.tensors)
    work.set_source([frame.content if frame.base is None else frame.base for frame in frames])
    return frames


def scratch_of(device: Device, each: int, count: int) -> Memory:
    """Return memory for planes: enough for all warps, or for as many as there is room for."""
    warps = min(count, most_warps(device), device.room.free // 4 // each)
    return device.allocate(max(1, warps) * each)


def check_verdicts(verdicts: Bytes) -> None:
    """Raise `DeviceError` unless all blocks are decoded."""
    failed = int(np.count_nonzero(verdicts != Verdict.DONE))
    if failed:
        raise DeviceError(f"{failed} of {counted(verdicts.size, 'block')} were not decoded")
