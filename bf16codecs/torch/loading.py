"""Loads a store into a module: tensors are decoded into the memory that the module has for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parameter import is_lazy

from bf16codecs._base.torch_tensors import is_memory_of, memory_of, plain_tensor, torch_dtype
from bf16codecs.model.gpu import Target, gpu_of, read_into_torch
from bf16codecs.model.model import Model, open_model
from bf16codecs.model.tensor import LazyTensor, check_together, read_into
from bf16codecs.torch.tensors import tied_names

if TYPE_CHECKING:
    from bf16codecs.cuda.device import Device

__all__ = ["checked_names", "load_into", "refuse_computed"]

#: Tensors of the module and their new values, in the order in which they would be copied.
Copies = list[tuple[torch.Tensor, "_Stored"]]

# Subclasses of these may do anything.
_PLAIN = torch.Tensor, torch.nn.Parameter


def load_into(
    module: torch.nn.Module,
    path: Any,
    strict: bool = True,
    cast: bool = False,
    max_bytes: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    base: Any = None,
) -> tuple[list[str], list[str]]:
    """Load a model into a module, decoded straight into its parameters and buffers.

    The result is that of ``module.load_state_dict(load_file(path))``, without memory for a second
    copy. Parameters keep `requires_grad`, and what is tied stays tied and is decoded once.

    What is on the device "meta" gets new memory on the CPU, as with ``assign=True``: parameters are
    new objects. What the store lacks stays on "meta", such as buffers that are not persistent.

    Tensors on a GPU are decoded there if the packages of the extra ``cuda`` are installed.

    One by one, and beside the module, are decoded: tensors on other devices, those that are not
    contiguous or overlap another one, subclasses, those to convert; and, all together, those of
    modules that have a say in how they are loaded: with hooks of `load_state_dict`, or their own
    `_load_from_state_dict`, `load_state_dict` or `set_extra_state`.

    Parameters
    ----------
    module
        The module to load into.
    path
        Whatever `bf16codecs.open_model` opens.
    strict
        Refuse a model that lacks tensors of the module, or has others. Of tied tensors, one
        is enough.
    cast
        Convert tensors to the dtype that the module has, if it has another.
    max_bytes, storage_options, base
        As `bf16codecs.open_model` takes them.

    Returns
    -------
    missing, unexpected : list of str
        Tensors of the module that the model lacks, and of the model that the module lacks.

    Raises
    ------
    RuntimeError
        If names do not fit and `strict` is true, or a shape, or a dtype and `cast` is false, or a
        tensor of the module is expanded. The module is as it was, but for what is loaded by modules
        that have a say: that comes before all is checked, and stays.
    bf16codecs.store.StoreError, bf16codecs.errors.CodecError
        If the store is damaged. If that is found while tensors are decoded, the module's tensors
        are undefined: load another model into it.
    FileNotFoundError, TypeError, ValueError
        As `bf16codecs.open_model` raises them; TypeError also if `module` is no module, ValueError
        if a tensor of it is of a class that computes its numbers from other data.

    Examples
    --------
    >>> import bf16codecs.torch
    >>> with torch.device("meta"):  # doctest: +SKIP
    ...     module = MyModel()
    >>> bf16codecs.torch.load_into(module, "model.zarr")  # doctest: +SKIP
    ([], [])
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"module must be a torch.nn.Module, not {type(module).__name__}")
    copies: Copies = []
    with open_model(path, storage_options, max_bytes, base) as model:
        refuse_computed(module, model)
        keys = module.load_state_dict(_state_dict(module, model, copies), strict=False)
        names = checked_names(module, model.where, keys, model, strict)
        # Of what is copied to one tensor, the last one stays there.
        last = {id(target): (target, stored) for target, stored in copies}
        _refuse_unready(module, keys.missing_keys, last)
        if not cast:
            _refuse_dtypes(model.where, last.values())
        _refuse_without_place(model.where, last.values())
        made = {key: _made(target) for key, (target, _) in last.items() if target.is_meta}
        places = [(made.get(key, target), stored) for key, (target, stored) in last.items()]
        _copy(model.where, places)
    _place(module, made)
    return names


class _Stored(torch.Tensor):
    """A stand-in for a tensor, without data; copies are noted in `copies`, other uses load it."""

    lazy: LazyTensor
    copies: Copies

    @classmethod
    def of(cls, lazy: LazyTensor, shape: Sequence[int], device: str, copies: Copies) -> _Stored:
        """Return the stand-in of a tensor, perhaps in another shape if it has one item."""
        dtype = torch_dtype(lazy.dtype, lazy.get_dtype())
        stored = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
        stored.lazy, stored.copies = lazy, copies
        return stored

    def read(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """Decode it."""
        return self.lazy.torch(device).reshape(self.shape)

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.ops.aten.copy_.default and isinstance(args[1], cls):
            target, stored = args[:2]
            stored.copies.append((target, stored))
            return target
        args = [arg.read() if isinstance(arg, cls) else arg for arg in args]
        return function(*args, **(kwargs or {}))


def _state_dict(module: torch.nn.Module, model: Model, copies: Copies) -> dict[str, torch.Tensor]:
    """Return the argument of `load_state_dict`: stand-ins, or tensors where code looks at them."""
    lazy = dict(model.items())
    check_together(list(lazy.values()))
    with_a_say = _with_a_say(module)
    decoded = model.load("torch", [name for name in lazy if name.startswith(with_a_say)])
    own = _own_tensors(module)
    # PyTorch warns that other devices are not copied to "meta".
    device = "meta" if any(tensor.is_meta for tensor in own.values()) else "cpu"

    def stand_in(tensor: LazyTensor) -> _Stored:
        # As PyTorch does, which would slice it: old models have one item in place of a scalar.
        is_scalar = tensor.shape == (1,) and tensor.name in own and own[tensor.name].ndim == 0
        return _Stored.of(tensor, () if is_scalar else tensor.shape, device, copies)

    return {n: decoded[n] if n in decoded else stand_in(tensor) for n, tensor in lazy.items()}


def refuse_computed(module: torch.nn.Module, names: Container[str]) -> None:
    """Raise ValueError if a tensor of these names would lose what PyTorch copies to it."""
    with_a_say = _with_a_say(module)
    for name, tensor in _own_tensors(module).items():
        if name in names and not name.startswith(with_a_say) and not is_lazy(tensor):
            plain_tensor(tensor, name)


def _own_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters and buffers by all of their names."""
    return dict(
        chain(
            module.named_parameters(remove_duplicate=False),
            module.named_buffers(remove_duplicate=False),
        )
    )


def _with_a_say(module: torch.nn.Module) -> tuple[str, ...]:
    """Return prefixes of the tensors that code of modules loads, or hooks may look at."""
    return tuple(
        f"{name}." if name else ""
        for name, part in module.named_modules(remove_duplicate=False)
        if _has_a_say(part)
    )


def _has_a_say(module: torch.nn.Module) -> bool:
    """Tell whether a module's own code, or a hook, may look at what is loaded."""
    if module._load_state_dict_pre_hooks or module._load_state_dict_post_hooks:
        return True
    # The methods of PyTorch's layers only copy, except for those in torch.ao.nn.
    methods = module._load_from_state_dict, module.load_state_dict, module.set_extra_state
    return any(not getattr(m, "__module__", "").startswith("torch.nn.") for m in methods)


def checked_names(
    module: torch.nn.Module, where: str, keys: Any, present: Iterable[str], strict: bool
) -> tuple[list[str], list[str]]:
    """Return what `load_state_dict` found missing and unexpected; raise RuntimeError if `strict`.

    A tensor tied to one of `present` is not missing. Messages say `where` the model is.
    """
    state = module.state_dict(keep_vars=True)
    # Extra state and sparse buffers, which no store has, are missing, and not tied. Subclasses may
    # have no memory to compare.
    own = {n: t for n, t in state.items() if type(t) in _PLAIN and t.layout == torch.strided}
    tied = tied_names(own, preferred=present)
    missing = [name for name in keys.missing_keys if name not in tied]
    unexpected = list(keys.unexpected_keys)
    if strict and (missing or unexpected):
        raise RuntimeError(
            f"{where}: not the tensors of a {type(module).__name__}:"
            f" missing {', '.join(missing) or 'none'}; unexpected {', '.join(unexpected) or 'none'}"
        )
    return missing, unexpected


def _refuse_unready(
    module: torch.nn.Module, missing: Collection[str], copied: Container[int]
) -> None:
    """Raise RuntimeError if other code loaded a tensor on "meta", which has no effect."""
    for name, tensor in module.state_dict(keep_vars=True).items():
        is_meta = isinstance(tensor, torch.Tensor) and tensor.is_meta
        if is_meta and id(tensor) not in copied and name not in missing:
            raise RuntimeError(
                f"tensor {name!r}: it is on the device meta, and its module has code of its own"
                " that loads it: give the module memory first: module.to_empty(device='cpu')"
            )


def _refuse_dtypes(where: str, copies: Iterable[tuple[torch.Tensor, _Stored]]) -> None:
    """Raise RuntimeError if tensors would be converted."""
    for target, stored in copies:
        if target.dtype != stored.dtype:
            raise RuntimeError(
                f"{where}: tensor {stored.lazy.name!r} is {stored.dtype}, and that of the module"
                f" {target.dtype}: cast=True converts it, or convert the module first:"
                f" module.to({stored.dtype})"
            )


def _refuse_without_place(where: str, copies: Iterable[tuple[torch.Tensor, _Stored]]) -> None:
    """Raise RuntimeError if a tensor has no memory of its own for each item."""
    for target, stored in copies:
        if is_lazy(target):
            why = "has no shape yet, and no memory: call the module once, or give it a tensor"
        elif not target.is_meta and _is_expanded(target):
            why = "is expanded, and its items share memory: give each its own: .contiguous()"
        else:
            continue
        raise RuntimeError(f"{where}: tensor {stored.lazy.name!r}: that of the module {why}")


def _is_expanded(tensor: torch.Tensor) -> bool:
    """Tell whether several items share memory: PyTorch refuses to write them."""
    steps = tensor.stride() if tensor.layout == torch.strided and tensor.numel() else ()
    return any(step == 0 and size > 1 for step, size in zip(steps, tensor.shape, strict=False))


def _made(target: torch.Tensor) -> torch.Tensor:
    """Make a tensor on the CPU that takes the place of one on "meta"."""
    with torch.inference_mode(False):  # tensors that are made in that mode cannot be trained
        made = torch.empty_like(target, device="cpu", requires_grad=False)
        if isinstance(target, torch.nn.Parameter):
            return torch.nn.Parameter(made, target.requires_grad)
        return made


def _place(module: torch.nn.Module, made: Mapping[int, torch.Tensor]) -> None:
    """Put new tensors in the places of others, given by their identity: what is tied stays so."""
    for part in module.modules():
        for name, tensor in [*part._parameters.items(), *part._buffers.items()]:
            if id(tensor) in made:
                setattr(part, name, made[id(tensor)])


def _copy(where: str, copies: Copies) -> None:
    """Decode tensors into their places, in parallel where these are plain memory."""
    overlapping = _overlapping([target for target, _ in copies])
    direct: Copies = []
    on_gpus: defaultdict[torch.device, Copies] = defaultdict(list)
    others: Copies = []
    gpus = _gpus({target.device for target, _ in copies})
    for target, stored in copies:
        kind = "cuda" if target.device in gpus else "cpu"
        if id(target) in overlapping or not _is_memory_for(stored, target, kind):
            others.append((target, stored))
        elif target.device in gpus:
            on_gpus[target.device].append((target, stored))
        else:
            direct.append((target, stored))
    places = (
        memory_of(target, stored.lazy.dtype).reshape(stored.lazy.shape) for target, stored in direct
    )
    read_into([stored.lazy for _, stored in direct], places)
    for device, there in on_gpus.items():
        targets = [Target(stored.lazy, target.data_ptr()) for target, stored in there]
        read_into_torch(device, gpus[device], targets)
    for target, stored in others:
        try:
            with torch.no_grad():
                target.copy_(stored.read(target.device if target.device in gpus else "cpu"))
        except RuntimeError as e:
            raise RuntimeError(f"{where}: tensor {stored.lazy.name!r}: {e}") from e


def _gpus(devices: Iterable[torch.device]) -> dict[torch.device, Device]:
    """Return the GPUs among the devices on which tensors can be decoded."""
    found = {device: gpu_of(device) for device in devices}
    return {device: gpu for device, gpu in found.items() if gpu is not None}


def _is_memory_for(stored: _Stored, target: torch.Tensor, kind: str) -> bool:
    """Tell whether a tensor is plain memory for the stored values, on a kind of device."""
    is_plain = type(target) in _PLAIN and target.is_contiguous()
    return is_plain and is_memory_of(target, stored.dtype, kind)


def _overlapping(tensors: Iterable[torch.Tensor]) -> set[int]:
    """Return the identities of tensors that may share memory with another one of them."""
    found: set[int] = set()
    for _, spans in groupby(sorted(_spans(tensors)), key=itemgetter(0)):
        reach, farthest = 0, 0
        for _, start, stop, tensor in spans:
            if start < reach:
                found |= {tensor, farthest}
            if stop > reach:
                reach, farthest = stop, tensor
    return found


def _spans(tensors: Iterable[torch.Tensor]) -> Iterator[tuple[str, int, int, int]]:
    """Yield where each tensor begins and ends in a device's memory, and its identity."""
    for tensor in tensors:
        has_memory = tensor.device.type in ("cpu", "cuda") and tensor.layout == torch.strided
        if has_memory and tensor.numel():
            last = sum(
                (n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True)
            )
            start = tensor.data_ptr()
            yield str(tensor.device), start, start + (last + 1) * tensor.element_size(), id(tensor)
