"""An analysis as one self-contained HTML page."""

from __future__ import annotations

import html
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

from bf16codecs._base.fields import FIELDS
from bf16codecs._base.messages import counted
from bf16codecs._base.paths import last_name
from bf16codecs._base.version import __version__
from bf16codecs.analysis import plots, tables
from bf16codecs.analysis.coded_sizes import CODECS
from bf16codecs.analysis.results import Analysis
from bf16codecs.analysis.tables import reasons, summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["pictures", "report", "write_report"]

#: The name and the caption of a picture, and a function that draws it.
Picture = tuple[str, str, Callable[[], "Axes"]]


def pictures(analysis: Analysis) -> Iterator[Picture]:
    """Yield the pictures for which an analysis has data."""
    model = analysis.model
    if model.statistics.dtype in FIELDS:
        yield (
            "exponents",
            "The fewer exponents occur, and the less evenly, the fewer bits codecs need for them.",
            lambda: plots.exponents(model),
        )
    yield (
        "high_byte",
        "The most significant byte has the sign and the larger part of the exponent.",
        lambda: plots.bytes_histogram(model, "high"),
    )
    yield (
        "low_byte",
        "Where all values of the least significant byte are equally frequent, a code saves"
        " nothing.",
        lambda: plots.bytes_histogram(model, "low"),
    )
    yield (
        "set_bits",
        "A bit that is set in half of the values, independently of the others, cannot be saved.",
        lambda: plots.set_bits(model),
    )
    if any(p.of == "exponent byte" for p in model.statistics.predictions):
        yield (
            "predictions",
            "The entropy of an exponent alone, given its neighbour, and of its difference to the"
            " neighbour: a predictor pays where the difference has fewer bits than the exponent.",
            lambda: plots.predictions(model),
        )
    if any(tensor.layer is not None for tensor in analysis.tensors):
        yield (
            "layers",
            "The bits per value of each layer with the default codec.",
            lambda: plots.bits_by_layer(analysis),
        )
    if model.blocks:
        yield (
            "blocks",
            "Blocks of 64 KiB, each coded alone, beside the sum of the entropies of their bytes.",
            lambda: plots.block_entropies(model),
        )
    if analysis.steps:
        yield (
            "steps",
            "The size of each checkpoint, whole and as the difference to the one before it.",
            lambda: plots.bits_over_steps(analysis),
        )
    if model.statistics.change is not None:
        yield (
            "changed_bits",
            "The part of the values in which each bit differs from the model compared with.",
            lambda: plots.changed_bits(analysis),
        )


def write_report(analysis: Analysis, path: str | os.PathLike[str]) -> None:
    """Write an analysis as one page of HTML.

    Parameters
    ----------
    analysis : Analysis
        The result of `analyze`.
    path : str or path
        The file to write; an existing one is replaced.

    Raises
    ------
    ImportError
        If matplotlib, which the extra ``plot`` installs, is missing.
    OSError
        If the file cannot be written.
    """
    text = report(analysis)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def report(analysis: Analysis) -> str:
    """Return the page that `write_report` writes."""
    model = analysis.model
    style = resources.files("bf16codecs.analysis").joinpath("report.css").read_text("utf-8")
    script = resources.files("bf16codecs.analysis").joinpath("report.js").read_text("utf-8")
    groups = [*analysis.kinds, *analysis.dtypes]
    title = html.escape(f"{last_name(analysis.path)}: what is in its weights")
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title><style>{style}</style></head><body>",
        f"<h1>{title}</h1>",
        *(f"<p>{html.escape(line)}</p>" for line in _about(analysis)),
        _list(reasons(model)),
        "<h2>Kinds of tensors</h2><p>Entropies and coded sizes, in bits per value.</p>",
        _table(tables.KINDS, map(tables.kind_row, groups)),
    ]
    changes = [
        tables.change_row(group, change)
        for group in groups
        if (change := group.statistics.change) is not None
    ]
    if changes:
        parts += ["<h2>What changed</h2>", _table(tables.CHANGES, changes)]
    if analysis.steps:
        rows = map(tables.step_row, analysis.steps)
        parts += ["<h2>Checkpoints</h2>", _table(tables.STEPS, rows)]
    figures = "".join(map(_figure, pictures(analysis)))
    parts += ["<h2>Pictures</h2>", f'<div class="pictures">{figures}</div>']
    table = analysis.table()
    names = [name.replace("_", " ") for name in table]
    parts += [
        "<h2>Tensors</h2><p>Bits per value; click a title to sort.</p>",
        _table(names, zip(*table.values(), strict=True)),
    ]
    if analysis.damage:
        parts += ["<h2>What could not be read</h2>", _list(d.message for d in analysis.damage)]
    parts += [f"<footer>bf16codecs {__version__}</footer><script>{script}</script></body></html>"]
    return "\n".join(parts) + "\n"


def _about(analysis: Analysis) -> Iterator[str]:
    yield from summary(analysis)
    model = analysis.model
    best = min(model.bits[name] for name in CODECS)
    bits = 8 * model.statistics.nbytes / max(1, model.statistics.values)
    yield (
        f"{counted(model.tensors, 'tensor')} of {model.statistics.dtype}:"
        f" {model.bits['arithmetic']:.2f} bits per value with the default codec, {best:.2f} with"
        f" the best one, instead of {bits:.0f}."
    )


def _list(lines: Any) -> str:
    return "<ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in lines) + "</ul>"


def _table(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    rows = list(rows)
    head = "".join(
        f'<th{_mark(column[0])}><button type="button">{html.escape(name)}</button></th>'
        for name, *column in zip(names, *rows, strict=True)
    )
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="wide">{table}</div>'


def _mark(value: Any) -> str:
    """Return the attribute of cells that are aligned to the left: all but numbers."""
    return ' class="text"' if isinstance(value, (str, list, tuple)) else ""


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return f"<td{_mark(value)}>{html.escape(value)}</td>"
    if isinstance(value, (list, tuple)):
        return f"<td{_mark(value)}>{'&times;'.join(map(str, value)) or 'scalar'}</td>"
    if value is None:
        return "<td></td>"
    text = f"{value:,}" if isinstance(value, int) else tables.shown(value)
    return f'<td data-value="{value}">{text}</td>'


def _figure(picture: Picture) -> str:
    name, caption, draw = picture
    drawn = "".join(
        f'<div class="{style}">{_svg(draw, style, f"{name}-{style}")}</div>'
        for style in plots.STYLES
    )
    return f"<figure>{drawn}<figcaption>{html.escape(caption)}</figcaption></figure>"


def _svg(draw: Callable[[], Axes], style: str, salt: str) -> str:
    """Draw as SVG, with ids that no other picture of the page has."""
    buffer = io.StringIO()
    with plots.style(style):
        plots.save(draw(), buffer, "svg")
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    return re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{salt}-", text)
