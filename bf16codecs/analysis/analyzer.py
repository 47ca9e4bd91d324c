"""Analysis of a model: tensor by tensor, in pieces, on several threads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from bf16codecs._base import interrupt as _interrupt
from bf16codecs._base.fields import FIELDS
from bf16codecs._base.messages import one_line
from bf16codecs._base.threads import run_ahead, worker_count
from bf16codecs.analysis.coded_sizes import CODECS, DIFFERENCE, CodedSizes
from bf16codecs.analysis.counts import Counts
from bf16codecs.analysis.histogram import Histogram
from bf16codecs.analysis.kinds import layer_of
from bf16codecs.analysis.pieces import Compared, Findings, Read, Tensor
from bf16codecs.analysis.results import Analysis, GroupAnalysis, TensorAnalysis
from bf16codecs.analysis.scales import ScaleSums
from bf16codecs.analysis.statistics import statistics_of
from bf16codecs.convert.damages import NO_DAMAGE
from bf16codecs.errors import BF16CodecsError, Damage
from bf16codecs.model.model import Model
from bf16codecs.model.tensor import LazyTensor

__all__ = ["Analyzer", "Changes", "Progress", "TensorChanges", "has_comparable_tensor"]

#: Called with the bytes done so far and the bytes in all.
Progress = Callable[[int, int], None]
#: Names of tensors that could not be read completely, and why.
_Errors = list[tuple[str, BF16CodecsError]]

#: The result of work on pieces.
Found = TypeVar("Found", Findings, Compared)


@dataclass(frozen=True)
class TensorChanges:
    """The share of a tensor's values that changed, and the bits per value of the difference."""

    changed: float
    bits: dict[str, float]


@dataclass(frozen=True)
class Changes:
    """The changes of a model's tensors since a base, for those that can be compared.

    `share` is the part of the bytes that was compared; `damage` lists the parts that could not be
    read.
    """

    share: float
    tensors: dict[str, TensorChanges]
    damage: tuple[Damage, ...]


class _Group:
    """Tensors of one dtype and kind, or all of one dtype."""

    def __init__(self, kind: str, dtype: str, like: Counts) -> None:
        self.kind, self.dtype = kind, dtype
        self._found = Findings(Counts(like.item_size))
        self._tensors, self._exponent_bits = 0, 0.0

    @property
    def counts(self) -> Counts:
        """The sum of all tensors' counts."""
        return self._found.counts

    def add(self, tensor: TensorAnalysis, found: Findings) -> None:
        bits = tensor.statistics.entropies.exponent or 0.0
        self._add(found, 1, bits * tensor.statistics.values)

    def add_all(self, other: _Group) -> None:
        self._add(other._found, other._tensors, other._exponent_bits)

    def _add(self, found: Findings, tensors: int, exponent_bits: float) -> None:
        self._found.counts += found.counts
        self._found.sizes += found.sizes
        self._tensors += tensors
        self._exponent_bits += exponent_bits

    def result(self) -> GroupAnalysis:
        bits = self._exponent_bits / max(1, self.counts.items)
        return GroupAnalysis(
            kind=self.kind,
            tensors=self._tensors,
            statistics=statistics_of(self.dtype, self.counts),
            exponent_per_tensor=bits if self.dtype in FIELDS else None,
            bits=_bits(self._found.sizes, self.counts.items, self.counts.compared),
            blocks=self._found.sizes.spread(),
        )


@dataclass(frozen=True)
class Analyzer:
    """Analyzes models and tensors; `kind_of` returns the kind of a tensor by its name.

    `sample` is the approximate number of bytes to analyze, or None for all. Most of the time goes
    into trying `codecs`.
    """

    kind_of: Callable[[str], str]
    sample: int | None = None
    codecs: Collection[str] = CODECS

    def model(self, model: Model, base: Model | None, progress: Progress | None) -> Analysis:
        """Analyze a model and its changes since a base; `progress` gets bytes done, and in all.

        Raises ValueError if the model has no values, BF16CodecsError if nothing can be read.
        """
        errors: _Errors = []
        tensors = list(_tensors(model, base, errors))
        total = sum(tensor.nbytes for tensor in tensors)
        groups, results = dict[tuple[str, str], _Group](), list[TensorAnalysis]()
        for tensor, findings in self._all(tensors, self._analyze, errors, progress):
            found = findings or Findings(Counts(tensor.item.itemsize))
            kind = self.kind_of(tensor.name)
            result = _result(tensor, kind, found)
            results.append(result)
            empty = _Group(kind, tensor.dtype, found.counts)
            groups.setdefault((tensor.dtype, kind), empty).add(result, found)
        nbytes = sum(result.statistics.nbytes for result in results)
        if not nbytes:
            _, error = next(iter(errors), ("", ValueError(f"{model.where}: has no values")))
            raise error
        by_dtype = dict(_by_dtype(groups.values()))
        main = max(by_dtype, key=lambda d: (d in FIELDS, by_dtype[d].statistics.nbytes))
        return Analysis(
            path=model.where,
            base=None if base is None else base.where,
            share=nbytes / total,
            model=by_dtype[main],
            dtypes=list(by_dtype.values()),
            kinds=[group.result() for group in groups.values()],
            tensors=results,
            damage=_damage(errors, model.where),
        )

    def tensor(
        self, lazy: LazyTensor, base: LazyTensor | None = None
    ) -> tuple[TensorAnalysis, tuple[Damage, ...]]:
        """Analyze a tensor and its change; raise BF16CodecsError only if metadata are damaged."""
        tensor, errors = Tensor.of(lazy, base), _Errors()
        ((_, found),) = self._all([tensor], self._analyze, errors, None)
        found = found or Findings(Counts(tensor.item.itemsize))
        return _result(tensor, self.kind_of(tensor.name), found), _damage(errors)

    def changes(self, model: Model, base: Model) -> Changes:
        """Compare the tensors with those of a base, without any other analysis."""
        errors: _Errors = []
        tensors = [t for t in _tensors(model, base, errors) if t.base is not None]
        found, values = dict[str, TensorChanges](), 0
        for tensor, compared in self._all(tensors, self._compare, errors, None):
            if compared is not None:
                bits = _bits(compared.sizes, 0, compared.values)
                changed = compared.changed / compared.values
                found[tensor.name] = TensorChanges(changed, bits)
                values += compared.values * tensor.item.itemsize
        total = sum(tensor.nbytes for tensor in tensors)
        return Changes(values / max(1, total), found, _damage(errors, model.where))

    def _analyze(self, tensor: Tensor, read: Read) -> Findings:
        return tensor.analyze(read, self.codecs)

    def _compare(self, tensor: Tensor, read: Read) -> Compared:
        return tensor.compare(read, self.codecs)

    def _all(
        self,
        tensors: Sequence[Tensor],
        work: Callable[[Tensor, Read], Found],
        errors: _Errors,
        progress: Progress | None,
    ) -> Iterator[tuple[Tensor, Found | None]]:
        """Yield each tensor with the result of `work`, or None if none of it could be read."""
        total = sum(tensor.nbytes for tensor in tensors)
        share = 1.0 if self.sample is None else min(1.0, self.sample / max(1, total))
        pieces = [list(tensor.pieces(share)) for tensor in tensors]
        jobs = (
            tensor.job(piece, partial(work, tensor))
            for tensor, tensor_pieces in zip(tensors, pieces, strict=True)
            for piece in tensor_pieces
        )
        done, total = 0, sum(piece.nbytes for tensor_pieces in pieces for piece in tensor_pieces)
        with closing(run_ahead(jobs, worker_count())) as outcomes:
            for tensor, tensor_pieces in zip(tensors, pieces, strict=True):
                found = None
                for piece in tensor_pieces:
                    more, failed = next(outcomes)
                    for each in more:
                        found = _joined(found, each)
                    errors += ((tensor.name, error) for error in failed)
                    done += piece.nbytes
                    if progress is not None:
                        progress(done, total)
                # Other code, such as an import, may have swallowed a signal's exception.
                _interrupt.check()
                yield tensor, found


def has_comparable_tensor(model: Model, base: Model) -> bool:
    """Return whether any tensor of a model can be compared with a base's; damaged ones count."""
    errors: _Errors = []
    return any(t.base is not None for t in _tensors(model, base, errors)) or bool(errors)


def _tensors(model: Model, base: Model | None, errors: _Errors) -> Iterator[Tensor]:
    for name in model:
        try:
            yield Tensor.of(model[name], None if base is None else base.get(name))
        except NO_DAMAGE:
            raise
        except BF16CodecsError as e:
            errors.append((name, e))


def _damage(errors: _Errors, where: str = "") -> tuple[Damage, ...]:
    """Return each error once, without the path of the model, or of the run that it belongs to."""
    run, found = where.rpartition("@")[0] or where, list[Damage]()
    for name, error in errors:
        message = one_line(error).removeprefix(f"{where}: ").removeprefix(f"{run}: ")
        found.append(Damage(None, name, None, message))
    return tuple(dict.fromkeys(found))


def _joined(found: Found | None, more: Found) -> Found:
    """Add to the first result in place: a copy takes as long as the analysis of a small tensor."""
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
        bits=_bits(found.sizes, found.counts.items, found.counts.compared),
        blocks=found.sizes.spread(),
        scales=scales,
        histogram=Histogram.of(tensor.item, found.counts),
        grid=found.grid,
    )


def _bits(sizes: CodedSizes, values: int, compared: int) -> dict[str, float]:
    """Return the coded sizes in bits per value."""
    return {
        name: 8 * size / (compared if name.startswith(DIFFERENCE) else values)
        for name, size in sizes.nbytes.items()
    }


def _by_dtype(groups: Iterable[_Group]) -> Iterator[tuple[str, GroupAnalysis]]:
    """Yield each dtype with the result of all its tensors."""
    wholes = dict[str, _Group]()
    for group in groups:
        wholes.setdefault(group.dtype, _Group("all", group.dtype, group.counts)).add_all(group)
    for dtype, whole in wholes.items():
        yield dtype, whole.result()
