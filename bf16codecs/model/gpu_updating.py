"""Updates tensors on a GPU, whose differences are decoded there against them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

from bf16codecs._arrays.array import ArrayReader, RangeReader
from bf16codecs._base.buffers import aligned
from bf16codecs.model.gpu import Held, Target, read_into_torch
from bf16codecs.model.tensor import LazyTensor, check_together
from bf16codecs.model.updating import grouped
from bf16codecs.store.reader import ModelReader

if TYPE_CHECKING:
    import torch

    from bf16codecs.cuda.device import Device

__all__ = ["GpuUpdate"]

# Tensors are decoded together up to this size; a larger one takes memory of its size.
_TOGETHER_BYTES = 1 << 28
_ALIGNMENT = 256


class GpuUpdate:
    """The tensors of a model to update on one GPU, given the values of `have`, unless it is None.

    Blocks are compared with what the differences are to as they are decoded, and not before.
    """

    def __init__(
        self,
        device: torch.device,
        gpu: Device,
        pairs: Sequence[tuple[LazyTensor, torch.Tensor]],
        have: ModelReader | None,
    ) -> None:
        check_together([tensor for tensor, _ in pairs])
        self._device, self._gpu, self._have = device, gpu, have
        self._items = [_Item(tensor, values) for tensor, values in pairs]

    def check_bases(self) -> None:
        """Do nothing: the values would have to be copied to the host, or read once more there."""

    def run(self) -> Iterator[str]:
        """Update the tensors, and yield the names of those that are new."""
        for items in grouped(self._items, _TOGETHER_BYTES):
            yield from self._run_group(items)

    def _run_group(self, items: Sequence[_Item]) -> Iterator[str]:
        import torch

        total = sum(item.room for item in items)
        memory, at, parts = torch.empty(total, dtype=torch.uint8, device=self._device), 0, []
        for item in items:
            parts.append(memory[at : at + item.tensor.nbytes])
            at += item.room
        targets = [
            Target(item.tensor, part.data_ptr(), held=self._held(item))
            for item, part in zip(items, parts, strict=True)
        ]
        read_into_torch(self._device, self._gpu, targets)
        for item, part in zip(items, parts, strict=True):
            values = item.values
            if item.tensor.size:
                with torch.no_grad(), torch.inference_mode(values.is_inference()):
                    values.copy_(part.view(values.dtype).view(values.shape))
            yield item.tensor.name

    def _held(self, item: _Item) -> Held | None:
        if self._have is None:
            return None
        against = partial(_against, item.tensor, self._have)
        return Held(item.values.data_ptr(), against, partial(_on_host, item))


class _Item(NamedTuple):
    """A tensor to update."""

    tensor: LazyTensor
    values: torch.Tensor

    @property
    def room(self) -> int:
        """How much memory it takes to decode it."""
        return aligned(self.tensor.nbytes, _ALIGNMENT)


def _against(tensor: LazyTensor, have: ModelReader, values: RangeReader) -> ArrayReader:
    return tensor._handle.opened.against(tensor.name, have, values).array


def _on_host(item: _Item) -> NDArray[Any]:
    """Copy the values of a tensor to the host, as its array has them."""
    from bf16codecs._base.torch_tensors import memory_of

    stored = item.tensor._array.dtype
    return memory_of(item.values.detach().cpu(), item.tensor.dtype).view(stored)
