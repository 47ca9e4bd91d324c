"""Views of tensors, models and runs in notebooks, which read little and never fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from bf16codecs._base.messages import counted, one_line
from bf16codecs._base.tables import Column, format_size
from bf16codecs.errors import BF16CodecsError
from bf16codecs.model import html
from bf16codecs.model.exponents import Exponents, Sampled
from bf16codecs.model.info import Info
from bf16codecs.store.contents import codec_and_size, contents_of, ratio_of, with_grids
from bf16codecs.store.kinds import path_of
from bf16codecs.store.reader import ModelReader

__all__ = ["Shown", "model_html", "tensor_html"]

# Errors of damaged data and metadata, and of missing or closed stores.
_FAILURES = (BF16CodecsError, OSError, ValueError)
# With more tensors, finding the stored size of each takes seconds.
_MOST_TENSORS = 1000
# At an address, reading the header of a file takes a request.
_MOST_FILES = 2
_COLUMNS = [
    Column("tensor"),
    Column("dtype", is_text=True),
    Column("shape", is_text=True),
    Column("size"),
]


class Shown(Sampled, Protocol):
    """A tensor that is shown."""

    name: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size of the tensor in bytes."""

    @property
    def chunks(self) -> tuple[int, ...]:
        """Shape of the stored chunks."""


_NOT_READ = html.line("No histogram: at an address, values are not read to be shown.")

#: Returns an opened model; raises ValueError once it is closed.
Opened = Callable[[], ModelReader]


def _is_local(reader: ModelReader) -> bool:
    """Return whether a model and its bases are on local disks."""
    while path_of(reader.location[0]) is not None:
        if reader.base is None:
            return True
        reader = reader.base
    return False


def tensor_html(
    tensor: Shown, opened: Opened, paths: Callable[[], Sequence[str]], *notes: str
) -> str:
    """Return the HTML of a tensor for a notebook, with notes below the histogram.

    `opened` returns its model, and `paths` the paths of its arrays.
    """
    about = f"{_shape(tensor.shape)} {tensor.get_dtype()}: {counted(tensor.size, 'value')}"
    parts = [html.line(f"{about}, {format_size(tensor.nbytes)}")]
    try:
        reader = opened()
        if _is_local(reader):
            label, stored = codec_and_size(reader, paths())
            parts.append(html.line(_stored_line(tensor, " ".join(label).rstrip(), stored)))
            parts.append(_exponents(lambda: Exponents.of([tensor]), *notes))
        else:
            parts.append(_NOT_READ)
    except _FAILURES as e:
        parts.append(html.line(one_line(e)))
    return html.block(tensor.name, *parts)


def model_html(
    where: str,
    names: Sequence[str],
    opened: Opened,
    tensor: Callable[[str], Shown],
    *notes: str,
) -> str:
    """Return the HTML of a model or a run for a notebook, with notes below the histogram."""
    known = None
    try:
        reader = opened()
        is_local = _is_local(reader)
        is_small = is_local or len(reader.info.files) <= _MOST_FILES
        if len(names) <= _MOST_TENSORS and is_small:
            known = Info(with_grids(contents_of(reader, where, with_sizes=is_local), reader))
        below = _exponents(lambda: _counted(names, tensor), *notes) if is_local else _NOT_READ
    except _FAILURES as e:
        below = html.line(one_line(e))
    if known is not None:
        return known.html(below)
    return html.block(f"{where}: {counted(len(names), 'tensor')}", _names(names, tensor), below)


def _counted(names: Sequence[str], tensor: Callable[[str], Shown]) -> Exponents | None:
    some = names[:: max(1, -(-len(names) // _MOST_TENSORS))]
    return Exponents.of([tensor(name) for name in some], len(some) == len(names))


def _exponents(count: Callable[[], Exponents | None], *notes: str) -> str:
    """Return a histogram with notes below it, or the reason why it is missing."""
    try:
        found = count()
    except _FAILURES as e:
        return html.line(f"No histogram: {one_line(e)}")
    return "" if found is None else html.histogram(found) + "".join(map(html.line, notes))


def _names(names: Sequence[str], tensor: Callable[[str], Shown]) -> str:
    """Return a table of names, dtypes, shapes and sizes, which needs no reading."""

    def cells(name: str) -> tuple[str, ...]:
        try:
            shown = tensor(name)
        except _FAILURES:
            return name, "", "", ""
        return name, shown.get_dtype(), _shape(shown.shape), format_size(shown.nbytes)

    rows = list(map(cells, names[: html.MOST_ROWS]))
    known = len(_COLUMNS) if any(dtype for _, dtype, *_ in rows) else 1
    return html.table(_COLUMNS[:known], [row[:known] for row in rows], count=len(names))


def _shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _stored_line(tensor: Shown, codec: str, stored: int) -> str:
    ratio = ratio_of(tensor.nbytes, stored)
    size = f"stored in {format_size(stored)}" + (f" (ratio {ratio:.3f})" if ratio else "")
    return f"{size}: {codec}, chunks {_shape(tensor.chunks)}"
