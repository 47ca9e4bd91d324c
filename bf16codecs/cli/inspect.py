"""The commands that look at stores: `info`, `verify`; and `plugin-path`."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import Any

import click

from bf16codecs._digests import Digests
from bf16codecs._half import HalfLoss
from bf16codecs._limits import Limits
from bf16codecs._messages import counted, named_errors
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
    lossy_line,
    max_bytes_option,
    quiet_option,
    threads_option,
)
from bf16codecs.convert import verify_store
from bf16codecs.store.backend import Storage, StoreReader
from bf16codecs.store.entries import ROUNDED, array_loss
from bf16codecs.store.opening import Opening, open_either
from bf16codecs.store.run_layout import listed
from bf16codecs.store.runs import RunReader
from bf16codecs.store.whole import stored_arrays

__all__ = ["info", "plugin_path", "verify"]


@click.command()
@click.argument("store")
@max_bytes_option
@command
def info(store: str, max_bytes: int | None) -> None:
    """List the tensors of STORE: shapes, dtypes, codecs, sizes, ratios."""
    with closing(open_either(store, Opening(limits=Limits(max_bytes), with_base=False))) as reader:
        if isinstance(reader, RunReader):
            _show_run(reader)
        else:
            _show_model(reader)


class _Table:
    """Rows about tensors, and what they have in common."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, ...]] = []
        self.codecs = Counter[str]()
        #: Of a lossy store: its largest absolute and relative errors.
        self.losses: list[tuple[str, str]] = []
        self.total_loss = ("", "")
        self.raw = self.stored = 0

    def add(self, *, name: str, dtype: str, shape: Any, nbytes: int, storage: Storage) -> None:
        """Add a tensor of a shape."""
        self.codecs[f"{storage.codec} {storage.level}".rstrip()] += 1
        self.raw, self.stored = self.raw + nbytes, self.stored + storage.nbytes
        text = "x".join(map(str, shape)) or "scalar"
        sizes = format_size(nbytes), format_size(storage.nbytes)
        ratio = f"{nbytes / max(1, storage.nbytes):.3f}"
        self.rows.append((name, dtype, text, storage.codec, *sizes, ratio))

    def show(self) -> None:
        """Print the table."""
        sizes = format_size(self.raw), format_size(self.stored)
        ratio = f"{self.raw / max(1, self.stored):.3f}"
        total: tuple[str, ...] = (counted(len(self.rows), "tensor"), "", "", "", *sizes, ratio)
        header: tuple[str, ...] = ("tensor", "dtype", "shape", "codec", "size", "stored", "ratio")
        rows = self.rows
        if self.losses:
            header += ("lossy: error", "relative")
            total += self.total_loss
            rows = [row + loss for row, loss in zip(rows, self.losses, strict=True)]
        print_table(header, rows, total)
        # Not in the table, which is too wide for many terminals as it is.
        names = (f"{printable(c)} ({counted(n, 'tensor')})" for c, n in self.codecs.items())
        if self.codecs:
            show(f"codecs: {', '.join(names)}")


def _show_model(reader: StoreReader) -> None:
    table, seen = _Table(), set[str]()
    headers = reader.headers
    tensors = [tensor for header in headers for tensor in header.tensors]
    for tensor, array in zip(tensors, stored_arrays(reader, headers), strict=True):
        storage = reader.storage(array.path)
        if array.path in seen:
            storage = Storage(0, "shared", "")
        seen.add(array.path)
        table.add(
            name=tensor.name,
            dtype=tensor.dtype,
            shape=tensor.shape,
            nbytes=tensor.nbytes,
            storage=storage,
        )
        if reader.info.loss is not None:
            table.losses.append(_errors(_loss_of(reader, array.path)))
    table.total_loss = _errors(reader.info.loss)
    table.show()
    if reader.info.loss is not None:
        show(lossy_line(reader.info.loss))
    base = reader.info.base
    if base is not None:
        show(f"base: {printable(base.place)}")
        for own in base.files:
            name = f" {own.name}" if len(base.files) > 1 else ""
            for label, digest in own.digests.labelled().items():
                show(printable(f"base {label}: {digest}{name}"))
    for file in [*reader.info.files, *([reader.info.index] if reader.info.index else [])]:
        show(printable(f"{file.name}: {file.size} bytes, {_told(file.restored)}"))
        if file.restored_digests is not None:
            show(printable(f"  not that of the original, {_told(file.digests)}"))


def _told(digests: Digests) -> str:
    return ", ".join(f"{label} {digest}" for label, digest in digests.labelled().items())


def _loss_of(reader: StoreReader, path: str) -> HalfLoss | None:
    """Return what the tensors of an array lost, if they are not its roundings."""
    if path.endswith(ROUNDED):
        return None
    with named_errors(reader.label(path)):
        return array_loss(reader.attributes(path))


def _errors(loss: HalfLoss | None) -> tuple[str, str]:
    """Return the largest absolute and relative error as text."""
    return ("", "") if loss is None else (f"{loss.absolute:.4g}", f"{loss.relative:.4g}")


def _show_run(run: RunReader) -> None:
    """Print the tensors of a run, each with what its steps take together."""
    table, seen = _Table(), set[str]()
    for name in run.names:
        own = run.describe(name)
        stored = [
            Storage(0, "shared", "") if path in seen else run.storage(path) for path in own.paths
        ]
        seen.update(own.paths)
        table.add(
            name=name,
            dtype=own.dtype,
            shape=own.shape,
            nbytes=own.nbytes,
            storage=Storage(sum(s.nbytes for s in stored), stored[-1].codec, stored[-1].level),
        )
    table.show()
    numbers = run.run.numbers
    show(f"steps: {listed(numbers)}; groups of {run.run.group}")


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
        if src is not None and summary.loss is not None:
            same = f", identical to {printable(src)} in half precision"
        show(
            f"{printable(store)}: {counted(summary.tensors, 'tensor')},"
            f" {format_size(summary.nbytes)}, intact{same},"
            f" {format_rate(summary.nbytes, summary.seconds)}"
        )
        if summary.loss is not None:
            show(lossy_line(summary.loss))


@click.command()
@command
def plugin_path() -> None:
    """Print the folder of the HDF5 plugin, for HDF5_PLUGIN_PATH."""
    from bf16codecs.hdf5.filters import PLUGIN_PATH

    show(PLUGIN_PATH)
