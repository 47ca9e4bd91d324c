"""Tensors of a model read onto a GPU: sent as they are stored, and decoded there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from bf16codecs._chunks.array import ArrayReader, Job
from bf16codecs._chunks.whole import device_jobs
from bf16codecs._threads import run_all
from bf16codecs.cuda.found import found_gpu, only_there

if TYPE_CHECKING:
    import torch

    from bf16codecs.cuda.device import Device

__all__ = ["Readable", "Target", "gpu_of", "read_onto", "torch_tensors"]


class Readable(Protocol):
    """What is known of a `LazyTensor` here."""

    name: str
    shape: tuple[int, ...]
    _array: ArrayReader

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's data type."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""

    def get_dtype(self) -> str:
        """Return the data type as safetensors calls it."""

    def _reader(self) -> ArrayReader:
        """Return what reads it, once that is checked."""

    def __getitem__(self, selection: Any) -> Any:
        """Read a part of it on the host."""


class Target(NamedTuple):
    """Where a tensor goes: memory of a GPU that has its size."""

    tensor: Readable
    address: int


def gpu_of(device: torch.device) -> Device | None:
    """Return the GPU that a device of PyTorch is, if tensors can be decoded there."""
    if device.type != "cuda":
        return None
    import torch

    ordinal = torch.cuda.current_device() if device.index is None else device.index
    return found_gpu(ordinal, "tensors")


def torch_tensors(
    tensors: Sequence[Readable], device: torch.device, gpu: Device
) -> dict[str, torch.Tensor]:
    """Read whole tensors of one model, which are checked, into new tensors of PyTorch on a GPU.

    Parameters
    ----------
    tensors
        The tensors.
    device, gpu
        The GPU, as PyTorch has it and as it is.
    """
    import torch

    from bf16codecs._torch_tensors import as_tensor

    made = {}
    for tensor in tensors:
        dtype = as_tensor(np.empty(0, tensor.dtype), tensor.get_dtype()).dtype
        made[tensor.name] = torch.empty(tensor.shape, dtype=dtype, device=device)
    # What had the memory before may not be done with it.
    torch.cuda.current_stream(device).synchronize()
    read_onto(gpu, [Target(tensor, made[tensor.name].data_ptr()) for tensor in tensors])
    return made


def read_onto(gpu: Device, targets: Sequence[Target]) -> None:
    """Read whole tensors of one model to a GPU, all of them in parallel, after they are checked.

    It returns when all is there. Beside the tensors, this takes less than 256 MB of the host's
    memory and of the GPU's, if the store is local.

    Parameters
    ----------
    gpu
        The GPU.
    targets
        The tensors, and where they go.

    Raises
    ------
    DeviceError
        If the GPU fails, or decodes something else than the host does.
    """
    from bf16codecs.cuda.loading import LOADING_THREADS, Loader

    # Of arrays that only HDF5 reads, all have to be read in this thread.
    is_one = any(target.tensor._array.concurrency == 0 for target in targets)
    largest = max((t.tensor._array.scratch_nbytes for t in targets), default=0)
    with Loader(gpu) as loader:

        def jobs() -> Iterator[Job]:
            for tensor, address in targets:
                memory = loader.memory(address, tensor.nbytes, tensor.name)
                yield from device_jobs(tensor._reader(), memory)

        run_all(jobs(), 0 if is_one else LOADING_THREADS, largest)
        failed = loader.finish()
    for target in targets:
        if target.tensor.name in failed:
            _explain(target.tensor, gpu)


def _explain(tensor: Readable, gpu: Device) -> None:
    """Raise what the host finds wrong with a tensor."""
    tensor[...]
    raise only_there(f"tensor {tensor.name!r:.80}", gpu)
