"""The commands that look at stores: `info`, `verify`; and `plugin-path`."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import Any

import click

from bf16codecs._limits import Limits
from bf16codecs._messages import counted
from bf16codecs.cli.console import (
    format_rate,
    format_size,
    print_table,
    printable,
    progress_bar,
    show,
)
from bf16codecs.cli.options import (
    base_option,
    command,
    max_bytes_option,
    quiet_option,
    threads_option,
)
from bf16codecs.convert import verify_store
from bf16codecs.store.backend import stored_arrays
from bf16codecs.store.opening import Opening, open_store

__all__ = ["info", "plugin_path", "verify"]


@click.command()
@click.argument("store")
@max_bytes_option
@command
def info(store: str, max_bytes: int | None) -> None:
    """List the tensors of STORE: shapes, dtypes, codecs, sizes, ratios."""
    rows, codecs = [], Counter[str]()
    raw = stored = 0
    opening = Opening(limits=Limits(max_bytes), with_base=False)
    with closing(open_store(store, opening=opening)) as reader:
        headers = reader.headers
        tensors = [tensor for header in headers for tensor in header.tensors]
        for tensor, array in zip(tensors, stored_arrays(reader, headers), strict=True):
            size, codec, level = reader.storage(array.path)
            codecs[f"{codec} {level}".rstrip()] += 1
            raw, stored = raw + tensor.nbytes, stored + size
            rows.append(
                (
                    tensor.name,
                    tensor.dtype,
                    "x".join(map(str, tensor.shape)) or "scalar",
                    codec,
                    format_size(tensor.nbytes),
                    format_size(size),
                    f"{tensor.nbytes / max(1, size):.3f}",
                )
            )
        base = reader.info.base
        files = list(reader.info.files) + ([reader.info.index] if reader.info.index else [])
    total = (
        counted(len(rows), "tensor"),
        "",
        "",
        "",
        format_size(raw),
        format_size(stored),
        f"{raw / max(1, stored):.3f}",
    )
    print_table(("tensor", "dtype", "shape", "codec", "size", "stored", "ratio"), rows, total)
    # Not in the table, which is too wide for many terminals as it is.
    names = (f"{printable(name)} ({counted(n, 'tensor')})" for name, n in codecs.items())
    if codecs:
        show(f"codecs: {', '.join(names)}")
    if base is not None:
        step = "" if base.step is None else f", step {base.step}"
        show(f"base: {printable(base.path)}{step}")
    for file in files:
        show(f"{printable(file.name)}: {file.size} bytes, SHA-256 {printable(file.sha256)}")


@click.command()
@click.argument("store")
@click.argument("src", required=False)
@base_option
@threads_option
@max_bytes_option
@quiet_option
@command
def verify(store: str, src: str | None, quiet: bool, **options: Any) -> None:
    """Decode all of STORE, check every checksum, and compare with SRC if it is given."""
    with progress_bar(quiet) as progress:
        summary = verify_store(store, src, progress=progress, **options)
    if not quiet:
        same = "" if src is None else f", identical to {printable(src)}"
        show(
            f"{printable(store)}: {counted(summary.tensors, 'tensor')},"
            f" {format_size(summary.nbytes)}, intact{same},"
            f" {format_rate(summary.nbytes, summary.seconds)}"
        )


@click.command()
@command
def plugin_path() -> None:
    """Print the folder of the HDF5 plugin, for HDF5_PLUGIN_PATH."""
    from bf16codecs.hdf5.filters import PLUGIN_PATH

    show(PLUGIN_PATH)
