"""Commands in child processes."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

from checkout import package_environment


def command_line(command: str, *args: Any, before: str = "") -> list[str]:
    """Return the arguments that run some lines of Python and then a command, in a child."""
    entry = "main" if command == "bf16codecs" else command
    # Tests that a shell runs in the background ignore SIGINT, those under nohup SIGHUP, and so
    # would this child.
    code = f"""
import signal, sys
for name in {{"SIGHUP", "SIGTERM"}} & set(dir(signal)):
    signal.signal(getattr(signal, name), signal.SIG_DFL)
{before}
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv[0] = {command!r}
from bf16codecs.cli import {entry} as entry
entry()
"""
    return [sys.executable, "-X", "faulthandler", "-c", code, *map(str, args)]


def start(command: str, *args: Any, before: str = "", **options: Any) -> subprocess.Popen[str]:
    """Start a child process that runs some lines of Python and then a command."""
    return subprocess.Popen(
        command_line(command, *args, before=before),
        stdout=subprocess.PIPE,
        stderr=options.pop("stderr", subprocess.PIPE),
        pass_fds=options.pop("pass_fds", ()),
        text=True,
        env=package_environment(**options),
    )


def ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Wait for a process, and return its output; one that hangs shows its stacks."""
    try:
        return process.communicate(timeout=180)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)
        out, err = process.communicate()
        raise AssertionError(f"it hangs: {out}{err}") from None
