"""Finds the code blocks of the documentation, and runs them.

A block is run after those before it, in a folder of the page. Comments before a block, which the
built page does not show, say what it needs:

- ``<!-- given: model.zarr -->`` makes files that a reader has at this point (`given_files`).
- ``<!-- needs: torch -->`` runs the block only where that module or program is there.
- ``<!-- not run: takes minutes -->`` leaves it out; what can be checked without running it, is.

A ``text`` block that follows a ``python`` or ``sh`` block is what that prints.
"""

from __future__ import annotations

import functools
import importlib.util
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, chdir, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

from checkout import ROOT, package_environment
from clusters import client_of_cluster
from given_files import make_given
from invoked import COMMANDS
from object_store import CREDENTIALS, s3_server
from servers import serving

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LANGUAGES = {"python", "sh", "text", "json", "c", "cmake", "js", "rust", "toml"}
#: Addresses in the pages that stand for servers of the page's folder on this machine.
HOST = re.compile(r"https?://host\b")
S3_HOST = "https://s3.host"
BUCKET = "models"
SCHEDULER = "tcp://scheduler:8786"
#: What differs from run to run: times, speeds, and memory.
MEASURED = re.compile(r"\d+(\.\d+)? [kMGm]?(s|B/s)\b")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, with the comments before it."""

    page: Path
    line: int
    language: str
    code: str
    given: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    not_run: str | None = None
    output: str | None = None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT).as_posix()}:{self.line}"

    @property
    def missing(self) -> list[str]:
        return [n for n in self.needs if not (importlib.util.find_spec(n) or shutil.which(n))]


_FENCED = re.compile(
    r"(?P<comments>(?:^ *<!--[^\n]*-->\n+)*)"
    r"^(?P<indent> *)```(?P<language>[^\n]*)\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_OUTPUT = re.compile(r"\n\s*?^ *```text\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def blocks_of(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page in their order; of one that shows its output, that with it."""
    text = page.read_text("utf-8")
    end = 0
    while match := _FENCED.search(text, end):
        language, end = match["language"], match.end()
        marks = dict(re.findall(r"<!-- (given|needs|not run): (.*?) -->", match["comments"]))
        output = _OUTPUT.match(text, end) if language in ("python", "sh") else None
        if output:
            end = output.end()
        yield Block(
            page=page,
            line=1 + text.count("\n", 0, match.start("code")),
            language=language,
            code=textwrap.dedent(match["code"]),
            given=tuple(marks.get("given", "").split()),
            needs=tuple(marks.get("needs", "").split()),
            not_run=marks.get("not run"),
            output=textwrap.dedent(output[1]) if output else None,
        )


def check_unrun(block: Block) -> None:
    """Check what can be checked of code that is not run: its syntax, and our commands' options."""
    if block.language == "python":
        compile(block.code, str(block), "exec")
    elif block.language == "sh":
        done = subprocess.run(["bash", "-n"], input=block.code, capture_output=True, text=True)
        assert done.returncode == 0, f"{block}: {done.stderr}"
        for line in block.code.replace("\\\n", " ").splitlines():
            # Other programs may be given texts of several lines.
            if line.split()[:1] and line.split()[0] in COMMANDS:
                _check_command(shlex.split(line, comments=True))


def _check_command(words: list[str]) -> None:
    """Let the parser of one of our commands take its arguments, which does nothing else."""
    command, arguments = COMMANDS[words[0]], words[1:]
    if words[0] == "bf16codecs":
        command, arguments = command.commands[arguments[0]], arguments[1:]
    command.make_context(words[0], arguments)


def make_commands(folder: Path) -> None:
    """Write programs for our commands and Python, which need not be on PATH, to a folder."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]
    starts = {"python": ""}
    for name, place in scripts.items():
        module, function = place.split(":")
        starts[name] = f"-c 'import sys; from {module} import {function}; sys.exit({function}())'"
    for name, start in starts.items():
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {start} "$@"\n')
        program.chmod(0o755)


@dataclass
class PageRun:
    """Runs the blocks of a page in a folder of its own, as a reader would."""

    folder: Path
    programs: Path
    model: Path
    servers: ExitStack
    names: dict[str, object] = field(default_factory=lambda: {"__name__": "__page__"})

    @functools.cached_property
    def address(self) -> str:
        return self.servers.enter_context(serving(self.folder)).url

    @functools.cached_property
    def s3_address(self) -> str:
        import fsspec

        address, _ = self.servers.enter_context(s3_server())
        public = {"s3_additional_kwargs": {"ACL": "public-read"}}
        s3 = fsspec.filesystem("s3", endpoint_url=address, **CREDENTIALS, **public)
        if s3.exists(BUCKET):  # of another page that ran in this process
            s3.rm(BUCKET, recursive=True)
        s3.mkdir(BUCKET)
        for store in self.folder.glob("*.zarr"):
            s3.put(str(store), f"{BUCKET}/{store.name}", recursive=True)
        return address

    @functools.cached_property
    def scheduler(self) -> str:
        client = self.servers.enter_context(client_of_cluster(processes=True))
        return client.scheduler.address

    def run(self, block: Block) -> None:
        """Run a block, and compare what it prints with what the page shows."""
        make_given(block.given, self.folder, self.model)
        code = block.code
        if HOST.search(code):
            code = HOST.sub(self.address, code)
        if S3_HOST in code:
            code = code.replace(S3_HOST, self.s3_address)
        if SCHEDULER in code:
            code = code.replace(SCHEDULER, self.scheduler)
        printed = (self._python if block.language == "python" else self._sh)(block, code)
        if block.output is not None:
            wanted = HOST.sub(self.address, block.output)
            assert matches(wanted, printed), f"{block} prints\n{printed}\nand not\n{wanted}"

    def _python(self, block: Block, code: str) -> str:
        printed = io.StringIO()
        code = "\n" * (block.line - 1) + code  # so that errors name the line of the page
        with chdir(self.folder), redirect_stdout(printed):
            exec(compile(code, str(block.page), "exec"), self.names)
        return printed.getvalue()

    def _sh(self, block: Block, code: str) -> str:
        path = os.pathsep.join([str(self.programs), os.environ["PATH"]])
        environment = package_environment(PATH=path)
        environment.pop("HDF5_PLUGIN_PATH", None)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", code],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{block}: {done.stdout}{done.stderr}"
        return done.stdout


def matches(wanted: str, shown: str) -> bool:
    """Tell whether output is what a page shows.

    ``...`` stands for anything, as lines or in one. How wide columns are does not count, and
    neither do times and speeds.
    """
    parts = (re.escape(_same_always(part)) for part in wanted.split("..."))
    return re.fullmatch(".*".join(parts), _same_always(shown), re.DOTALL) is not None


def _same_always(text: str) -> str:
    return re.sub(r"\s+", " ", MEASURED.sub(r"# \2", text)).strip(" ")


def run_page(page: Path, folder: Path, model: Path) -> list[str]:
    """Run all blocks of a page in an empty folder; return what was missing for some of them."""
    programs, place = folder / "bin", folder / "work"
    programs.mkdir()
    place.mkdir()
    make_commands(programs)
    (place / "examples").symlink_to(ROOT / "examples")
    missing = []
    with ExitStack() as servers:
        run = PageRun(place, programs, model, servers)
        for block in blocks_of(page):
            if block.language not in ("python", "sh"):
                continue
            if block.not_run or block.missing:
                check_unrun(block)
                missing += block.missing
            else:
                run.run(block)
    return missing
