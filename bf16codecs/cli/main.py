"""The commands: parse, call, print."""

from __future__ import annotations

import functools
import importlib.resources
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import click

from bf16codecs._version import __version__
from bf16codecs.cli.bench import bench
from bf16codecs.cli.console import (
    format_rate,
    format_size,
    one_line,
    print_table,
    progress_bar,
)
from bf16codecs.cli.convert import h52st, plugin_path, st2h5
from bf16codecs.cli.demo import CODECS, measure
from bf16codecs.cli.options import (
    command,
    conversion_options,
    overwrite_option,
    quiet_option,
    report,
    threads_option,
)
from bf16codecs.convert.convert import (
    Summary,
    open_store,
    safetensors_to_zarr,
    verify_store,
    zarr_to_safetensors,
)
from bf16codecs.store.backend import read_headers, stored_arrays

__all__ = ["h52st", "main", "st2h5", "st2zarr", "zarr2st"]


@click.command()
@click.argument("src")
@click.argument("store")
@conversion_options
@click.option(
    "--zarr-format",
    type=click.Choice(["3", "2"]),
    default="3",
    show_default=True,
    help="Version of the Zarr format.",
)
@click.option(
    "--dask",
    metavar="ADDRESS",
    help="Convert on a dask cluster whose workers see SRC and STORE; --threads is per task.",
)
@command
def st2zarr(
    src: str,
    store: str,
    codec: str,
    level: str | None,
    chunk_size: int,
    threads: int | None,
    zarr_format: str,
    verify: bool,
    dask: str | None,
    overwrite: bool,
    quiet: bool,
) -> None:
    """Convert SRC to a Zarr store.

    SRC is a .safetensors file, a folder of shards, or a *.safetensors.index.json. STORE is a
    folder, or a ZIP file if its name ends in .zip.
    """
    convert = safetensors_to_zarr if dask is None else _convert_on(dask)
    with progress_bar(quiet) as progress:
        summary = convert(
            src,
            store,
            codec=codec,
            level=level,
            chunk_size=chunk_size,
            threads=threads,
            zarr_format=int(zarr_format),
            verify=verify,
            overwrite=overwrite,
            progress=progress,
        )
    if not quiet:
        report(src, store, summary, "verified" if verify else "")


def _convert_on(address: str) -> Callable[..., Summary]:
    try:
        from bf16codecs.dask import safetensors_to_zarr as convert
    except ImportError as e:
        raise ValueError(f"--dask needs dask: pip install 'bf16codecs[dask]' ({e})") from None
    return functools.partial(convert, client=address)


@click.command()
@click.argument("store")
@click.argument("dst")
@threads_option
@overwrite_option
@quiet_option
@command
def zarr2st(store: str, dst: str, threads: int | None, overwrite: bool, quiet: bool) -> None:
    """Restore the original safetensors file or files of STORE, byte for byte.

    DST is the file to make, or a folder if STORE holds several files or an index.
    """
    with progress_bar(quiet) as progress:
        summary = zarr_to_safetensors(
            store, dst, threads=threads, overwrite=overwrite, progress=progress
        )
    if not quiet:
        report(store, dst, summary, "restored")


@click.group()
@click.version_option(__version__, prog_name="bf16codecs")
def main() -> None:
    """Lossless compression of model weights in Zarr and HDF5."""


main.add_command(bench)
main.add_command(plugin_path)


@main.command()
@click.argument("store")
@command
def info(store: str) -> None:
    """List the tensors of STORE: shapes, dtypes, codecs, sizes, ratios."""
    rows = []
    raw = stored = 0
    with closing(open_store(store)) as reader:
        headers = read_headers(reader)
        tensors = [tensor for header in headers for tensor in header.tensors]
        for tensor, array in zip(tensors, stored_arrays(reader, headers), strict=True):
            size = reader.stored_nbytes(array.path)
            raw, stored = raw + tensor.nbytes, stored + size
            rows.append(
                (
                    tensor.name,
                    tensor.dtype,
                    "x".join(map(str, tensor.shape)) or "scalar",
                    reader.codec_name(array.path),
                    format_size(tensor.nbytes),
                    format_size(size),
                    f"{tensor.nbytes / max(1, size):.3f}",
                )
            )
        files = list(reader.info.files) + ([reader.info.index] if reader.info.index else [])
    total = (
        f"{len(rows)} tensors",
        "",
        "",
        "",
        format_size(raw),
        format_size(stored),
        f"{raw / max(1, stored):.3f}",
    )
    print_table(("tensor", "dtype", "shape", "codec", "size", "stored", "ratio"), rows, total)
    for file in files:
        click.echo(f"{one_line(file.name)}: {file.size} bytes, SHA-256 {one_line(file.sha256)}")


@main.command()
@click.argument("store")
@click.argument("src", required=False)
@threads_option
@quiet_option
@command
def verify(store: str, src: str | None, threads: int | None, quiet: bool) -> None:
    """Decode all of STORE, check every checksum, and compare with SRC if it is given."""
    with progress_bar(quiet) as progress:
        summary = verify_store(store, src, threads=threads, progress=progress)
    if not quiet:
        same = "" if src is None else f", identical to {one_line(src)}"
        click.echo(
            f"{one_line(store)}: {summary.tensors} tensors, {format_size(summary.nbytes)}, intact"
            f"{same}, {format_rate(summary.nbytes, summary.seconds)}"
        )


@main.command()
@command
def demo() -> None:
    """Take a small trained model through the whole round trip, with every codec."""
    resource = importlib.resources.files("bf16codecs") / "data" / "demo.safetensors"
    with importlib.resources.as_file(resource) as model, tempfile.TemporaryDirectory() as folder:
        size = model.stat().st_size
        click.echo(f"A language model of {size // 2} BF16 weights, {format_size(size)}")
        rows = []
        for name, level in CODECS:
            result = measure(model, Path(folder), name, level)
            rows.append(
                (
                    f"{name} {level or ''}".strip(),
                    format_size(result.stored_nbytes),
                    f"{result.bits:.2f}",
                    f"{16 / result.bits:.3f}",
                    format_rate(result.encode_rate, 1),
                    format_rate(result.decode_rate, 1),
                    "bit-exact" if result.exact else "DIFFERS",
                )
            )
    header = ("codec", "store", "bits/value", "ratio", "encode", "decode", "round trip")
    print_table(header, rows)
    if any(row[-1] != "bit-exact" for row in rows):
        raise ValueError("a round trip was not bit-exact")
