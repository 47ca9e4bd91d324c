"""Looking at models: tensor by tensor, in pieces, on several threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import starmap

from bf16codecs._fields import FIELDS
from bf16codecs._threads import run_ahead, worker_count
from bf16codecs.analysis.counts import Counts
from bf16codecs.analysis.histogram import Histogram
from bf16codecs.analysis.kinds import layer_of
from bf16codecs.analysis.pieces import Findings, Part, Read, Tensor
from bf16codecs.analysis.reach import DIFFERENCE
from bf16codecs.analysis.results import Analysis, GroupAnalysis, TensorAnalysis
from bf16codecs.analysis.scales import ScaleSums
from bf16codecs.analysis.statistics import statistics_of
from bf16codecs.convert.damages import NO_DAMAGE
from bf16codecs.errors import BF16CodecsError
from bf16codecs.model.model import Model
from bf16codecs.model.tensor import LazyTensor

__all__ = ["Look", "Progress"]

#: What was found in a part, and why not all of it.
_Outcome = tuple[Findings, list[BF16CodecsError]]

#: Called with the bytes done so far and the bytes in all.
Progress = Callable[[int, int], None]


class _Group:
    """Tensors of one dtype and kind, or all of one dtype."""

    def __init__(self, kind: str, dtype: str, like: Counts) -> None:
        self.kind, self.dtype = kind, dtype
        self._found = Findings(Counts(like.item_size))
        self._tensors, self._exponent_bits = 0, 0.0

    @property
    def counts(self) -> Counts:
        """What was counted of all of them."""
        return self._found.counts

    def add(self, tensor: TensorAnalysis, found: Findings) -> None:
        bits = tensor.statistics.entropies.exponent or 0.0
        self._add(found, 1, bits * tensor.statistics.values)

    def add_all(self, other: _Group) -> None:
        self._add(other._found, other._tensors, other._exponent_bits)

    def _add(self, found: Findings, tensors: int, exponent_bits: float) -> None:
        self._found.counts += found.counts
        self._found.reached += found.reached
        self._tensors += tensors
        self._exponent_bits += exponent_bits

    def result(self) -> GroupAnalysis:
        bits = self._exponent_bits / max(1, self.counts.items)
        return GroupAnalysis(
            kind=self.kind,
            tensors=self._tensors,
            statistics=statistics_of(self.dtype, self.counts),
            exponent_per_tensor=bits if self.dtype in FIELDS else None,
            bits=_bits(self._found),
            blocks=self._found.reached.spread(),
        )


@dataclass
class Look:
    """How to look at a model, and what could not be read of it.

    Attributes
    ----------
    kind_of : callable
        Returns the kind of a tensor, by its name.
    sample : int or None
        About how many bytes to look at, if not all.
    errors : list
        The names of tensors that could not be read, or not all of them, and why.
    """

    kind_of: Callable[[str], str]
    sample: int | None = None
    errors: list[tuple[str, BF16CodecsError]] = field(default_factory=list)

    def at(self, model: Model, base: Model | None, progress: Progress | None) -> Analysis:
        """Look at a model, and at what it has otherwise than a base.

        `progress` is called with the bytes done so far, and the bytes in all.

        Raises
        ------
        ValueError
            If it has no values at all.
        BF16CodecsError
            If nothing of it can be read.
        """
        tensors = list(self._tensors(model, base))
        total = sum(tensor.nbytes for tensor in tensors)
        share = self._share(total)
        groups, results = dict[tuple[str, str], _Group](), list[TensorAnalysis]()
        for tensor, found in self._looked_at(tensors, share, progress):
            kind = self.kind_of(tensor.name)
            result = _result(tensor, kind, found)
            results.append(result)
            own = groups.setdefault((tensor.dtype, kind), _Group(kind, tensor.dtype, found.counts))
            own.add(result, found)
        looked = sum(result.statistics.nbytes for result in results)
        if not looked:
            _, error = next(iter(self.errors), ("", ValueError(f"{model.where}: has no values")))
            raise error
        by_dtype = dict(_by_dtype(groups.values()))
        main = max(by_dtype, key=lambda d: (d in FIELDS, by_dtype[d].statistics.nbytes))
        return Analysis(
            path=model.where,
            base=None if base is None else base.where,
            share=looked / total,
            model=by_dtype[main],
            dtypes=list(by_dtype.values()),
            kinds=[group.result() for group in groups.values()],
            tensors=results,
        )

    def at_tensor(self, tensor: LazyTensor, base: LazyTensor | None = None) -> TensorAnalysis:
        """Look at one tensor, and at what it has otherwise than that of a base.

        Raises
        ------
        BF16CodecsError
            If its metadata are damaged. What is damaged else is in `errors`.
        """
        own = Tensor.of(tensor, base)
        ((_, found),) = self._looked_at([own], self._share(own.nbytes), None)
        return _result(own, self.kind_of(own.name), found)

    def _share(self, total: int) -> float:
        return 1.0 if self.sample is None else min(1.0, self.sample / max(1, total))

    def _tensors(self, model: Model, base: Model | None) -> Iterator[Tensor]:
        for name in model:
            try:
                yield Tensor.of(model[name], None if base is None else base.get(name))
            except NO_DAMAGE:
                raise
            except BF16CodecsError as e:
                self.errors.append((name, e))

    def _looked_at(
        self, tensors: Sequence[Tensor], share: float, progress: Progress | None
    ) -> Iterator[tuple[Tensor, Findings]]:
        """Yield tensors, and what is found in each."""
        parts = [list(tensor.parts(share)) for tensor in tensors]
        pairs = ((t, part) for t, own in zip(tensors, parts, strict=True) for part in own)
        done, total = 0, sum(part.nbytes for own in parts for part in own)
        with closing(run_ahead(starmap(_job, pairs), worker_count())) as outcomes:
            for tensor, own in zip(tensors, parts, strict=True):
                found = None
                for part in own:
                    more, errors = next(outcomes)
                    found = _joined(found, more)
                    self.errors += ((tensor.name, error) for error in errors)
                    done += part.nbytes
                    if progress is not None:
                        progress(done, total)
                yield tensor, found or Findings(Counts(tensor.item.itemsize))


def _job(tensor: Tensor, part: Part) -> Callable[[], _Outcome]:
    """Return what looks at a part; it reads it, too, unless that has to happen here."""
    if tensor.concurrency:
        return lambda: _look(tensor, *tensor.read_sound(part))
    return partial(_look, tensor, *tensor.read_sound(part))


def _look(tensor: Tensor, sound: list[Read], errors: list[BF16CodecsError]) -> _Outcome:
    found = None
    for read in sound:
        found = _joined(found, tensor.look(read))
    return found or Findings(Counts(tensor.item.itemsize)), errors


def _joined(found: Findings | None, more: Findings) -> Findings:
    """Return what was found together; of small tensors, copying the first would take as long."""
    if found is None:
        return more
    found += more
    return found


def _result(tensor: Tensor, kind: str, found: Findings) -> TensorAnalysis:
    scales = None
    if found.sums:
        sums = ScaleSums(tensor.nbytes // tensor.item.itemsize // tensor.columns, tensor.columns)
        for start, squares in found.sums.items():
            sums.add(start, squares)
        scales = sums.scales()
    return TensorAnalysis(
        name=tensor.name,
        kind=kind,
        layer=layer_of(tensor.name),
        shape=tensor.shape,
        statistics=statistics_of(tensor.dtype, found.counts),
        bits=_bits(found),
        blocks=found.reached.spread(),
        scales=scales,
        histogram=Histogram.of(tensor.item, found.counts),
    )


def _bits(found: Findings) -> dict[str, float]:
    """Return what codecs reach, in bits a value."""
    counts = found.counts
    return {
        name: 8 * size / (counts.compared if name.startswith(DIFFERENCE) else counts.items)
        for name, size in found.reached.nbytes.items()
    }


def _by_dtype(groups: Iterable[_Group]) -> Iterator[tuple[str, GroupAnalysis]]:
    """Yield dtypes, and what was found in all tensors of each."""
    wholes = dict[str, _Group]()
    for group in groups:
        wholes.setdefault(group.dtype, _Group("all", group.dtype, group.counts)).add_all(group)
    for dtype, whole in wholes.items():
        yield dtype, whole.result()
