"""Output frameworks: arrays of NumPy or JAX, or tensors of PyTorch, and slices that return them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bf16codecs.model.gpu import gpu_of, torch_selection, torch_tensors
from bf16codecs.model.tensor import LazyTensor, check_together, read_all

if TYPE_CHECKING:
    import torch

__all__ = [
    "Slice",
    "as_jax",
    "checked_framework",
    "load_torch",
    "read_array",
    "read_jax",
    "read_torch",
]

_FRAMEWORKS = {
    **dict.fromkeys(("numpy", "np"), "numpy"),
    **dict.fromkeys(("torch", "pt", "pytorch"), "torch"),
    **dict.fromkeys(("jax", "flax"), "jax"),
}


def checked_framework(framework: Any, device: Any) -> tuple[str, Any]:
    """Return the framework's full name and the device; refuse a device that it lacks."""
    name = _FRAMEWORKS.get(framework) if isinstance(framework, str) else None
    if name is None:
        kind = ValueError if isinstance(framework, str) else TypeError
        raise kind(
            f"framework must be numpy, torch or jax (or np, pt, flax), not {framework!r:.80}"
        )
    if name != "torch":
        _refuse_device(name, device)
    elif device is not None and device != "cpu":  # neither needs PyTorch to be imported
        from bf16codecs._base.torch_tensors import checked_device

        device = checked_device(device)
    if name == "jax":
        _jax_numpy()
    return name, device


def _refuse_device(framework: str, device: Any) -> None:
    if device is not None and str(device) != "cpu":
        is_numpy = framework == "numpy"
        where = (
            "NumPy arrays are on the CPU" if is_numpy else "arrays of JAX are where it puts them"
        )
        raise ValueError(f"{where}, not on {device!r:.80}: choose framework='torch'")


def read_array(tensor: LazyTensor, selection: Any) -> NDArray[Any]:
    """Read a selection as an array, even if it is one item."""
    return np.asarray(tensor[selection])


def read_jax(tensor: LazyTensor, selection: Any) -> Any:
    """Read a selection as an array of JAX."""
    return as_jax(tensor[selection])


def read_torch(device: Any, tensor: LazyTensor, selection: Any) -> torch.Tensor:
    """Read a selection as a tensor of PyTorch on a device; on a GPU, it may be decoded there."""
    gpu = None if _is_host(device) else gpu_of(device)
    found = None if gpu is None else torch_selection(tensor, selection, device, gpu)
    return _in_torch(tensor[selection], tensor.get_dtype(), device) if found is None else found


def as_jax(array: Any) -> Any:
    """Return an array of JAX, which by default makes 64-bit numbers shorter."""
    return _jax_numpy().asarray(array)


def _jax_numpy() -> Any:
    try:
        import jax.numpy
    except ImportError as e:
        text = f"for framework='jax', another package is needed: pip install jax ({e})"
        raise type(e)(text, name=e.name) from e
    return jax.numpy


def _in_torch(array: Any, kind: str, device: Any) -> torch.Tensor:
    """Return an array with a dtype of safetensors as a tensor of PyTorch on a device."""
    from bf16codecs._base.torch_tensors import as_tensor

    return as_tensor(np.asarray(array), kind).to(device or "cpu")


def load_torch(
    tensors: list[LazyTensor], device: Any, metadata: Mapping[str, str]
) -> dict[str, Any]:
    """Load tensors; tensors that the metadata tie become one tensor.

    Other tensors that share an array in the store are equal only by chance, as norms of new models.
    """
    by_name = {tensor.name: tensor for tensor in tensors}
    tied = {name: metadata[name] for name in by_name if metadata.get(name) in by_name}
    # Metadata are not trusted.
    tied = {n: o for n, o in tied.items() if o not in tied and by_name[n].has_form_of(by_name[o])}
    # Tied tensors that are stored twice are compared after loading: stores repeat small and
    # constant tensors, and safetensors files repeat all.
    copies = {name for name, owner in tied.items() if by_name[name].is_copy_of(by_name[owner])}
    alone = [tensor for name, tensor in by_name.items() if name not in copies]
    loaded = _loaded(alone, device)
    for name, owner in tied.items():
        if name in copies or _are_same(loaded[name], loaded[owner]):
            loaded[name] = loaded[owner]
    return {name: loaded[name] for name in by_name}


def _loaded(tensors: list[LazyTensor], device: Any) -> dict[str, torch.Tensor]:
    if _is_host(device):
        from bf16codecs._base.torch_tensors import as_tensor

        arrays = read_all(tensors)
        return {t.name: as_tensor(arrays.pop(t.name), t.get_dtype()) for t in tensors}
    gpu = gpu_of(device)
    if gpu is not None:
        check_together(tensors)
        return torch_tensors(tensors, device, gpu)
    # One by one: the model may fit on the device (or several) and not into host memory.
    return {t.name: _in_torch(t[...], t.get_dtype(), device) for t in tensors}


def _is_host(device: Any) -> bool:
    """Return whether a device that was checked is the CPU."""
    return device is None or str(device) == "cpu"


def _are_same(tensor: Any, other: Any) -> bool:
    """Return whether tensors of one dtype and shape have the same bytes; none do on "meta"."""
    import torch

    parts = (t.reshape(-1).view(torch.uint8) for t in (tensor, other))
    return not tensor.is_meta and torch.equal(*parts)


class Slice:
    """A tensor of a model whose selections belong to a framework; `Model.get_slice` makes it.

    Index it like a `LazyTensor`; `read` reads a selection of one.
    """

    def __init__(self, tensor: LazyTensor, read: Callable[[LazyTensor, Any], Any]) -> None:
        self._tensor, self._read = tensor, read

    def get_shape(self) -> list[int]:
        """Return the shape."""
        return self._tensor.get_shape()

    def get_dtype(self) -> str:
        """Return the dtype by its name in safetensors."""
        return self._tensor.get_dtype()

    def __getitem__(self, selection: Any) -> Any:
        return self._read(self._tensor, selection)

    def __len__(self) -> int:
        return len(self._tensor)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._tensor!r})"
