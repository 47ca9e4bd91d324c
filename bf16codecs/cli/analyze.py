"""The `analyze` command."""

from __future__ import annotations

import csv
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bf16codecs._messages import counted
from bf16codecs._paths import given_path, require_folder_of
from bf16codecs.cli.console import printable, progress_bar, say, show
from bf16codecs.cli.options import (
    ByteSize,
    command,
    max_bytes_option,
    quiet_option,
    report_option,
    storage_option,
    threads_option,
)
from bf16codecs.cli.reports import check_writable, show_damage, write_json, write_text
from bf16codecs.cli.tables import Column, print_table

if TYPE_CHECKING:
    from bf16codecs.analysis import Analysis, GroupAnalysis, StepAnalysis

__all__ = ["analyze"]

_KINDS = [
    Column("tensors of"),
    Column("dtype", is_text=True, rank=8),
    Column("count", rank=7),
    Column("values", rank=6),
    Column("high byte", rank=4),
    Column("low byte", rank=5),
    Column("exponent", rank=2),
    Column("sign, mantissa", rank=3),
    Column("Huffman"),
    Column("arithmetic"),
    Column("best"),
]
_CHANGES = [
    Column("changes of"),
    Column("changed"),
    Column("XOR"),
    Column("difference"),
    Column("Huffman", rank=1),
    Column("arithmetic"),
    Column("best"),
]
_STEPS = [
    Column("step"),
    Column("exponent", rank=4),
    Column("Huffman", rank=3),
    Column("arithmetic"),
    Column("best"),
    Column("changed", rank=2),
    Column("difference, arithmetic", rank=1),
    Column("difference, best"),
]
_CODECS = ("huffman", "arithmetic", "arithmetic best")
_DIFFERENCES = tuple(f"difference, {name}" for name in _CODECS)


def _parsed_kinds(
    ctx: click.Context, param: click.Parameter, rules: tuple[str, ...]
) -> dict[str, str]:
    found = {}
    for rule in rules:
        kind, equals, pattern = rule.partition("=")
        if not (kind and equals and pattern):
            raise click.BadParameter(f"{rule!r:.80} is not NAME=REGEX, such as router=gate")
        found[kind] = pattern
    return found


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="SRC...")
@click.option("--base", metavar="MODEL", help="Tell what SRC has otherwise than this model.")
@click.option(
    "--sample",
    type=ByteSize(),
    help="Look at about so much of each model, evenly spread.  [default: all of it]",
)
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    metavar="NAME=REGEX",
    callback=_parsed_kinds,
    help="A kind of tensor, and what names of such have in them; before the built-in ones,"
    " repeatable.",
)
@click.option(
    "--out",
    metavar="DIR",
    help="Write pictures, the table of tensors as CSV, all as JSON, and the report to this folder.",
)
@click.option("--html", "html_file", metavar="FILE", help="Write a report as one page of HTML.")
@storage_option
@threads_option
@max_bytes_option
@report_option("json")
@quiet_option
@command
def analyze(
    sources: tuple[str, ...],
    base: str | None,
    sample: int | None,
    kinds: Mapping[str, str],
    out: str | None,
    html_file: str | None,
    json_file: str | None,
    quiet: bool,
    **options: Any,
) -> None:
    """Tell what is in the weights of SRC, and why they get as small as they do.

    SRC is a store of any kind, a run or a step of one, or a safetensors model. Several, and a run,
    are a series: each is compared with the one before it.
    """
    from bf16codecs import analysis

    read = [*sources, *([] if base is None else [base])]
    check_writable({"html": html_file, "json": json_file}, read)
    if html_file is not None or out is not None:
        os.environ["MPLBACKEND"] = "agg"  # which needs no display
        _ = analysis.plots  # before minutes are spent: is matplotlib there?
    if out is not None:
        _check_folder(out)
    rules = {**kinds, **analysis.KINDS} if kinds else None
    source = sources[0] if len(sources) == 1 else sources
    with progress_bar(quiet) as progress:
        found = analysis.analyze(
            source, base, sample=sample, kinds=rules, progress=progress, **options
        )
    if not quiet and json_file != "-":
        _show(found)
    if json_file is not None:
        write_json(found.to_json(), json_file)
    if html_file is not None:
        write_text(analysis.report(found), html_file)
    if out is not None:
        _write_all(found, Path(out))
    if found.damage:
        raise ValueError(f"{found.path}: {_damage_line(found)}")


def _damage_line(found: Analysis) -> str:
    tensors = {own.tensor for own in found.damage}
    return f"{counted(len(tensors), 'tensor')} could not be read, or not all of it"


def _show(found: Analysis) -> None:
    from bf16codecs import analysis

    for line in _summary(found):
        say(printable(line))
    show("")
    say("Entropies of fields, and what codecs reach, in bits a value:")
    groups = [*found.kinds, *found.dtypes]
    rows = [_kind_row(group) for group in groups]
    print_table(_KINDS, rows[: len(found.kinds)], rows[len(found.kinds) :])
    changed = [group for group in groups if group.statistics.change is not None]
    if changed:
        show("")
        say("What changed, and what differences take, in bits a value:")
        print_table(_CHANGES, [_change_row(group) for group in changed])
    if found.steps:
        show("")
        say("Each checkpoint, alone and as a difference to the one before it, in bits a value:")
        print_table(_STEPS, list(map(_step_row, found.steps)))
    show("")
    for line in analysis.reasons(found.model):
        say(line)
    if found.damage:
        show_damage(found.damage)


def _summary(found: Analysis) -> Iterator[str]:
    values = sum(group.statistics.values for group in found.dtypes)
    tensors, noun = counted(len(found.tensors), "tensor"), "value" if values == 1 else "values"
    yield f"{found.path}: {tensors}, {values:,} {noun} looked at"
    if found.share < 1:
        yield f"looked at: {100 * found.share:.1f} % of the bytes"
    if found.base is not None:
        yield f"compared with: {found.base}{_compared(found)}"
    if found.steps:
        yield f"the last of {len(found.steps)} checkpoints, each compared with the one before it"


def _compared(found: Analysis) -> str:
    """Say how many tensors were compared, if not all: those of the same name, dtype and shape."""
    count = sum(tensor.statistics.change is not None for tensor in found.tensors)
    if count == len(found.tensors):
        return ""
    return f" ({count} of {len(found.tensors)} tensors: the others are not there, or not alike)"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _kind_row(group: GroupAnalysis) -> Sequence[str]:
    own = group.statistics
    return (
        "any kind" if group.kind == "all" else group.kind,
        own.dtype,
        str(group.tensors),
        str(own.values),
        _number(own.entropies.bytes[0]),
        _number(own.entropies.bytes[-1]),
        _number(own.entropies.exponent),
        _number(own.entropies.sign_and_mantissa),
        *(_number(group.bits.get(name)) for name in _CODECS),
    )


def _change_row(group: GroupAnalysis) -> Sequence[str]:
    change = group.statistics.change
    assert change is not None
    return (
        "any kind" if group.kind == "all" else group.kind,
        f"{100 * change.changed:.2f} %",
        _number(change.xor),
        _number(change.difference),
        *(_number(group.bits.get(name)) for name in _DIFFERENCES),
    )


def _step_row(step: StepAnalysis) -> Sequence[str]:
    own, bits = step.model.statistics, step.model.bits
    return (
        step.step,
        _number(own.entropies.exponent),
        *(_number(bits.get(name)) for name in _CODECS),
        "" if own.change is None else f"{100 * own.change.changed:.2f} %",
        *(_number(bits.get(name)) for name in _DIFFERENCES[1:]),
    )


def _check_folder(out: str) -> None:
    """Refuse a folder that has something in it: what is written there has many names."""
    folder = Path(given_path(out, "folder"))
    require_folder_of(folder)
    if os.path.lexists(folder):
        if not folder.is_dir() or any(folder.iterdir()):
            raise FileExistsError(errno.EEXIST, "is there already: name a new folder", out)
        with _new_folder_in(folder):
            pass
    else:
        folder.mkdir()
        folder.rmdir()


@contextmanager
def _new_folder_in(folder: Path) -> Iterator[Path]:
    """Yield a new folder whose files go up into `folder` at the end, or nowhere after an error."""
    try:
        name = tempfile.mkdtemp(prefix=".", dir=folder)
    except OSError as e:
        e.filename = str(folder)
        raise
    try:
        yield Path(name)
        for file in Path(name).iterdir():
            file.rename(folder / file.name)
    finally:
        shutil.rmtree(name)


def _write_all(found: Analysis, folder: Path) -> None:
    """Write pictures, in both styles, the table of tensors, all as JSON, and the report."""
    is_new = not folder.exists()
    folder.mkdir(exist_ok=True)
    try:
        with _new_folder_in(folder) as new:
            _write_into(new, found)
    except BaseException:
        if is_new:
            folder.rmdir()
        raise


def _write_into(folder: Path, found: Analysis) -> None:
    from bf16codecs.analysis import plots, report
    from bf16codecs.analysis.html_report import pictures

    for name, _, draw in pictures(found):
        for style in plots.STYLES:
            suffix = "" if style == "light" else f"-{style}"
            with plots.style(style):
                plots.save(draw(), folder / f"{name}{suffix}.png", "png")
    table = found.table()
    with open(folder / "tensors.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        for row in zip(*table.values(), strict=True):
            writer.writerow("x".join(map(str, v)) if isinstance(v, list) else v for v in row)
    write_json(found.to_json(), str(folder / "analysis.json"))
    write_text(report(found), str(folder / "report.html"))
