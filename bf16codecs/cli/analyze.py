"""The `analyze` command."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from bf16codecs._base.messages import counted
from bf16codecs._base.tables import Column, printable
from bf16codecs.cli.console import progress_bar, say, show
from bf16codecs.cli.options import (
    ByteSize,
    Command,
    command,
    dask_option,
    max_read_option,
    on_dask,
    quiet_option,
    report_option,
    storage_option,
    threads_option,
)
from bf16codecs.cli.reports import check_writable, load_plots, show_damage, write_json, write_text
from bf16codecs.cli.tables import print_table

if TYPE_CHECKING:
    from bf16codecs.analysis import Analysis

__all__ = ["analyze"]

# In narrow terminals, columns with a higher rank are left out first.
_RANKS = {"dtype": 8, "count": 7, "values": 6, "low byte": 5, "high byte": 4, "sign, mantissa": 3}
_RANKS |= {"exponent": 2}
_CHANGE_RANKS = {"Huffman": 1}
_STEP_RANKS = {"difference, Huffman": 5, "exponent": 4, "Huffman": 3, "changed": 2}
_STEP_RANKS |= {"difference, arithmetic": 1}


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


@click.command(cls=Command)
@click.argument("sources", nargs=-1, required=True, metavar="SRC...")
@click.option("--base", metavar="MODEL", help="Show how SRC differs from this model.")
@click.option(
    "--sample",
    type=ByteSize(),
    help="Analyze about this much of each model, evenly spread.  [default: all of it]",
)
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    metavar="NAME=REGEX",
    callback=_parsed_kinds,
    help="A kind of tensor, and a pattern for its names; goes before the built-in kinds,"
    " repeatable.",
)
@click.option(
    "--out",
    metavar="DIR",
    help="Write pictures, the table of tensors as CSV, all results as JSON, and the report to this"
    " folder.",
)
@click.option("--html", "html_file", metavar="FILE", help="Write a report as one page of HTML.")
@storage_option
@threads_option
@max_read_option
@report_option("json")
@quiet_option
@dask_option
@command
@on_dask
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
    """Analyze the weights of SRC, and explain how small codecs make them.

    SRC is a store of any kind, a run or a step of one, or a safetensors model. A run, or several
    SRC, are a series: each is compared with the one before it.
    """
    from bf16codecs import analysis

    read = [*sources, *([] if base is None else [base])]
    check_writable({"html": html_file, "json": json_file}, read)
    if html_file is not None or out is not None:
        load_plots()
    if out is not None:
        from bf16codecs.analysis.folder import check_folder

        check_folder(out)
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
        from bf16codecs.analysis.folder import write_folder

        write_folder(found, out)
    if found.damage:
        where = found.path if found.base is None else f"{found.path}, or its base"
        raise ValueError(f"{where}: {_damage_line(found)}")


def _damage_line(found: Analysis) -> str:
    tensors = {damage.tensor for damage in found.damage}
    return f"{counted(len(tensors), 'tensor')} could not be read, or only in part"


def _show(found: Analysis) -> None:
    from bf16codecs.analysis import reasons, tables

    for line in tables.summary(found):
        say(printable(line))
    show("")
    say("Entropies of fields, and sizes with codecs, in bits per value:")
    groups = [*found.kinds, *found.dtypes]
    rows = _cells(map(tables.kind_row, groups))
    count = len(found.kinds)
    print_table(_columns(tables.KINDS, _RANKS), rows[:count], rows[count:])
    changes = [
        tables.change_row(group, change)
        for group in groups
        if (change := group.statistics.change) is not None
    ]
    if changes:
        show("")
        say("Changes, and sizes of differences, in bits per value:")
        print_table(_columns(tables.CHANGES, _CHANGE_RANKS), _cells(changes))
    if found.steps:
        show("")
        say("Each checkpoint, alone and as a difference to the one before it, in bits per value:")
        rows = _cells(map(tables.step_row, found.steps))
        print_table(_columns(tables.STEPS, _STEP_RANKS), rows)
    show("")
    for line in reasons(found.model):
        say(line)
    if found.damage:
        show_damage(found.damage)


def _columns(titles: Sequence[str], ranks: Mapping[str, int]) -> list[Column]:
    return [Column(title, title == "dtype", ranks.get(title, 0)) for title in titles]


def _cells(rows: Iterable[Sequence[Any]]) -> list[list[str]]:
    from bf16codecs.analysis.tables import shown

    return [list(map(shown, row)) for row in rows]
