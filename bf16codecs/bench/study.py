"""Measures contenders, one after the other, in a time that they share."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from bf16codecs._base import interrupt as _interrupt
from bf16codecs._base.messages import one_line
from bf16codecs._base.threads import codec_threads
from bf16codecs.bench.contenders import Contender, memcpy, own_codecs
from bf16codecs.bench.data import Sample
from bf16codecs.bench.defaults import DEFAULT_NBYTES, SECONDS
from bf16codecs.bench.isolated import in_a_process
from bf16codecs.bench.measure import Failure, Result, Work, measure
from bf16codecs.bench.peers import Absent, peers_of

__all__ = ["Study", "begins_like", "study_codecs"]

# Where a word of a name begins: "BF16Huffman" has two.
_WORD = re.compile(r"\b\w|(?<![A-Z])[A-Z](?=[a-z])")


def _no_figures() -> Mapping[str, str]:
    return {}


def begins_like(name: str, beginnings: Sequence[str]) -> bool:
    """Tell whether a word of a name begins with one of these.

    Case does not matter. Words begin behind a space, and so does one at "Huffman" in "BF16Huffman",
    where a capital follows what is none.
    """
    wanted = tuple(beginning.lower() for beginning in beginnings)
    return any(name[at.start() :].lower().startswith(wanted) for at in _WORD.finditer(name))


@dataclass(frozen=True)
class Study:
    """Contenders, memcpy first, and what they get.

    Attributes
    ----------
    contenders : list of Contender
        Each is measured in a process of its own, where there are such.
    work : Work
        What they get.
    figures : callable
        Finds figures of other kinds, by what they are.
    """

    contenders: list[Contender]
    work: Work
    figures: Callable[[], Mapping[str, str]] = _no_figures

    @property
    def names(self) -> list[str]:
        """The names of the contenders."""
        return [contender.name for contender in self.contenders]

    def only(self, names: Sequence[str]) -> Study | None:
        """Leave memcpy, and contenders in whose names a word begins with one of these.

        None if there are no such contenders.
        """
        first, *others = self.contenders
        found = [c for c in others if begins_like(c.name, names)]
        asked = begins_like(first.name, names)
        return replace(self, contenders=[first, *found]) if found or asked else None

    def without_slow(self) -> Study:
        """Leave out contenders that take minutes for a large model."""
        return replace(self, contenders=[c for c in self.contenders if not c.slow])

    def results(
        self,
        *,
        repeats: int | None = None,
        seconds: float = SECONDS,
        progress: Callable[[str], None] | None = None,
    ) -> Iterator[Result | Failure]:
        """Measure one contender after the other; one that fails does not stop the others.

        Parameters
        ----------
        repeats
            Rounds; None: as many as there is time for, 3 to 5.
        seconds
            Time for all. What one leaves, the others share: the fast ones come first.
        progress
            Called with the name of each before it is measured.
        """
        end = time.perf_counter() + seconds
        for i, contender in enumerate(self.contenders):
            _interrupt.check()
            if progress is not None:
                progress(contender.name)
            share = (end - time.perf_counter()) / (len(self.contenders) - i)
            call = partial(measure, contender, self.work, repeats, share)
            try:
                yield in_a_process(contender.name, call)
            except Exception as e:
                yield Failure(contender.name, contender.threads, one_line(e))


def study_codecs(
    sample: Sample, *, nbytes: int | None = None, threads: int = 1
) -> tuple[Study, list[Absent]]:
    """Prepare to measure every codec of this package and every peer that is installed.

    Parameters
    ----------
    sample : Sample
        What to encode, tensor by tensor.
    nbytes : int, optional
        Copy the tensors until they take this much. Without it, 256 MiB, and of slow codecs what
        there is time for.
    threads : int
        Threads for every contender that can use them.

    Returns
    -------
    Study, list of Absent
        What is measured, and the peers that are not installed.

    Raises
    ------
    ValueError
        If there cannot be so many threads.
    """
    with codec_threads(threads):  # if there can be so many
        peers, absent = peers_of(threads, sample.dtype)
        candidates = [memcpy(), *own_codecs(threads, sample.dtype), *peers]
    size = DEFAULT_NBYTES if nbytes is None else nbytes
    work = Work(sample.tensors, size, sample.item_size, may_shrink=nbytes is None)
    return Study(candidates, work), absent
