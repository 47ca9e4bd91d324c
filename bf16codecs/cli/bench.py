"""The `bench` command."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from bf16codecs import bench as benchmarks
from bf16codecs._messages import counted
from bf16codecs.bench.defaults import DEFAULT_NBYTES, SECONDS, SYSTEM_NBYTES, SYSTEM_TITLES
from bf16codecs.cli.console import format_size, say
from bf16codecs.cli.options import THREADS, ByteSize, command, report_option
from bf16codecs.cli.reports import check_writable, write_json, write_text
from bf16codecs.cli.tables import Column, Table, shortened

if TYPE_CHECKING:
    from bf16codecs.bench import Machine, Result, Sample, Study

__all__ = ["bench", "status_line"]

# With room for what is not known before a row is printed.
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


def _rate(gbps: float) -> str:
    """Return a rate with two digits at least: some contenders are a thousand times slower."""
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
        _rate(r.encode_gbps),
        f"{_rate(r.encode_gbps_min)}-{_rate(r.encode_gbps_max)}",
        f"{r.encode_to_memcpy:.3f}",
        _rate(r.decode_gbps),
        f"{_rate(r.decode_gbps_min)}-{_rate(r.decode_gbps_max)}",
        f"{r.decode_to_memcpy:.3f}",
        "" if r.peak_bytes is None else format_size(r.peak_bytes),
        _round_trip(r),
    )


@contextmanager
def status_line() -> Iterator[Callable[[str], None] | None]:
    """Yield a function that shows what is being measured, or None if not on a terminal.

    An empty name clears the line: something else is to be printed.
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


@click.command()
@click.argument("src")
@click.option(
    "--size",
    type=ByteSize(),
    help="Measure this much: copies of the tensors, or a part of them."
    "  [default: 256M, and less for slow codecs; with --system 32M]",
)
@click.option(
    "--repeats",
    type=click.IntRange(1),
    help="Rounds.  [default: 5, and down to 3 for slow codecs]",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0),
    default=SECONDS,
    show_default=True,
    help="Time that all codecs share, as far as --size and --repeats leave it open.",
)
@click.option(
    "--threads",
    type=THREADS,
    default=1,
    show_default=True,
    help="Threads; with --system, one as well.",
)
@click.option(
    "--only", multiple=True, help="Only codecs in whose name a word begins like this; repeatable."
)
@click.option(
    "--system",
    type=click.Choice(list(SYSTEM_TITLES), case_sensitive=False),
    help="Instead, measure an earlier system with its settings, and what it was compared with: "
    + "; ".join(f"{letter} {title}" for letter, title in SYSTEM_TITLES.items())
    + ".",
)
@click.option("--base", help="An earlier checkpoint: with --system D, differences to it too.")
@report_option("csv")
@report_option("json")
@command
def bench(
    src: str,
    size: int | None,
    repeats: int | None,
    seconds: float,
    threads: int,
    only: tuple[str, ...],
    system: str | None,
    base: str | None,
    csv_file: str | None,
    json_file: str | None,
) -> None:
    """Measure this package beside its installed peers, on the floating-point tensors of SRC.

    SRC is a safetensors model, or the word "gaussian" for synthetic data. Every codec encodes
    and decodes each tensor alone, in a process of its own, into warm buffers where it can. Rates
    are medians; ratios to memcpy are taken in the same round. With --system, a codec encodes the
    tensors as one piece.
    """
    files = {"csv": csv_file, "json": json_file}
    check_writable(files, (s for s in (src, base) if s is not None))
    if base is not None and system is None:
        raise click.UsageError("--base is for --system D")
    study, dtype, about = _prepared(src, size, threads, system, base)
    try:
        study = study.only(only)
    except ValueError as e:
        raise click.UsageError(str(e)) from None
    where = benchmarks.machine(threads)
    shows = "-" not in files.values()
    if shows:
        _show_host(where, threads)
        say(about)
    with status_line() as status:
        timing = {"repeats": repeats, "seconds": seconds}
        results = _measure(study, status, shows, **timing)
    figures = study.figures()
    if shows:
        for name, value in figures.items():
            say(f"{name}: {value}")
    if csv_file is not None:
        write_text(benchmarks.to_csv(results), csv_file)
    write_json(benchmarks.to_json(results, where, dtype, figures), json_file)
    if not all(result.exact for result in results):
        raise ValueError("a round trip gave other data")


def _prepared(
    src: str, size: int | None, threads: int, system: str | None, base: str | None
) -> tuple[Study, str, str]:
    """Return what is to be measured, the dtype, and what to say of the data."""
    if system is None:
        sample = benchmarks.sample_of(src, DEFAULT_NBYTES if size is None else size)
        study = benchmarks.study_codecs(sample, nbytes=size, threads=threads)
        return study, sample.dtype, _about(sample)
    nbytes = SYSTEM_NBYTES if size is None else size
    study, payload = benchmarks.study_system(system, src, base=base, nbytes=nbytes, threads=threads)
    about = f"{payload.dtype} tensors as one piece of {format_size(payload.data.nbytes)}"
    return study, payload.dtype, about


def _show_host(where: Machine, threads: int) -> None:
    say(
        f"{where.cpu}, {counted(where.cores, 'core')}, {where.isa},"
        f" {counted(threads, 'thread')}; {_listed(where.versions)}"
    )


def _measure(
    study: Study, status: Callable[[str], None] | None, shows: bool, **timing: Any
) -> list[Result]:
    """Measure all, and print a row for each that is done."""
    table = Table(_COLUMNS, [(name,) for name in study.names]) if shows else None
    results = []
    for result in study.results(progress=status, **timing):
        results.append(result)
        if table is not None:
            if status is not None:
                status("")
            table.row(_row(result))
    if table is not None:
        table.end()
        if len({result.nbytes for result in results}) > 1:
            say("Less data: of slow codecs, as many tensors as there is time for (--seconds).")
    return results


def _about(sample: Sample) -> str:
    """Say what is measured, and what is not."""
    size = format_size(sample.nbytes)
    text = f"{counted(sample.count, f'{sample.dtype} tensor')} of {size}"
    taken = sum(tensor.nbytes for tensor in sample.tensors)
    if taken < sample.nbytes:
        text = f"{format_size(taken)} in {len(sample.tensors)} of {text}"
    others = ", ".join(f"{n} {dtype}" for dtype, n in sample.left_out.items())
    return f"{text}{f'; not measured: {others}' if others else ''}"


def _listed(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
