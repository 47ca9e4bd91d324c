"""Entry points of the commands: they handle what goes wrong before and after a command runs."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import warnings
from types import FrameType

__all__ = ["h52st", "main", "st2h5", "st2zarr", "zarr2st"]


def main(name: str = "bf16codecs") -> None:
    """Run the command `bf16codecs`."""
    _run("main", name)


def st2zarr() -> None:
    """Run the command `st2zarr`."""
    _run("st2zarr")


def zarr2st() -> None:
    """Run the command `zarr2st`."""
    _run("zarr2st")


def st2h5() -> None:
    """Run the command `st2h5`."""
    _run("st2h5")


def h52st() -> None:
    """Run the command `h52st`."""
    _run("h52st")


def _run(command: str, name: str = "") -> None:
    name = name or command

    def end(number: int, frame: FrameType | None) -> None:
        # Nothing has begun; an exception would print forty lines of imports.
        os.write(2, f"{name}: interrupted\n".encode())
        os._exit(128 + number)

    def warn(message: Warning | str, *args: object, **options: object) -> None:
        # The native core warns about environment variables when it is imported.
        if sys.stderr is not None:
            print(f"{name}: warning: {message}", file=sys.stderr)

    # The command replaces this handler while it runs.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, end)
    # No command multiplies matrices, for which NumPy's library would start threads that spin: 41 ms
    # of processor time.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # At exit, Python would look through all that was imported once more: 31 ms.
    atexit.register(gc.freeze)
    from bf16codecs import cli

    show, warnings.showwarning = warnings.showwarning, warn
    function = getattr(cli, command)
    warnings.showwarning = show
    try:
        function(prog_name=name)
    except OSError as e:
        # From click, when it prints help. At exit, Python would report it once more.
        from bf16codecs.cli.console import silence_standard_output

        silence_standard_output()
        print(f"{name}: standard output: {e.strerror}", file=sys.stderr)
        sys.exit(1)
