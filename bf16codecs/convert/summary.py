"""Progress and result of a conversion."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from bf16codecs._base.half import HalfLoss
from bf16codecs.safetensors import Header
from bf16codecs.store.reader import ModelReader

__all__ = ["BytesDone", "Progress", "Summary", "part_of", "shifted", "summarize"]

#: Called with the phase ("convert", "verify" or "restore"), the bytes done, and the total bytes.
Progress = Callable[[str, int, int], None]
#: Called with the bytes done, and the total bytes, of one phase.
BytesDone = Callable[[int, int], None]


@dataclass(frozen=True)
class Summary:
    """The result of a conversion; sizes in bytes."""

    files: int
    tensors: int
    #: Size of the original files, and of the store with its metadata.
    nbytes: int
    stored_nbytes: int
    seconds: float
    #: A line about the store's base, or about the search for one.
    base: str = ""
    #: Loss of a lossy store, None for others.
    loss: HalfLoss | None = None
    #: Whether the model has checksums, as all have but safetensors files.
    has_checksums: bool = True
    #: Whether nothing was written, because the target already was as requested.
    is_unchanged: bool = False
    #: Whether a run was made, because there was none to append to.
    is_begun: bool = False
    #: The number of the step that was appended to a run, and its origin, such as
    #: "name 'step-7'"; empty if the caller gave it.
    step: int | None = None
    step_by: str = ""
    #: Names in the source's folder that are not in the store.
    left_out: tuple[str, ...] = ()
    #: Tensors of a file that the store, or the file made of it, does not have by their names.
    hidden: tuple[str, ...] = ()
    #: Number of objects of a training checkpoint, which are in no file.
    objects: int = 0
    #: Number of steps of a whole run that was read, and of its different tensors; `tensors` has
    #: those of all steps.
    steps: int = 0
    different_tensors: int = 0


def part_of(progress: Progress | None, before: int, total: int) -> Progress | None:
    """Return a callback that reports the progress of one model as part of that of several."""
    if progress is None:
        return None
    return lambda phase, done, _: progress(phase, min(before + done, total), total)


def shifted(progress: Progress | None, phase: str, before: int, total: int) -> BytesDone | None:
    """Return a callback that reports the bytes of one model as part of those of several."""
    report = part_of(progress, before, total)
    return report and partial(report, phase)


def summarize(
    reader: ModelReader, headers: Sequence[Header], start: float, objects: int = 0
) -> Summary:
    """Return the summary of a store whose conversion began at `start`."""
    info = reader.info
    return Summary(
        len(info.files),
        sum(len(header.entries) for header in headers),
        sum(file.size for file in info.files) + (info.index.size if info.index else 0),
        reader.total_nbytes(),
        time.perf_counter() - start,
        loss=info.loss,
        objects=objects,
    )
