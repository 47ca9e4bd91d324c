"""Plan of a benchmark: this package beside its peers, and earlier systems."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from bf16codecs.bench.data import NothingToMeasureError, Payload, Sample, sample_of
from bf16codecs.bench.defaults import DEFAULT_NBYTES, QUICK_NBYTES, QUICK_SYSTEM_NBYTES
from bf16codecs.bench.peers import Absent
from bf16codecs.bench.study import Study, begins_like, study_codecs
from bf16codecs.bench.systems import SYSTEMS_WITH_BASE, study_system

__all__ = ["Plan", "PlannedStudy", "plan_of"]

Source = str | os.PathLike[str]


@dataclass(frozen=True)
class PlannedStudy:
    """A study of a plan, with its system and data: one table of results.

    Attributes
    ----------
    system : str or None
        Letter of an earlier system; None for the codecs and their peers.
    study : Study
        Contenders to measure.
    data : Sample or Payload
        Their data.
    """

    system: str | None
    study: Study
    data: Sample | Payload


@dataclass(frozen=True)
class Plan:
    """Studies to measure one after the other.

    Attributes
    ----------
    studies : list of PlannedStudy
        Codecs and peers first.
    absent : list of Absent
        Peers that cannot be measured.
    left_out : dict
        Error messages of systems, or the codecs, for which the model has no tensors.
    slow : list of str
        Names of contenders that `quick` left out.
    """

    studies: list[PlannedStudy]
    absent: list[Absent] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    slow: list[str] = field(default_factory=list)

    def only(self, names: Sequence[str]) -> Plan:
        """Keep memcpy, and contenders with a word that begins like one of the names.

        Without names, keep all.

        Raises
        ------
        ValueError
            If no contender matches, or a name is empty.
        """
        if not names:
            return self
        if not all(names):
            raise ValueError("the name of a codec is empty: leave it out to measure all")
        chosen = [(planned, planned.study.only(names)) for planned in self.studies]
        studies = [replace(planned, study=study) for planned, study in chosen if study is not None]
        absent = [peer for peer in self.absent if begins_like(peer.package, names)]
        slow = [name for name in self.slow if begins_like(name, names)]
        if not studies:
            available = dict.fromkeys(
                n for planned in self.studies for n in planned.study.names[1:]
            )
            unavailable = [peer.advice for peer in absent]
            if slow:
                unavailable.append(f"too slow for a quick look: {', '.join(slow)}")
            raise ValueError(
                f"no word of a codec's name begins with {' or '.join(map(repr, names))}; there are"
                f" {'; '.join([', '.join(available), *unavailable])}"
            )
        return replace(self, studies=studies, absent=absent, slow=slow)

    def quick(self) -> Plan:
        """Remove contenders that take minutes for a large model."""
        studies = [replace(planned, study=planned.study.without_slow()) for planned in self.studies]
        slow = (c.name for planned in self.studies for c in planned.study.contenders if c.slow)
        return replace(self, studies=studies, slow=list(dict.fromkeys(slow)))

    def timed(self, seconds: float) -> Iterator[tuple[PlannedStudy, float]]:
        """Yield each study with its share of the seconds; later ones share unused time."""
        end = time.perf_counter() + seconds
        for i, planned in enumerate(self.studies):
            waiting = sum(len(other.study.contenders) for other in self.studies[i:])
            left = max(0.0, end - time.perf_counter())
            yield planned, left * len(planned.study.contenders) / waiting


def plan_of(
    source: Source,
    systems: Sequence[str | None] = (None,),
    *,
    base: Source | None = None,
    nbytes: int | None = None,
    threads: int = 1,
    quick: bool = False,
) -> Plan:
    """Plan to measure codecs and their peers, earlier systems, or all of these.

    Parameters
    ----------
    source : path, address or a name of synthetic data
        A source of `bf16codecs.open_model`, or synthetic data.
    systems : sequence of str or None
        Letters of earlier systems; None means the codecs and their peers. Of several, those for
        which the model has no tensors are left out.
    base : path or address, optional
        For system D: an earlier checkpoint.
    nbytes : int, optional
        Bytes to measure, as in `study_codecs` and `study_system`.
    threads : int
        Threads of contenders that can use several.
    quick : bool
        Measure a small part of the data, without contenders that take minutes for a large model.

    Raises
    ------
    NothingToMeasureError
        If the model has no tensors for any of them.
    ValueError
        If `base` does not fit the model, or no system takes one.
    BF16CodecsError
        If the source or the base is not a model, or damaged.
    """
    _check_base(base, systems)
    studies: list[PlannedStudy] = []
    absent: list[Absent] = []
    left_out: dict[str, str] = {}
    for system in dict.fromkeys(systems):
        try:
            if system is None:
                most = nbytes or (QUICK_NBYTES if quick else DEFAULT_NBYTES)
                sample = sample_of(source, most)
                study, absent = study_codecs(sample, nbytes=nbytes, threads=threads)
                studies.append(PlannedStudy(None, study, sample))
            else:
                size = nbytes or (QUICK_SYSTEM_NBYTES if quick else None)
                system_base = base if system in SYSTEMS_WITH_BASE else None
                study, payload = study_system(
                    system, source, base=system_base, nbytes=size, threads=threads
                )
                studies.append(PlannedStudy(system, study, payload))
        except NothingToMeasureError as e:
            left_out["codecs" if system is None else f"system {system}"] = str(e)
    if not studies:
        raise NothingToMeasureError(next(iter(left_out.values())))
    plan = Plan(studies, absent, left_out)
    return plan.quick() if quick else plan


def _check_base(base: Source | None, systems: Sequence[str | None]) -> None:
    """Raise ValueError if none of the systems takes the base."""
    if base is not None and SYSTEMS_WITH_BASE.isdisjoint(systems):
        letters = " and ".join(system for system in systems if system is not None)
        takers = ", ".join(sorted(SYSTEMS_WITH_BASE))
        measured = f"system {letters}" if letters else "the codecs alone"
        raise ValueError(f"{measured} cannot encode differences to a base: system {takers} can")
