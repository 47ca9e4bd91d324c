"""Check that a checkpoint belongs to a run, by the names, shapes and dtypes of its tensors."""

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

__all__ = ["check_member", "check_series", "refuse_published"]


class _Variant(NamedTuple):
    """Dtype (of safetensors) and shape of a tensor at some steps."""

    dtype: str
    shape: tuple[int, ...]


def refuse_published(run: ModelReader) -> None:
    """Raise StoreError if a run is one that a training job publishes."""
    if run.stored.is_published:
        raise StoreError(
            f"{run.where}: a published run: only bf16codecs.torch.publish adds steps to it, and"
            " only drop_steps drops them"
        )


def check_series(
    checkpoints: Sequence[tuple[int, ModelReader]], allow_changed_tensors: bool = False
) -> None:
    """Refuse checkpoints that do not belong together; the error names two, as either may be wrong.

    `checkpoints` are ascending, each with its step. Raises StoreError if one has no tensor in
    common with those before it, or has changed tensors that are not allowed.
    """
    variants: dict[str, list[_Variant]] = {}
    before: str | None = None
    for _, source in checkpoints:
        tensors = [tensor for header in source.headers for tensor in header.tensors]
        path = source.where
        shapes = {(name, variant.shape) for name, known in variants.items() for variant in known}
        if before is not None and tensors and shapes.isdisjoint((t.name, t.shape) for t in tensors):
            raise StoreError(
                f"{path}: has no tensor in common with {before}, an earlier step: none of the same"
                " name and shape; leave out the one that does not belong to the run"
            )
        if (changes := _changes(tensors, variants)) and not allow_changed_tensors:
            raise _refusal(path, changes, f"{before} or an earlier step")
        for tensor in tensors:
            variant = _Variant(tensor.dtype, tensor.shape)
            # The variant of the latest step comes last.
            others = [other for other in variants.get(tensor.name, []) if other != variant]
            variants[tensor.name] = [*others, variant]
        before = path


def check_member(
    run: RunReader,
    tensors: Sequence[TensorInfo],
    known: Collection[str],
    path: str,
    allow_changed_tensors: bool,
) -> None:
    """Refuse a checkpoint that does not belong to a run; warn of changed tensors that are allowed.

    `known` names tensors that the run has with the same dtype and shape, and may lack some; `path`
    is the checkpoint's. Raises StoreError for no tensor of the run, or changed ones not allowed.
    """
    if tensors and not known and not _has_any(run, tensors):
        raise StoreError(
            f"{path}: does not belong to the run {run.where}: it has none of its tensors, by name"
            " and shape"
        )
    others = [t for t in tensors if t.name not in known]
    variants = {t.name: _variants(run, t.name) for t in others if t.name in run.run.tensors}
    changes = _changes(others, variants)
    if not changes:
        return
    if not allow_changed_tensors:
        raise _refusal(path, changes, run.where)
    warn_caller(
        f"{path}: differs from the steps before in the dtype or shape of {_described(changes)}:"
        " over time, such a tensor is read in parts, each named after its first step, as"
        f" {run.variant_names(changes[0][0].name)[0]!r:.300}",
        TensorChangeWarning,
    )


def _has_any(run: RunReader, tensors: Sequence[TensorInfo]) -> bool:
    """Return whether a run has one of these tensors at any step, by name and shape."""
    wanted = {(tensor.name, tensor.shape) for tensor in tensors}
    for number in reversed(run.run.numbers):
        with closing(run.step(number)) as step:
            if any((t.name, t.shape) in wanted for h in step.headers for t in h.tensors):
                return True
    return False


def _variants(run: RunReader, name: str) -> list[_Variant]:
    """Return the variants of a tensor in a run, ordered by their last step."""
    names = sorted(run.variant_names(name), key=lambda variant: run.steps_of(variant)[-1])
    return [_Variant(tensor.dtype, tensor.shape) for tensor in map(run.describe, names)]


def _changes(
    tensors: Iterable[TensorInfo], variants: Mapping[str, Sequence[_Variant]]
) -> list[tuple[TensorInfo, _Variant]]:
    """Return tensors that have a new dtype or shape, each with its latest variant."""
    return [
        (tensor, variants[tensor.name][-1])
        for tensor in tensors
        if tensor.name in variants and (tensor.dtype, tensor.shape) not in variants[tensor.name]
    ]


def _refusal(path: str, changes: Sequence[tuple[TensorInfo, _Variant]], where: str) -> StoreError:
    allow = for_caller("allow_changed_tensors=True", "--allow-changed-tensors")
    return StoreError(
        f"{path}: differs from {where} in the dtype or shape of {_described(changes)}: over time,"
        " such a tensor can only be read in parts; leave out the checkpoint if it is of another"
        f" kind or model, or allow the change with {allow}"
    )


def _described(changes: Sequence[tuple[TensorInfo, _Variant]]) -> str:
    """Describe the first of some changed tensors, and count the others."""
    tensor, before = changes[0]
    new, old = tensor.dtype, before.dtype
    if new == old:
        new, old = f"of shape {tensor.shape}", str(before.shape)
    others = f", and {len(changes) - 1} more" if len(changes) > 1 else ""
    return f"{tensor.name!r:.300} ({new}, not {old}){others}"
