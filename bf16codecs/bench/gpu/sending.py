"""Send frames from pinned memory to a GPU, which decodes them on arrival; and raw bytes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np

from bf16codecs import _core
from bf16codecs._base.buffers import aligned
from bf16codecs.bench.data import Bytes
from bf16codecs.bench.gpu.decoders import check_verdicts, scratch_of
from bf16codecs.bench.gpu.variants import Frame
from bf16codecs.bench.gpu.work import LEAST_SECONDS, TensorCopy, Work
from bf16codecs.cuda.batches import BATCH_BYTES, COUNTERS, Needs, block_ranges, launch
from bf16codecs.cuda.memory import Memory
from bf16codecs.model.gpu import LOADING_THREADS

__all__ = ["RawSender", "Sender"]

# Alignment of jobs, and so of batches.
_ALIGNMENT = 64


@dataclass(frozen=True)
class _Transfer:
    """Blocks of one copy that are sent together; `begin` is their first byte in the copy.

    `room` is their size in a batch, with their jobs.
    """

    copy: TensorCopy
    plan: _core.DevicePlan
    payload: Bytes
    begin: int
    room: int


@dataclass(frozen=True)
class _Batch:
    """Layout of a batch: offsets of its start and its jobs in the memory, and of its verdicts."""

    begin: int
    size: int
    jobs: int
    count: int
    verdicts: int


class RawSender(AbstractContextManager["RawSender"]):
    """Sender of raw bytes in pinned memory, in one copy.

    Parameters
    ----------
    work
        Tensors and their targets.
    nbytes
        Most bytes to send.
    """

    def __init__(self, work: Work, nbytes: int) -> None:
        self._work = work
        self.copies = work.first(nbytes)
        self.nbytes = sum(copy.nbytes for copy in self.copies)
        last = self.copies[-1]
        self._host = work.device.pinned(last.offset + last.nbytes)
        for copy in self.copies:
            target = self._host.array[copy.offset : copy.offset + copy.nbytes]
            target[:] = work.tensors[copy.tensor]

    def __exit__(self, *exception: object) -> None:
        self._work.stream.synchronize()

    def send(self) -> float:
        """Send everything; return the seconds until it has arrived."""
        work, begin = self._work, time.perf_counter()
        work.stream.copy(work.out.address, self._host.address, self._host.nbytes)
        work.stream.synchronize()
        return max(LEAST_SECONDS, time.perf_counter() - begin)


class Sender(AbstractContextManager["Sender"]):
    """Sender of frames in pinned memory, in batches and on streams like those of a `Loader`.

    All blocks are planned, and in pinned memory, before the first round.

    Parameters
    ----------
    work
        Targets of the tensors.
    frames
        Frame of each tensor.
    copies
        Pieces to send.
    """

    def __init__(self, work: Work, frames: Sequence[Frame], copies: Sequence[TensorCopy]) -> None:
        self._work, self._frames, self._copies = work, frames, copies
        self.encoded_nbytes = sum(frames[copy.tensor].nbytes for copy in copies)
        transfers = [t for copy in copies for t in _transfers(copy, frames[copy.tensor])]
        batches = _batched(transfers)
        room = sum(map(_room, batches))
        self._host = work.device.pinned(room)
        self._memory: list[Memory] = []
        try:
            self._on_gpu = self._allocate(room)
            self._batches = self._filled(batches)
            blocks = sum(batch.count for batch in self._batches)
            self._verdicts = work.device.pinned(blocks)
            self._needs = Needs()
            for t in transfers:
                self._needs |= Needs.of(t.plan, t.payload, work.out.address) or Needs()
            self._streams = [work.device.stream() for _ in range(LOADING_THREADS)]
            most = max(batch.count for batch in self._batches)
            self._scratch = [self._plane_memory(most) for _ in self._streams]
        except BaseException:
            self._close()
            raise

    def __exit__(self, *exception: object) -> None:
        for stream in self._streams:
            stream.synchronize()
        self._close()

    def _close(self) -> None:
        for memory in self._memory:
            memory.close()

    def _allocate(self, nbytes: int) -> Memory:
        self._memory.append(self._work.device.allocate(nbytes))
        return self._memory[-1]

    def _plane_memory(self, count: int) -> tuple[int, int, int]:
        warp_bytes = self._needs.scratch
        if not warp_bytes:
            return 0, 0, 0
        self._memory.append(scratch_of(self._work.device, warp_bytes, count))
        memory = self._memory[-1]
        return memory.address, warp_bytes, memory.nbytes // warp_bytes

    def _filled(self, batches: Sequence[Sequence[_Transfer]]) -> list[_Batch]:
        """Write batches to pinned memory; return their layouts."""
        begin, verdicts, filled = 0, 0, []
        for transfers in batches:
            batch = self._fill(transfers, begin, verdicts)
            filled.append(batch)
            begin += _room(transfers)
            verdicts += batch.count
        return filled

    def _fill(self, transfers: Sequence[_Transfer], begin: int, verdicts: int) -> _Batch:
        work, host = self._work, self._host.array
        offset, jobs = begin, []
        for transfer in transfers:
            out = transfer.copy.offset + transfer.begin
            base = work.source.address + out if transfer.plan.needs_base else 0
            model = transfer.plan.model(self._on_gpu.address + offset)
            host[offset : offset + len(model)] = np.frombuffer(model, np.uint8)
            model_address = self._on_gpu.address + offset if model else 0
            offset += len(model)
            payload = self._on_gpu.address + offset
            host[offset : offset + transfer.payload.size] = transfer.payload
            offset = aligned(offset + transfer.payload.size, 8)  # a model's tables may follow
            jobs.append(transfer.plan.jobs(payload, work.out.address + out, base, model_address))
        offset = aligned(offset, _ALIGNMENT)
        content = np.frombuffer(b"".join(jobs), np.uint8)
        count = content.size // _core.DEVICE_JOB_BYTES
        host[offset : offset + content.size] = content
        end = offset + content.size + COUNTERS + count
        host[offset + content.size : end] = 0
        return _Batch(begin, end - begin, offset, count, verdicts)

    def send(self) -> float:
        """Send and decode everything; return the seconds until that is done."""
        begin = time.perf_counter()
        for i, batch in enumerate(self._batches):
            self._send(batch, i % len(self._streams))
        for stream in self._streams:
            stream.synchronize()
        return max(LEAST_SECONDS, time.perf_counter() - begin)

    def _send(self, batch: _Batch, lane: int) -> None:
        stream, on_gpu = self._streams[lane], self._on_gpu.address
        stream.copy(on_gpu + batch.begin, self._host.address + batch.begin, batch.size)
        counters = on_gpu + batch.jobs + _core.DEVICE_JOB_BYTES * batch.count
        verdicts = counters + COUNTERS
        jobs, scratch = on_gpu + batch.jobs, self._scratch[lane]
        at = jobs, batch.count, counters, verdicts
        launch(self._work.device, stream, *at, scratch, self._needs.kernels)
        stream.copy(self._verdicts.address + batch.verdicts, verdicts, batch.count)

    def check(self) -> None:
        """Raise `DeviceError` unless all blocks are decoded."""
        check_verdicts(self._verdicts.array)
        self._verdicts.array[:] = 0


def _transfers(copy: TensorCopy, frame: Frame) -> Iterator[_Transfer]:
    """Yield a frame's blocks in the transfers of a `Loader`."""
    index = frame.index
    for first, last in block_ranges(index, 0, index.n_blocks):
        start, stop = (index.offset(block) - index.offset(0) for block in (first, last))
        payload = frame.payload[start:stop]
        begin = first * index.block_items * index.item_size
        plan = _core.DevicePlan(index, first, last, payload)
        room = aligned(payload.size, 8) + plan.model_nbytes
        room += (_core.DEVICE_JOB_BYTES + 1) * (last - first)
        yield _Transfer(copy, plan, payload, begin, room)


def _batched(transfers: Sequence[_Transfer]) -> list[list[_Transfer]]:
    """Group transfers into batches of a `Loader`'s size."""
    batches: list[list[_Transfer]] = []
    left = 0
    for transfer in transfers:
        if not batches or transfer.room > left:
            batches.append([])
            left = BATCH_BYTES - _room([])
        batches[-1].append(transfer)
        left -= transfer.room
    return batches


def _room(transfers: Sequence[_Transfer]) -> int:
    """Return the size of a batch, with padding that aligns its jobs and the next batch."""
    return aligned(sum(transfer.room for transfer in transfers) + COUNTERS, _ALIGNMENT) + _ALIGNMENT
