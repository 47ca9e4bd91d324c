"""The checkpoints to analyse: a model, a run, or several models in order."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bf16codecs._base.paths import last_name
from bf16codecs.convert.runs.step_numbers import find_number
from bf16codecs.errors import StepNotFoundError
from bf16codecs.model.model import Model
from bf16codecs.model.run import Run, open_model_or_run
from bf16codecs.store.opening import split_step
from bf16codecs.store.runs.layout import listed

__all__ = ["Checkpoints"]


class Checkpoints:
    """Models by their labels: numbers of steps, or names of files; the base last.

    `sources` are paths or addresses of models and runs, or open ones, and `base` is the default of
    comparisons. `storage_options` and `max_bytes` are as for `bf16codecs.open_model`. Raises
    FileNotFoundError if nothing is at a path, BF16CodecsError if it is not a model, and ValueError
    if the base is a run.
    """

    def __init__(
        self,
        sources: Sequence[Any],
        base: Any = None,
        storage_options: Mapping[str, Any] | None = None,
        max_bytes: int | None = None,
    ) -> None:
        self._arguments = sources, base, storage_options, max_bytes
        self._models: dict[str, Model] = {}
        self._numbers: dict[str, int | None] = {}
        self._owned: list[Model | Run] = []
        # Others may be reading checkpoints that `reopened` replaces: the last reader closes them.
        self._finalizer = weakref.finalize(self, _close_all, self._owned)
        self._places: list[str] = []
        #: The label of the base, if there is one.
        self.base: str | None = None
        try:
            found = list(self._opened(sources))
            told = iter(_numbers_told([model for number, model in found if number is None]))
            for number, model in found:
                self._add(model, next(told) if number is None else number)
            #: The path or address of the model; of several, of the first and the last.
            self.where = " ... ".join(dict.fromkeys([self._places[0], self._places[-1]]))
            if base is not None:
                model = _one_model(self._open(base))
                self.base = self._add(model, None, "base ")
        except BaseException:
            self.close()
            raise

    def reopened(self) -> Checkpoints:
        """Open all of them again: a run may have more steps now, a path another model."""
        return Checkpoints(*self._arguments)

    @property
    def labels(self) -> list[str]:
        """Labels of the checkpoints, in their order, and of the base behind them."""
        return list(self._models)

    @property
    def steps(self) -> list[str]:
        """Labels without the base."""
        return [label for label in self._models if label != self.base]

    def __getitem__(self, label: str) -> Model:
        if label not in self._models:
            raise StepNotFoundError(f"{self.where}: no step {label!r:.80} to look at")
        return self._models[label]

    def number(self, label: str) -> int | None:
        """Return the number of a checkpoint's step, if it is known."""
        return self._numbers[label]

    def before(self, label: str) -> str | None:
        """Return the label of the checkpoint before one; None if that is the first, or the base."""
        at = self.labels.index(label)
        return None if at == 0 or label == self.base else self.labels[at - 1]

    def close(self) -> None:
        """Close what was opened here."""
        self._finalizer()

    def _open(self, source: Any) -> Model | Run:
        if isinstance(source, (Model, Run)):
            return source
        _, _, storage_options, max_bytes = self._arguments
        self._owned.append(open_model_or_run(source, storage_options, max_bytes))
        return self._owned[-1]

    def _opened(self, sources: Sequence[Any]) -> Iterator[tuple[int | None, Model]]:
        """Open models, and runs step by step, with the numbers of steps where they are known."""
        for source in sources:
            model = self._open(source)
            self._places.append(model.where)
            if isinstance(model, Run):
                yield from ((step, model[step]) for step in model.steps)
            else:
                yield None, model

    def _add(self, model: Model, number: int | None, prefix: str = "") -> str:
        """Add a model, under a label of its own."""
        label = prefix + (last_name(model.where) if number is None else str(number))
        label = next(own for own in _alternatives(label) if own not in self._models)
        self._models[label], self._numbers[label] = model, number
        return label


def _close_all(opened: Sequence[Model | Run]) -> None:
    for model in opened:
        model.close()


def _one_model(model: Model | Run) -> Model:
    """Return a model that can be the base; refuse a run."""
    if isinstance(model, Run):
        raise ValueError(
            f"{model.where}: a run, with steps {listed(model.steps)}: name the one that is the"
            f" base, as in {model.where}@{model.steps[-1]}"
        )
    return model


def _numbers_told(models: Sequence[Model]) -> Sequence[int | None]:
    """Return the numbers of models' steps, if names or metadata give each a different one."""
    if len(models) > 1:  # for a single one, no header is read
        numbers = [_number_told(model) for model in models]
        if None not in numbers and len(set(numbers)) == len(numbers):
            return numbers
    return [None] * len(models)


def _number_told(model: Model) -> int | None:
    _, step = split_step(model.where)
    return find_number([model.metadata() or {}], model.where) if step is None else step


def _alternatives(label: str) -> Iterator[str]:
    yield label
    number = 2
    while True:
        yield f"{label} ({number})"
        number += 1
