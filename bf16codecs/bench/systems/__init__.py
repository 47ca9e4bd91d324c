"""The four earlier systems that this package takes over, measured with their own settings.

Each took a model as one piece and cut it into blocks. So its tensors are joined here, those of one
dtype, and every contender of a system gets that piece.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bf16codecs._base.paths import given_path
from bf16codecs.bench.contenders import Contender, memcpy
from bf16codecs.bench.data import Payload, payload_of
from bf16codecs.bench.defaults import SYSTEM_NBYTES
from bf16codecs.bench.measure import Work
from bf16codecs.bench.study import Study
from bf16codecs.bench.systems import half_delta, lmc, shuffle_zstd, split_stream

__all__ = ["SYSTEMS_WITH_BASE", "study_system"]


def _no_figures(payload: Payload) -> Iterator[tuple[str, str]]:
    yield from ()


@dataclass(frozen=True)
class _System:
    dtypes: Sequence[str]
    contenders: Callable[[Payload, Sequence[int]], Iterator[Contender]]
    figures: Callable[[Payload], Iterator[tuple[str, str]]] = _no_figures
    takes_base: bool = False


# By their letters: see `SYSTEM_TITLES`.
_SYSTEMS = {
    "A": _System(["BF16"], shuffle_zstd.contenders),
    "B": _System(["BF16"], split_stream.contenders, split_stream.figures),
    "C": _System(["F32"], half_delta.contenders, half_delta.figures),
    "D": _System(["BF16", "F32"], lmc.contenders, lmc.figures, takes_base=True),
}

#: The letters of those that know differences to another model.
SYSTEMS_WITH_BASE = {letter for letter, system in _SYSTEMS.items() if system.takes_base}


def study_system(
    system: str,
    source: str | os.PathLike[str],
    *,
    base: str | os.PathLike[str] | None = None,
    nbytes: int | None = None,
    threads: int = 1,
) -> tuple[Study, Payload]:
    """Prepare to measure an earlier system with its settings, and what it was compared with.

    Parameters
    ----------
    system : {"A", "B", "C", "D"}
        Which one.
    source : path or ``"gaussian"``
        A safetensors model, or synthetic data.
    base : path, optional
        For D: an earlier checkpoint, to which differences are measured too.
    nbytes : int, optional
        What goes beyond these bytes of the model is left out: some take seconds a megabyte. Without
        it, 32 MiB, and of slow contenders what there is time for.
    threads : int
        Contenders that can use several threads are measured with one, and with so many.

    Returns
    -------
    Study, Payload
        What is measured, and on what, as one piece.

    Raises
    ------
    NothingToMeasureError
        If the model has no tensors of a dtype that the system knows.
    ValueError
        If `base` does not fit it or the system.
    """
    chosen = _SYSTEMS[system]
    if base is not None and not chosen.takes_base:
        raise ValueError(f"system {system} knows no differences to another model")
    base = None if base is None else given_path(base, "base")
    size = SYSTEM_NBYTES if nbytes is None else nbytes
    payload = payload_of(source, chosen.dtypes, size, base)
    both = [1] if threads == 1 else [1, threads]
    contenders = [memcpy(), *chosen.contenders(payload, both)]
    work = Work([payload.data], payload.data.nbytes, payload.item_size, may_shrink=nbytes is None)
    return Study(contenders, work, lambda: dict(chosen.figures(payload))), payload
