"""Tensors of a model read onto a GPU, which gets and decodes the stored bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from bf16codecs._arrays.array import ArrayReader, Job, RangeReader
from bf16codecs._arrays.indexing import Points, as_index, parse_selection
from bf16codecs._arrays.memory import DeviceArray, MemoryArray
from bf16codecs._arrays.on_device import decodes_there, device_jobs, host_nbytes
from bf16codecs._base.threads import run_all
from bf16codecs.cuda.found import found_gpu, gpu_only_failure

if TYPE_CHECKING:
    import torch

    from bf16codecs.cuda.device import Device

__all__ = [
    "LOADING_THREADS",
    "Held",
    "Readable",
    "Target",
    "gpu_of",
    "read_into_torch",
    "read_onto",
    "torch_selection",
    "torch_tensors",
]


#: Threads that read at the same time: on a host of 16 processors, 4 loaded 12.7 GB/s, 6 13.4, and 8
#: less, as they wait for the driver's lock.
LOADING_THREADS = 6


class Readable(Protocol):
    """The part of `LazyTensor` that reading to a GPU uses."""

    name: str
    shape: tuple[int, ...]
    _array: ArrayReader

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of NumPy."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""

    def get_dtype(self) -> str:
        """Return the data type by its name in safetensors."""

    def _reader(self) -> ArrayReader:
        """Return the array, after a comparison with the header."""

    def _check_size(self, items: int, work: int) -> None:
        """Refuse to decode more than a call may."""

    def __getitem__(self, selection: Any) -> Any:
        """Read a selection on the host."""


class Held(NamedTuple):
    """Memory of a GPU with the values that a tensor has in another model.

    `against` returns the tensor's array, given these values, and `host` copies them to the host.
    """

    address: int
    against: Callable[[RangeReader], ArrayReader]
    host: Callable[[], NDArray[Any]]


class Target(NamedTuple):
    """The memory of a GPU for a tensor, or for a box of it."""

    tensor: Readable
    address: int
    #: Consecutive indices along each axis; None for all of them.
    axes: Sequence[range] | None = None
    #: Values of the tensor in another model, that this one's are decoded against.
    held: Held | None = None

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        if self.axes is None:
            return self.tensor.nbytes
        return math.prod(map(len, self.axes)) * self.tensor.dtype.itemsize


def gpu_of(device: torch.device) -> Device | None:
    """Return the GPU behind a device of PyTorch, if it can decode tensors."""
    if device.type != "cuda":
        return None
    import torch

    ordinal = torch.cuda.current_device() if device.index is None else device.index
    return found_gpu(ordinal, "tensors")


def torch_tensors(
    tensors: Sequence[Readable], device: torch.device, gpu: Device
) -> dict[str, torch.Tensor]:
    """Read whole tensors of one model, already checked, into new tensors of PyTorch on a GPU."""
    made = {tensor.name: _new(tensor, tensor.shape, device) for tensor in tensors}
    targets = [Target(tensor, made[tensor.name].data_ptr()) for tensor in tensors]
    read_into_torch(device, gpu, targets)
    return made


def torch_selection(
    tensor: Readable, selection: Any, device: torch.device, gpu: Device
) -> torch.Tensor | None:
    """Read a selection of a tensor into a new tensor of PyTorch on a GPU.

    The result is None if the selection has steps or arrays of indices, or GPUs cannot decode the
    tensor. Raises IndexError with NumPy's messages, and LimitError for more than a call may decode.
    """
    parsed = parse_selection(selection, tensor.shape)
    if isinstance(parsed, Points) or not decodes_there(tensor._array):
        return None
    axes = [
        range(axis.start, axis.start + len(axis))
        for axis in parsed.axes
        if isinstance(axis, range) and (axis.step == 1 or len(axis) == 1)
    ]
    if len(axes) != len(tensor.shape) or not all(map(_is_view, parsed.then)):
        return None
    shape = [len(axis) for axis in axes]
    tensor._check_size(math.prod(shape), tensor._array.box_work(axes).total)
    made = _new(tensor, shape, device)
    read_into_torch(device, gpu, [Target(tensor, made.data_ptr(), axes)])
    return made[parsed.then]


def _is_view(item: Any) -> bool:
    """Return whether PyTorch selects as NumPy does with one part of a selection."""
    if isinstance(item, slice):
        return item == slice(None)
    return item is None or item is Ellipsis or isinstance(item, int)


def _new(tensor: Readable, shape: Sequence[int], device: torch.device) -> torch.Tensor:
    import torch

    from bf16codecs._base.torch_tensors import torch_dtype

    dtype = torch_dtype(tensor.dtype, tensor.get_dtype())
    return torch.empty(tuple(shape), dtype=dtype, device=device)


def read_into_torch(
    device: torch.device, gpu: Device, targets: Sequence[Target], threads: int = LOADING_THREADS
) -> None:
    """Read tensors of one model into memory of PyTorch: see `read_onto`."""
    _wait_for_torch(device)
    with suppress(MemoryError):
        return read_onto(gpu, targets, threads)
    # PyTorch caches freed memory, which the driver cannot use. The memory of the first attempt, to
    # which the error referred, is free as well by now.
    _empty_cache()
    return read_onto(gpu, targets, threads)


def _wait_for_torch(device: torch.device) -> None:
    """Wait for work that PyTorch has begun in the calling thread.

    Memory that PyTorch allocates may still be in use by kernels of its former owner.
    """
    import torch

    torch.cuda.current_stream(device).synchronize()


def _empty_cache() -> None:
    import torch

    torch.cuda.empty_cache()


def read_onto(gpu: Device, targets: Sequence[Target], threads: int = LOADING_THREADS) -> None:
    """Read tensors of one model, already checked, to a GPU with several threads.

    It returns when all are read. Beside the tensors, this takes less than 256 MB of memory on the
    host, and 300 MB on the GPU, if the store is local. Raises DeviceError if the GPU fails, or
    decodes to other bytes than the host.
    """
    from bf16codecs.cuda.loading import Loader

    # Only this thread reads arrays that need the HDF5 library. Few remote chunks are in flight.
    arrays = [target.tensor._array for target in targets]
    alone = [i for i, array in enumerate(arrays) if array.concurrency == 0]
    others = [i for i, array in enumerate(arrays) if array.concurrency != 0]
    remote = (arrays[i].concurrency for i in others if arrays[i].concurrency > 1)
    with Loader(gpu) as loader:

        def jobs(numbers: Sequence[int]) -> Iterator[Job]:
            for number in numbers:
                tensor, address, axes, held = target = targets[number]
                memory, array = loader.memory(address, target.nbytes, number), tensor._reader()
                if held is not None:
                    values = loader.memory(held.address, tensor.nbytes, number)
                    array = held.against(DeviceArray(values, held.host))
                yield from device_jobs(array, memory, axes)

        for numbers, concurrency in ((alone, 0), (others, min([threads, *remote]))):
            largest = max((host_nbytes(arrays[number]) for number in numbers), default=0)
            run_all(jobs(numbers), concurrency, largest)
        failed = loader.finish()
    for tensor, _, axes, held in (target for i, target in enumerate(targets) if i in failed):
        # One of these raises the host's error.
        if held is None:
            tensor[... if axes is None else tuple(map(as_index, axes))]
        else:
            _read_on_host(held)
        raise gpu_only_failure(f"tensor {tensor.name!r:.80}", gpu)


def _read_on_host(held: Held) -> None:
    """Decode a tensor on the host, given its values in another model."""
    array = held.against(MemoryArray(held.host()))
    array.read_box([range(size) for size in array.shape], np.empty(array.shape, array.dtype))
