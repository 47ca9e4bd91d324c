"""Mounts, each served by a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ctypes.util import find_library
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from commands import ended, start
from waiting import wait_until


def why_not() -> str:
    """Return why this system cannot mount; empty if it can."""
    if find_spec("mfusepy") is None:
        return "no mfusepy"
    if find_library("fuse3") is None:
        return "no libfuse 3"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "no /dev/fuse, or no right to it"
    if os.geteuid() != 0 and shutil.which("fusermount3") is None:
        return "neither root nor fusermount3"
    return ""


class Mounted:
    """A folder on which something is mounted, and the process that serves it."""

    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self.folder, self.process = folder, process
        #: What the process has printed, once it has ended.
        self.printed = ""

    def end(self) -> None:
        """End the process, and wait for it."""
        self.process.terminate()
        self.printed = "".join(ended(self.process))


@contextmanager
def mounted(
    source: Any, folder: Path, *options: Any, before: str = "", **environment: Any
) -> Iterator[Mounted]:
    """Mount a source on a new folder while the block runs; `before` runs in the process first."""
    folder.mkdir()
    arguments = ("mount", "--foreground", source, folder, *options)
    process = start("bf16codecs", *arguments, before=before, **environment)
    found = Mounted(folder, process)
    try:
        assert wait_until(lambda: is_mounted(folder) or process.poll() is not None)
        assert process.poll() is None, ended(process)
        yield found
    finally:
        if process.poll() is None:
            found.end()
        unmount(folder)
        folder.rmdir()


def is_mounted(folder: Path) -> bool:
    """Tell whether something is mounted on a folder, dead or alive."""
    name = str(folder).replace(" ", r"\040")
    with open("/proc/self/mounts", encoding="utf-8") as mounts:
        return any(line.split()[1] == name for line in mounts)


def unmount(folder: Path) -> None:
    """Unmount whatever a failed test has left."""
    while is_mounted(folder):
        with suppress(FileNotFoundError):
            subprocess.run(["fusermount3", "-u", "-z", folder], check=False)
        if is_mounted(folder):
            subprocess.run(["umount", "-l", folder], check=True)
