"""Load onto a GPU: stored bytes are sent, and decoded there."""

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
from bf16codecs.cuda.batches import BATCH_BYTES, Batch, Needs, block_ranges, most_warps
from bf16codecs.cuda.device import Device
from bf16codecs.cuda.memory import Memory

__all__ = ["GpuBytes", "Loader"]

# Each thread's memory for planes of blocks with several coded ones, and for items to copy from.
_SCRATCH_BYTES = _LENT_BYTES = 1 << 22
# Bytes that a warp copies at a time (``_native/cuda/rows.h``).
_ROW_PART = 4096


class Loader(AbstractContextManager["Loader"]):
    """Loader onto a GPU for several threads.

    Stored bytes are copied to pinned memory, sent, and decoded; these steps overlap. At most two
    batches of 16 MiB for each thread, and one more, are on the host and on the GPU, and 8 MiB more
    for each thread on the GPU.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._local = threading.local()
        self._lanes: list[_Lane] = []
        # Batches in flight, the oldest first.
        self._sent: deque[Batch] = deque()
        self._lock = make_lock()
        self._failed: set[Hashable] = set()

    def memory(self, address: int, nbytes: int, name: Hashable) -> GpuBytes:
        """Return GPU memory to read to; `finish` returns its `name` if a block is damaged."""
        return GpuBytes(self, address, nbytes, name)

    def finish(self) -> set[Hashable]:
        """Wait for everything, once all threads have read; return names of memory with damage."""
        for lane in self._lanes:
            lane.send()
        while self._sent:
            self._failed |= self._sent.popleft().wait()
        self._synchronize()
        failed, self._failed = self._failed, set()
        return failed

    def __exit__(self, *exception: object) -> None:
        # Memory may be freed only when nothing is in flight, even after an error. It is freed here:
        # lanes and loader refer to each other, and would wait for the garbage collector.
        try:
            self._synchronize()
        finally:
            self._local = threading.local()
            self._lanes.clear()
            self._sent.clear()

    def _synchronize(self) -> None:
        """Wait for all lanes, even if one of them or Ctrl-C raises meanwhile."""
        with ExitStack() as stack:
            for lane in self._lanes:
                stack.callback(lane.stream.synchronize)

    @property
    def lane(self) -> _Lane:
        """Lane of the calling thread."""
        lane: _Lane | None = getattr(self._local, "lane", None)
        if lane is None:
            lane = self._local.lane = _Lane(self)
            with self._lock:
                self._lanes.append(lane)
        return lane

    def next_batch(self) -> Batch:
        """Return an empty batch.

        It is the oldest one if that is done, or more are in flight than there are threads, and
        otherwise a new one: page-locking its memory takes longer than filling it.
        """
        with self._lock:
            is_enough = len(self._sent) > len(self._lanes)
            takes_oldest = is_enough or (self._sent and self._sent[0].is_done)
            batch = self._sent.popleft() if takes_oldest else None
        if batch is None:
            return Batch(self.device)
        failed = batch.wait()
        with self._lock:
            self._failed |= failed
        return batch

    def add_sent(self, batch: Batch) -> None:
        """Keep a batch that is in flight."""
        with self._lock:
            self._sent.append(batch)


class _Lane:
    """A thread's stream and the batch that the thread fills."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self.stream = loader.device.stream()
        self._batch: Batch | None = None
        self._scratch: Memory | None = None
        self._lent: Memory | None = None
        # Owners of memory in use since the last batch was sent; the next batch keeps them, since
        # its event comes after.
        self._kept: list[Any] = []

    def keep(self, *owners: Any) -> None:
        """Keep the owners of memory that the stream uses until the stream is done with it."""
        self._kept += owners

    def lent(self, nbytes: int) -> Memory:
        """Return memory that is valid until the next call."""
        if self._lent is None or self._lent.nbytes < nbytes:
            self.stream.synchronize()
            self._lent = self._loader.device.allocate(max(nbytes, _LENT_BYTES))
        return self._lent

    def batch(self, nbytes: int, jobs: int = 0) -> Batch | None:
        """Return a batch with room for `nbytes` and `jobs`; None if an empty one is too small."""
        if self._batch is not None and self._batch.room(jobs) < nbytes:
            self.send()
        if self._batch is None:
            self._batch = self._loader.next_batch()
        return self._batch if self._batch.room(jobs) >= nbytes else None

    def send(self) -> None:
        """Send the batch, if it has anything."""
        batch = self._batch
        if batch is None or batch.is_empty:
            return
        warp_bytes = batch.needs.scratch
        if warp_bytes and (self._scratch is None or self._scratch.nbytes < warp_bytes):
            self.stream.synchronize()
            size = max(_SCRATCH_BYTES, warp_bytes)
            self._scratch = self._loader.device.allocate(size)
        self._batch = None
        batch.kept += self._kept
        self._kept = []
        batch.send(self.stream, self._scratch)
        self._loader.add_sent(batch)


class GpuBytes(DeviceMemory):
    """Bytes on a GPU as a `Loader`'s target; `owner`, if any, is kept until work is done."""

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
        target, lane = self[part], self._loader.lane
        if isinstance(content, np.ndarray):
            target._put(content)
            return
        lane.send()
        if isinstance(content, GpuBytes):
            lane.stream.copy(target.address, content.address, target.size)
            lane.keep(self._owner, content._owner)
        else:
            lane.keep(self._owner)
            lane.stream.fill(target.address, content, target.size)

    def _put(self, content: NDArray[np.uint8]) -> None:
        lane = self._loader.lane
        for start in range(0, content.size, BATCH_BYTES // 2):
            piece = content[start : start + BATCH_BYTES // 2]
            batch = lane.batch(piece.size)
            assert batch is not None
            batch.add_copy(piece, self.address + start)
            batch.kept.append(self._owner)

    def new(self, size: int) -> GpuBytes:
        """Allocate other memory of the GPU, of undefined content."""
        memory = self._loader.device.allocate(size)
        return GpuBytes(self._loader, memory.address, size, self._name, memory)

    def lent(self, size: int) -> GpuBytes:
        """Return memory that is valid until the calling thread's next call."""
        memory = self._loader.lane.lent(size)
        return GpuBytes(self._loader, memory.address, size, self._name)

    def put_rows(self, source: DeviceMemory, rows: Rows) -> None:
        """Copy rows of other memory of the GPU to the start of this one."""
        assert isinstance(source, GpuBytes)
        device, lane = self._loader.device, self._loader.lane
        lane.send()
        parts = rows.number * -(-rows.nbytes // _ROW_PART)
        warps = min(parts, most_warps(device))
        layout = self.address, rows.to_pitch, source.address, rows.from_pitch
        device.launch("bf16codecs_copy_rows", warps, lane.stream, *layout, rows.nbytes, rows.number)
        lane.keep(self._owner, source._owner)

    def host(self) -> NDArray[np.uint8]:
        """Copy the content to the host."""
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
        """Decode blocks of a frame; the host decodes those that the GPU cannot."""
        block_bytes = index.block_items * index.item_size
        begin = index.offset(first)
        for start, stop in block_ranges(index, first, last):
            part = payload[index.offset(start) - begin : index.offset(stop) - begin]
            plan = _core.DevicePlan(index, start, stop, part)
            items = slice(
                (start - first) * block_bytes,
                (stop - first) * block_bytes if stop < last else None,
            )
            part_base = None if base is None or not plan.needs_base else base[items]
            if not self[items]._decode_on_gpu(plan, part, part_base, stop - start):
                self[items]._decode_on_host(index, part, start, stop, part_base)

    def _decode_on_gpu(
        self, plan: _core.DevicePlan, payload: NDArray[np.uint8], base: GpuBytes | None, jobs: int
    ) -> bool:
        """Decode blocks on the GPU; return False if it cannot."""
        needs = Needs.of(plan, payload, self.address)
        if needs is None or (plan.needs_base and base is None):
            return False
        lane = self._loader.lane
        if base is not None:
            lane.send()  # the base may be in the unsent batch
        batch = lane.batch(payload.size + plan.model_nbytes, jobs)
        if batch is None:
            return False
        model = batch.put_model(plan)
        address = batch.put(payload)
        base_address = 0 if base is None else base.address
        batch.add_jobs(plan.jobs(address, self.address, base_address, model), self._name)
        batch.kept += [self._owner, base]
        batch.needs |= needs
        tail = np.frombuffer(plan.tail, np.uint8)
        if tail.size:
            lane.send()
            self[self.size - tail.size :]._put(tail)
        if base is not None:
            lane.send()  # later work may overwrite the base
        return True

    def _decode_on_host(
        self,
        index: _core.Index,
        payload: NDArray[np.uint8],
        first: int,
        last: int,
        base: GpuBytes | None,
    ) -> None:
        content = np.empty(self.size, np.uint8)
        host_base = None if base is None else base.host()
        index.decode_block_range(payload, first, last, content, host_base)
        self._put(content)
