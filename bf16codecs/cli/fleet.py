"""The command `fleet`."""

from __future__ import annotations

import errno
import os
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bf16codecs._base.messages import counted
from bf16codecs._base.tables import Column, format_size, printable
from bf16codecs.cli.console import progress_bar, say, show, show_json
from bf16codecs.cli.convert import zarr_format_option
from bf16codecs.cli.options import (
    Command,
    command,
    conversion_options,
    dask_option,
    on_dask,
    target_option,
)
from bf16codecs.cli.runs import check_codec
from bf16codecs.cli.tables import Table
from bf16codecs.errors import ManyFilesWarning, StoreError
from bf16codecs.store.choice import CodecChoice

if TYPE_CHECKING:
    from bf16codecs.convert.fleet.plan import Conversion
    from bf16codecs.convert.fleet.running import ConversionResult

__all__ = ["fleet"]

_COLUMNS = (
    Column("store", is_text=True),
    Column("size", rank=2, least=8),
    Column("stored", rank=1, least=8),
    Column("ratio", least=5),
    Column("seconds", rank=3, least=7),
    Column("", is_text=True, least=9),
)
_STATES = {"there": "was there"}


@click.command(cls=Command)
@click.argument("paths", nargs=-1, required=True, metavar="SRC... DST")
@click.option(
    "--plan",
    "plan_file",
    metavar="FILE",
    help="Write the plan to FILE and stop: a line of CSV for each model, with its source, its store"
    " and its base.",
)
@click.option(
    "--find-bases",
    is_flag=True,
    help="Store models that come from one another, such as fine-tunes, as differences to one of"
    " them, which is found by a sample.",
)
@click.option(
    "--share",
    is_flag=True,
    help="Let chunks that several stores have be hard links to one file.",
)
@conversion_options(with_lossy=False)
@target_option
@zarr_format_option
@dask_option
@command
@on_dask
def fleet(
    paths: tuple[str, ...],
    plan_file: str | None,
    find_bases: bool,
    share: bool,
    lossy: str | None,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Convert all models in SRC, each to a Zarr store of its own in DST.

    SRC are models, or folders, which are searched for models; also in object stores. DST is a
    folder, or an address in an object store. A model llama/8b in SRC becomes DST/llama/8b.zarr.

    Stores that are complete stay: after an interruption, the same command does what is left. A
    model that fails does not end the others.

    `bf16codecs fleet PLAN.csv` does what a plan says, which --plan has written and you may have
    changed: names of stores, a base for a store, which may be another store of the plan, models to
    leave out.
    """
    from bf16codecs.convert.fleet.running import convert_fleet

    if lossy is not None:
        raise click.UsageError("lossy stores are made one by one: use st2zarr --lossy")
    if find_bases:
        check_codec(options, CodecChoice.check_difference)
    if plan_file is not None:
        _check_plan_file(plan_file, options["overwrite"])
    conversions = _planned(paths, find_bases, options)
    if plan_file is not None:
        _write_plan(conversions, plan_file, quiet)
        return
    if quiet:  # until the command ends
        warnings.simplefilter("ignore", ManyFilesWarning)
    options["zarr_format"] = int(options["zarr_format"])
    results, table = [], None
    if not (quiet or as_json):
        names = [[printable(each.store)] for each in conversions]
        table = Table(_COLUMNS, [[*name, *[""] * 5] for name in names])
    bar = _Bar(quiet)
    with closing(bar):
        for result in convert_fleet(conversions, share=share, progress=bar.update, **options):
            bar.close()
            results.append(result)
            if table is not None:
                table.row(_cells(result))
    if table is not None:
        table.end()
    place = {conversion: number for number, conversion in enumerate(conversions)}
    results.sort(key=lambda result: place[result.conversion])
    _report(results, quiet, as_json)


class _Bar:
    """A progress bar for one model after the other, between whose lines rows are printed."""

    def __init__(self, quiet: bool) -> None:
        self._quiet, self._shown = quiet, ExitStack()
        self._update: Callable[[str, int, int], None] | None = None

    def update(self, phase: str, done: int, total: int) -> None:
        """Show the progress of a model."""
        if self._update is None:
            self._update = self._shown.enter_context(progress_bar(self._quiet)) or _nothing
        self._update(phase, done, total)

    def close(self) -> None:
        """Remove the bar."""
        self._shown.close()
        self._update = None


def _nothing(phase: str, done: int, total: int) -> None:
    pass


def _check_plan_file(file: str, overwrite: bool) -> None:
    """Raise UsageError or FileExistsError if a plan cannot be written to a file."""
    if file == "-":
        return
    if not file.endswith(".csv"):
        raise click.UsageError(f"{file}: a plan is a file whose name ends in .csv")
    if os.path.lexists(file) and not overwrite:
        raise FileExistsError(errno.EEXIST, "File exists (--overwrite replaces it)", file)


def _write_plan(conversions: Sequence[Conversion], file: str, quiet: bool) -> None:
    from bf16codecs.convert.fleet.plan import check_plan, plan_text

    text = plan_text(conversions)
    if file == "-":
        show(text.removesuffix("\n"))
    else:
        # Names of files need not be UTF-8.
        Path(file).write_text(text, encoding="utf-8", errors="surrogateescape")
        if not quiet:
            say(f"{printable(file)}: {counted(len(conversions), 'model')}")
    check_plan(conversions)


def _planned(paths: Sequence[str], find_bases: bool, options: dict[str, Any]) -> list[Conversion]:
    """Find the models, or read a plan; take the base from the options of conversions."""
    from bf16codecs.convert.fleet.plan import parse_plan
    from bf16codecs.convert.fleet.planning import plan_fleet

    base = options.pop("base")
    if paths[0].endswith(".csv"):
        if len(paths) > 1:
            raise click.UsageError(
                f"{paths[0]} is a plan, which has the stores: leave out the rest"
            )
        if base is not None or find_bases:
            name = "--find-bases" if find_bases else "--base"
            raise click.UsageError(f"{name} goes with SRC: a plan has a base for each store")
        text = Path(paths[0]).read_text(encoding="utf-8", errors="surrogateescape")
        return parse_plan(text, paths[0])
    if len(paths) == 1:
        raise click.UsageError(f"Missing argument 'DST': where to make the stores of {paths[0]}.")
    *sources, target = paths
    storage_options = options["storage_options"]
    return plan_fleet(
        sources, target, base=base, find_bases=find_bases, storage_options=storage_options
    )


def _cells(result: ConversionResult) -> list[str]:
    name, state = printable(result.conversion.store), _STATES.get(result.state, result.state)
    if result.state == "failed":
        return [name, "", "", "", f"{result.seconds:.1f}", state]
    ratio = result.nbytes / max(1, result.stored_nbytes)
    sizes = [format_size(result.nbytes), format_size(result.stored_nbytes)]
    return [name, *sizes, f"{ratio:.3f}", f"{result.seconds:.1f}", state]


def _report(results: Sequence[ConversionResult], quiet: bool, as_json: bool) -> None:
    """Print a summary, and why models failed; raise StoreError if some have."""
    states = Counter(result.state for result in results)
    failed = [result for result in results if result.state == "failed"]
    nbytes, stored, shared = (
        sum(getattr(result, name) for result in results)
        for name in ("nbytes", "stored_nbytes", "shared_nbytes")
    )
    if as_json:
        numbers = {state: states[state] for state in ("converted", "there", "failed")}
        models = list(map(_json, results))
        show_json({"models": models, **numbers, "nbytes": nbytes, "stored_nbytes": stored})
    else:
        for result in failed:
            click.echo(printable(_why(result)), err=quiet)
    if not (quiet or as_json):
        others = [result for result in results if result.state == "there" and result.note]
        for result in others:
            say(printable(f"{result.conversion.store}: {result.note}"))
        parts = [f"{states['converted']} converted"]
        parts += [f"{states['there']} there before"] if states["there"] else []
        parts += [f"{len(failed)} failed"] if failed else []
        ratio = f" (ratio {nbytes / stored:.3f})" if stored else ""
        sizes = f"{format_size(nbytes)} -> {format_size(stored)}{ratio}"
        same = f", {format_size(shared)} of it in shared files" if shared else ""
        say(f"{counted(len(results), 'model')}: {', '.join(parts)}; {sizes}{same}")
    if failed:
        first = _why(failed[0])
        of_all = counted(len(results), "model")
        raise StoreError(f"{len(failed)} of {of_all} failed, the first: {first}")


def _json(result: ConversionResult) -> dict[str, Any]:
    entry = asdict(result)
    entry = {**entry.pop("conversion"), **entry}
    if result.state == "failed":
        entry |= {"nbytes": None, "stored_nbytes": None, "shared_nbytes": None}
    return {**entry, "base": result.conversion.base or None, "note": result.note or None}


def _why(result: ConversionResult) -> str:
    """Name a model that failed, and the reason, which may begin with its name."""
    source = result.conversion.source
    return f"{source}: {result.note.removeprefix(f'{source}: ')}"
