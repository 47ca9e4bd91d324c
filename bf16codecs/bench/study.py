"""What is measured together: contenders, one after the other, in a time that they share."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from bf16codecs._threads import codec_threads
from bf16codecs.bench.contenders import Contender, contenders
from bf16codecs.bench.data import Sample
from bf16codecs.bench.defaults import DEFAULT_NBYTES, SECONDS
from bf16codecs.bench.isolated import in_a_process
from bf16codecs.bench.measure import Result, Work, measure

__all__ = ["Study", "study_codecs"]


# Where a word of a name begins: "BF16Huffman" has two.
_WORD = re.compile(r"\b\w|(?<![A-Z])[A-Z](?=[a-z])")


def _no_figures() -> Mapping[str, str]:
    return {}


def _beginnings(name: str) -> list[str]:
    """Return a name from each of its words on, in lower case."""
    return [name[at.start() :].lower() for at in _WORD.finditer(name)]


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
        """What the contenders are called."""
        return [contender.name for contender in self.contenders]

    def only(self, names: Sequence[str]) -> Study:
        """Leave memcpy, and contenders in whose names a word begins with one of these; or all.

        Case does not matter. Words begin behind a space, and so does one at "Huffman" in
        "BF16Huffman", where a capital follows what is none.

        Raises
        ------
        ValueError
            If there are none, or a name is empty.
        """
        if not names:
            return self
        if not all(names):
            raise ValueError("the name of a codec is empty: leave it out to measure all")
        first, *others = self.contenders
        wanted = tuple(name.lower() for name in names)
        found = [
            c for c in self.contenders if any(p.startswith(wanted) for p in _beginnings(c.name))
        ]
        if not found:
            there = dict.fromkeys(c.name for c in others)
            raise ValueError(
                f"no word of a codec's name begins with {' or '.join(map(repr, names))}; there are"
                f" {', '.join(there)}"
            )
        return replace(self, contenders=[first, *(c for c in found if c is not first)])

    def results(
        self,
        *,
        repeats: int | None = None,
        seconds: float = SECONDS,
        progress: Callable[[str], None] | None = None,
    ) -> Iterator[Result]:
        """Measure one contender after the other.

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
            if progress is not None:
                progress(contender.name)
            share = (end - time.perf_counter()) / (len(self.contenders) - i)
            call = partial(measure, contender, self.work, repeats, share)
            yield in_a_process(contender.name, call)


def study_codecs(sample: Sample, *, nbytes: int | None = None, threads: int = 1) -> Study:
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

    Raises
    ------
    ValueError
        If there cannot be so many threads.
    """
    with codec_threads(threads):  # if there can be so many
        candidates = list(contenders(threads, sample.dtype))
    size = DEFAULT_NBYTES if nbytes is None else nbytes
    work = Work(sample.tensors, size, sample.item_size, may_shrink=nbytes is None)
    return Study(candidates, work)
