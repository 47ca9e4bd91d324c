"""`analyze`: a model, a model and its base, or a series of checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

from bf16codecs._base.arguments import argument, as_integer
from bf16codecs._base.threads import codec_threads
from bf16codecs.analysis.checkpoints import Checkpoints
from bf16codecs.analysis.kinds import kind_of, kinds_by
from bf16codecs.analysis.look import Look, has_alike
from bf16codecs.analysis.results import Analysis, StepAnalysis
from bf16codecs.errors import Damage
from bf16codecs.model.model import Model

__all__ = ["analyze"]

Source = Any
#: Called with the label of a checkpoint, the bytes done so far, and the bytes in all.
StepProgress = Callable[[str, int, int], None]


def analyze(
    src: Source | Sequence[Source],
    base: Source | None = None,
    *,
    sample: int | None = None,
    kinds: Mapping[str, str] | Callable[[str], str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    max_bytes: int | None = None,
    threads: int | None = None,
    progress: StepProgress | None = None,
) -> Analysis:
    """Look at the weights of a model, in pieces of 4 MiB.

    Parameters
    ----------
    src : str, path, Model or Run, or a sequence of them
        A safetensors model, or a store of any kind, by its path or address, or opened. A run, and
        several models, are a series: each checkpoint is looked at and compared with the one before
        it, and the last one is what the result tells of tensors.
    base : str, path or Model, optional
        The model to compare with: another checkpoint, or the one that this model was tuned from.
        Tensors that it lacks, or has in other shapes, are not compared.
    sample : int, optional
        Look at about so many bytes of each model, spread evenly over all tensors. For large models,
        256 MiB give the results of all bytes to a few hundredths of a bit.
    kinds : mapping or callable, optional
        The kinds of tensors by their names: regular expressions by kinds, tried in their order, or
        a function that returns the kind of a name. By default `KINDS`.
    storage_options : dict, optional
        Options of the file system of addresses.
    max_bytes : int, optional
        The most bytes that a chunk may have once decoded: see `bf16codecs.open_model`.
    threads : int, optional
        For the codecs; by default, as many as there are processors.
    progress : callable, optional
        Called with the label of the checkpoint, the bytes done so far, and the bytes in all.

    Returns
    -------
    Analysis
        Damaged parts of a store are in its `damage`, and left out of all else.

    Raises
    ------
    FileNotFoundError
        If nothing is at a path.
    BF16CodecsError
        If it is not a model, or nothing of it can be read.
    TypeError, ValueError
        If an argument is invalid, a model has no values, or `base` has no tensor that is like
        one of the model's.

    Examples
    --------
    >>> import importlib.resources
    >>> from bf16codecs.analysis import analyze
    >>> found = analyze(importlib.resources.files("bf16codecs") / "data" / "demo.safetensors")
    >>> print(f"{found.model.statistics.entropies.exponent:.2f} bits")
    2.70 bits
    >>> sorted(found.table())[:3]
    ['all_bits', 'arithmetic', 'arithmetic_best']
    """
    if sample is not None and as_integer("sample", sample) < 1:
        raise ValueError(f"{argument('sample')} must be at least 1 byte, not {sample}")
    rule = kind_of if kinds is None else kinds_by(kinds) if isinstance(kinds, Mapping) else kinds
    look = Look(rule, sample)
    sources = list(src) if isinstance(src, (list, tuple)) else [src]
    if not sources:
        raise ValueError("no model to look at: src is empty")
    opened = closing(Checkpoints(sources, base, storage_options, max_bytes))
    with codec_threads(threads), opened as checkpoints:
        return _analyze_all(look, checkpoints, progress)


def _refuse_unrelated(model: Model, base: Model) -> None:
    if not has_alike(model, base):
        raise ValueError(
            f"{base.where}: has no tensor with the name, dtype and shape of one of {model.where}:"
            " there is nothing to compare"
        )


def _analyze_all(look: Look, checkpoints: Checkpoints, progress: StepProgress | None) -> Analysis:
    """Look at each checkpoint, and at the changes since the one before it."""
    steps, damage = [], list[Damage]()
    base = None if checkpoints.base is None else checkpoints[checkpoints.base]
    if base is not None:
        _refuse_unrelated(checkpoints[next(iter(checkpoints.steps))], base)
    is_series = len(checkpoints.steps) > 1
    for label in checkpoints.steps:
        tell = None if progress is None else partial(progress, label)
        found = look.at(checkpoints[label], base, tell)
        steps.append(StepAnalysis(label, found.model, found.kinds))
        number = checkpoints.number(label) if is_series else None
        damage += (own._replace(step=number) for own in found.damage)
        base = checkpoints[label]
    return replace(found, steps=steps if is_series else [], damage=tuple(dict.fromkeys(damage)))
