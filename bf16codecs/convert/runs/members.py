"""Whether a checkpoint is of a run: by the names, shapes and dtypes of its tensors."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from bf16codecs._base.arguments import for_caller
from bf16codecs._base.messages import warn_caller
from bf16codecs.errors import StoreError, TensorChangeWarning
from bf16codecs.safetensors import TensorInfo
from bf16codecs.store.reader import ModelReader
from bf16codecs.store.runs.reader import RunReader

__all__ = ["check_member", "check_series"]


class _Form(NamedTuple):
    """The dtype of safetensors and the shape that a tensor has at some steps."""

    dtype: str
    shape: tuple[int, ...]


def check_series(
    checkpoints: Sequence[tuple[int, ModelReader]], allow_changed_tensors: bool = False
) -> None:
    """Refuse a checkpoint that is not of its series, and name another: either may be wrong.

    Parameters
    ----------
    checkpoints
        Steps and checkpoints, ascending.
    allow_changed_tensors
        Let tensors have another dtype or shape than before.

    Raises
    ------
    StoreError
        If a checkpoint has no tensor in common with those before it, or changed ones.
    """
    forms: dict[str, list[_Form]] = {}
    before: str | None = None
    for _, source in checkpoints:
        tensors = [tensor for header in source.headers for tensor in header.tensors]
        path = source.where
        shapes = {(name, form.shape) for name, own in forms.items() for form in own}
        if before is not None and tensors and shapes.isdisjoint((t.name, t.shape) for t in tensors):
            raise StoreError(
                f"{path}: has no tensor in common with {before}, which is of an earlier step, none"
                " of the same name and shape: leave out the one that is not of the run"
            )
        if (changes := _changes(tensors, forms)) and not allow_changed_tensors:
            raise _refusal(path, changes, f"{before} or an earlier step")
        for tensor in tensors:
            own, form = forms.setdefault(tensor.name, []), _Form(tensor.dtype, tensor.shape)
            # The last one is that of the last step.
            forms[tensor.name] = [*(other for other in own if other != form), form]
        before = path


def check_member(
    run: RunReader,
    tensors: Sequence[TensorInfo],
    known: Collection[str],
    path: str,
    allow_changed_tensors: bool,
) -> None:
    """Refuse a checkpoint that is not of a run; warn of changed tensors that are allowed.

    Parameters
    ----------
    run
        The run.
    tensors
        Those of the checkpoint.
    known
        The names of those that were there before with the same dtype and shape, at least of some.
    path
        Where the checkpoint is.
    allow_changed_tensors
        Let tensors have another dtype or shape than before.

    Raises
    ------
    StoreError
        If it has no tensor of the run, or changed ones.
    """
    if tensors and not known and not _has_any(run, tensors):
        raise StoreError(
            f"{path}: is not of the run {run.where}: it has none of its tensors, by name and shape"
        )
    others = [t for t in tensors if t.name not in known]
    forms = {t.name: _forms_of(run, t.name) for t in others if t.name in run.run.tensors}
    changes = _changes(others, forms)
    if not changes:
        return
    if not allow_changed_tensors:
        raise _refusal(path, changes, run.where)
    warn_caller(
        f"{path}: differs from the steps before in the dtype or shape of {_described(changes)}:"
        " over time, such a tensor is read in parts, under the first step of each, as"
        f" {run.variant_names(changes[0][0].name)[0]!r:.300}",
        TensorChangeWarning,
    )


def _has_any(run: RunReader, tensors: Sequence[TensorInfo]) -> bool:
    """Tell whether a run has had one of these tensors, of any dtype and of the same shape."""
    wanted = {(tensor.name, tensor.shape) for tensor in tensors}
    for number in reversed(run.run.numbers):
        with closing(run.step(number)) as step:
            if any((t.name, t.shape) in wanted for h in step.headers for t in h.tensors):
                return True
    return False


def _forms_of(run: RunReader, name: str) -> list[_Form]:
    """Return the forms that a tensor of a run has had, the one of its last step last."""
    variants = sorted(run.variant_names(name), key=lambda variant: run.steps_of(variant)[-1])
    return [_Form(own.dtype, own.shape) for own in map(run.describe, variants)]


def _changes(
    tensors: Iterable[TensorInfo], forms: Mapping[str, Sequence[_Form]]
) -> list[tuple[TensorInfo, _Form]]:
    """Return tensors that were there, and never so, with what each was last."""
    return [
        (tensor, forms[tensor.name][-1])
        for tensor in tensors
        if tensor.name in forms and (tensor.dtype, tensor.shape) not in forms[tensor.name]
    ]


def _refusal(path: str, changes: Sequence[tuple[TensorInfo, _Form]], where: str) -> StoreError:
    allow = for_caller("allow_changed_tensors=True", "--allow-changed-tensors")
    return StoreError(
        f"{path}: differs from {where} in the dtype or shape of {_described(changes)}: over time,"
        " such a tensor can only be read in parts; leave out the checkpoint if it is of another"
        f" kind or model, or allow the change with {allow}"
    )


def _described(changes: Sequence[tuple[TensorInfo, _Form]]) -> str:
    """Name the first of some tensors that have changed, and say how many more there are."""
    tensor, before = changes[0]
    form, former = tensor.dtype, before.dtype
    if form == former:
        form, former = f"of shape {tensor.shape}", str(before.shape)
    others = f", and {len(changes) - 1} more" if len(changes) > 1 else ""
    return f"{tensor.name!r:.300} ({form}, not {former}){others}"
