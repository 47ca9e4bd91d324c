"""What a model gives its tensors as: arrays of NumPy, or tensors of PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bf16codecs.model.tensor import LazyTensor
from bf16codecs.model.whole import read_all

__all__ = ["checked_framework", "load_torch"]

_FRAMEWORKS = {
    **dict.fromkeys(("numpy", "np"), "numpy"),
    **dict.fromkeys(("torch", "pt", "pytorch"), "torch"),
}


def checked_framework(framework: Any, device: Any) -> tuple[str, Any]:
    """Return the framework by its own name, and the device, which it has to have."""
    name = _FRAMEWORKS.get(framework) if isinstance(framework, str) else None
    if name is None:
        kind = ValueError if isinstance(framework, str) else TypeError
        raise kind(f"framework must be numpy or torch (or np, pt), not {framework!r:.80}")
    if name == "numpy" and device is not None and str(device) != "cpu":
        raise ValueError(
            f"NumPy arrays are on the CPU, not on {device!r}: choose framework='torch'"
        )
    if name == "torch" and device is not None and device != "cpu":  # for these, it is not imported
        from bf16codecs._torch_tensors import checked_device

        device = checked_device(device)
    return name, device


def load_torch(
    tensors: list[LazyTensor], device: Any, metadata: Mapping[str, str]
) -> dict[str, Any]:
    """Load tensors; those that metadata say are tied are one.

    Others that have one array in the store only happen to be equal, such as norms of a new model.
    """
    by_name = {tensor.name: tensor for tensor in tensors}
    tied = {name: metadata[name] for name in by_name if metadata.get(name) in by_name}
    # Metadata are not believed.
    tied = {n: o for n, o in tied.items() if o not in tied and by_name[n].has_form_of(by_name[o])}
    # Those with arrays of their own are compared once they are loaded: stores have them for small
    # tensors and for constant ones, safetensors files for all.
    copies = {name for name, owner in tied.items() if by_name[name].is_copy_of(by_name[owner])}
    alone = [tensor for name, tensor in by_name.items() if name not in copies]
    if device is None or str(device) == "cpu":
        from bf16codecs._torch_tensors import as_tensor

        arrays = read_all(alone)
        loaded = {t.name: as_tensor(arrays.pop(t.name), t.get_dtype()) for t in alone}
    else:
        # One by one: the model may fit on the device (or several) and not into host memory.
        loaded = {tensor.name: tensor.torch(device) for tensor in alone}
    for name, owner in tied.items():
        if name in copies or _are_same(loaded[name], loaded[owner]):
            loaded[name] = loaded[owner]
    return {name: loaded[name] for name in by_name}


def _are_same(tensor: Any, other: Any) -> bool:
    """Tell whether tensors of one dtype and shape have the same bytes; on "meta" they have none."""
    import torch

    parts = (t.reshape(-1).view(torch.uint8) for t in (tensor, other))
    return not tensor.is_meta and torch.equal(*parts)
