"""A GPU: its memory, its streams, and this package's kernels on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np

from bf16codecs._base.forks import make_lock
from bf16codecs._base.messages import counted
from bf16codecs.cuda._driver import call, core, driver, named_errors
from bf16codecs.cuda.compiling import compiled, newer_than_driver
from bf16codecs.cuda.memory import Memory, PinnedMemory, aligned
from bf16codecs.cuda.streams import ForeignStream, Stream
from bf16codecs.cuda.versions import CudaVersion, driver_version
from bf16codecs.errors import DeviceError

__all__ = ["Device", "KernelNeeds", "Room"]

_WARP, _QUAD = 32, 16
_OLDEST = CudaVersion(12, 0)
# Warps whose threads go on by themselves: the kernels name those that wait for each other.
_LEAST_CAPABILITY = (7, 0)


class Room(NamedTuple):
    """How much memory a GPU has."""

    #: What is left of it, to all processes together.
    free: int
    #: All of it.
    total: int


class KernelNeeds(NamedTuple):
    """Resources that a kernel takes of a multiprocessor, by the driver."""

    #: Of each thread.
    registers: int
    #: Bytes that the threads of a block share.
    shared: int
    #: Bytes of each thread that have no room in registers.
    local: int


class _Kernel(NamedTuple):
    kernel: Any
    #: Sizes of its parameters; None where the driver does not tell.
    sizes: tuple[int, ...] | None


class Device:
    """A GPU, as any number of threads use it at a time.

    Parameters
    ----------
    ordinal
        Which one, as CUDA numbers those that the process may see.

    Raises
    ------
    DeviceError
        If there is no such GPU, or no driver, or one of them is too old.
    """

    _known: dict[int, Device] = {}
    _known_lock = make_lock()

    def __init__(self, ordinal: int = 0) -> None:
        self.ordinal = ordinal
        _expect_driver()
        with named_errors(f"GPU {ordinal}"):
            n = call(driver.cuDeviceGetCount)
            if not 0 <= ordinal < n:
                raise DeviceError(f"GPU {ordinal}: there is none, of {counted(n, 'GPU')}")
            device = core.Device(ordinal)
            self.name: str = device.name
            capability = device.compute_capability
            self.multiprocessors: int = device.properties.multiprocessor_count
        self.compute_capability: tuple[int, int] = (capability.major, capability.minor)
        if self.compute_capability < _LEAST_CAPABILITY:
            raise DeviceError(
                f"GPU {ordinal} ({self.name}) is of compute capability {capability.major}."
                f"{capability.minor}, and 7.0 is needed"
            )
        # Never let go of: cuda-core holds it only as long as there is the thread that asked first.
        self._context = int(call(driver.cuDevicePrimaryCtxRetain, ordinal))
        self._kernels: dict[str, _Kernel] = {}
        self._lock = make_lock()

    @classmethod
    def of(cls, ordinal: int = 0) -> Device:
        """Return the one object of this process for a GPU.

        Parameters
        ----------
        ordinal
            Which one.

        Raises
        ------
        DeviceError
            If there is no such GPU, or no driver, or one of them is too old.
        """
        with cls._known_lock:
            if ordinal not in cls._known:
                cls._known[ordinal] = cls(ordinal)
            return cls._known[ordinal]

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make it the calling thread's current device inside the block, and then the one before.

        PyTorch goes by what is current, too.
        """
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
        """How much memory it has."""
        with self.current():
            return Room(*call(driver.cuMemGetInfo))

    def allocate(self, nbytes: int) -> Memory:
        """Return memory of the GPU; its content is undefined.

        It is taken from the driver, and goes back there: who needs some often should keep it.

        Parameters
        ----------
        nbytes
            How much; with 0, the address is 0.

        Raises
        ------
        MemoryError
            If it has no room.
        """
        address = 0
        if nbytes:
            with self.current(), _told_room(self, nbytes):
                # Kernels read quads, of which the last one may have other bytes.
                address = int(call(driver.cuMemAlloc, aligned(nbytes, _QUAD)))
        return Memory(address, nbytes, self._free)

    def pinned(self, nbytes: int) -> PinnedMemory:
        """Return memory of the host that all GPUs can copy from and to by themselves.

        Parameters
        ----------
        nbytes
            How much; to get it takes about as long as to fill it.

        Raises
        ------
        MemoryError
            If the host has no room, or keeps some for others.
        """
        address = 0
        if nbytes:
            try:
                with self.current():
                    flags = driver.CU_MEMHOSTALLOC_PORTABLE
                    address = int(call(driver.cuMemHostAlloc, nbytes, flags))
            except MemoryError as e:
                raise MemoryError(
                    f"the host has no {nbytes:,} bytes that can stay where they are, for a GPU to"
                    " copy from and to"
                ) from e
        return PinnedMemory(address, nbytes, self._free_pinned)

    def stream(self) -> Stream:
        """Return a new stream, which waits for no other, not even for CUDA's default stream."""
        with self.current(), named_errors("a stream"):
            device = core.Device(self.ordinal)
            device.set_current()
            options = core.StreamOptions(nonblocking=True)
            return Stream(device.create_stream(options=options), self.current)

    def stream_of(self, address: int) -> Stream:
        """Return another library's stream.

        Parameters
        ----------
        address
            Where the stream is, which has to stay there: CuPy's ``stream.ptr``.
        """
        with self.current(), named_errors("a stream"):
            device = core.Device(self.ordinal)
            device.set_current()
            return Stream(device.create_stream(ForeignStream(address)), self.current)

    def launch(self, kernel: str, warps: int, stream: Stream, *arguments: Any) -> None:
        """Let a kernel of this package run on a stream.

        Parameters
        ----------
        kernel
            Its name.
        warps
            How many, at least 1. Each is a block of 32 threads.
        stream
            When.
        *arguments
            Integers are of 64 bits, and addresses; NumPy's numbers are what they are.

        Raises
        ------
        TypeError
            If the kernel takes other arguments.
        DeviceError
            If there is no such kernel, or it cannot be compiled or launched.
        """
        with self.current():
            found = self._kernel(kernel)
            _check_arguments(kernel, found.sizes, arguments)
            config = core.LaunchConfig(grid=warps, block=_WARP)
            with named_errors(kernel):
                core.launch(stream.stream, config, found.kernel, *arguments)

    def needs(self, kernel: str) -> KernelNeeds:
        """Return what a kernel takes, which is compiled for that if need be.

        Parameters
        ----------
        kernel
            Its name.

        Raises
        ------
        DeviceError
            If there is no such kernel, or it cannot be compiled.
        """
        which = driver.CUfunction_attribute
        with self.current():
            handle = self._kernel(kernel).kernel.handle
            asked = (
                which.CU_FUNC_ATTRIBUTE_NUM_REGS,
                which.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
                which.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
            )
            return KernelNeeds(
                *(call(driver.cuKernelGetAttribute, one, handle, self.ordinal) for one in asked)
            )

    def _kernel(self, name: str) -> _Kernel:
        found = self._kernels.get(name)
        if found is not None:
            return found
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
            self._kernels[name] = found = _Kernel(kernel, sizes)
        return found

    # Where these fail, the GPU is lost for the process, as who uses it is told.
    def _free(self, address: int) -> None:
        with suppress(DeviceError), self.current():
            call(driver.cuMemFree, address)

    def _free_pinned(self, address: int) -> None:
        with suppress(DeviceError), self.current():
            call(driver.cuMemFreeHost, address)


def _expect_driver() -> None:
    """Check that there is a driver, and that it has what cuda-core calls."""
    try:
        call(driver.cuInit, 0)
        version = driver_version()
    except DeviceError as e:
        raise DeviceError(f"no NVIDIA GPU can be used: {e}") from e
    if version < _OLDEST:
        raise DeviceError(f"the NVIDIA driver is for CUDA {version}, and that of 12 is needed")


@contextmanager
def _told_room(device: Device, nbytes: int) -> Iterator[None]:
    try:
        yield
    except MemoryError as e:
        room = device.room
        raise MemoryError(
            f"GPU {device.ordinal} ({device.name}) has no {nbytes:,} bytes in one piece: "
            f"{room.free:,} of {room.total:,} are free"
        ) from e


def _check_arguments(name: str, sizes: tuple[int, ...] | None, arguments: tuple[Any, ...]) -> None:
    """Check sizes, which CUDA does not: a kernel would take what lies behind an argument."""
    given = tuple(a.itemsize if isinstance(a, np.generic) else 8 for a in arguments)
    if sizes is not None and given != sizes:
        raise TypeError(f"{name} takes arguments of {sizes} bytes, not {given}")
