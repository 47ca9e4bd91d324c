"""The `bench` command."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from bf16codecs import bench as benchmarks
from bf16codecs.bench.defaults import ALL_SECONDS, QUICK_SECONDS, SECONDS, SYSTEM_TITLES
from bf16codecs.cli.bench_gpu import DEVICE, bench_gpu
from bf16codecs.cli.bench_tables import measure_study, show_host, show_notes, title_of
from bf16codecs.cli.options import (
    THREADS,
    ByteSize,
    Command,
    WholeNumber,
    command,
    is_given,
    report_option,
)
from bf16codecs.cli.reports import check_writable, load_plots, write_json, write_text

if TYPE_CHECKING:
    from bf16codecs.bench import Measured

__all__ = ["bench"]

_ALL = "all"
# Options without effect on a GPU.
_OF_HOST = ("seconds", "threads", "systems", "base", "plot_file")


@click.command(cls=Command)
@click.argument("src", required=False, metavar="[SRC]")
@click.option(
    "--size",
    type=ByteSize(),
    help="Measure this much: copies of the tensors, or a part of them."
    "  [default: 256M, 32M for systems, and less for slow codecs]",
)
@click.option(
    "--repeats",
    type=WholeNumber(1),
    help="Rounds.  [default: 5, at least 3 for slow codecs]",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0),
    help="Time that all codecs share, unless --size and --repeats fix it."
    f"  [default: {SECONDS:.0f}, for several tables {ALL_SECONDS:.0f},"
    f" with --quick {QUICK_SECONDS:.0f}]",
)
@click.option(
    "--quick", is_flag=True, help="A small part of the data, and no codecs that take minutes."
)
@click.option(
    "--threads",
    type=THREADS,
    default=1,
    show_default=True,
    help="Threads; with --system, one thread is measured as well.",
)
@click.option(
    "--only",
    multiple=True,
    help="Only codecs with a word in their name that begins so; repeatable.",
)
@click.option(
    "--system",
    "systems",
    type=click.Choice([*SYSTEM_TITLES, _ALL], case_sensitive=False),
    multiple=True,
    help="Instead, measure an earlier system with its settings, and its published competitors,"
    " repeatable: "
    + "; ".join(f"{letter} {title}" for letter, title in SYSTEM_TITLES.items())
    + f"; {_ALL}: codecs and peers, and then all four, a table each.",
)
@click.option(
    "--device",
    type=DEVICE,
    help="Instead, decode on this GPU, cuda or cuda:N, and compare with copies in its memory and"
    " to it; SRC is then gaussian by default.",
)
@click.option("--base", help="An earlier checkpoint: system D measures differences to it as well.")
@report_option("csv")
@report_option("json")
@click.option(
    "--plot",
    "plot_file",
    metavar="FILE",
    help="Also draw ratio against speed to this file: .png, .svg, .pdf or another picture.",
)
@command
def bench(
    src: str | None,
    size: int | None,
    repeats: int | None,
    seconds: float | None,
    quick: bool,
    threads: int,
    only: tuple[str, ...],
    systems: tuple[str, ...],
    device: int | None,
    base: str | None,
    csv_file: str | None,
    json_file: str | None,
    plot_file: str | None,
) -> None:
    """Measure this package and its installed peers on the floating-point tensors of SRC.

    SRC is a model of any kind, or names synthetic data: gaussian; weights that were quantised once
    (fp8-tiles, fp8-tiles-pow2, fp8-rows, fp8-tensor, fp8-e5m2-rows, int8-rows, int8-columns,
    int8-g128, int8-zero-points, int6-g16, int5-g32, int4-g128, int4-g32, int4-zero-points,
    int3-g128, q4-k, q5-k, q2-k, hqq-g64, nf4, mxfp4, nvfp4, ternary); or pruned ones (pruned-50,
    pruned-90, pruned-2-4).

    Every codec encodes and decodes each tensor alone, in
    a process of its own, into warm buffers if it supports that. Rates are medians; ratios to memcpy
    are taken in the same round. With --system, a codec encodes the tensors as one piece.
    """
    src = _source(src, device)
    files = {"csv": csv_file, "json": json_file, "plot": plot_file}
    check_writable(files, (s for s in (src, base) if s is not None))
    if device is not None:
        reports = {"csv_file": csv_file, "json_file": json_file}
        bench_gpu(src, device, size=size, repeats=repeats, quick=quick, only=only, **reports)
        return
    if plot_file is not None:
        _check_plot(plot_file)
    if base is not None and not systems:
        raise click.UsageError("--base requires --system D")
    wanted = _wanted(systems)
    plan = benchmarks.plan_of(src, wanted, base=base, nbytes=size, threads=threads, quick=quick)
    try:
        plan = plan.only(only)
    except ValueError as e:
        raise click.UsageError(str(e)) from None
    where = benchmarks.machine(threads)
    shows = "-" not in files.values()
    if shows:
        show_host(where, threads)
    if seconds is None:
        seconds = QUICK_SECONDS if quick else ALL_SECONDS if len(plan.studies) > 1 else SECONDS
    is_alone = len(wanted) == 1
    tables = [
        measure_study(planned, shows=shows, is_alone=is_alone, repeats=repeats, seconds=share)
        for planned, share in plan.timed(seconds)
    ]
    if shows:
        show_notes(tables, plan)
    if csv_file is not None:
        write_text(benchmarks.to_csv(tables), csv_file)
    write_json(benchmarks.to_json(tables, plan, where), json_file)
    if plot_file is not None:
        _draw(tables, plot_file)
    _refuse_failures(tables)


def _source(src: str | None, device: int | None) -> str:
    """Return the model to measure, and refuse options that have no effect on the device."""
    if device is None:
        if src is None:
            raise click.UsageError("Missing argument 'SRC'.")
        return src
    for name in _OF_HOST:
        if is_given(name):
            option = {"systems": "system", "plot_file": "plot"}.get(name, name)
            raise click.UsageError(f"--{option} does not go with --device")
    return src or benchmarks.GAUSSIAN


def _wanted(systems: Sequence[str]) -> list[str | None]:
    """Return the systems to measure; None stands for the codecs and their peers."""
    if not systems or _ALL in systems:
        return [None, *(SYSTEM_TITLES if systems else [])]
    return list(systems)


def _format_of(file: str) -> str:
    return os.path.splitext(file)[1][1:].lower()


def _check_plot(file: str) -> None:
    """Refuse a picture that cannot be drawn, before minutes of measurement."""
    plots = load_plots()
    if _format_of(file) not in plots.FORMATS:
        formats = ", ".join(f".{name}" for name in plots.FORMATS)
        raise ValueError(f"{file}: --plot takes a picture: name one that ends in one of {formats}")


def _draw(tables: Sequence[Measured], file: str) -> None:
    """Draw ratio against speed, a row of pictures for each table."""
    from bf16codecs.analysis import plots

    with plots.style("light"):
        figure = plots.ratios_and_speeds(
            {title_of(table.planned.system): table.rows() for table in tables if table.results}
        )
        plots.save(figure.axes[0], file, _format_of(file))


def _refuse_failures(tables: Sequence[Measured]) -> None:
    """Raise if a round trip was not exact, or a codec failed."""
    if not all(result.exact for table in tables for result in table.results):
        raise ValueError("a round trip returned wrong data")
    failed = [failure.name for table in tables for failure in table.failures]
    if failed:
        raise ValueError(f"not measured because they failed: {', '.join(failed)}")
