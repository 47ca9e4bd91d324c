"""Loading onto a GPU: what is read is sent as it is stored, and decoded there."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bf16codecs import _core
from bf16codecs._base.device_memory import DeviceMemory, Rows
from bf16codecs._base.forks import make_lock
from bf16codecs.cuda.batches import BATCH_BYTES, Batch, block_runs, most_warps
from bf16codecs.cuda.device import Device
from bf16codecs.cuda.memory import Memory

__all__ = ["GpuBytes", "Loader"]

# For planes of blocks where several are coded, and for what is copied from there: a thread's.
_SCRATCH_BYTES = _LENT_BYTES = 1 << 22
# What a warp copies at a time (``_native/cuda/rows.h``).
_ROW_PART = 4096


class Loader(AbstractContextManager["Loader"]):
    """Reads and decodes onto a GPU, from several threads at a time.

    What is read is copied to pinned memory, sent, and decoded, each while the next is on its way.
    For each thread, it takes 16 MiB of the host, and of the GPU, which may have 8 MiB more to do.

    Parameters
    ----------
    device
        The GPU.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._own = threading.local()
        self._lanes: list[_Lane] = []
        # What has been sent, in that order.
        self._sent: deque[Batch] = deque()
        self._lock = make_lock()
        self._failed: set[Hashable] = set()

    def memory(self, address: int, nbytes: int, name: Hashable) -> GpuBytes:
        """Return memory of the GPU to read to.

        Parameters
        ----------
        address, nbytes
            Where it is.
        name
            What `finish` calls it.
        """
        return GpuBytes(self, address, nbytes, name)

    def finish(self) -> set[Hashable]:
        """Wait for all that was read; return the names of memory with blocks that are damaged.

        No other thread may be reading any more.
        """
        for lane in self._lanes:
            lane.send()
        while self._sent:
            self._failed |= self._sent.popleft().wait()
        self._synchronize()
        failed, self._failed = self._failed, set()
        return failed

    def __exit__(self, *exception: object) -> None:
        # Nothing may be under way when memory goes, whatever happened. It goes now: lanes know
        # their loader, and would wait for the garbage collector together.
        try:
            self._synchronize()
        finally:
            self._own = threading.local()
            self._lanes.clear()
            self._sent.clear()

    def _synchronize(self) -> None:
        """Wait for all lanes, whatever one of them, or Ctrl-C, says meanwhile."""
        with ExitStack() as stack:
            for lane in self._lanes:
                stack.callback(lane.stream.synchronize)

    @property
    def lane(self) -> _Lane:
        """The calling thread's."""
        lane: _Lane | None = getattr(self._own, "lane", None)
        if lane is None:
            lane = self._own.lane = _Lane(self)
            with self._lock:
                self._lanes.append(lane)
        return lane

    def next_batch(self) -> Batch:
        """Return an empty batch: a new one until more are under way than there are threads."""
        with self._lock:
            is_enough = len(self._sent) > len(self._lanes)
            batch = self._sent.popleft() if is_enough else None
        if batch is None:
            return Batch(self.device)
        failed = batch.wait()
        with self._lock:
            self._failed |= failed
        return batch

    def add_sent(self, batch: Batch) -> None:
        """Keep a batch that is under way."""
        with self._lock:
            self._sent.append(batch)


class _Lane:
    """A thread's stream, and the batch that it fills."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self.stream = loader.device.stream()
        self._batch: Batch | None = None
        self._scratch: Memory | None = None
        self._lent: Memory | None = None
        # Of what was begun since a batch was sent, whose event tells that it is done.
        self._kept: list[Any] = []

    def keep(self, *owners: Any) -> None:
        """Keep the owners of memory that the stream uses from now on, until it is done."""
        self._kept += owners

    def lent(self, nbytes: int) -> Memory:
        """Return memory, whose content is used when it is asked for again."""
        if self._lent is None or self._lent.nbytes < nbytes:
            self.stream.synchronize()
            self._lent = self._loader.device.allocate(max(nbytes, _LENT_BYTES))
        return self._lent

    def batch(self, nbytes: int, jobs: int = 0) -> Batch | None:
        """Return a batch with room for so many bytes and jobs; None if none has."""
        if self._batch is not None and self._batch.room(jobs) < nbytes:
            self.send()
        if self._batch is None:
            self._batch = self._loader.next_batch()
        return self._batch if self._batch.room(jobs) >= nbytes else None

    def send(self) -> None:
        """Let what was added be copied and decoded."""
        batch = self._batch
        if batch is None or batch.is_empty:
            return
        if batch.scratch and (self._scratch is None or self._scratch.nbytes < batch.scratch):
            self.stream.synchronize()
            size = max(_SCRATCH_BYTES, batch.scratch)
            self._scratch = self._loader.device.allocate(size)
        self._batch = None
        batch.kept += self._kept
        self._kept = []
        batch.send(self.stream, self._scratch)
        self._loader.add_sent(batch)


class GpuBytes(DeviceMemory):
    """Bytes on a GPU that a `Loader` reads to: see `DeviceMemory`.

    Its `owner`, if it has one, is kept until all is done that uses them.
    """

    def __init__(
        self, loader: Loader, address: int, nbytes: int, name: Hashable, owner: Any = None
    ) -> None:
        self._loader, self.address, self.size = loader, address, nbytes
        self._name, self._owner = name, owner

    def __getitem__(self, part: slice) -> GpuBytes:
        start, stop, _ = part.indices(self.size)
        size = max(0, stop - start)
        return GpuBytes(self._loader, self.address + start, size, self._name, self._owner)

    def __setitem__(self, part: slice, content: Any) -> None:
        to, lane = self[part], self._loader.lane
        if isinstance(content, np.ndarray):
            to._put(content)
            return
        lane.send()
        if isinstance(content, GpuBytes):
            lane.stream.copy(to.address, content.address, to.size)
            lane.keep(self._owner, content._owner)
        else:
            lane.keep(self._owner)
            lane.stream.fill(to.address, content, to.size)

    def _put(self, content: NDArray[np.uint8]) -> None:
        lane = self._loader.lane
        for start in range(0, content.size, BATCH_BYTES // 2):
            some = content[start : start + BATCH_BYTES // 2]
            batch = lane.batch(some.size)
            assert batch is not None
            batch.add_copy(some, self.address + start)
            batch.kept.append(self._owner)

    def new(self, size: int) -> GpuBytes:
        """Return other memory of the GPU, of undefined content."""
        memory = self._loader.device.allocate(size)
        return GpuBytes(self._loader, memory.address, size, self._name, memory)

    def lent(self, size: int) -> GpuBytes:
        """Return memory that the calling thread has until it asks for such memory again."""
        memory = self._loader.lane.lent(size)
        return GpuBytes(self._loader, memory.address, size, self._name)

    def put_rows(self, source: DeviceMemory, rows: Rows) -> None:
        """Copy rows of other memory of the GPU to the begin of this one."""
        assert isinstance(source, GpuBytes)
        device, lane = self._loader.device, self._loader.lane
        lane.send()
        parts = rows.number * -(-rows.nbytes // _ROW_PART)
        warps = min(parts, most_warps(device))
        places = self.address, rows.to_pitch, source.address, rows.from_pitch
        device.launch("bf16codecs_copy_rows", warps, lane.stream, *places, rows.nbytes, rows.number)
        lane.keep(self._owner, source._owner)

    def host(self) -> NDArray[np.uint8]:
        """Return what it holds."""
        content = np.empty(self.size, np.uint8)
        lane = self._loader.lane
        lane.send()
        lane.stream.copy(content.ctypes.data, self.address, self.size)
        lane.stream.synchronize()
        return content

    def decode(
        self,
        index: _core.Index,
        payload: NDArray[np.uint8],
        first: int,
        last: int,
        base: GpuBytes | None,
    ) -> None:
        """Decode blocks of a frame to here; what the GPU cannot decode, on the host."""
        block_bytes = index.block_items * index.item_size
        begin = index.offset(first)
        for start, stop in block_runs(index, first, last):
            plan = _core.DevicePlan(index, start, stop)
            part = payload[index.offset(start) - begin : index.offset(stop) - begin]
            size = (stop - start) * block_bytes if stop < last else None
            at = (start - first) * block_bytes
            place = slice(at, None if size is None else at + size)
            of_part = None if base is None or not plan.needs_base else base[place]
            if not self[place]._decode_there(plan, part, of_part, stop - start):
                self[place]._decode_here(index, part, start, stop, of_part)

    def _decode_there(
        self, plan: _core.DevicePlan, payload: NDArray[np.uint8], base: GpuBytes | None, jobs: int
    ) -> bool:
        """Let the GPU decode blocks; return whether it can."""
        scratch = plan.scratch(payload)
        if scratch is None or (plan.needs_base and base is None):
            return False
        lane = self._loader.lane
        if base is not None:
            lane.send()  # the base may be in what is not sent yet
        batch = lane.batch(payload.size + plan.model_nbytes, jobs)
        if batch is None:
            return False
        model = batch.put_model(plan)
        there = batch.put(payload)
        base_at = 0 if base is None else base.address
        batch.add_jobs(plan.jobs(there, self.address, base_at, model), self._name)
        batch.kept += [self._owner, base]
        batch.scratch = max(batch.scratch, scratch)
        tail = np.frombuffer(plan.tail, np.uint8)
        if tail.size:
            lane.send()
            self[self.size - tail.size :]._put(tail)
        if base is not None:
            lane.send()  # what comes next may be put where the base is
        return True

    def _decode_here(
        self,
        index: _core.Index,
        payload: NDArray[np.uint8],
        first: int,
        last: int,
        base: GpuBytes | None,
    ) -> None:
        content = np.empty(self.size, np.uint8)
        of_host = None if base is None else base.host()
        index.decode_block_range(payload, first, last, content, of_host)
        self._put(content)
