"""A GPU: its memory, its streams, and this package's kernels on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np

from bf16codecs._base.buffers import aligned
from bf16codecs._base.forks import make_lock
from bf16codecs._base.messages import counted
from bf16codecs.cuda.compiling import compiled, newer_than_driver
from bf16codecs.cuda.memory import Memory, PinnedMemory
from bf16codecs.cuda.nvidia import (
    CudaVersion,
    call,
    core,
    driver,
    driver_version,
    named_errors,
)
from bf16codecs.cuda.streams import ForeignStream, Stream
from bf16codecs.errors import DeviceError

__all__ = ["Device", "KernelNeeds", "Room"]

_WARP, _QUAD = 32, 16
_OLDEST = CudaVersion(12, 0)
# The kernels need independent thread scheduling, which began with Volta.
_LEAST_CAPABILITY = (7, 0)


class Room(NamedTuple):
    """Memory of a GPU, in bytes."""

    #: Free memory, which all processes share.
    free: int
    #: All of the memory.
    total: int


class KernelNeeds(NamedTuple):
    """Resources that a kernel needs on a multiprocessor, as reported by the driver."""

    #: Registers of each thread.
    registers: int
    #: Bytes of shared memory of each block.
    shared: int
    #: Bytes of local memory of each thread: what registers do not hold.
    local: int


class _Kernel(NamedTuple):
    kernel: Any
    #: Sizes of its parameters; None if the driver does not report them.
    sizes: tuple[int, ...] | None


class Device:
    """GPU number `ordinal` of those that the process sees; threads may share it.

    Raises DeviceError if the GPU or the driver is missing or too old.
    """

    _known: dict[int, Device] = {}
    _known_lock = make_lock()

    def __init__(self, ordinal: int = 0) -> None:
        self.ordinal = ordinal
        _expect_driver()
        with named_errors(f"GPU {ordinal}"):
            n = call(driver.cuDeviceGetCount)
            if not 0 <= ordinal < n:
                raise DeviceError(f"GPU {ordinal} does not exist: found {counted(n, 'GPU')}")
            device = core.Device(ordinal)
            self.name: str = device.name
            capability = device.compute_capability
            self.multiprocessors: int = device.properties.multiprocessor_count
        self.compute_capability: tuple[int, int] = (capability.major, capability.minor)
        if self.compute_capability < _LEAST_CAPABILITY:
            raise DeviceError(
                f"GPU {ordinal} ({self.name}) has compute capability {capability.major}."
                f"{capability.minor}; at least 7.0 is needed"
            )
        # Never released: cuda-core keeps it only as long as the first thread that used it.
        try:
            self._context = int(call(driver.cuDevicePrimaryCtxRetain, ordinal))
        except MemoryError as e:
            raise DeviceError(
                f"GPU {ordinal} ({self.name}) has no room for another process: nvidia-smi lists"
                " those that fill its memory"
            ) from e
        self._kernels: dict[str, _Kernel] = {}
        self._lock = make_lock()

    @classmethod
    def of(cls, ordinal: int = 0) -> Device:
        """Return the process's only object for a GPU; errors are those of the class."""
        with cls._known_lock:
            if ordinal not in cls._known:
                cls._known[ordinal] = cls(ordinal)
            return cls._known[ordinal]

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this the thread's device in the block; restore the previous one for PyTorch."""
        before = int(call(driver.cuCtxGetCurrent))
        if before == self._context:
            yield
            return
        call(driver.cuCtxSetCurrent, self._context)
        try:
            yield
        finally:
            call(driver.cuCtxSetCurrent, before)

    @property
    def room(self) -> Room:
        """Memory of the GPU, free and total."""
        with self.current():
            return Room(*call(driver.cuMemGetInfo))

    def allocate(self, nbytes: int) -> Memory:
        """Allocate memory of the GPU, of undefined content; with 0 bytes, the address is 0.

        Slow: keep memory that is needed often. Raises MemoryError if too little is free.
        """
        address = 0
        if nbytes:
            with self.current(), _free_memory_named(self, nbytes):
                # Kernels read quads, so the last one may extend beyond the data.
                address = int(call(driver.cuMemAlloc, aligned(nbytes, _QUAD)))
        return Memory(address, nbytes, self._free)

    def pinned(self, nbytes: int) -> PinnedMemory:
        """Allocate page-locked memory of the host, which all GPUs copy from and to directly.

        Takes about as long as filling it. Raises MemoryError if the host cannot lock so much.
        """
        address = 0
        if nbytes:
            try:
                with self.current():
                    flags = driver.CU_MEMHOSTALLOC_PORTABLE
                    address = int(call(driver.cuMemHostAlloc, nbytes, flags))
            except MemoryError as e:
                raise MemoryError(
                    f"the host cannot lock {nbytes:,} bytes of memory for copies from and to a GPU"
                ) from e
        return PinnedMemory(address, nbytes, self._free_pinned)

    def stream(self) -> Stream:
        """Return a new stream that waits for no other, not even for CUDA's default stream."""
        with self.current(), named_errors("a stream"):
            device = core.Device(self.ordinal)
            device.set_current()
            options = core.StreamOptions(nonblocking=True)
            return Stream(device.create_stream(options=options), self.current)

    def stream_of(self, address: int) -> Stream:
        """Return the stream at an address (CuPy: ``stream.ptr``), which must outlive the result."""
        with self.current(), named_errors("a stream"):
            device = core.Device(self.ordinal)
            device.set_current()
            return Stream(device.create_stream(ForeignStream(address)), self.current)

    def launch(self, kernel: str, warps: int, stream: Stream, *arguments: Any) -> None:
        """Launch a kernel of this package on a stream.

        `warps` is the number of blocks of 32 threads, at least 1. Python integers are passed as 64
        bits, NumPy scalars as they are. Raises TypeError if arguments do not fit the kernel;
        DeviceError if it does not exist, or cannot be compiled or launched.
        """
        with self.current():
            loaded = self._kernel(kernel)
            _check_arguments(kernel, loaded.sizes, arguments)
            config = core.LaunchConfig(grid=warps, block=_WARP)
            with named_errors(kernel):
                core.launch(stream.stream, config, loaded.kernel, *arguments)

    def needs(self, kernel: str) -> KernelNeeds:
        """Return a kernel's resources; raise DeviceError if it is unknown or does not compile."""
        kinds = driver.CUfunction_attribute
        with self.current():
            handle = self._kernel(kernel).kernel.handle
            attributes = (
                kinds.CU_FUNC_ATTRIBUTE_NUM_REGS,
                kinds.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
                kinds.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
            )
            return KernelNeeds(
                *(call(driver.cuKernelGetAttribute, a, handle, self.ordinal) for a in attributes)
            )

    def _kernel(self, name: str) -> _Kernel:
        loaded = self._kernels.get(name)
        if loaded is not None:
            return loaded
        with self._lock:
            if name in self._kernels:
                return self._kernels[name]
            code = compiled(name, self.compute_capability)
            load = core.ObjectCode.from_ptx if code.is_ptx else core.ObjectCode.from_cubin
            try:
                with named_errors(name):
                    kernel = load(code.code).get_kernel(name)
            except DeviceError as e:
                raise DeviceError(f"{e}{newer_than_driver()}") from e
            try:
                sizes = tuple(info.size for info in kernel.arguments_info)
            except NotImplementedError:  # drivers before 12.4
                sizes = None
            self._kernels[name] = loaded = _Kernel(kernel, sizes)
        return loaded

    # If freeing fails, the GPU is lost for the process, and each later call on it raises.
    def _free(self, address: int) -> None:
        with suppress(DeviceError), self.current():
            call(driver.cuMemFree, address)

    def _free_pinned(self, address: int) -> None:
        with suppress(DeviceError), self.current():
            call(driver.cuMemFreeHost, address)


def _expect_driver() -> None:
    """Check that the driver is installed, and new enough for cuda-core."""
    try:
        call(driver.cuInit, 0)
        version = driver_version()
    except DeviceError as e:
        raise DeviceError(f"no NVIDIA GPU can be used: {e}") from e
    if version < _OLDEST:
        raise DeviceError(f"the NVIDIA driver is for CUDA {version}; CUDA 12 or later is needed")


@contextmanager
def _free_memory_named(device: Device, nbytes: int) -> Iterator[None]:
    try:
        yield
    except MemoryError as e:
        room = device.room
        raise MemoryError(
            f"GPU {device.ordinal} ({device.name}) has no {nbytes:,} bytes in one piece: "
            f"{room.free:,} of {room.total:,} are free"
        ) from e


def _check_arguments(name: str, sizes: tuple[int, ...] | None, arguments: tuple[Any, ...]) -> None:
    """Check sizes, which CUDA does not: a kernel would read beyond an argument."""
    given = tuple(a.itemsize if isinstance(a, np.generic) else 8 for a in arguments)
    if sizes is not None and given != sizes:
        raise TypeError(f"{name} takes arguments of {sizes} bytes, not {given}")
