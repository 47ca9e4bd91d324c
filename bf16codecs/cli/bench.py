"""The `bench` command."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from bf16codecs._messages import counted
from bf16codecs._paths import require_folder_of
from bf16codecs.bench import (
    SYSTEMS,
    Result,
    machine,
    run,
    run_system,
    tensors_of,
    to_csv,
    to_json,
)
from bf16codecs.cli.console import format_size, show
from bf16codecs.cli.options import THREADS, ByteSize, command
from bf16codecs.cli.tables import Column, print_table

__all__ = ["bench", "status_line"]

_COLUMNS = [
    Column(t)
    for t in (
        "codec",
        "threads",
        "size",
        "ratio",
        "bits/value",
        "encode GB/s",
        "spread",
        "to memcpy",
        "decode GB/s",
        "spread",
        "to memcpy",
        "peak memory",
        "round trip",
    )
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
        format_size(r.encoded_nbytes),
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
    """Yield a function that shows what is being measured, or None if not on a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    yield lambda name: click.echo(f"\r\x1b[K{name} ...", nl=False, err=True)
    click.echo("\r\x1b[K", nl=False, err=True)


@click.command()
@click.argument("src")
@click.option(
    "--size",
    type=ByteSize(),
    help="Repeat the tensors until they take this much; with --system, leave out what is beyond it."
    "  [default: 256M; with --system 32M]",
)
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True, help="Rounds.")
@click.option(
    "--threads",
    type=THREADS,
    default=1,
    show_default=True,
    help="Threads; with --system, one as well.",
)
@click.option("--only", multiple=True, help="Only codecs with this in their name; repeatable.")
@click.option(
    "--system",
    type=click.Choice(list(SYSTEMS), case_sensitive=False),
    help="Instead, measure an earlier system with its settings, and what it was compared with: "
    + "; ".join(f"{letter} {system.title}" for letter, system in SYSTEMS.items())
    + ".",
)
@click.option("--base", help="An earlier checkpoint: with --system D, differences to it too.")
@click.option("--csv", "csv_file", help="Also write the table to this file, as CSV.")
@click.option("--json", "json_file", help="Also write the table to this file, as JSON.")
@command
def bench(
    src: str,
    size: int | None,
    repeats: int,
    threads: int,
    only: tuple[str, ...],
    system: str | None,
    base: str | None,
    csv_file: str | None,
    json_file: str | None,
) -> None:
    """Measure this package beside its installed peers, on the BF16 tensors of SRC.

    SRC is a safetensors model, or the word "gaussian" for synthetic data. Every codec encodes
    and decodes each tensor alone, into warm buffers where it can. Rates are medians; ratios to
    memcpy are taken in the same round. With --system, a codec encodes the tensors as one piece.
    """
    for path in (csv_file, json_file):
        if path is not None:
            require_folder_of(Path(path))
    if base is not None and system is None:
        raise click.UsageError("--base is for --system D")
    where, figures = machine(threads), {}
    how: dict[str, Any] = {"repeats": repeats, "threads": threads, "names": only or None}
    with status_line() as status:
        how["progress"] = status
        if system is None:
            tensors = tensors_of(src)
            results = run(tensors, nbytes=size or 1 << 28, **how)
            nbytes = format_size(sum(t.nbytes for t in tensors))
            data = f"{counted(len(tensors), 'tensor')} of {nbytes}, copied to"
        else:
            study = run_system(system, src, base=base, nbytes=size or 1 << 25, **how)
            results, figures = study.results, study.figures
            data = f"{study.payload.dtype} tensors as one piece of"
    versions = ", ".join(f"{name} {version}" for name, version in where.versions.items())
    show(
        f"{where.cpu}, {counted(where.cores, 'core')}, {where.isa},"
        f" {counted(threads, 'thread')}; {versions}"
    )
    show(f"{data} {format_size(results[0].nbytes)}, {counted(repeats, 'round')}")
    print_table(_COLUMNS, [_row(result) for result in results])
    for name, value in figures.items():
        show(f"{name}: {value}")
    if csv_file is not None:
        Path(csv_file).write_text(to_csv(results), encoding="utf-8")
    if json_file is not None:
        Path(json_file).write_text(to_json(results, where, figures), encoding="utf-8")
    if not all(result.exact for result in results):
        raise ValueError("a round trip gave other data")
