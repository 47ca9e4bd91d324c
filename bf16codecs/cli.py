"""The commands: parse, call, print."""

from __future__ import annotations

import errno
import functools
import importlib.resources
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import click

from bf16codecs._console import (
    format_rate,
    format_size,
    one_line,
    print_table,
    progress_bar,
)
from bf16codecs._demo import CODECS, measure
from bf16codecs._version import __version__
from bf16codecs._zarr_reader import ZarrReader
from bf16codecs.convert import (
    DEFAULT_CHUNK_SIZE,
    DEFAULT_CODEC,
    Summary,
    safetensors_to_zarr,
    verify_store,
    zarr_to_safetensors,
)
from bf16codecs.store import CodecChoice, read_headers, stored_arrays

__all__ = ["main", "st2zarr", "zarr2st"]


class _Terminated(BaseException):
    """SIGTERM, as an exception: so what is half written is removed."""


class ByteSize(click.ParamType):
    """A number of bytes: ``1000000``, ``32M``, ``32MiB``."""

    name = "size"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """Parse the option's text."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"\s*(\d+)\s*(?:([KMG])(?:i?B)?|B)?\s*", value, re.IGNORECASE)
        if not match or int(match[1]) == 0:
            self.fail(f"{value!r} is not a size, such as 32M", param, ctx)
        return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[(match[2] or "").upper()]


def _message(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "not enough memory"
    if isinstance(error, OSError) and error.strerror:
        where = "" if error.filename is None else f"{error.filename}: "
        return one_line(f"{where}{error.strerror}")
    return one_line(error)


@contextmanager
def _reported_errors() -> Iterator[None]:
    """End with one line and the right status after anything that a user can cause."""

    def terminate(number: int, frame: object) -> None:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    program = click.get_current_context().command_path
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"{program}: interrupted", err=True)
        sys.exit(128 + signal.SIGINT)
    except _Terminated:
        click.echo(f"{program}: terminated", err=True)
        sys.exit(128 + signal.SIGTERM)
    except (OSError, ValueError, MemoryError) as e:
        if isinstance(e, OSError) and e.errno == errno.EPIPE:
            raise  # click ends quietly: whoever read our output has had enough
        click.echo(f"{program}: {_message(e)}", err=True)
        sys.exit(1)
    finally:
        signal.signal(signal.SIGTERM, before)


def _command(function: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        with _reported_errors():
            function(*args, **kwargs)

    return wrapped


_threads = click.option(
    "--threads", type=click.IntRange(1), help="Threads to use.  [default: all processors]"
)
_overwrite = click.option("--overwrite", is_flag=True, help="Replace an existing target.")
_quiet = click.option("--quiet", is_flag=True, help="Print nothing but errors.")


def _report(source: str, target: str, summary: Summary, note: str = "") -> None:
    ratio = summary.nbytes / max(1, summary.stored_nbytes)
    sizes = [format_size(summary.nbytes), format_size(summary.stored_nbytes)]
    if note == "restored":
        sizes.reverse()
    click.echo(
        f"{one_line(source)} -> {one_line(target)}: {summary.tensors} tensors,"
        f" {sizes[0]} -> {sizes[1]} (ratio {ratio:.3f}),"
        f" {format_rate(summary.nbytes, summary.seconds)}{', ' if note else ''}{note}"
    )


@click.command()
@click.argument("src")
@click.argument("store")
@click.option(
    "--codec",
    type=click.Choice(["huffman", "arithmetic", "zstd", "split", "none"]),
    default=DEFAULT_CODEC,
    show_default=True,
    help="Codec of floating-point tensors.",
)
@click.option("--level", help="1 to 22 for zstd; fast or best for arithmetic.")
@click.option(
    "--chunk-size",
    type=ByteSize(),
    default=DEFAULT_CHUNK_SIZE,
    help=f"Largest chunk, such as 32M.  [default: {DEFAULT_CHUNK_SIZE >> 20}M]",
)
@_threads
@click.option(
    "--zarr-format",
    type=click.Choice(["3", "2"]),
    default="3",
    show_default=True,
    help="Version of the Zarr format.",
)
@click.option(
    "--verify/--no-verify",
    default=True,
    show_default=True,
    help="Read the finished store again and compare.",
)
@_overwrite
@_quiet
@_command
def st2zarr(
    src: str,
    store: str,
    codec: str,
    level: str | None,
    chunk_size: int,
    threads: int | None,
    zarr_format: str,
    verify: bool,
    overwrite: bool,
    quiet: bool,
) -> None:
    """Convert SRC to a Zarr store.

    SRC is a .safetensors file, a folder of shards, or a *.safetensors.index.json. STORE is a
    folder, or a ZIP file if its name ends in .zip.
    """
    try:
        CodecChoice(codec, level)
    except ValueError as e:
        raise click.BadParameter(str(e), param_hint="--level") from None
    with progress_bar(quiet) as progress:
        summary = safetensors_to_zarr(
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
        _report(src, store, summary, "verified" if verify else "")


@click.command()
@click.argument("store")
@click.argument("dst")
@_threads
@_overwrite
@_quiet
@_command
def zarr2st(store: str, dst: str, threads: int | None, overwrite: bool, quiet: bool) -> None:
    """Restore the original safetensors file(s) of STORE, byte for byte.

    DST is the file to make, or the folder if STORE holds several files.
    """
    with progress_bar(quiet) as progress:
        summary = zarr_to_safetensors(
            store, dst, threads=threads, overwrite=overwrite, progress=progress
        )
    if not quiet:
        _report(store, dst, summary, "restored")


@click.group()
@click.version_option(__version__, prog_name="bf16codecs")
def main() -> None:
    """Lossless compression of model weights in Zarr and HDF5."""


@main.command()
@click.argument("store")
@_command
def info(store: str) -> None:
    """List the tensors of STORE: shapes, dtypes, codecs, sizes, ratios."""
    rows = []
    raw = stored = 0
    with closing(ZarrReader(store)) as reader:
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
@_threads
@_quiet
@_command
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
@_command
def demo() -> None:
    """Take a small real model through the whole round trip, with every codec."""
    resource = importlib.resources.files("bf16codecs") / "data" / "demo.safetensors"
    with importlib.resources.as_file(resource) as model, tempfile.TemporaryDirectory() as folder:
        size = model.stat().st_size
        click.echo(f"A language model of {size // 2} BF16 weights, {format_size(size)}, and back")
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
