"""Print the tables of `bench`, each row as soon as it is measured."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from bf16codecs._base.memory import no_peak_because
from bf16codecs._base.messages import counted
from bf16codecs._base.tables import Column, format_size, printable, shortened
from bf16codecs.bench.defaults import SYSTEM_TITLES
from bf16codecs.cli.console import say, show
from bf16codecs.cli.tables import Table

if TYPE_CHECKING:
    from bf16codecs.bench import (
        Failure,
        Machine,
        Measured,
        Payload,
        Plan,
        PlannedStudy,
        Result,
        Sample,
    )

__all__ = [
    "about_data",
    "measure_study",
    "rate",
    "show_host",
    "show_notes",
    "status_line",
    "title_of",
]

# `least` widths make room for cells that are not known before a row is printed.
_SPREAD = Column("spread", rank=6, least=13)
_COLUMNS = [
    Column("codec"),
    Column("threads", rank=8),
    Column("data", rank=1, least=9),
    Column("rounds", rank=2),
    Column("ratio"),
    Column("bits/value", rank=4),
    Column("encode GB/s"),
    _SPREAD,
    Column("to memcpy", rank=5),
    Column("decode GB/s"),
    _SPREAD,
    Column("to memcpy", rank=5),
    Column("peak memory", rank=3),
    Column("round trip", is_text=True, rank=7),
]


def rate(gbps: float) -> str:
    """Format a rate with more digits if it is low: some contenders are a thousand times slower."""
    return f"{gbps:.{2 if gbps >= 0.1 else 4}f}"


def _round_trip(r: Result) -> str:
    if not r.exact:
        return "DIFFERS"
    return "as rounded" if r.lossy else "bit-exact"


def _row(r: Result) -> Sequence[str]:
    return (
        r.name,
        str(r.threads),
        format_size(r.nbytes),
        str(r.rounds),
        f"{r.ratio:.3f}",
        f"{r.bits_per_value:.3f}",
        rate(r.encode_gbps),
        f"{rate(r.encode_gbps_min)}-{rate(r.encode_gbps_max)}",
        f"{r.encode_to_memcpy:.3f}",
        rate(r.decode_gbps),
        f"{rate(r.decode_gbps_min)}-{rate(r.decode_gbps_max)}",
        f"{r.decode_to_memcpy:.3f}",
        "unknown" if r.peak_bytes is None else format_size(r.peak_bytes),
        _round_trip(r),
    )


def _failed_row(f: Failure) -> Sequence[str]:
    return (f.name, str(f.threads), *[""] * (len(_COLUMNS) - 3), "failed")


@contextmanager
def status_line() -> Iterator[Callable[[str], None] | None]:
    """Yield a function that shows the name of the current measurement; None without a terminal.

    An empty name clears the line.
    """
    if not sys.stderr.isatty():
        yield None
        return

    def say(name: str) -> None:
        room = shutil.get_terminal_size().columns - len(" ...") - 1
        text = f"{shortened(name, room)} ..." if name else ""
        click.echo(f"\r\x1b[K{text}", nl=False, err=True)

    yield say
    say("")


def show_host(where: Machine, threads: int) -> None:
    """Print the machine, and the releases of the measured packages."""
    versions = ", ".join(f"{name} {version}" for name, version in where.versions.items())
    say(
        f"{where.cpu}, {counted(where.cores, 'core')}, {where.isa}, {counted(threads, 'thread')};"
        f" {versions}"
    )


def title_of(system: str | None) -> str:
    """Return the title of a table."""
    return "Codecs and peers" if system is None else f"System {system}, {SYSTEM_TITLES[system]}"


def measure_study(planned: PlannedStudy, *, shows: bool, is_alone: bool, **timing: Any) -> Measured:
    """Measure a planned study, and print its table if `shows`."""
    from bf16codecs.bench import Failure, Measured

    table = None
    if shows:
        if not is_alone:
            show("")
            say(f"{title_of(planned.system)}: {about_data(planned.data)}")
        else:
            say(about_data(planned.data))
        table = Table(_COLUMNS, [(name,) for name in planned.study.names])
    measured = Measured(planned)
    with status_line() as status:
        for found in planned.study.results(progress=status, **timing):
            if isinstance(found, Failure):
                measured.failures.append(found)
            else:
                measured.results.append(found)
            if table is not None:
                if status is not None:
                    status("")
                table.row(_failed_row(found) if isinstance(found, Failure) else _row(found))
    measured = replace(measured, figures=planned.study.figures())
    if table is not None:
        table.end()
        for name, value in measured.figures.items():
            say(f"{name}: {value}")
    return measured


def show_notes(tables: Sequence[Measured], plan: Plan) -> None:
    """Print notes on the tables, and what was not measured and why."""
    if any(len({result.nbytes for result in table.results}) > 1 for table in tables):
        say("Less data: slow codecs get as much as there is time for (--seconds).")
    reason = no_peak_because()
    if reason is None:
        say(
            "Peak memory: of each codec's process while it encodes and decodes one tensor, or 8 MiB"
            " of it."
        )
    else:
        say(f"Peak memory: not measured; {reason}.")
    for table in tables:
        for failure in table.failures:
            say(printable(f"{failure.name} failed: {failure.message}"))
    for what, why in plan.left_out.items():
        say(printable(f"Not measured: {what}; {why}"))
    if plan.slow:
        slow = ", ".join(plan.slow)
        say(f"Left out by --quick, since they take minutes for a large model: {slow}")
    missing = [peer.package for peer in plan.absent if not peer.reason]
    if missing:
        say(f"Not measured, since not installed: pip install {' '.join(missing)}")
    for peer in plan.absent:
        if peer.reason:
            say(printable(peer.advice))


def about_data(data: Sample | Payload) -> str:
    """Describe the measured data, and what is left out."""
    from bf16codecs.bench import Sample

    if not isinstance(data, Sample):
        return f"{data.dtype} tensors as one piece of {format_size(data.data.nbytes)}"
    size = format_size(data.nbytes)
    text = f"{counted(data.count, f'{data.dtype} tensor')} of {size}"
    taken = sum(tensor.nbytes for tensor in data.tensors)
    if taken < data.nbytes:
        text = f"{format_size(taken)} in {len(data.tensors)} of {text}"
    others = ", ".join(f"{n} {dtype}" for dtype, n in data.left_out.items())
    return f"{text}{f'; not measured: {others}' if others else ''}"
