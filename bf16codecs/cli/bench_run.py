"""The `bench-run` command."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from bf16codecs import bench as benchmarks
from bf16codecs._base.tables import Column, format_size
from bf16codecs.cli.bench_tables import status_line
from bf16codecs.cli.console import show
from bf16codecs.cli.options import THREADS, Command, WholeNumber, command, report_option
from bf16codecs.cli.reports import check_writable, write_json
from bf16codecs.cli.tables import Table

if TYPE_CHECKING:
    from bf16codecs.bench import RunResult, StepResult

__all__ = ["bench_run"]

_COLUMNS = [
    Column("step", least=5),
    Column("whole", least=6),
    Column("smallest"),
    Column("on", rank=3, least=5),
    Column("in the run"),
    Column("on", rank=3, least=5),
    Column("wrote", rank=2),
    Column("restored", rank=1),
    Column("from whole", rank=1),
]


def _row(step: StepResult) -> tuple[str, ...]:
    def bits(nbytes: int) -> str:
        return f"{8 * nbytes / max(1, step.items):.3f}"

    def name(number: int | None) -> str:
        return "" if number is None else str(number)

    return (
        str(step.number),
        bits(step.whole),
        bits(step.smallest),
        name(step.base),
        bits(step.grown),
        name(step.parent),
        "" if step.written is None else f"{step.written / max(1, step.in_run):.2f}",
        f"{step.step_seconds:.3f} s",
        f"{step.whole_seconds:.3f} s",
    )


def _summary(result: RunResult) -> list[str]:
    smallest = sum(step.smallest for step in result.steps)
    return [
        f"run: {format_size(result.nbytes)}, {result.nbytes / smallest:.4f} of the smallest stores'"
        " total",
        f"opening: {1e3 * result.open_seconds:.2f} ms the run,"
        f" {1e3 * result.open_model_seconds:.2f} ms the last step's store",
    ]


@click.command("bench-run", cls=Command)
@click.argument("checkpoints", nargs=-1, required=True, metavar="CHECKPOINT...")
@click.option(
    "--codec",
    type=click.Choice(["arithmetic", "huffman"]),
    default="arithmetic",
    show_default=True,
    help="Codec of the weights.",
)
@click.option("--level", type=click.Choice(["fast", "best"]), help="Level of arithmetic.")
@click.option(
    "--keyframe-every",
    type=WholeNumber(1),
    default=16,
    show_default=True,
    help="Steps from one that is coded whole to the next.",
)
@click.option("--hdf5", is_flag=True, help="HDF5 files instead of Zarr folders.")
@click.option("--repeats", type=WholeNumber(1), default=5, show_default=True, help="Rounds.")
@click.option("--threads", type=THREADS, default=1, show_default=True, help="Threads.")
@click.option("--folder", help="Folder for the stores, which are removed in the end.")
@report_option("json")
@command
def bench_run(
    checkpoints: tuple[str, ...],
    codec: str,
    level: str | None,
    keyframe_every: int,
    hdf5: bool,
    repeats: int,
    threads: int,
    folder: str | None,
    json_file: str | None,
) -> None:
    """Measure the sizes of CHECKPOINTs of one run, each alone, with a base, and as steps of a run.

    Sizes are in bits per value. "smallest" is the smallest of a whole store and of stores with an
    earlier step as base, which the next column names. "wrote" is what appending writes in relation
    to what the step takes in the run. Times are medians of restoring the step.
    """
    check_writable({"json": json_file}, checkpoints)
    options: dict[str, Any] = {"codec": codec, "level": level, "keyframe_every": keyframe_every}
    table: Table | None = None

    def show_step(step: StepResult) -> None:
        # The header waits for the first row: until then, an error may be all there is to print.
        nonlocal table
        if status is not None:
            status("")
        if table is None:
            table = Table(_COLUMNS, [])
        table.row(_row(step))

    with status_line() as status:
        result = benchmarks.measure_run(
            checkpoints,
            as_hdf5=hdf5,
            repeats=repeats,
            threads=threads,
            folder=folder,
            progress=status,
            done=None if json_file == "-" else show_step,
            **options,
        )
    if table is not None:
        table.end()
        for line in _summary(result):
            show(line)
    write_json({"machine": asdict(benchmarks.machine(threads)), **asdict(result)}, json_file)
