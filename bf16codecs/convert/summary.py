"""Progress and result of a conversion."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from bf16codecs._base.half import HalfLoss
from bf16codecs.safetensors import Header
from bf16codecs.store.reader import ModelReader

__all__ = ["Progress", "Summary", "part_of", "shifted", "summarize"]

#: Called with the phase ("convert", "verify" or "restore"), the bytes done, and the total bytes.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Summary:
    """The result of a conversion; sizes in bytes."""

    files: int
    tensors: int
    #: Size of the original files, and of the store with its metadata.
    nbytes: int
    stored_nbytes: int
    seconds: float
    #: What the store depends on, in words.
    base: str = ""
    #: What the store does not restore, None if it is not lossy.
    loss: HalfLoss | None = None
    #: Whether what was read has checksums, as all have but safetensors files.
    has_checksums: bool = True
    #: Whether nothing was written, because the target was already what it should become.
    is_unchanged: bool = False
    #: Whether a run was made, because there was none to append to.
    is_begun: bool = False
    #: The number of the step that was appended to a run, and where it was read, such as
    #: "name 'step-7'"; empty if the caller gave it.
    step: int | None = None
    step_by: str = ""
    #: What else is in a folder that was converted, and not in the store.
    left_out: tuple[str, ...] = ()
    #: How many objects a checkpoint of a training job has, which are in no file.
    objects: int = 0


def part_of(progress: Progress | None, before: int, total: int) -> Progress | None:
    """Return what reports the progress of one model as part of that of several."""
    if progress is None:
        return None
    return lambda phase, done, _: progress(phase, min(before + done, total), total)


def shifted(
    progress: Progress | None, phase: str, before: int, total: int
) -> Callable[[int, int], None] | None:
    """Return what reports the bytes of one model, in one phase, as part of those of several."""
    report = part_of(progress, before, total)
    return report and partial(report, phase)


def summarize(
    reader: ModelReader, headers: Sequence[Header], start: float, objects: int = 0
) -> Summary:
    """Sum up a store whose conversion began at `start`."""
    info = reader.info
    return Summary(
        len(info.files),
        sum(len(header.tensors) for header in headers),
        sum(file.size for file in info.files) + (info.index.size if info.index else 0),
        reader.total_nbytes(),
        time.perf_counter() - start,
        loss=info.loss,
        objects=objects,
    )
