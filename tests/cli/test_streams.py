"""Commands whose standard streams are closed or full."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bf16codecs.convert import verify_store
from checkout import package_environment
from commands import command_line, ended, start
from looping import for_each
from models import write_model
from tiers import by_tier

pytestmark = pytest.mark.skipif(os.name != "posix", reason="a shell of POSIX")

#: Let a library write to the descriptors of standard output and standard error.
CHATTY = """
import os
from bf16codecs.store.zarr.writer import ZarrWriter
write = ZarrWriter.write

def write_and_chat(self, *args):
    result = write(self, *args)
    for descriptor in (1, 2):
        os.write(descriptor, b"by the way")
    return result

ZarrWriter.write = write_and_chat
"""


def redirected(streams: str, line: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command with the redirections of a shell."""
    shell = ["sh", "-c", f'exec "$@" {streams}', "sh", *line]
    environment = package_environment()
    return subprocess.run(shell, capture_output=True, text=True, env=environment, timeout=60)


@pytest.mark.parametrize(
    "closed",
    [
        ">&- 2>&- <&-",
        pytest.param(">&-", marks=pytest.mark.slow),
        pytest.param("2>&-", marks=pytest.mark.slow),
    ],
)
def test_closed(model: Path, closed: str) -> None:
    """Output is dropped, and libraries' output to those descriptors ends up in no file."""
    store = model.with_name("m.zarr")
    lines = [
        command_line("st2zarr", model, store, before=CHATTY),
        command_line("bf16codecs", "info", store),
        command_line("bf16codecs", "verify", store, model),
    ]
    for line in by_tier(lines[:2], lines):
        assert redirected(closed, line).returncode == 0, line
    verify_store(store, model)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
def test_full(model: Path) -> None:
    """The message shows that it is not the target's disk that is full."""
    store = model.with_name("m.zarr")
    commands: list[tuple[Any, ...]] = [
        ("st2zarr", model, store),
        ("bf16codecs", "info", store),
        ("zarr2st", store, model.with_name("back")),
        ("bf16codecs", "verify", store),
        ("bf16codecs", "plugin-path"),
    ]
    for command, *args in by_tier(commands[:2], commands):
        done = redirected(">/dev/full", command_line(command, *args))
        name = f"{command} {args[0]}" if command == "bf16codecs" else command
        is_made = f", but {args[1]} is complete" if command != "bf16codecs" else ""
        assert done.stderr == f"{name}: standard output: No space left on device{is_made}\n"
        assert done.returncode == 1
    verify_store(store, model)


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
def test_full_beside_runs_and_benches(model: Path) -> None:
    store = model.with_name("run.zarr")
    done = redirected(">/dev/full", command_line("st2zarr", model, store, "--append", "--step", 1))
    assert done.stderr.endswith(f": No space left on device, but {store} is complete\n")
    done = redirected(">/dev/full", command_line("st2zarr", model, store, "--append", "--step", 2))
    assert done.stderr.endswith(f" left on device, but {store}, with step 2 is complete\n")
    checkpoint = model.rename(model.with_name("step-1.safetensors"))
    for args in (("bench-run", checkpoint, "--repeats", 1), ("demo",)):
        # A complete target is removed as well.
        done = redirected(">/dev/full", command_line("bf16codecs", *args))
        assert done.stderr.endswith(": standard output: No space left on device\n")


def test_closed_by_its_reader(model: Path) -> None:
    """All commands end quietly, as programs do that SIGPIPE ends."""
    store = model.with_name("m.zarr")
    commands: list[tuple[Any, ...]] = [
        ("st2zarr", model, store),
        ("bf16codecs", "info", store),
        ("bf16codecs", "info", store, "--json"),
        ("bf16codecs", "verify", store),
        ("bf16codecs", "demo"),
        ("bf16codecs", "bench", model, "--only", "huffman", "--repeats", 1, "--size", 4096),
    ]
    for command, *args in by_tier(commands[:2], commands):
        reader, writer = os.pipe()
        os.close(reader)
        process = start(
            command, *args, pass_fds=(writer,), before=f"import os; os.dup2({writer}, 1)"
        )
        os.close(writer)
        assert ended(process) == ("", "")
        assert process.returncode == 141
    verify_store(store, model)


@for_each("encoding", ["ascii", "cp1252:strict"])
def test_names_that_a_terminal_cannot_show(tmp_path: Path, encoding: str) -> None:
    """A command succeeds although it cannot print a name, and refuses in one line."""
    folder = tmp_path / encoding.partition(":")[0]
    folder.mkdir()
    model = write_model(folder / "模型.safetensors", [("层.权重", "I32", (64, 8))])
    store = folder / "模型.zarr"
    lines = [
        ("st2zarr", model, store),
        ("bf16codecs", "info", store),
        ("bf16codecs", "info", "--json", store),
        ("bf16codecs", "verify", store),
        ("bf16codecs", "analyze", store),
        ("zarr2st", store, folder / "又.safetensors"),
    ]
    for line in lines:
        process = start(*line, PYTHONIOENCODING=encoding)
        out, err = ended(process)
        assert (process.returncode, err) == (0, ""), line
        assert out, line
    process = start("st2zarr", model, store, PYTHONIOENCODING=encoding)
    out, err = ended(process)
    assert (process.returncode, out, err.count("\n")) == (1, "", 1)
    # Click does not support ASCII terminals, and writes UTF-8.
    assert ("模型.zarr" if encoding == "ascii" else "\\u6a21\\u578b.zarr") in err
