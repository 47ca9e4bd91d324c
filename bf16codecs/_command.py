"""What all commands share: options, and how they end when something goes wrong."""

from __future__ import annotations

import errno
import functools
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from bf16codecs._console import one_line

__all__ = ["ByteSize", "command", "overwrite_option", "quiet_option", "threads_option"]


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


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Let a command end with one line and the right status, whatever happens."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        with _reported_errors():
            function(*args, **kwargs)

    return wrapped


threads_option = click.option(
    "--threads", type=click.IntRange(1), help="Threads to use.  [default: all processors]"
)
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace an existing target.")
quiet_option = click.option("--quiet", is_flag=True, help="Print nothing but errors.")
