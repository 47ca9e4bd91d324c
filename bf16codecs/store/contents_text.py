"""What there is to tell of a model, in lines and in a table."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

from bf16codecs._base.arguments import for_caller
from bf16codecs._base.half import HalfLoss
from bf16codecs._base.messages import counted
from bf16codecs._base.shown import format_size
from bf16codecs._base.tables import Column
from bf16codecs._files.digests import Digests
from bf16codecs.store.contents import Contents, Row, dtypes_of, ratio_of
from bf16codecs.store.runs.layout import RunInfo, listed

__all__ = ["file_lines", "summary_lines", "table_of"]

Cells = tuple[str, ...]

_NAME = Column("tensor")
_SHAPE = [Column("dtype", is_text=True, rank=5), Column("shape", is_text=True, rank=4)]
_SIZES = [Column("size"), Column("stored"), Column("ratio")]
_LOSSES = [Column("lossy: error", rank=2), Column("relative", rank=3)]
# The summary has the codecs, too.
_CODEC = Column("codec", is_text=True, rank=6)


def summary_lines(own: Contents) -> Iterator[str]:
    """Yield lines about the whole: what it is, how large, how it is stored."""
    yield f"{own.path}: {own.title}"
    has_gone = len(own.present) < len(own.rows)
    which = "parameters of the last step" if has_gone else "parameters"
    yield f"{which}: {own.parameters} in {_tensors(own.present)}"
    if has_gone:
        yield f"over all steps: {_tensors(own.rows)}"
    if not own.is_store:
        yield f"size: {format_size(own.nbytes)}"
        return
    stored = "stored size not asked for"
    if own.stored_nbytes is not None:
        ratio = f"ratio {_ratio(own.nbytes, own.stored_nbytes)}"
        stored = f"stored in {format_size(own.stored_nbytes)} ({ratio})"
    lossless = "lossless" if own.loss is None else "lossy"
    yield f"size: {format_size(own.nbytes)}, {stored}, {lossless}"
    if own.disk_nbytes is not None and own.disk_nbytes < (own.stored_nbytes or 0):
        yield f"on the disk: {format_size(own.disk_nbytes)}; the rest is room for steps to come"
    if own.codecs:
        yield f"codecs: {_counts(own.codecs, 'tensor')}"
    yield from _ways(own.rows)
    if own.objects is not None:
        yield f"objects: {len(own.objects)} ({format_size(sum(own.objects.values()))})"
    if own.loss is not None:
        yield own.loss.described()
    if own.base is not None:
        yield f"base: {own.base.place}"
        for file in own.base.files:
            name = f" {file.name}" if len(own.base.files) > 1 else ""
            for label, digest in file.digests.labelled().items():
                yield f"base {label}: {digest}{name}"
    if own.run is not None:
        yield from _steps(own.run)


def _tensors(rows: list[Row]) -> str:
    dtypes = f": {_counts(dtypes_of(rows))}" if rows else ""
    return f"{counted(len(rows), 'tensor')}{dtypes}"


def _ratio(nbytes: int, stored_nbytes: int | None) -> str:
    ratio = ratio_of(nbytes, stored_nbytes)
    return "" if ratio is None else f"{ratio:.3f}"


def _counts(counts: Counter[str], noun: str = "") -> str:
    if not noun and len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{k} ({counted(n, noun) if noun else n})" for k, n in counts.items())


def _ways(rows: list[Row]) -> Iterator[str]:
    """Say how many tensors are there otherwise than whole."""
    count = Counter(row.way for row in rows)
    if set(count) <= {"whole"}:
        return

    def stored(way: str) -> str:
        sizes = [row.stored_nbytes for row in rows if row.way == way]
        known = [size for size in sizes if size is not None]
        return f" ({format_size(sum(known))})" if known else ""

    parts = {
        "whole": f"whole{stored('whole')}",
        "difference": f"as differences to the base{stored('difference')}",
        "shared": "equal to others (stored once)",
        "rounded": "rounded from others (not stored)",
    }
    found = [f"{count[way]} {text}" for way, text in parts.items() if count[way]]
    yield f"tensors: {', '.join(found)}"


def _digests(digests: Digests, of_what: str) -> Iterator[str]:
    for label, digest in digests.labelled().items():
        yield f"  {of_what}{label} {digest}"


def _steps(run: RunInfo) -> Iterator[str]:
    whole = sum(step.parent is None for step in run.steps)
    yield f"steps: {listed(run.numbers)}; groups of {run.group}"
    yield f"coded whole: {whole}; against an earlier step: {len(run.steps) - whole}"


def table_of(own: Contents) -> tuple[list[Column], list[Cells], list[Cells]]:
    """Return the columns of a table, a row for each tensor, and what goes below.

    That is all else there is, so that sizes add up to those of the whole.
    """
    columns = [_NAME, *_SHAPE]
    if own.is_store:
        columns.append(_CODEC)
    columns += _SIZES if own.has_stored_sizes else _SIZES[:1]
    if own.loss is not None:
        columns += _LOSSES
    rows = [
        _cells(
            own,
            (row.name, row.dtype, "x".join(map(str, row.shape)) or "scalar", row.storage.codec),
            (row.nbytes, row.stored_nbytes),
            row.loss,
        )
        for row in own.rows
    ]
    parts = {"headers": True, "metadata": own.is_store, "objects": own.objects}
    rest = ", ".join(part for part, is_there in parts.items() if is_there)
    sums = [
        _cells(own, (counted(len(own.rows), "tensor"), "", "", ""), own.of_tensors, own.loss),
        _cells(own, (rest, "", "", ""), own.rest),
        _cells(own, ("total", "", "", ""), (own.nbytes, own.stored_nbytes)),
    ]
    return columns, rows, sums


def _cells(
    own: Contents,
    about: Cells,
    sizes: tuple[int, int | None],
    loss: HalfLoss | None = None,
) -> Cells:
    """Return name, dtype, shape and codec, sizes and errors, as far as the table has them."""
    nbytes, stored = sizes
    cells = (*(about if own.is_store else about[:-1]), format_size(nbytes))
    if own.has_stored_sizes:
        cells += ("" if stored is None else format_size(stored), _ratio(nbytes, stored))
    if own.loss is None:
        return cells
    return (
        *cells,
        *(("", "") if loss is None else (f"{loss.absolute:.4g}", f"{loss.relative:.4g}")),
    )


def file_lines(own: Contents) -> Iterator[str]:
    """Yield lines about the original files, and about what is not known."""
    for file in own.files:
        yield f"{os.path.basename(file.name)}: {file.size} bytes"
        yield from _digests(file.restored, "")
        if file.restored_digests is not None:
            yield from _digests(file.digests, "of the original, which is not restored: ")
    if own.is_store and not own.has_stored_sizes:
        asked = for_caller("sizes=True asks", "--sizes asks")
        yield f"Stored sizes: the server lists none; {asked} it for that of each chunk."
