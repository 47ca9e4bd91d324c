"""HTML for notebooks, without scripts, in the colours of the page around it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import numpy as np

from bf16codecs._base.fields import FIELDS
from bf16codecs._base.tables import Column, printable
from bf16codecs.model.exponents import Exponents

__all__ = ["MOST_ROWS", "block", "details", "histogram", "line", "table"]

#: More rows of a table would make a notebook slow.
MOST_ROWS = 200

_STYLE = """
.bf16codecs{line-height:1.45;max-width:100%}
.bf16codecs p{margin:.15em 0}
.bf16codecs .note{opacity:.75}
.bf16codecs .rows{max-height:26em;overflow:auto;margin:.5em 0}
.bf16codecs table{border-collapse:collapse;margin:0;border:0;font-size:inherit;color:inherit;
font-variant-numeric:tabular-nums}
.bf16codecs th,.bf16codecs td{border:0;padding:.1em 1.2em .1em 0;text-align:right;
white-space:nowrap;vertical-align:top;background:none}
.bf16codecs td.text,.bf16codecs th.text{text-align:left}
.bf16codecs .rows thead th{border-bottom:1px solid currentColor;font-weight:600}
.bf16codecs .rows tfoot tr:first-child td{border-top:1px solid currentColor}
.bf16codecs figure{margin:.5em 0}
.bf16codecs svg{display:block;width:24em;max-width:100%;height:auto}
.bf16codecs figcaption{margin:.15em 0;opacity:.85}
.bf16codecs summary{cursor:pointer}
"""
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
# Sizes of the picture, in units of its view box: it is as wide as 24 letters.
_WIDTH, _HEIGHT, _MARGIN, _LETTER = 384, 96, 18, 12


def block(title: str, *parts: str) -> str:
    """Return the HTML of a block with a title."""
    head = f"<p><strong>{_text(title)}</strong></p>"
    return f'<div class="bf16codecs"><style>{_STYLE}</style>{head}{"".join(parts)}</div>'


def line(text: str) -> str:
    """Return the HTML of a paragraph, with the text escaped."""
    return f"<p>{_text(text)}</p>"


def details(title: str, lines: Iterable[str]) -> str:
    """Return lines that a click shows, or "" without lines."""
    shown = "".join(map(line, lines))
    return f"<details><summary>{_text(title)}</summary>{shown}</details>" if shown else ""


def table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    sums: Sequence[Sequence[str]] = (),
    count: int | None = None,
) -> str:
    """Return a scrolling table of the first rows, with sums below it.

    The first column has names. `count` is the number of all rows, if `rows` does not have all.
    """
    marks = [' class="text"' if i == 0 or c.is_text else "" for i, c in enumerate(columns)]

    def row(cells: Sequence[str], tag: str = "td") -> str:
        pairs = zip(marks, cells, strict=True)
        return f"<tr>{''.join(f'<{tag}{m}>{_text(cell)}</{tag}>' for m, cell in pairs)}</tr>"

    head, body = (
        row([column.title for column in columns], "th"),
        "".join(map(row, rows[:MOST_ROWS])),
    )
    left = (len(rows) if count is None else count) - len(rows[:MOST_ROWS])
    if left > 0:
        more = f"and {left:,} more, which print(...info()) shows"
        body += f'<tr class="note"><td class="text" colspan="{len(columns)}">{more}</td></tr>'
    foot = "".join(map(row, sums))
    return (
        f'<div class="rows"><table><thead>{head}</thead><tbody>{body}</tbody>'
        f"<tfoot>{foot}</tfoot></table></div>"
    )


def histogram(found: Exponents) -> str:
    """Draw the counts of exponents, with the number of values in the caption."""
    return f"<figure>{_bars(found)}<figcaption>{_text(_caption(found))}</figcaption></figure>"


def _bars(found: Exponents) -> str:
    first, counts = found.normal()
    if not counts.size:
        return ""
    base, top = _HEIGHT - _MARGIN, _MARGIN
    step = _WIDTH / max(16, counts.size)
    left = (_WIDTH - step * counts.size) / 2
    heights = (base - top) * counts.astype(np.float64) / float(counts.max())
    # Make the lowest bars visible.
    heights = np.where(counts > 0, np.maximum(heights, 0.75), 0)
    bars = "".join(
        f"M{left + i * step:.2f} {base}v{-height:.2f}h{0.85 * step:.2f}V{base}z"
        for i, height in enumerate(heights)
        if height
    )
    most = int(counts.argmax())
    ends = {0: "start", counts.size - 1: "end"} if counts.size > 1 else {0: "middle"}
    if _LETTER * 3 < left + (most + 0.5) * step < _WIDTH - _LETTER * 3:
        ends.setdefault(most, "middle")
    offsets = {"start": 0.0, "middle": 0.425, "end": 0.85}
    labels = "".join(
        f'<text x="{left + (i + offsets[anchor]) * step:.1f}" y="{_HEIGHT - 4}"'
        f' text-anchor="{anchor}">{_power(first + i)}</text>'
        for i, anchor in ends.items()
    )
    share = _percent(counts[most] / found.seen)
    labels += (
        f'<text x="{left + (most + 0.425) * step:.1f}" y="{top - 5}"'
        f' text-anchor="middle">{share}</text>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"'
        f' aria-label="histogram of exponents" fill="currentColor" font-size="{_LETTER}"'
        f' font-family="inherit"><path d="{bars}" opacity="0.65"/>'
        f'<path d="M0 {base}h{_WIDTH}" stroke="currentColor" opacity="0.5"/>{labels}</svg>'
    )


def _caption(found: Exponents) -> str:
    seen = found.seen
    text = f"Exponents: {found.bits:.2f} of {FIELDS[found.dtype].exponent} bits"
    for count, what in ((found.small, "zero or subnormal"), (found.not_finite, "not finite")):
        text += f"; {_percent(count / seen)} {what}" if count else ""
    of_all = "" if found.total is None else f" of {found.total:,}"
    return f"{text}; {seen:,}{of_all} {found.dtype} values looked at"


def _percent(part: float) -> str:
    return f"{100 * part:.0f} %" if part >= 0.1 else f"{100 * part:.1f} %"


def _power(exponent: int) -> str:
    return "1" if exponent == 0 else f"2{str(exponent).translate(_SUPERSCRIPTS)}"


def _text(text: object) -> str:
    return escape(printable(text))
