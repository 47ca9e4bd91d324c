"""Plans a benchmark: this package beside its peers, and earlier systems."""

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

__all__ = ["Part", "Plan", "plan_of"]

Source = str | os.PathLike[str]


@dataclass(frozen=True)
class Part:
    """A part of the plan, which becomes one table.

    Attributes
    ----------
    system : str or None
        The letter of an earlier system; None of the codecs and their peers.
    study : Study
        What is measured.
    data : Sample or Payload
        On what.
    """

    system: str | None
    study: Study
    data: Sample | Payload


@dataclass(frozen=True)
class Plan:
    """Parts that are measured one after the other.

    Attributes
    ----------
    parts : list of Part
        Codecs and peers first.
    absent : list of Absent
        Peers that are not installed.
    left_out : dict
        Systems, or the codecs, for which the model has no tensors, and the error that says so.
    slow : list of str
        Contenders that `quick` left out.
    """

    parts: list[Part]
    absent: list[Absent] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    slow: list[str] = field(default_factory=list)

    def only(self, names: Sequence[str]) -> Plan:
        """Leave memcpy, and contenders in whose names a word begins with one of these; or all.

        Raises
        ------
        ValueError
            If there are none, or a name is empty.
        """
        if not names:
            return self
        if not all(names):
            raise ValueError("the name of a codec is empty: leave it out to measure all")
        found = [(part, part.study.only(names)) for part in self.parts]
        parts = [replace(part, study=study) for part, study in found if study is not None]
        absent = [peer for peer in self.absent if begins_like(peer.package, names)]
        slow = [name for name in self.slow if begins_like(name, names)]
        if not parts:
            there = dict.fromkeys(n for part in self.parts for n in part.study.names[1:])
            others = [peer.advice for peer in absent]
            if slow:
                others.append(f"{', '.join(slow)} are too slow for a quick look")
            raise ValueError(
                f"no word of a codec's name begins with {' or '.join(map(repr, names))}; there are"
                f" {'; '.join([', '.join(there), *others])}"
            )
        return replace(self, parts=parts, absent=absent, slow=slow)

    def quick(self) -> Plan:
        """Leave out contenders that take minutes for a large model."""
        parts = [replace(part, study=part.study.without_slow()) for part in self.parts]
        slow = (c.name for part in self.parts for c in part.study.contenders if c.slow)
        return replace(self, parts=parts, slow=list(dict.fromkeys(slow)))

    def timed(self, seconds: float) -> Iterator[tuple[Part, float]]:
        """Yield parts one by one, with the seconds that each has: what one leaves, others share."""
        end = time.perf_counter() + seconds
        for i, part in enumerate(self.parts):
            waiting = sum(len(other.study.contenders) for other in self.parts[i:])
            left = max(0.0, end - time.perf_counter())
            yield part, left * len(part.study.contenders) / waiting


def plan_of(
    source: Source,
    systems: Sequence[str | None] = (None,),
    *,
    base: Source | None = None,
    nbytes: int | None = None,
    threads: int = 1,
    quick: bool = False,
) -> Plan:
    """Prepare to measure codecs and their peers, earlier systems, or all of these.

    Parameters
    ----------
    source : path, address or ``"gaussian"``
        What `bf16codecs.open_model` opens, or synthetic data.
    systems : sequence of str or None
        Letters of earlier systems; None means the codecs and their peers. Beside these, systems
        for which the model has no tensors are left out.
    base : path or address, optional
        For system D: an earlier checkpoint.
    nbytes : int, optional
        How much to measure, as `study_codecs` and `study_system` take it.
    threads : int
        For contenders that can use several.
    quick : bool
        A small part of the data, and no contenders that take minutes for a large model.

    Raises
    ------
    NothingToMeasureError
        If the model has no such tensors.
    ValueError
        If `base` does not fit it, or none of the systems.
    BF16CodecsError
        If a model is none, or damaged.
    """
    _check_base(base, systems)
    parts: list[Part] = []
    absent: list[Absent] = []
    left_out: dict[str, str] = {}
    for system in dict.fromkeys(systems):
        try:
            if system is None:
                most = nbytes or (QUICK_NBYTES if quick else DEFAULT_NBYTES)
                sample = sample_of(source, most)
                study, absent = study_codecs(sample, nbytes=nbytes, threads=threads)
                parts.append(Part(None, study, sample))
            else:
                size = nbytes or (QUICK_SYSTEM_NBYTES if quick else None)
                given = base if system in SYSTEMS_WITH_BASE else None
                found = study_system(system, source, base=given, nbytes=size, threads=threads)
                parts.append(Part(system, *found))
        except NothingToMeasureError as e:
            left_out["codecs" if system is None else f"system {system}"] = str(e)
    if not parts:
        raise NothingToMeasureError(next(iter(left_out.values())))
    plan = Plan(parts, absent, left_out)
    return plan.quick() if quick else plan


def _check_base(base: Source | None, systems: Sequence[str | None]) -> None:
    """Refuse a base that nothing of what is measured takes."""
    if base is not None and SYSTEMS_WITH_BASE.isdisjoint(systems):
        named = " and ".join(system for system in systems if system is not None)
        takers = ", ".join(sorted(SYSTEMS_WITH_BASE))
        what = f"system {named} knows" if named else "codecs alone know"
        raise ValueError(f"{what} no differences to another model: system {takers} does")
