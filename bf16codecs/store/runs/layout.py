"""The attributes of a run, as docs/runs.md describes them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bf16codecs._base.cached import cached_property
from bf16codecs._base.limits import MAX_GROUP
from bf16codecs._base.messages import counted
from bf16codecs.errors import StepNotFoundError
from bf16codecs.store.attributes import ROUNDED, StoredFile, file_entry, stored_files

__all__ = ["STEPS_CHUNK", "Placement", "RunInfo", "RunStep", "listed"]

#: How many numbers of steps a chunk of their array has: 32 KiB.
STEPS_CHUNK = 4096

#: Indices [first, stop) in the list of steps; a stop of None means all later ones.
Span = tuple[int, int | None]
_ALWAYS: tuple[Span, ...] = ((0, None),)


@dataclass(frozen=True)
class RunStep:
    """A checkpoint: number, files, and the index in the run of the step it is coded against."""

    number: int
    files: tuple[StoredFile, ...]
    index: StoredFile | None
    parent: int | None = None

    @property
    def file_names(self) -> list[str]:
        """The names of its files, the index last."""
        return [f.name for f in (*self.files, self.index) if f is not None]

    @property
    def nbytes(self) -> int:
        """The size of its files."""
        return sum(f.size for f in (*self.files, self.index) if f is not None)


@dataclass(frozen=True, slots=True)  # opening a run makes one for each tensor
class Placement:
    """The path of a tensor at some of the steps, with `ROUNDED` behind it for a rounded array."""

    path: str
    at: tuple[Span, ...] = _ALWAYS

    @property
    def is_always(self) -> bool:
        """Whether it applies to all steps."""
        return self.at == _ALWAYS

    def __contains__(self, index: int) -> bool:
        spans = self.at
        return any(first <= index and (stop is None or index < stop) for first, stop in spans)

    def indices(self, count: int) -> Iterator[int]:
        """Yield the indices of its steps, ascending, in a run of `count` steps."""
        for first, stop in self.at:
            yield from range(first, count if stop is None else stop)

    def last(self, count: int) -> int:
        """Return the index of its last step in a run of `count` steps."""
        _, stop = self.at[-1]
        return (count if stop is None else stop) - 1


@dataclass(frozen=True)
class RunInfo:
    """The contents of a run's attributes."""

    group: int
    steps: tuple[RunStep, ...] = ()
    tensors: Mapping[str, tuple[Placement, ...]] = field(default_factory=dict)
    codec: Mapping[str, Any] = field(default_factory=dict)

    @property
    def numbers(self) -> list[int]:
        """The numbers of the steps, ascending."""
        return [step.number for step in self.steps]

    @cached_property
    def arrays(self) -> dict[str, list[Placement]]:
        """The placements of tensors in each array, by its path."""
        found: dict[str, list[Placement]] = {}
        for placements in self.tensors.values():
            for placement in placements:
                if not placement.path.endswith(ROUNDED):
                    found.setdefault(placement.path, []).append(placement)
        return found

    def grown(self) -> set[str]:
        """Return the paths of the arrays that have chunks in the group of the next step."""
        index = len(self.steps)
        before = range(index - index % self.group, index)
        return {
            path
            for path, placements in self.arrays.items()
            if any(earlier in placement for earlier in before for placement in placements)
        }

    def index_of(self, number: int, where: str) -> int:
        """Return the index of a step by its number; raise StepNotFoundError if it is missing."""
        numbers = self.numbers
        if number not in numbers:
            raise StepNotFoundError(f"{where}: no step {number}; there are {listed(numbers)}")
        return numbers.index(number)

    def paths_at(self, index: int) -> dict[str, str]:
        """Return the path of each tensor at a step."""
        found = {}
        for name, placements in self.tensors.items():
            for placement in placements:
                if index in placement:
                    found[name] = placement.path
        return found

    def with_step(self, step: RunStep, paths: Mapping[str, str]) -> RunInfo:
        """Return this run with one more step; `paths` are its tensors', as from `paths_at`."""
        index = len(self.steps)
        tensors = {
            name: tuple(_ended(placements, index, paths.get(name)))
            for name, placements in self.tensors.items()
        }
        for name, path in paths.items():
            placements = tensors.get(name, ())
            if not any(index in placement for placement in placements):
                spans = [span for p in placements if p.path == path for span in p.at]
                others = [p for p in placements if p.path != path]
                tensors[name] = (*others, Placement(path, (*spans, (index, None))))
        return replace(self, steps=(*self.steps, step), tensors=tensors)

    def without_last(self) -> RunInfo:
        """Return this run without its last step, as it was before `with_step`."""
        last = len(self.steps) - 1
        tensors = {}
        for name, placements in self.tensors.items():
            reopened = (_reopened(placement, last) for placement in placements)
            if left := tuple(placement for placement in reopened if placement.at):
                tensors[name] = left
        return replace(self, steps=self.steps[:-1], tensors=tensors)

    def to_content(self) -> dict[str, Any]:
        """Return the root's attributes of a run."""
        return {
            "run": {"group": self.group, "codec": dict(self.codec)},
            "steps": [_step_entry(step) for step in self.steps],
            "tensors": {
                name: [_placement_entry(placement) for placement in placements]
                for name, placements in self.tensors.items()
            },
        }

    @classmethod
    def from_content(cls, content: Mapping[str, Any], with_digests: bool = True) -> RunInfo:
        """Check a run's attributes, and unless told otherwise that all files have digests.

        Raises KeyError, TypeError or ValueError if they are invalid.
        """
        group, codec = content["run"]["group"], content["run"].get("codec")
        if type(group) is not int or not 1 <= group <= MAX_GROUP:
            raise ValueError(f"{group!r:.80} is not the size of a group")
        if not isinstance(content["steps"], list) or not isinstance(content["tensors"], Mapping):
            raise TypeError("steps are not a list, or tensors not an object")
        steps = tuple(_step(entry, i, with_digests) for i, entry in enumerate(content["steps"]))
        if not steps:
            raise ValueError("there are no steps")
        if any(a.number >= b.number for a, b in itertools.pairwise(steps)):
            raise ValueError("the steps do not ascend")
        tensors = {
            name: _placements(name, entries, len(steps))
            for name, entries in content["tensors"].items()
        }
        return cls(group, steps, tensors, codec if isinstance(codec, Mapping) else {})


def _ended(placements: Sequence[Placement], index: int, path: str | None) -> Iterator[Placement]:
    """Yield placements; one of another path than `path` ends at the index if it goes on."""
    for placement in placements:
        first, stop = placement.at[-1]
        if stop is None and placement.path != path:
            yield replace(placement, at=(*placement.at[:-1], (first, index)))
        else:
            yield placement


def _reopened(placement: Placement, index: int) -> Placement:
    """Return a placement without the last step; if it ended there, it goes on again."""
    spans = ((first, stop) for first, stop in placement.at if first < index)
    at = ((first, None if stop is None or stop >= index else stop) for first, stop in spans)
    return replace(placement, at=tuple(at))


def listed(numbers: Sequence[int]) -> str:
    """Return numbers of steps as text, shortened if there are many."""
    if not numbers:
        return "none"
    if len(numbers) <= 6:
        return ", ".join(map(str, numbers))
    ends = [*map(str, numbers[:3]), "...", *map(str, numbers[-2:])]
    return f"{', '.join(ends)} ({counted(len(numbers), 'step')})"


def _step_entry(step: RunStep) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "step": step.number,
        "files": [file_entry(f, "header") for f in step.files],
    }
    if step.index is not None:
        entry["index"] = file_entry(step.index, "path")
    return {**entry, "parent": step.parent}


def _step(entry: Mapping[str, Any], earlier: int, with_digests: bool) -> RunStep:
    number, parent = entry["step"], entry.get("parent")
    if type(number) is not int or not 0 <= number < 2**63:
        raise ValueError(f"{number!r:.80} is not the number of a step")
    if parent is not None and (type(parent) is not int or not 0 <= parent < earlier):
        raise ValueError(f"{parent!r:.80} is not the index of an earlier step")
    files, index = stored_files(entry, with_digests)
    return RunStep(number, files, index, parent)


def _placement_entry(placement: Placement) -> dict[str, Any]:
    if placement.path.endswith(ROUNDED):
        entry: dict[str, Any] = {"rounded": placement.path.removesuffix(ROUNDED)}
    else:
        entry = {"path": placement.path}
    if not placement.is_always:
        entry["at"] = [list(span) for span in placement.at]
    return entry


def _placements(name: str, entries: Any, count: int) -> tuple[Placement, ...]:
    if not isinstance(entries, list) or not entries:
        raise TypeError(f"the placements of {name!r:.80} are not a list with at least one")
    placements = tuple([_placement(entry, count) for entry in entries])
    if len(placements) == 1:
        return placements
    spans = sorted((span for p in placements for span in p.at), key=lambda span: span[0])
    for (_, stop), (first, _) in itertools.pairwise(spans):
        if stop is None or stop > first:
            raise ValueError(f"{name!r:.80} has two placements at one step")
    return placements


def _placement(entry: Mapping[str, Any], count: int) -> Placement:
    path = entry["rounded"] if "rounded" in entry else entry["path"]
    if not isinstance(path, str) or "#" in path:
        raise ValueError(f"{path!r:.80} is not an array path")
    path = path + ROUNDED if "rounded" in entry else path
    return Placement(path, tuple(_spans(entry["at"], count))) if "at" in entry else Placement(path)


def _spans(entry: Any, count: int) -> Iterator[Span]:
    if not isinstance(entry, list) or not entry:
        raise TypeError("the steps of a placement are not a list with at least one")
    after = 0
    for first, stop in entry:
        end = count if stop is None else stop
        if type(first) is not int or type(end) is not int:
            raise TypeError("the steps of a placement are not pairs of indices")
        if not after <= first < end <= count:
            raise ValueError(f"[{first!r:.40}, {stop!r:.40}] are not indices of steps")
        yield first, stop
        after = end
