"""An analysis as one page of HTML, which needs no network."""

from __future__ import annotations

import html
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

from bf16codecs._fields import FIELDS
from bf16codecs._version import __version__
from bf16codecs.analysis import plots
from bf16codecs.analysis.reach import DIFFERENCE
from bf16codecs.analysis.results import Analysis, GroupAnalysis, StepAnalysis
from bf16codecs.analysis.words import reasons

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["pictures", "report", "write_report"]

#: A picture: its name, what it tells, and what draws it.
Picture = tuple[str, str, Callable[[], "Axes"]]

_COLUMNS = {
    "high byte": lambda s: s.entropies.bytes[0],
    "low byte": lambda s: s.entropies.bytes[-1],
    "exponent": lambda s: s.entropies.exponent,
    "sign, mantissa": lambda s: s.entropies.sign_and_mantissa,
}
_CODECS = {"Huffman": "huffman", "arithmetic": "arithmetic", "best": "arithmetic best"}


def pictures(analysis: Analysis) -> Iterator[Picture]:
    """Yield all pictures that an analysis has something for.

    Yields
    ------
    str
        A name, such as ``"exponents"``.
    str
        What the picture tells, in a sentence.
    callable
        Draws it, and returns the axes.
    """
    model = analysis.model
    if model.statistics.dtype in FIELDS:
        yield (
            "exponents",
            "The fewer exponents occur, and the more often some do than others, the less codecs"
            " need for them.",
            lambda: plots.exponents(model),
        )
    yield (
        "high_byte",
        "The most significant byte has the sign and the larger part of the exponent.",
        lambda: plots.bytes_histogram(model, "high"),
    )
    yield (
        "low_byte",
        "Of the least significant byte, a code saves nothing where all values are as frequent.",
        lambda: plots.bytes_histogram(model, "low"),
    )
    yield (
        "set_bits",
        "A bit that is set in half of the values, whatever the others are, cannot be saved.",
        lambda: plots.set_bits(model),
    )
    if any(p.of == "exponent byte" for p in model.statistics.predictions):
        yield (
            "predictions",
            "What is left of an exponent whose neighbour is known, beside what is left of its"
            " difference to that: a predictor is worth it where this is less than it has alone.",
            lambda: plots.predictions(model),
        )
    if any(tensor.layer is not None for tensor in analysis.tensors):
        yield (
            "layers",
            "What the default codec reaches in each layer.",
            lambda: plots.bits_by_layer(analysis),
        )
    if model.blocks:
        yield (
            "blocks",
            "Blocks of 64 KiB, coded alone, beside the sum of the entropies of their bytes.",
            lambda: plots.block_entropies(model),
        )
    if analysis.steps:
        yield (
            "steps",
            "What each checkpoint takes, whole, and as the difference to the one before it.",
            lambda: plots.bits_over_steps(analysis),
        )
    if model.statistics.change is not None:
        yield (
            "changed_bits",
            "In which part of the values each bit differs from what they are compared with.",
            lambda: plots.changed_bits(analysis),
        )


def write_report(analysis: Analysis, path: str | os.PathLike[str]) -> None:
    """Write an analysis as one page of HTML.

    Parameters
    ----------
    analysis : Analysis
        What `analyze` returned.
    path : str or path
        The file, which is replaced if it is there.

    Raises
    ------
    ImportError
        If matplotlib, of the extra ``plot``, is not installed.
    OSError
        If the file cannot be written.
    """
    text = report(analysis)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def report(analysis: Analysis) -> str:
    """Return the page of `write_report`."""
    model = analysis.model
    style = resources.files("bf16codecs.analysis").joinpath("report.css").read_text("utf-8")
    script = resources.files("bf16codecs.analysis").joinpath("report.js").read_text("utf-8")
    groups = [*analysis.kinds, *analysis.dtypes]
    title = html.escape(f"{os.path.basename(analysis.path.rstrip('/'))}: what is in its weights")
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title><style>{style}</style></head><body>",
        f"<h1>{title}</h1>",
        *(f"<p>{html.escape(line)}</p>" for line in _about(analysis)),
        _list(reasons(model)),
        "<h2>Kinds of tensors</h2><p>Entropies, and what codecs reach, in bits a value.</p>",
        _table(
            ["kind", "dtype", "tensors", "values", *_COLUMNS, *_CODECS], map(_group_row, groups)
        ),
    ]
    changes = [group for group in groups if group.statistics.change is not None]
    if changes:
        names = ["kind", "changed, %", "XOR", "difference", *_CODECS]
        parts += ["<h2>What changed</h2>", _table(names, map(_change_row, changes))]
    if analysis.steps:
        names = ["step", "exponent", *_CODECS, "changed, %", *(f"difference, {c}" for c in _CODECS)]
        parts += ["<h2>Checkpoints</h2>", _table(names, map(_step_row, analysis.steps))]
    figures = "".join(map(_figure, pictures(analysis)))
    parts += ["<h2>Pictures</h2>", f'<div class="pictures">{figures}</div>']
    table = analysis.table()
    rows = zip(*table.values(), strict=True)
    parts += [
        "<h2>Tensors</h2><p>Bits a value; click a title to sort.</p>",
        _table([name.replace("_", " ") for name in table], rows),
    ]
    if analysis.damage:
        parts += ["<h2>What could not be read</h2>", _list(d.message for d in analysis.damage)]
    parts += [f"<footer>bf16codecs {__version__}</footer><script>{script}</script></body></html>"]
    return "\n".join(parts) + "\n"


def _about(analysis: Analysis) -> Iterator[str]:
    model = analysis.model
    yield analysis.path
    best = min(model.bits[name] for name in _CODECS.values())
    bits = 8 * model.statistics.nbytes / max(1, model.statistics.values)
    yield (
        f"{model.tensors} {model.statistics.dtype} tensors, {model.statistics.values:,} values:"
        f" {model.bits['arithmetic']:.2f} bits a value with the default codec, {best:.2f} with the"
        f" best one, instead of {bits:.0f}."
    )
    if analysis.share < 1:
        yield f"{100 * analysis.share:.1f} % of the bytes were looked at."
    if analysis.steps:
        yield f"The last of {len(analysis.steps)} checkpoints, each compared with the one before."
    elif analysis.base is not None:
        yield f"Compared with {analysis.base}."


def _group_row(group: GroupAnalysis) -> Sequence[Any]:
    own = group.statistics
    return (
        group.kind,
        own.dtype,
        group.tensors,
        own.values,
        *(value(own) for value in _COLUMNS.values()),
        *(group.bits.get(name) for name in _CODECS.values()),
    )


def _change_row(group: GroupAnalysis) -> Sequence[Any]:
    change = group.statistics.change
    assert change is not None
    return (
        group.kind,
        100 * change.changed,
        change.xor,
        change.difference,
        *(group.bits.get(DIFFERENCE + name) for name in _CODECS.values()),
    )


def _step_row(step: StepAnalysis) -> Sequence[Any]:
    own, bits = step.model.statistics, step.model.bits
    return (
        step.step,
        own.entropies.exponent,
        *(bits.get(name) for name in _CODECS.values()),
        None if own.change is None else 100 * own.change.changed,
        *(bits.get(DIFFERENCE + name) for name in _CODECS.values()),
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
    """Mark what is to the left: all but numbers."""
    return ' class="text"' if isinstance(value, (str, list, tuple)) else ""


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return f"<td{_mark(value)}>{html.escape(value)}</td>"
    if isinstance(value, (list, tuple)):
        return f"<td{_mark(value)}>{'&times;'.join(map(str, value)) or 'scalar'}</td>"
    if value is None:
        return "<td></td>"
    shown = f"{value:.3f}" if isinstance(value, float) else f"{value:,}"
    return f'<td data-value="{value}">{shown}</td>'


def _figure(picture: Picture) -> str:
    name, caption, draw = picture
    drawn = "".join(
        f'<div class="{style}">{_svg(draw, style, f"{name}-{style}")}</div>'
        for style in plots.STYLES
    )
    return f"<figure>{drawn}<figcaption>{html.escape(caption)}</figcaption></figure>"


def _svg(draw: Callable[[], Axes], style: str, salt: str) -> str:
    """Draw as SVG; parts of several pictures in one page have different ids."""
    buffer = io.StringIO()
    with plots.style(style):
        plots.save(draw(), buffer, "svg")
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    return re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{salt}-", text)
