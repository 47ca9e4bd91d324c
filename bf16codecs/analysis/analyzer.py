"""Analysis of a model: tensor by tensor, in pieces, on several threads."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from bf16codecs._base import interrupt as _interrupt
from bf16codecs._base.cluster import Cluster, batch_nbytes, batches, current_cluster
from bf16codecs._base.fields import FIELDS
from bf16codecs._base.messages import one_line
from bf16codecs._base.threads import codec_threads, run_ahead, worker_count
from bf16codecs.analysis.coded_sizes import CODECS, DIFFERENCE, CodedSizes
from bf16codecs.analysis.counts import Counts
from bf16codecs.analysis.histogram import Histogram
from bf16codecs.analysis.kinds import layer_of
from bf16codecs.analysis.pieces import Compared, Findings, Read, Tensor, TensorPiece
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

# Pieces of a job on a cluster: each may be of another tensor, whose counts take up to 10 MB.
_MOST_PIECES = 16

#: The result of work on pieces.
Found = TypeVar("Found", Findings, Compared)
#: Work on a part of a tensor, with the codecs to measure: `Tensor.analyze` or `Tensor.compare`.
Work = Callable[[Tensor, Read, Collection[str]], Found]
#: The size of pieces, the results of work on them, and what could not be read.
Outcome = tuple[int, list[Found], list[BF16CodecsError]]


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
        for tensor, findings in self._all(tensors, Tensor.analyze, errors, progress):
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
        ((_, found),) = self._all([tensor], Tensor.analyze, errors, None)
        found = found or Findings(Counts(tensor.item.itemsize))
        return _result(tensor, self.kind_of(tensor.name), found), _damage(errors)

    def changes(self, model: Model, base: Model) -> Changes:
        """Compare the tensors with those of a base, without any other analysis."""
        errors: _Errors = []
        tensors = [t for t in _tensors(model, base, errors) if t.base is not None]
        found, values = dict[str, TensorChanges](), 0
        for tensor, compared in self._all(tensors, Tensor.compare, errors, None):
            if compared is not None:
                bits = _bits(compared.sizes, 0, compared.values)
                changed = compared.changed / compared.values
                found[tensor.name] = TensorChanges(changed, bits)
                values += compared.values * tensor.item.itemsize
        total = sum(tensor.nbytes for tensor in tensors)
        return Changes(values / max(1, total), found, _damage(errors, model.where))

    def _all(
        self,
        tensors: Sequence[Tensor],
        work: Work[Found],
        errors: _Errors,
        progress: Progress | None,
    ) -> Iterator[tuple[Tensor, Found | None]]:
        """Yield each tensor with the result of `work`, or None if none of it could be read."""
        total = sum(tensor.nbytes for tensor in tensors)
        share = 1.0 if self.sample is None else min(1.0, self.sample / max(1, total))
        pieces = [(tensor, list(tensor.pieces(share))) for tensor in tensors]
        done, total = 0, sum(piece.nbytes for _, of_tensor in pieces for piece in of_tensor)
        cluster = current_cluster()
        outcomes = (
            _here(pieces, partial(_work_on, work, self.codecs))
            if cluster is None
            else _on_workers(cluster, pieces, work, self.codecs)
        )
        with closing(outcomes):
            for tensor, of_tensor in pieces:
                found, left = None, sum(piece.nbytes for piece in of_tensor)
                while left:
                    nbytes, more, failed = next(outcomes)
                    for each in more:
                        found = _joined(found, each)
                    errors += ((tensor.name, error) for error in failed)
                    left, done = left - nbytes, done + nbytes
                    if progress is not None:
                        progress(done, total)
                # Other code, such as an import, may have swallowed a signal's exception.
                _interrupt.check()
                yield tensor, found


def _work_on(
    work: Work[Found], codecs: Collection[str], tensor: Tensor, piece: TensorPiece
) -> Callable[[], Outcome[Found]]:
    def work_on(read: Read) -> Found:
        return work(tensor, read, codecs)

    job = tensor.job(piece, work_on)

    def outcome() -> Outcome[Found]:
        found, failed = job()
        return piece.nbytes, found, failed

    return outcome


def _here(
    pieces: Iterable[tuple[Tensor, Sequence[TensorPiece]]],
    job: Callable[[Tensor, TensorPiece], Callable[[], Outcome[Found]]],
) -> Generator[Outcome[Found], None, None]:
    """Yield the outcomes of pieces in their order."""
    jobs = (job(tensor, piece) for tensor, of_tensor in pieces for piece in of_tensor)
    return run_ahead(jobs, worker_count())


def _on_workers(
    cluster: Cluster,
    pieces: Sequence[tuple[Tensor, Sequence[TensorPiece]]],
    work: Work[Found],
    codecs: Collection[str],
) -> Generator[Outcome[Found], None, None]:
    """Yield the outcomes of pieces in their order, several of one tensor in one."""
    todo = ((tensor, piece) for tensor, of_tensor in pieces for piece in of_tensor)
    nbytes = batch_nbytes(cluster, sum(p.nbytes for _, of_tensor in pieces for p in of_tensor))
    jobs = (
        partial(_work_on_batch, work, codecs, cluster.threads, list(_by_tensor(batch)))
        for batch in batches(todo, lambda pair: pair[1].nbytes, nbytes, _MOST_PIECES)
    )
    early: dict[int, list[Outcome[Found]]] = {}
    number = 0
    with closing(cluster.run(jobs)) as results:
        for found, outcomes in results:
            early[found] = outcomes
            while number in early:
                yield from early.pop(number)
                number += 1


def _by_tensor(
    batch: Iterable[tuple[Tensor, TensorPiece]],
) -> Iterator[tuple[tuple[LazyTensor, LazyTensor | None], list[TensorPiece]]]:
    for tensor, pairs in itertools.groupby(batch, key=operator.itemgetter(0)):
        assert tensor.pair is not None
        yield tensor.pair, [piece for _, piece in pairs]


def _work_on_batch(
    work: Work[Found],
    codecs: Collection[str],
    threads: int,
    batch: Sequence[tuple[tuple[LazyTensor, LazyTensor | None], Sequence[TensorPiece]]],
) -> list[Outcome[Found]]:
    """Work on pieces of tensors on a worker; return one outcome for each tensor."""
    found = []
    with codec_threads(threads):
        for pair, pieces in batch:
            tensor, joined, errors = Tensor.of(*pair), None, list[BF16CodecsError]()
            job = partial(_work_on, work, codecs, tensor)
            with closing(run_ahead(map(job, pieces), worker_count())) as outcomes:
                for _, more, failed in outcomes:
                    for each in more:
                        joined = _joined(joined, each)
                    errors += failed
            nbytes = sum(piece.nbytes for piece in pieces)
            found.append((nbytes, [] if joined is None else [joined], errors))
    return found


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
