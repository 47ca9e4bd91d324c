"""`info()`: a description of a model, a run or one of its steps, as a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bf16codecs._base.names import SORTS
from bf16codecs._base.tables import printable, table_lines
from bf16codecs.model import html
from bf16codecs.store.contents import (
    Contents,
    contents_of,
    file_lines,
    summary_lines,
    table_of,
    with_grids,
)
from bf16codecs.store.reader import ModelReader

__all__ = ["Info", "info_of"]


class Info:
    """A description of a model, a run or one of its steps, made by `Model.info` and `Run.info`.

    Its text is the output of ``bf16codecs info``. Notebooks show it as a table.
    """

    def __init__(self, contents: Contents) -> None:
        self._contents = contents

    def table(self) -> dict[str, list[Any]]:
        """Return a row for each tensor, as columns by name.

        Returns
        -------
        dict of list
            An argument for ``pandas.DataFrame(...)`` or ``polars.DataFrame(...)``: `name`, `dtype`,
            `shape`, `parameters`, `nbytes`, `stored_nbytes`, `ratio`, `codec`, `level`, `way`,
            `grid`. Stored sizes and ratios are None if a server lists no sizes; grids are None of
            tensors that lie on none, and where they were not looked for.
        """
        rows = [row.to_json() for row in self._contents.rows]
        names = [name for name in (rows[0] if rows else {}) if name != "lossy"]
        return {name: [row[name] for row in rows] for name in names}

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``bf16codecs info --json``."""
        return self._contents.to_json()

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def __repr__(self) -> str:
        return str(self)

    def _lines(self) -> Iterator[str]:
        yield from map(printable, summary_lines(self._contents))
        yield ""
        yield from table_lines(*table_of(self._contents))
        yield from map(printable, file_lines(self._contents))

    def _repr_html_(self) -> str:
        return self.html(html.details("files", file_lines(self._contents)))

    def html(self, *below: str) -> str:
        """Return the HTML for a notebook, followed by further HTML."""
        title, *lines = summary_lines(self._contents)
        table = html.table(*table_of(self._contents))
        return html.block(title, *map(html.line, lines), table, *below)


def info_of(reader: ModelReader, where: str, sort: str, sizes: bool, grids: bool) -> Info:
    """Describe an open model or run, as `Model.info` does; `where` is its path or address."""
    if sort not in SORTS:
        raise ValueError(f"sort must be one of {', '.join(SORTS)}, not {sort!r:.80}")
    contents = with_grids(contents_of(reader, where, sizes), reader, grids)
    contents.sort(sort)
    return Info(contents)
