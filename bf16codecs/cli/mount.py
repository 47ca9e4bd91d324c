"""The `mount` command."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from bf16codecs._base.limits import CACHE_BYTES, LEAST_CACHE
from bf16codecs._base.paths import absolute, given_path
from bf16codecs._base.tables import printable
from bf16codecs.cli.console import say
from bf16codecs.cli.options import (
    ByteSize,
    Command,
    base_option,
    command,
    max_read_option,
    storage_option,
    threads_option,
)
from bf16codecs.errors import MountError
from bf16codecs.store.kinds import path_of

__all__ = ["mount"]


@click.command(cls=Command)
@click.argument("source", metavar="STORE_OR_ADDRESS")
@click.argument("folder")
@click.option("--foreground", is_flag=True, help="Stay until the folder is unmounted.")
@click.option(
    "--log",
    metavar="FILE",
    help="Append a line for each damaged block, and other errors.  [default: the terminal with"
    " --foreground, or else mount.log in ~/.local/state/bf16codecs]",
)
@click.option(
    "--cache",
    "cache_bytes",
    type=ByteSize(LEAST_CACHE),
    metavar="SIZE",
    default=CACHE_BYTES,
    help="Keep so many decoded bytes, at least 32M.  [default: 256M]",
)
@click.option("--allow-other", is_flag=True, help="Let other users read the files.")
@base_option
@threads_option
@storage_option
@max_read_option
@command
def mount(source: str, folder: str, foreground: bool, log: str | None, **options: Any) -> None:
    """Show the original files of a store in FOLDER, which has to be empty.

    STORE_OR_ADDRESS is a store of any kind, a run, a step of one (run.zarr@600), or a folder that
    pack-hf made. Files are read-only, and decoded as programs read them; each step of a run is a
    folder. The command returns once they are there, and a process in the background goes on.
    `fusermount3 -u FOLDER`, or `umount FOLDER`, ends it.
    """
    # Files are opened later, when the process may be in another folder.
    source, folder = _fixed(source), absolute(given_path(folder, "folder"))
    if options["base"] is not None:
        options["base"] = _fixed(options["base"])
    log_path = None if log is None else Path(absolute(given_path(log, "log")))
    if log_path is not None and Path(folder) in log_path.parents:
        raise click.UsageError("--log lies in FOLDER, where the mount will be")
    if foreground:
        _mount(source, folder, log_path, lambda: None, options)
        return
    log_path = log_path or _default_log()
    if _in_background(lambda ready: _mount(source, folder, log_path, ready, options), log_path):
        say(printable(f"mounted on {folder}; to end it: fusermount3 -u {shlex.quote(folder)}"))
        say(printable(f"errors are in {log_path}"))


def _fixed(source: str) -> str:
    """Return the absolute path of a source; an address as it is."""
    path = path_of(given_path(source, "store"))
    return source if path is None else absolute(path)


def _mount(
    source: str,
    folder: str,
    log: Path | None,
    ready: Callable[[], None],
    options: dict[str, Any],
) -> None:
    """Mount, and return once it is unmounted; lines about errors go to the log."""
    from bf16codecs.mount import mount

    program = click.get_current_context().command_path
    is_ready = False

    def report(text: str) -> None:
        line = printable(f"{folder}: {text}")
        if log is None or not is_ready:
            click.echo(f"{program}: {line}", err=True)
        if log is not None:
            with open(log, "a", encoding="utf-8") as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")

    def note_ready() -> None:
        nonlocal is_ready
        is_ready = True
        ready()

    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.open("a").close()  # one that cannot be written is an error before anything is mounted
    mount(source, folder, ready=note_ready, report=report, **options)


def _default_log() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(absolute(state)) / "bf16codecs" / "mount.log"


def _in_background(work: Callable[[Callable[[], None]], None], log: Path) -> bool:
    """Let a new process work, and wait until it is ready; return whether this is the old one.

    Until then, the new process prints what goes wrong here, and this one ends with its status.
    """
    reading, writing = os.pipe()
    # Before anything is opened: no thread is running yet.
    child = os.fork()
    if child == 0:
        os.setsid()  # Ctrl-C and the end of the terminal concern the old process alone
        # Nobody waits for a lock, say, that the new process inherited.
        os.closerange(3, writing)
        os.closerange(writing + 1, os.sysconf("SC_OPEN_MAX"))
        work(lambda: _leave(writing, log))
        return False
    os.close(writing)
    try:
        is_ready = bool(os.read(reading, 1))
    except BaseException:
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)
        raise
    if not is_ready:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status < 0:
            raise MountError(f"the process in the background was ended by signal {-status}")
        sys.exit(status or 1)
    return True


def _leave(writing: int, log: Path) -> None:
    """Tell the old process that all is ready, and keep nothing of its surroundings."""
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for number, descriptor in enumerate((nothing, output, output)):
        os.dup2(descriptor, number)
    os.close(nothing)
    os.close(output)
    os.write(writing, b"1")
    os.close(writing)
