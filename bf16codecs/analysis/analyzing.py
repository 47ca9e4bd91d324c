"""`analyze`: a model, a model and its base, or a series of checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

from bf16codecs._base.arguments import argument, as_integer
from bf16codecs._base.threads import codec_threads
from bf16codecs.analysis.analyzer import Analyzer, has_comparable_tensor
from bf16codecs.analysis.checkpoints import Checkpoints
from bf16codecs.analysis.kinds import kind_of, kinds_by
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
    """Analyze the weights of a model, in pieces of 4 MiB.

    Parameters
    ----------
    src : str, path, Model or Run, or a sequence of them
        A safetensors model or a store of any kind: its path or address, or the open model. A run
        or several models are a series: each checkpoint is analyzed and compared with the one before
        it, and the results of single tensors are those of the last one.
    base : str, path or Model, optional
        The model to compare with: another checkpoint, or the model that this one was tuned from.
        Tensors that it lacks or has in another shape are not compared.
    sample : int, optional
        Analyze about this many bytes of each model, spread evenly over all tensors. For large
        models, the results of 256 MiB differ from those of all bytes by a few hundredths of a bit.
    kinds : mapping or callable, optional
        How a tensor's name gives its kind: a regular expression for each kind, tried in order, or
        a function that returns the kind. By default `KINDS`.
    storage_options : dict, optional
        Options of the file system, for addresses.
    max_bytes : int, optional
        The most bytes that a chunk may have once decoded: see `bf16codecs.open_model`.
    threads : int, optional
        Threads of the codecs; by default, one for each processor.
    progress : callable, optional
        Called with the label of the checkpoint, the bytes done so far, and the bytes in all.

    Returns
    -------
    Analysis
        Its `damage` lists the damaged parts of a store, which no other result includes.

    Raises
    ------
    FileNotFoundError
        If a path does not exist.
    BF16CodecsError
        If a source is not a model, or none of its tensors can be read.
    TypeError, ValueError
        If an argument is invalid, a model has no values, or no tensor of `base` has the name,
        dtype and shape of one of the model's.

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
    analyzer = Analyzer(rule, sample)
    sources = list(src) if isinstance(src, (list, tuple)) else [src]
    if not sources:
        raise ValueError("no model to look at: src is empty")
    opened = closing(Checkpoints(sources, base, storage_options, max_bytes))
    with codec_threads(threads), opened as checkpoints:
        return _analyze_all(analyzer, checkpoints, progress)


def _refuse_unrelated(model: Model, base: Model) -> None:
    if not has_comparable_tensor(model, base):
        raise ValueError(
            f"{base.where}: has no tensor with the name, dtype and shape of one of {model.where}:"
            " there is nothing to compare"
        )


def _analyze_all(
    analyzer: Analyzer, checkpoints: Checkpoints, progress: StepProgress | None
) -> Analysis:
    """Analyze each checkpoint, and the changes since the one before it."""
    steps, damage = [], list[Damage]()
    base = None if checkpoints.base is None else checkpoints[checkpoints.base]
    if base is not None:
        _refuse_unrelated(checkpoints[next(iter(checkpoints.steps))], base)
    is_series = len(checkpoints.steps) > 1
    for label in checkpoints.steps:
        report = None if progress is None else partial(progress, label)
        found = analyzer.model(checkpoints[label], base, report)
        steps.append(StepAnalysis(label, found.model, found.kinds))
        number = checkpoints.number(label) if is_series else None
        damage += (part._replace(step=number) for part in found.damage)
        base = checkpoints[label]
    return replace(found, steps=steps if is_series else [], damage=tuple(dict.fromkeys(damage)))
