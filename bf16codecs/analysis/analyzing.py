"""`analyze`: a model, a model and its base, or a series of checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from bf16codecs._arguments import argument, as_integer
from bf16codecs._paths import last_name
from bf16codecs._threads import codec_threads
from bf16codecs.analysis.kinds import kind_of, kinds_by
from bf16codecs.analysis.look import Look
from bf16codecs.analysis.results import Analysis, StepAnalysis
from bf16codecs.convert.step_numbers import step_told
from bf16codecs.errors import Damage
from bf16codecs.model.model import Model
from bf16codecs.model.run import Run, open_model_or_run
from bf16codecs.store.run_layout import listed

__all__ = ["analyze", "as_base"]

Source = Any
#: Called with what is looked at, the bytes done so far, and the bytes in all.
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
        What the model is compared with: another checkpoint, or the model that it was tuned from.
        Tensors that it has not, or of other shapes, are not compared.
    sample : int, optional
        Look at about so many bytes of each model, spread evenly over all tensors. Of large models,
        256 MiB tell what all of it does to a few hundredths of a bit.
    kinds : mapping or callable, optional
        Which kind of tensor a name means: regular expressions by kinds, tried in their order, or
        what returns the kind of a name. By default `KINDS`.
    storage_options : dict, optional
        Options of the file system of addresses.
    max_bytes : int, optional
        The most bytes that a chunk may have once decoded: see `bf16codecs.open_model`.
    threads : int, optional
        For the codecs; by default, as many as there are processors.
    progress : callable, optional
        Called with the name of what is looked at, the bytes done so far, and the bytes in all.

    Returns
    -------
    Analysis
        What could not be read of a damaged store is in its `damage`, and in nothing else.

    Raises
    ------
    FileNotFoundError
        If nothing is at a path.
    BF16CodecsError
        If it is not a model, or nothing of it can be read.
    TypeError, ValueError
        If an argument cannot be what it is, or a model has no values.

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
    with codec_threads(threads), ExitStack() as opened:

        def open_source(source: Source) -> Model | Run:
            if isinstance(source, (Model, Run)):
                return source
            model = open_model_or_run(source, storage_options, max_bytes)
            opened.callback(model.close)
            return model

        sources = list(src) if isinstance(src, (list, tuple)) else [src]
        if not sources:
            raise ValueError("no model to look at: src is empty")
        checkpoints = list(_checkpoints(map(open_source, sources)))
        first = None if base is None else as_base(open_source(base))
        return _analyze_all(look, checkpoints, first, progress)


def as_base(model: Model | Run) -> Model:
    """Return a model: of a run, one step has to be the base."""
    if isinstance(model, Run):
        raise ValueError(
            f"{model.where}: a run, with steps {listed(model.steps)}: name the one that is the"
            f" base, as in {model.where}@{model.steps[-1]}"
        )
    return model


def _checkpoints(models: Iterable[Model | Run]) -> Iterator[tuple[int | None, Model]]:
    """Yield all checkpoints, and the numbers of their steps, if these are known."""
    for model in models:
        if isinstance(model, Run):
            yield from ((step, model[step]) for step in model.steps)
        else:
            yield step_told([model.metadata() or {}], model.where), model


def _analyze_all(
    look: Look,
    checkpoints: Sequence[tuple[int | None, Model]],
    base: Model | None,
    progress: StepProgress | None,
) -> Analysis:
    """Look at each checkpoint, and at what changed since the one before it."""
    steps, damage = [], list[Damage]()
    for number, model in checkpoints:
        name = last_name(model.where) if number is None else str(number)
        tell = None if progress is None else partial(progress, name)
        found = look.at(model, base, tell)
        steps.append(StepAnalysis(name, found.model, found.kinds))
        of_step = number if len(checkpoints) > 1 else None
        damage += (own._replace(step=of_step) for own in found.damage)
        base = model
    if len(checkpoints) == 1:
        steps = []
    return replace(found, steps=steps, damage=tuple(dict.fromkeys(damage)))
