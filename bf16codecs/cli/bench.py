"""The `bench` command."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from bf16codecs._messages import counted
from bf16codecs._paths import require_folder_of
from bf16codecs.bench import Result, machine, run, tensors_of, to_csv, to_json
from bf16codecs.cli.console import format_size, print_table, show
from bf16codecs.cli.options import THREADS, ByteSize, command

__all__ = ["bench"]

_HEADER = (
    "codec",
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


def _row(r: Result) -> Sequence[str]:
    return (
        r.name,
        f"{r.ratio:.3f}",
        f"{r.bits_per_value:.3f}",
        f"{r.encode_gbps:.2f}",
        f"{r.encode_gbps_min:.2f}-{r.encode_gbps_max:.2f}",
        f"{r.encode_to_memcpy:.3f}",
        f"{r.decode_gbps:.2f}",
        f"{r.decode_gbps_min:.2f}-{r.decode_gbps_max:.2f}",
        f"{r.decode_to_memcpy:.3f}",
        "" if r.peak_bytes is None else format_size(r.peak_bytes),
        "bit-exact" if r.exact else "DIFFERS",
    )


@contextmanager
def _status_line() -> Iterator[Callable[[str], None] | None]:
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
    default=1 << 28,
    help="Repeat the tensors until they take this much.  [default: 256M]",
)
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True, help="Rounds.")
@click.option("--threads", type=THREADS, default=1, show_default=True, help="Threads.")
@click.option("--only", multiple=True, help="Only codecs with this in their name; repeatable.")
@click.option("--csv", "csv_file", help="Also write the table to this file, as CSV.")
@click.option("--json", "json_file", help="Also write the table to this file, as JSON.")
@command
def bench(
    src: str,
    size: int,
    repeats: int,
    threads: int,
    only: tuple[str, ...],
    csv_file: str | None,
    json_file: str | None,
) -> None:
    """Measure this package beside its installed peers, on the BF16 tensors of SRC.

    SRC is a safetensors model, or the word "gaussian" for synthetic data. Every codec encodes
    and decodes each tensor alone, into warm buffers where it can. Rates are medians; ratios to
    memcpy are taken in the same round.
    """
    for path in (csv_file, json_file):
        if path is not None:
            require_folder_of(Path(path))
    tensors, where = tensors_of(src), machine(threads)
    with _status_line() as status:
        results = run(
            tensors,
            nbytes=size,
            repeats=repeats,
            threads=threads,
            names=only or None,
            progress=status,
        )
    versions = ", ".join(f"{name} {version}" for name, version in where.versions.items())
    show(
        f"{where.cpu}, {counted(where.cores, 'core')}, {where.isa},"
        f" {counted(threads, 'thread')}; {versions}"
    )
    show(
        f"{counted(len(tensors), 'tensor')} of {format_size(sum(t.nbytes for t in tensors))},"
        f" copied to {format_size(results[0].nbytes)}, {counted(repeats, 'round')}"
    )
    print_table(_HEADER, [_row(result) for result in results])
    if csv_file is not None:
        Path(csv_file).write_text(to_csv(results), encoding="utf-8")
    if json_file is not None:
        Path(json_file).write_text(to_json(results, where), encoding="utf-8")
    if not all(result.exact for result in results):
        raise ValueError("a round trip was not bit-exact")
