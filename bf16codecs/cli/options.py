"""Options that several commands share, and how commands exit after errors."""

from __future__ import annotations

import difflib
import functools
import json
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from typing import Any

import click
from click.core import ParameterSource

from bf16codecs import _core
from bf16codecs._base.arguments import named_as_options
from bf16codecs._base.interrupt import Interrupted, finished_before
from bf16codecs._base.messages import as_memory_error, system_text
from bf16codecs._base.names import DEFLATE_LEVELS, ZSTD_LEVELS
from bf16codecs._base.tables import printable
from bf16codecs._base.threads import MAX_THREADS
from bf16codecs._base.version import __version__
from bf16codecs.cli.console import prepare_streams
from bf16codecs.cli.signals import handled_signals, shown_warnings, silence_what_is_left
from bf16codecs.errors import BF16CodecsError
from bf16codecs.store.choice import (
    CODEC_NAMES,
    DEFAULT_CHUNK_SIZE,
    DEFAULT_CODEC,
    LEAST_CHUNK_SIZE,
    LOSSY_CODEC_NAMES,
    LOSSY_DTYPES,
    PLAIN_ZSTD,
    CodecChoice,
)
from bf16codecs.store.kinds import Kind, detect, suffix_of

__all__ = [
    "THREADS",
    "ByteSize",
    "Command",
    "WholeNumber",
    "add_options",
    "base_option",
    "command",
    "conversion_options",
    "dask_option",
    "drop_options",
    "is_given",
    "is_source",
    "is_store",
    "json_option",
    "max_bytes_option",
    "max_read_option",
    "on_dask",
    "overwrite_option",
    "paths_argument",
    "quiet_option",
    "report_option",
    "storage_option",
    "sync_option",
    "target_option",
    "threads_option",
    "version_option",
]


Decorator = Callable[[Callable[..., None]], Callable[..., None]]

_UNITS = " KMGT"
# Python refuses integers of thousands of digits; re.ASCII excludes the Kelvin sign as a K. A
# fraction requires a unit, since a fraction of a byte is a mistake.
_SIZE = re.compile(
    r"\s*(\d{1,20}(?:\.\d{1,20}(?=\s*[KMGT]))?)\s*(?:([KMGT])(?:i?B)?|B)?\s*",
    re.ASCII | re.IGNORECASE,
)


class ByteSize(click.ParamType):
    """A number of bytes: ``1000000``, ``32M``, ``1.5GiB``."""

    name = "size"

    def __init__(self, least: int = 1) -> None:
        self._least = least

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """Parse the option's text."""
        if isinstance(value, int):
            return value
        match = _SIZE.fullmatch(value)
        size = 0
        if match:  # exact, as a float is not; rounded down
            size = int(Fraction(match[1]) * 1024 ** _UNITS.index((match[2] or " ").upper()))
        if size == 0:
            self.fail(f"{value!r:.80} is not a size, such as 32M or 1.5G", param, ctx)
        if size < self._least:
            self.fail(f"{value!r:.80} is less than {self._least} bytes", param, ctx)
        return size


#: Errors that a user can cause. The last two may be a shortage of memory, or faults of the program.
_USERS_ERRORS = (OSError, ValueError, MemoryError, ImportError, RuntimeError, SystemError)


def _message(error: BaseException) -> str:
    if as_memory_error(error):
        return "not enough memory"
    if isinstance(error, OSError) and error.strerror:
        where = "" if error.filename is None else f"{error.filename}: "
        return f"{where}{system_text(error)}"
    return str(error)


@contextmanager
def _reported_errors() -> Iterator[None]:
    """Print one line and exit with the documented status after an error that a user can cause."""
    prepare_streams()
    program = click.get_current_context().command_path

    def say(text: str) -> None:
        # After SIGHUP, the terminal may have gone.
        with suppress(OSError):
            click.echo(f"{program}: {printable(text)}", err=True)

    finished: str | None = None
    try:
        with named_as_options(), handled_signals(), shown_warnings(say):
            try:
                yield
            finally:
                finished = finished_before()
    except Interrupted as e:
        silence_what_is_left()
        how = "interrupted" if e.number == signal.SIGINT else "terminated"
        say(how if finished is None else f"{how}, but {finished} is complete")
        sys.exit(128 + e.number)
    except KeyboardInterrupt:  # no handler was installed outside the main thread
        silence_what_is_left()
        say("interrupted")
        sys.exit(128 + signal.SIGINT)
    except (BF16CodecsError, *_USERS_ERRORS) as e:
        if as_memory_error(e):
            silence_what_is_left()
        elif isinstance(e, (RuntimeError, SystemError)) and not isinstance(e, BF16CodecsError):
            raise
        say(_message(e) if finished is None else f"{_message(e)}, but {finished} is complete")
        sys.exit(1)


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Make a command print one line and exit with the documented status after an error."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        with _reported_errors():
            function(*args, **kwargs)

    return wrapped


dask_option = click.option(
    "--dask",
    metavar="ADDRESS",
    help="Work on a dask cluster whose workers see the same paths and addresses; --threads is per"
    " task.",
)


def on_dask(function: Callable[..., None]) -> Callable[..., None]:
    """Run a command with `dask_option` on the cluster that it names, if any."""

    @functools.wraps(function)
    def wrapped(*args: Any, dask: str | None, **options: Any) -> None:
        if dask is None:
            function(*args, **options)
            return
        if options.get("lossy") is not None:
            raise click.UsageError("--lossy excludes --base and --dask")
        # dask takes as long to import as most commands take.
        from bf16codecs.dask import cluster

        # Its errors are raised as well, and one line is enough.
        logging.getLogger("distributed").setLevel(logging.CRITICAL)

        threads = options.get("threads")
        with cluster(dask, 1 if threads is None else threads):
            function(*args, **options)

    return wrapped


#: For the commands that are not subcommands of `bf16codecs`.
version_option = click.version_option(__version__, message="%(prog)s of bf16codecs %(version)s")


class WholeNumber(click.IntRange):
    """A whole number in a range; messages call it so, not an "integer range"."""

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """Parse the option's text."""
        try:
            int(value)
        except ValueError:
            self.fail(f"{value!r:.80} is not a whole number.", param, ctx)
        number: int = super().convert(value, param, ctx)
        return number


class Command(click.Command):
    """A command that suggests only options whose names are similar to the given one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse arguments and options."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as e:
            if e.option_name == "--step":
                text = "No such option '--step'. Name one step of a run as RUN@600."
                raise click.UsageError(text, ctx) from None
            # click suggests --sort for --tensor (ratio 0.67); --chunksize has 0.96.
            near = [
                name
                for name in e.possibilities or ()
                if difflib.SequenceMatcher(None, e.option_name, name).ratio() >= 0.75
            ]
            raise click.NoSuchOption(e.option_name, possibilities=near, ctx=ctx) from None


#: A number of threads.
THREADS = WholeNumber(1, MAX_THREADS)


def _parsed_options(ctx: click.Context, param: click.Parameter, text: str | None) -> Any:
    if text is None:
        return None
    try:
        options = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise click.BadParameter(f"not JSON: {e}") from None
    if not isinstance(options, dict):
        raise click.BadParameter('not a JSON object, such as {"anon": true}')
    return options


def is_store(path: str) -> bool:
    """Return whether a path is a model store."""
    try:
        return detect(path) in (Kind.FOLDER, Kind.ZIP, Kind.HDF5)
    except (OSError, ValueError):
        return False


def is_source(path: str) -> bool:
    """Return whether a path is a safetensors model."""
    try:
        return detect(path) is Kind.SAFETENSORS and os.path.exists(path)
    except (OSError, ValueError):
        return False


def add_options(*options: Decorator) -> Decorator:
    """Return a decorator that adds several options, in the order in which the help lists them."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def paths_argument(target: str) -> Decorator:
    """Add the argument `paths`: a tuple of the sources' paths, and the target's path.

    With two arguments, click would fill the second one first, and call the wrong one missing.
    """

    def split(
        ctx: click.Context, param: click.Parameter, paths: tuple[str, ...]
    ) -> tuple[tuple[str, ...], str]:
        if not paths:
            raise click.UsageError(f"Missing arguments 'SRC...' and '{target}'.")
        first, *_, last = paths[0], *paths
        makes_first = suffix_of(first)[1] not in (None, Kind.SAFETENSORS)
        if len(paths) == 1:
            if makes_first and not is_source(first):
                raise click.UsageError(f"Missing argument 'SRC...': what to convert to {first}.")
            raise click.UsageError(f"Missing argument '{target}': where to convert {first} to.")
        if is_source(last) or (suffix_of(last)[1] is Kind.SAFETENSORS and os.path.exists(last)):
            if makes_first and not is_source(first):
                raise click.UsageError(f"{last} is a source: put it before {first}.")
            raise click.UsageError(
                f"Missing argument '{target}': where to convert these to; the last one, {last},"
                " is a safetensors model."
            )
        return paths[:-1], last

    return click.argument("paths", nargs=-1, metavar=f"SRC... {target}", callback=split)


threads_option = click.option(
    "--threads", type=THREADS, help="Number of threads.  [default: all processors]"
)


def _max_bytes_option(of: str) -> Decorator:
    return click.option(
        "--max-bytes",
        type=ByteSize(),
        help=f"{of}, such as 100G.  [default: 1G, or 256 times the store's size]",
    )


max_bytes_option = _max_bytes_option("Largest size of the original files")
#: For commands that read parts of a store.
max_read_option = _max_bytes_option("The most bytes that one read may decode")
base_option = click.option(
    "--base",
    metavar="MODEL",
    help="Location of the store's base, if it is not where the store says.",
)
storage_option = click.option(
    "--storage-options",
    metavar="JSON",
    callback=_parsed_options,
    help="Options for the file system of an address, such as"
    """ '{"endpoint_url": "https://host"}'.""",
)
target_option = click.option(
    "--target-options",
    metavar="JSON",
    callback=_parsed_options,
    help="Options for the object store that STORE is in.  [default: --storage-options]",
)
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace an existing target.")
sync_option = click.option(
    "--sync/--no-sync",
    default=True,
    show_default=True,
    help="Flush everything to the disk before the target appears.",
)
quiet_option = click.option("--quiet", is_flag=True, help="Print nothing but errors.")


def report_option(kind: str) -> Decorator:
    """Add the option for the file of a report, which `reports.check_writable` checks."""
    return click.option(
        f"--{kind}",
        f"{kind}_file",
        metavar="FILE",
        help=f"Also write the table to this file, as {kind.upper()}; - prints only this.",
    )


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object instead of text."
)


def is_given(option: str) -> bool:
    """Return whether the user gave an option, so that its value is not the default."""
    source = click.get_current_context().get_parameter_source(option)
    return source is not ParameterSource.DEFAULT


def drop_options(options: dict[str, Any], names: Iterable[str], why: str) -> None:
    """Remove options that have no effect here, or refuse one that the user gave, and say why."""
    for name in names:
        if is_given(name):
            raise click.UsageError(f"--{name.replace('_', '-')} {why}")
        del options[name]


def _checked_level(ctx: click.Context, param: click.Parameter, level: str | None) -> str | None:
    try:
        with named_as_options():
            CodecChoice(ctx.params["codec"], level, ctx.params["lossy"])
    except ValueError as e:
        error = click.UsageError if level is None else click.BadParameter
        raise error(str(e)) from None
    return level


_new_base_options = (
    click.option(
        "--base",
        metavar="MODEL",
        help="Store differences to MODEL: a store of any kind, or safetensors; local, or at an"
        " address. auto:DIR takes the best of the models in DIR.",
    ),
    storage_option,
)


def _codec_options(with_lossy: bool) -> tuple[Decorator, ...]:
    """Return the options that choose the codec, its level, and lossy storage."""
    of_zarr = (PLAIN_ZSTD, *LOSSY_CODEC_NAMES) if with_lossy else ()
    names = dict.fromkeys((*CODEC_NAMES, *of_zarr))
    of_deflate = (
        f" {DEFLATE_LEVELS[0]} to {DEFLATE_LEVELS[-1]} for delta-deflate"
        f" (default: {DEFLATE_LEVELS[-1]});"
    )
    return (
        click.option(
            "--codec",
            type=click.Choice(list(names)),
            default=DEFAULT_CODEC,
            show_default=True,
            is_eager=True,  # the level is checked against it
            help="Codec of floating-point tensors"
            + (
                "; plain-zstd is for other Zarr libraries, delta-... for --lossy."
                if with_lossy
                else "."
            ),
        ),
        click.option(
            "--lossy",
            type=click.Choice(LOSSY_DTYPES),
            is_eager=True,  # so is the codec
            hidden=not with_lossy,  # commands without it name the one that makes lossy stores
            help="Store FP32 tensors in half precision: the original is not restored.",
        ),
        click.option(
            "--level",
            callback=_checked_level,
            help=f"{ZSTD_LEVELS[0]} to {ZSTD_LEVELS[-1]} for zstd (default: 3)"
            f"{' and plain-zstd' if with_lossy else ''};"
            f"{of_deflate if with_lossy else ''}"
            f" {' or '.join(_core.LEVELS)} for arithmetic (default: fast)."
            " best makes stores 1 % smaller. Converting a large model on a disk takes 1.25 times as"
            " long, and loading it takes no longer: coding, which demo measures, is only a part of"
            " both. Without vector instructions, best decodes at a third of the speed; readers that"
            " know only format version 1 refuse it.",
        ),
    )


def conversion_options(with_lossy: bool = True, with_base: bool = True) -> Decorator:
    """Add the options of conversions to any kind of store; some codecs are for Zarr alone."""
    return add_options(
        *_codec_options(with_lossy),
        click.option(
            "--chunk-size",
            type=ByteSize(LEAST_CHUNK_SIZE),
            default=DEFAULT_CHUNK_SIZE,
            help=f"Largest chunk, such as 32M.  [default: {DEFAULT_CHUNK_SIZE >> 20}M]",
        ),
        *(_new_base_options if with_base else ()),
        threads_option,
        click.option(
            "--sha256",
            is_flag=True,
            help="Store the SHA-256 of the files, which hubs list, in addition to their BLAKE3.",
        ),
        click.option(
            "--verify/--no-verify",
            default=True,
            show_default=True,
            help="Read the finished store again and compare.",
        ),
        overwrite_option,
        sync_option,
        quiet_option,
        json_option,
    )
