"""Benchmark of the four earlier systems that this package replaces, with their settings.

Each system took a model as one piece and cut it into blocks. So the model's tensors of one data
type are joined, and every contender of a system gets that piece.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from bf16codecs._base.paths import given_path
from bf16codecs.bench.contenders import Contender, memcpy
from bf16codecs.bench.data import Payload, payload_of
from bf16codecs.bench.defaults import SYSTEM_NBYTES
from bf16codecs.bench.measure import Work
from bf16codecs.bench.study import Study
from bf16codecs.bench.systems import half_delta, lmc, shuffle_zstd, split_stream

__all__ = ["SYSTEMS_WITH_BASE", "study_system"]


@dataclass(frozen=True)
class _System:
    dtypes: Sequence[str]
    contenders: Callable[[Payload, Sequence[int]], Iterator[Contender]]
    figures: Callable[[Payload], Iterable[tuple[str, str]]] = lambda payload: ()
    takes_base: bool = False


# By letter: see `SYSTEM_TITLES`.
_SYSTEMS = {
    "A": _System(["BF16"], shuffle_zstd.contenders),
    "B": _System(["BF16"], split_stream.contenders, split_stream.figures),
    "C": _System(["F32"], half_delta.contenders, half_delta.figures),
    "D": _System(["BF16", "F32"], lmc.contenders, lmc.figures, takes_base=True),
}

#: Letters of the systems that encode differences to another model.
SYSTEMS_WITH_BASE = {letter for letter, system in _SYSTEMS.items() if system.takes_base}


def study_system(
    system: str,
    source: str | os.PathLike[str],
    *,
    base: str | os.PathLike[str] | None = None,
    nbytes: int | None = None,
    threads: int = 1,
) -> tuple[Study, Payload]:
    """Prepare to measure an earlier system with its settings, and its original competitors.

    Parameters
    ----------
    system : {"A", "B", "C", "D"}
        Letter of the system.
    source : path or a name of synthetic data
        A safetensors model, or synthetic data.
    base : path, optional
        For D: an earlier checkpoint, to measure differences as well.
    nbytes : int, optional
        Bytes of the model to measure: some contenders take seconds for a megabyte. Without it,
        32 MiB, or less for slow contenders, as time permits.
    threads : int
        Contenders that can use several threads are measured with one, and with this number.

    Returns
    -------
    Study, Payload
        The contenders, and their data as one piece.

    Raises
    ------
    NothingToMeasureError
        If the model has no tensors of a data type that the system supports.
    ValueError
        If `base` does not fit the model or the system.
    """
    chosen = _SYSTEMS[system]
    if base is not None and not chosen.takes_base:
        raise ValueError(f"system {system} cannot encode differences to a base")
    base = None if base is None else given_path(base, "base")
    size = SYSTEM_NBYTES if nbytes is None else nbytes
    payload = payload_of(source, chosen.dtypes, size, base)
    thread_counts = [1] if threads == 1 else [1, threads]
    contenders = [memcpy(), *chosen.contenders(payload, thread_counts)]
    work = Work([payload.data], payload.data.nbytes, payload.item_size, may_shrink=nbytes is None)
    return Study(contenders, work, lambda: dict(chosen.figures(payload))), payload
