"""The checkpoints to analyze: a model, a run, or several models in order."""

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
    """Models by label (the number of a step, or the name of a file), the base last.

    `sources` are models and runs, open or as paths or addresses; `base` is the model to
    compare with. `storage_options` and `max_bytes` are those of `bf16codecs.open_model`.
    Raises FileNotFoundError if a path does not exist, BF16CodecsError if a source is not a model,
    and ValueError if the base is a run.
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
        # A thread may still read checkpoints that `reopened` replaced: the last one closes them.
        self._finalizer = weakref.finalize(self, _close_all, self._owned)
        self._addresses: list[str] = []
        #: The label of the base, if one was given.
        self.base: str | None = None
        try:
            found = list(self._opened(sources))
            numbers = iter(_find_numbers([model for number, model in found if number is None]))
            for number, model in found:
                self._add(model, next(numbers) if number is None else number)
            #: The path or address of the model, or those of the first and the last one.
            self.where = " ... ".join(dict.fromkeys([self._addresses[0], self._addresses[-1]]))
            if base is not None:
                model = _one_model(self._open(base))
                self.base = self._add(model, None, "base ")
        except BaseException:
            self.close()
            raise

    def reopened(self) -> Checkpoints:
        """Open all sources again: a run may have new steps, and a path another model."""
        return Checkpoints(*self._arguments)

    @property
    def labels(self) -> list[str]:
        """Labels of the checkpoints, in order, then that of the base."""
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
        """Return the label of the checkpoint before this one; None for the first and the base."""
        index = self.labels.index(label)
        return None if index == 0 or label == self.base else self.labels[index - 1]

    def close(self) -> None:
        """Close the models that were opened from paths and addresses."""
        self._finalizer()

    def _open(self, source: Any) -> Model | Run:
        if isinstance(source, (Model, Run)):
            return source
        _, _, storage_options, max_bytes = self._arguments
        self._owned.append(open_model_or_run(source, storage_options, max_bytes))
        return self._owned[-1]

    def _opened(self, sources: Sequence[Any]) -> Iterator[tuple[int | None, Model]]:
        """Yield each model, and each step of a run, with its step number where that is known."""
        for source in sources:
            model = self._open(source)
            self._addresses.append(model.where)
            if isinstance(model, Run):
                yield from ((step, model[step]) for step in model.steps)
            else:
                yield None, model

    def _add(self, model: Model, number: int | None, prefix: str = "") -> str:
        """Add a model under a label that no other one has."""
        label = prefix + (last_name(model.where) if number is None else str(number))
        label = next(name for name in _alternatives(label) if name not in self._models)
        self._models[label], self._numbers[label] = model, number
        return label


def _close_all(opened: Sequence[Model | Run]) -> None:
    for model in opened:
        model.close()


def _one_model(model: Model | Run) -> Model:
    """Return the base, and refuse a run."""
    if isinstance(model, Run):
        raise ValueError(
            f"{model.where}: a run, with steps {listed(model.steps)}: name the one that is the"
            f" base, as in {model.where}@{model.steps[-1]}"
        )
    return model


def _find_numbers(models: Sequence[Model]) -> Sequence[int | None]:
    """Return the models' step numbers if names or metadata give each model a different one."""
    if len(models) > 1:  # a single model needs no number, so its header is not read
        numbers = [_find_number(model) for model in models]
        if None not in numbers and len(set(numbers)) == len(numbers):
            return numbers
    return [None] * len(models)


def _find_number(model: Model) -> int | None:
    _, step = split_step(model.where)
    return find_number([model.metadata() or {}], model.where) if step is None else step


def _alternatives(label: str) -> Iterator[str]:
    yield label
    number = 2
    while True:
        yield f"{label} ({number})"
        number += 1
