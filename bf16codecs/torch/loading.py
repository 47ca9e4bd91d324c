"""Loads a store into a module: tensors are decoded into the memory of its tensors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parameter import is_lazy

from bf16codecs._base.torch_tensors import is_memory_of, memory_of, plain_tensor, torch_dtype
from bf16codecs.model.gpu import Target, gpu_of, read_into_torch
from bf16codecs.model.model import Model, open_model
from bf16codecs.model.tensor import LazyTensor, check_together, read_into
from bf16codecs.model.update_parts import note_changes, parts_for
from bf16codecs.model.updating import update
from bf16codecs.torch.tensors import tied_names

if TYPE_CHECKING:
    from bf16codecs.cuda.device import Device

__all__ = ["checked_names", "load_into", "refuse_computed"]

#: Tensors of the module, each with its new values, in the order in which PyTorch would copy them.
Copies = list[tuple[torch.Tensor, "_Stored"]]

# The classes of plain tensors: subclasses may behave in any way.
_PLAIN = torch.Tensor, torch.nn.Parameter


def load_into(
    module: torch.nn.Module,
    path: Any,
    strict: bool = True,
    cast: bool = False,
    max_bytes: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    base: Any = None,
    have: Any = None,
    trust_base: bool = False,
) -> tuple[list[str], list[str]]:
    """Load a model into a module, decoded straight into its parameters and buffers.

    The result is that of ``module.load_state_dict(load_file(path))``, without memory for a second
    copy. Parameters keep `requires_grad`. Tied tensors stay tied, and are decoded once.

    Tensors on the device "meta" get new memory on the CPU, as with ``assign=True``: parameters are
    new objects. Those that the store lacks, such as non-persistent buffers, stay on "meta".

    Tensors on a GPU are decoded there if the packages of the extra ``cuda`` are installed.

    These are decoded beside the module, one by one, and then copied: tensors on other devices,
    those that are not contiguous or overlap another one, subclasses, and those to convert. Before
    these, the tensors of modules with custom loading are decoded, all together: of modules with
    hooks of `load_state_dict`, or their own `_load_from_state_dict`, `load_state_dict` or
    `set_extra_state`.

    Parameters
    ----------
    module
        The module to load into.
    path
        Whatever `bf16codecs.open_model` opens, or a `Model`, which stays open.
    strict
        Refuse a model that lacks tensors of the module, or has others. One of several tied tensors
        is enough.
    cast
        Convert tensors to the dtype of the module's, if that is another one.
    max_bytes, storage_options, base
        As `bf16codecs.open_model` takes them.
    have : int, str, path or Model, optional
        The model whose values the module has: the number of an earlier step of the same run, or a
        base of this store. Where differences to it are stored, only they are read, and tensors are
        decoded against those of the module: see `bf16codecs.Model.update`. Each tensor is then
        wholly old or wholly new, whatever fails, except those of modules with custom loading.
    trust_base
        With `have`, do not compare all tensors of the module with what the differences are to,
        before any is overwritten.

    Returns
    -------
    missing, unexpected : list of str
        Tensors of the module that the model lacks, and of the model that the module lacks.

    Raises
    ------
    RuntimeError
        If shapes differ, or names do and `strict` is true, or dtypes do and `cast` is false, or if
        a tensor of the module is expanded. The module is unchanged, except for modules with custom
        loading: these are loaded before all is checked.
    bf16codecs.store.StoreError, bf16codecs.errors.CodecError
        If the store is damaged. If that is found while tensors are decoded, the module's values are
        undefined: load another model into it.
    bf16codecs.errors.BaseMismatchError
        If the module does not have the values of `have`. It is unchanged.
    bf16codecs.errors.UpdateError
        With `have`, if loading failed when some tensors were new: it has their names.
    FileNotFoundError, TypeError, ValueError
        As `bf16codecs.open_model` raises them; TypeError also if `module` is not a module,
        ValueError if a tensor of it is of a class that computes its numbers from other data.

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
    with _opened(path, storage_options, max_bytes, base) as model:
        refuse_computed(module, model)
        keys = module.load_state_dict(_state_dict(module, model, copies), strict=False)
        names = checked_names(module, model.where, keys, model, strict)
        # If several are copied to one tensor, the last one counts.
        last = {id(target): (target, stored) for target, stored in copies}
        _refuse_unready(module, keys.missing_keys, last)
        if not cast:
            _refuse_dtypes(model.where, last.values())
        _refuse_without_memory(model.where, last.values())
        new = {key: _allocate(target) for key, (target, _) in last.items() if target.is_meta}
        made = [(new[key], last[key][1]) for key in new]
        others = [copy for key, copy in last.items() if key not in new]
        if have is None:
            _copy(model.where, [*made, *others])
        else:
            _copy(model.where, made)
            _update(model, others, have, trust_base)
    _assign_new(module, new)
    return names


def _opened(path: Any, *arguments: Any) -> AbstractContextManager[Model]:
    """Open a model, unless it is one."""
    return nullcontext(path) if isinstance(path, Model) else open_model(path, *arguments)


class _Stored(torch.Tensor):
    """A stand-in for a stored tensor: copying it is noted in `copies`, another use decodes it."""

    lazy: LazyTensor
    copies: Copies

    @classmethod
    def of(cls, lazy: LazyTensor, shape: Sequence[int], device: str, copies: Copies) -> _Stored:
        """Return the stand-in of a tensor, in a shape of as many items."""
        dtype = torch_dtype(lazy.dtype, lazy.get_dtype())
        stored = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
        stored.lazy, stored.copies = lazy, copies
        return stored

    def read(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """Decode the tensor."""
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
    """Return the argument of `load_state_dict`: stand-ins, and tensors for custom loading."""
    lazy = dict(model.items())
    check_together(list(lazy.values()))
    custom_prefixes = _custom_prefixes(module)
    decoded = model.load("torch", [name for name in lazy if name.startswith(custom_prefixes)])
    targets = _module_tensors(module)
    # PyTorch warns of copies to "meta" from other devices.
    device = "meta" if any(target.is_meta for target in targets.values()) else "cpu"

    def stand_in(tensor: LazyTensor) -> _Stored:
        # Old models have one item instead of a scalar; PyTorch would slice it.
        target = targets.get(tensor.name)
        is_scalar = tensor.shape == (1,) and target is not None and target.ndim == 0
        return _Stored.of(tensor, () if is_scalar else tensor.shape, device, copies)

    return {n: decoded[n] if n in decoded else stand_in(tensor) for n, tensor in lazy.items()}


def refuse_computed(module: torch.nn.Module, names: Container[str]) -> None:
    """Raise ValueError if copying to a tensor of these names would have no effect.

    That is one of a class that computes its numbers from other data.
    """
    custom_prefixes = _custom_prefixes(module)
    for name, tensor in _module_tensors(module).items():
        if name in names and not name.startswith(custom_prefixes) and not is_lazy(tensor):
            plain_tensor(tensor, name)


def _module_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters and buffers by name; tied ones by each of their names."""
    return dict(
        chain(
            module.named_parameters(remove_duplicate=False),
            module.named_buffers(remove_duplicate=False),
        )
    )


def _custom_prefixes(module: torch.nn.Module) -> tuple[str, ...]:
    """Return the prefixes of the names of tensors in modules with custom loading."""
    return tuple(
        f"{name}." if name else ""
        for name, part in module.named_modules(remove_duplicate=False)
        if _has_custom_loading(part)
    )


def _has_custom_loading(module: torch.nn.Module) -> bool:
    """Tell whether code of a module, or a hook, may use the tensors to load."""
    if module._load_state_dict_pre_hooks or module._load_state_dict_post_hooks:
        return True
    # The methods of PyTorch's layers only copy, except those in torch.ao.nn.
    methods = module._load_from_state_dict, module.load_state_dict, module.set_extra_state
    return any(not getattr(m, "__module__", "").startswith("torch.nn.") for m in methods)


def checked_names(
    module: torch.nn.Module, where: str, keys: Any, present: Iterable[str], strict: bool
) -> tuple[list[str], list[str]]:
    """Return the missing and unexpected names; raise RuntimeError for any if `strict`.

    `keys` is the result of `load_state_dict`. A tensor that is tied to one of `present` is not
    missing. `where` is the model, for messages.
    """
    state = module.state_dict(keep_vars=True)
    # The others are not tied: extra state and sparse buffers, which no store has, and subclasses,
    # which may have no memory to compare.
    plain = {n: t for n, t in state.items() if type(t) in _PLAIN and t.layout == torch.strided}
    tied = tied_names(plain, preferred=present)
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
    """Raise RuntimeError if custom loading copied to a tensor on "meta", which has no effect."""
    for name, tensor in module.state_dict(keep_vars=True).items():
        is_meta = isinstance(tensor, torch.Tensor) and tensor.is_meta
        if is_meta and id(tensor) not in copied and name not in missing:
            raise RuntimeError(
                f"tensor {name!r}: it is on the device meta, and code of its module loads it:"
                " give the module memory first: module.to_empty(device='cpu')"
            )


def _refuse_dtypes(where: str, copies: Iterable[tuple[torch.Tensor, _Stored]]) -> None:
    """Raise RuntimeError if tensors would be converted."""
    for target, stored in copies:
        if target.dtype != stored.dtype:
            raise RuntimeError(
                f"{where}: tensor {stored.lazy.name!r} is {stored.dtype}, and that of the module is"
                f" {target.dtype}: cast=True converts it, or convert the module first:"
                f" module.to({stored.dtype})"
            )


def _refuse_without_memory(where: str, copies: Iterable[tuple[torch.Tensor, _Stored]]) -> None:
    """Raise RuntimeError if a tensor of the module lacks memory for each of its items."""
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
    strides = tensor.stride() if tensor.layout == torch.strided and tensor.numel() else ()
    axes = zip(strides, tensor.shape, strict=False)
    return any(stride == 0 and size > 1 for stride, size in axes)


def _allocate(target: torch.Tensor) -> torch.Tensor:
    """Make a tensor on the CPU to replace one on "meta"."""
    with torch.inference_mode(False):  # tensors made in that mode cannot be trained
        new = torch.empty_like(target, device="cpu", requires_grad=False)
        if isinstance(target, torch.nn.Parameter):
            return torch.nn.Parameter(new, target.requires_grad)
        return new


def _assign_new(module: torch.nn.Module, new: Mapping[int, torch.Tensor]) -> None:
    """Replace tensors of a module, given by their identity, by new ones; tied ones stay tied."""
    for part in module.modules():
        for name, tensor in [*part._parameters.items(), *part._buffers.items()]:
            if id(tensor) in new:
                setattr(part, name, new[id(tensor)])


def _update(model: Model, copies: Copies, have: Any, trust_base: bool) -> None:
    """Update tensors of the module that have the values of another model."""
    overlapping = _overlapping([target for target, _ in copies])
    gpus = _gpus({target.device for target, _ in copies})
    held: list[tuple[LazyTensor, torch.Tensor]] = []
    others: Copies = []
    for target, stored in copies:
        kind = "cuda" if target.device in gpus else "cpu"
        is_held = id(target) not in overlapping and _is_memory_for(stored, target, kind)
        if is_held and stored.shape == stored.lazy.shape:
            held.append((stored.lazy, target))
        else:
            others.append((target, stored))
    parts = parts_for(held, model._have(have))
    try:
        update([*parts, _OtherTensors(model.where, others)], trust_base)
    finally:
        note_changes([target for _, target in held])


class _OtherTensors:
    """Tensors that are decoded one by one and copied to the module, whose values are not used."""

    def __init__(self, where: str, copies: Copies) -> None:
        self._where, self._copies = where, copies

    def check_bases(self) -> None:
        """Do nothing: their values are not used."""

    def run(self) -> Iterator[str]:
        """Update the tensors, and yield the names of those that are new."""
        for target, stored in self._copies:
            _copy_one(self._where, target, stored)
            yield stored.lazy.name


def _copy(where: str, copies: Copies) -> None:
    """Decode tensors into those of the module, in parallel if these are plain memory."""
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
    outputs = (
        memory_of(target, stored.lazy.dtype).reshape(stored.lazy.shape) for target, stored in direct
    )
    read_into([stored.lazy for _, stored in direct], outputs)
    for device, device_copies in on_gpus.items():
        targets = [Target(stored.lazy, target.data_ptr()) for target, stored in device_copies]
        read_into_torch(device, gpus[device], targets)
    for target, stored in others:
        _copy_one(where, target, stored)


def _copy_one(where: str, target: torch.Tensor, stored: _Stored) -> None:
    """Decode a tensor, and copy it to one of the module."""
    try:
        with torch.no_grad():
            target.copy_(stored.read("cpu" if gpu_of(target.device) is None else target.device))
    except RuntimeError as e:
        raise RuntimeError(f"{where}: tensor {stored.lazy.name!r}: {e}") from e


def _gpus(devices: Iterable[torch.device]) -> dict[torch.device, Device]:
    """Return the GPUs among devices that can decode tensors."""
    found = {device: gpu_of(device) for device in devices}
    return {device: gpu for device, gpu in found.items() if gpu is not None}


def _is_memory_for(stored: _Stored, target: torch.Tensor, kind: str) -> bool:
    """Tell whether a tensor is plain memory for the stored values on a kind of device."""
    is_plain = type(target) in _PLAIN and target.is_contiguous()
    return is_plain and is_memory_of(target, stored.dtype, kind)


def _overlapping(tensors: Iterable[torch.Tensor]) -> set[int]:
    """Return the identities of tensors that may share memory with one another."""
    found: set[int] = set()
    for _, spans in groupby(sorted(_spans(tensors)), key=itemgetter(0)):
        last_stop, last_tensor = 0, 0
        for _, start, stop, tensor in spans:
            if start < last_stop:
                found |= {tensor, last_tensor}
            if stop > last_stop:
                last_stop, last_tensor = stop, tensor
    return found


def _spans(tensors: Iterable[torch.Tensor]) -> Iterator[tuple[str, int, int, int]]:
    """Yield each tensor's device, the start and stop of its memory there, and its identity."""
    for tensor in tensors:
        has_memory = tensor.device.type in ("cpu", "cuda") and tensor.layout == torch.strided
        if has_memory and tensor.numel():
            last = sum(
                (n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True)
            )
            start = tensor.data_ptr()
            yield str(tensor.device), start, start + (last + 1) * tensor.element_size(), id(tensor)
