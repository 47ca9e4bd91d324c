"""Find the models of a fleet that come from one another: one of each family becomes their base."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from bf16codecs._base.cluster import current_cluster
from bf16codecs.convert.fleet.plan import Conversion, with_absolute_paths
from bf16codecs.convert.sketches import Sketch, sketch_of
from bf16codecs.convert.sources import opened_source
from bf16codecs.errors import BF16CodecsError
from bf16codecs.store.kinds import address_scheme

__all__ = ["choose_bases", "with_bases"]

# Saving, by the sketch, that justifies depending on another model.
_LEAST_GAIN = 0.05
# Models whose signs agree less are strangers, for which 0.5 is to be expected.
_LEAST_AGREEMENT = 0.55
# So many bases are compared exactly, those whose signs agree most.
_COMPARED = 3
# So many members of a family are tried as its base, on so many of the others.
_TRIED, _TRIED_ON = 16, 64


def with_bases(
    conversions: Sequence[Conversion], storage_options: Mapping[str, Any] | None = None
) -> list[Conversion]:
    """Return a plan in which models of one family have one of them as base.

    A base has no base itself. Models keep the base that they have; those that cannot be read are
    left to the conversion.
    """
    free = [number for number, each in enumerate(conversions) if not each.base]
    sketches = _sketches([conversions[number] for number in free], storage_options)
    planned = list(conversions)
    for number, base in zip(free, choose_bases(sketches), strict=True):
        if base is not None:
            planned[number] = replace(planned[number], base=conversions[free[base]].store)
    return planned


def _sketches(
    conversions: Sequence[Conversion], options: Mapping[str, Any] | None
) -> list[Sketch | None]:
    cluster = current_cluster()
    if cluster is None:
        return [_sketch(each.source, options) for each in conversions]
    sources = (with_absolute_paths(each).source for each in conversions)
    found: dict[int, Sketch | None] = {}
    with closing(cluster.run(partial(_sketch, each, options) for each in sources)) as results:
        found.update(results)
    return [found[number] for number in range(len(conversions))]


def _sketch(source: str, options: Mapping[str, Any] | None) -> Sketch | None:
    """Return the sketch of a source; None if it cannot be read."""
    of_source = options if address_scheme(source) else None
    with (
        suppress(BF16CodecsError, OSError, ValueError),
        closing(opened_source(source, options=of_source)) as model,
    ):
        return sketch_of(model)
    return None


def choose_bases(sketches: Sequence[Sketch | None]) -> list[int | None]:
    """Return the number of each model's base; None for models that are coded alone."""
    alone = [None if sketch is None else sketch.bits() for sketch in sketches]
    families: dict[int, list[int]] = {}
    for number, sketch in enumerate(sketches):
        if sketch is None or not sketch.parts:
            continue
        found = _nearest(sketch, families, sketches)
        if found is not None and found[0] < (1 - _LEAST_GAIN) * (alone[number] or 0):
            families[found[1]].append(number)
        else:
            families[number] = [number]
    bases: list[int | None] = [None] * len(sketches)
    for members in families.values():
        base = _central(members, sketches)
        for number in members:
            bits = _bits(number, base, sketches)
            if number != base and bits < (1 - _LEAST_GAIN) * (alone[number] or 0):
                bases[number] = base
    return bases


def _nearest(
    sketch: Sketch, families: Mapping[int, Sequence[int]], sketches: Sequence[Sketch | None]
) -> tuple[float, int] | None:
    """Return the bits per value to the nearest family's first member, and that one."""
    firsts = [(number, found) for number in families if (found := sketches[number]) is not None]
    agreements = [(sketch.agreement(found), number) for number, found in firsts]
    near = sorted((pair for pair in agreements if pair[0] >= _LEAST_AGREEMENT), reverse=True)
    bits = [(sketch.bits(sketches[number]), number) for _, number in near[:_COMPARED]]
    return min(((size, number) for size, number in bits if size is not None), default=None)


def _central(members: Sequence[int], sketches: Sequence[Sketch | None]) -> int:
    """Return the member that the others are nearest to."""
    tried, others = (members[:: -(-len(members) // most)] for most in (_TRIED, _TRIED_ON))
    return min(tried, key=lambda base: sum(_bits(each, base, sketches) for each in others))


def _bits(number: int, base: int, sketches: Sequence[Sketch | None]) -> float:
    sketch, other = sketches[number], sketches[base]
    bits = None if sketch is None or other is None else sketch.bits(other)
    return float("inf") if bits is None else bits
