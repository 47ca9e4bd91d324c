"""Measure contenders, one after the other, within a shared time budget."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from bf16codecs._base import interrupt as _interrupt
from bf16codecs._base.messages import one_line
from bf16codecs._base.threads import codec_threads
from bf16codecs.bench.contenders import Contender, memcpy, package_codecs
from bf16codecs.bench.data import Sample
from bf16codecs.bench.defaults import DEFAULT_NBYTES, SECONDS
from bf16codecs.bench.isolated import in_a_process
from bf16codecs.bench.measure import Failure, Result, Work, measure
from bf16codecs.bench.peers import Absent, peers_of

__all__ = ["Study", "begins_like", "study_codecs"]

# First letters of words: "BF16Huffman" has two words.
_WORD = re.compile(r"\b\w|(?<![A-Z])[A-Z](?=[a-z])")


def begins_like(name: str, beginnings: Sequence[str]) -> bool:
    """Return whether a word of a name begins with one of these, in any case.

    Words begin after a space, and at a capital between a non-capital and a lower-case letter, as
    "Huffman" does in "BF16Huffman".
    """
    prefixes = tuple(beginning.lower() for beginning in beginnings)
    return any(name[word.start() :].lower().startswith(prefixes) for word in _WORD.finditer(name))


@dataclass(frozen=True)
class Study:
    """Contenders, memcpy first, and their data.

    Attributes
    ----------
    contenders : list of Contender
        Each is measured in a process of its own, if the system can fork.
    work : Work
        Data of all contenders.
    figures : callable
        Returns other figures by name.
    """

    contenders: list[Contender]
    work: Work
    figures: Callable[[], Mapping[str, str]] = dict

    @property
    def names(self) -> list[str]:
        """Names of the contenders."""
        return [contender.name for contender in self.contenders]

    def only(self, names: Sequence[str]) -> Study | None:
        """Keep memcpy, and contenders with a word that begins like one of the names.

        Return None if no contender matches.
        """
        first, *others = self.contenders
        matches = [c for c in others if begins_like(c.name, names)]
        is_first = begins_like(first.name, names)
        return replace(self, contenders=[first, *matches]) if matches or is_first else None

    def without_slow(self) -> Study:
        """Remove contenders that take minutes for a large model."""
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
            Number of rounds; None: 3 to 5, as time permits.
        seconds
            Time for all contenders. Later ones share the time that the first, fast ones leave.
        progress
            Called with each name before measuring.
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
    """Prepare to measure every codec of this package and every installed peer.

    Parameters
    ----------
    sample : Sample
        Tensors to encode one by one.
    nbytes : int, optional
        Copy the tensors until they take this much. Without it, 256 MiB, or less for slow codecs, as
        time permits.
    threads : int
        Threads of contenders that can use several.

    Returns
    -------
    Study, list of Absent
        The contenders, and the peers that cannot be measured.

    Raises
    ------
    ValueError
        If the number of threads is out of range.
    """
    with codec_threads(threads):  # checks the number
        peers, absent = peers_of(threads, sample.dtype)
        candidates = [memcpy(), *package_codecs(threads, sample.dtype), *peers]
    size = DEFAULT_NBYTES if nbytes is None else nbytes
    work = Work(sample.arrays, size, sample.item_size, may_shrink=nbytes is None)
    return Study(candidates, work), absent
