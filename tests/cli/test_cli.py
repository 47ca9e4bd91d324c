"""The commands as their users meet them: output, exit status, interruptions."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from bf16codecs import cli
from bf16codecs._version import __version__
from bf16codecs.cli.console import format_size, one_line
from bf16codecs.cli.options import ByteSize
from checkout import package_environment
from models import TRICKY_NAMES, entry, file_bytes, write_model

NAMES = ("st2zarr", "zarr2st", "st2h5", "h52st")
COMMANDS = {name: getattr(cli, name) for name in NAMES} | {"bf16codecs": cli.main}
POSIX = pytest.mark.skipif(os.name != "posix", reason="signals and limits of POSIX")


def run(command: str, *args: Any) -> Result:
    return CliRunner().invoke(COMMANDS[command], [str(a) for a in args], prog_name=command)


def done(command: str, *args: Any) -> str:
    result = run(command, *args)
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


def refused(command: str, *args: Any, status: int = 1) -> str:
    """Return the one line with which a command ends."""
    result = run(command, *args)
    assert result.exit_code == status, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"{command}")
    return line


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "m.safetensors", [("a", "BF16", (64, 8)), ("b", "I32", (50,))])


@pytest.fixture
def store(model: Path) -> Path:
    done("st2zarr", model, model.with_name("m.zarr"), "--quiet")
    return model.with_name("m.zarr")


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--codec", "huffman"),
        ("--codec", "arithmetic", "--level", "fast"),
        ("--codec", "zstd", "--level", "1"),
        ("--codec", "split"),
        ("--codec", "none", "--no-verify"),
        ("--zarr-format", "2", "--threads", "1", "--chunk-size", "4K"),
    ],
)
def test_round_trip(demo_model: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    text = done("st2zarr", demo_model, tmp_path / "m.zarr", *options)
    assert re.search(r"39 tensors, 988\.81 kB -> .* \(ratio \d\.\d+\), .*B/s", text)
    assert ("verified" in text) == ("--no-verify" not in options)
    assert "restored" in done("zarr2st", tmp_path / "m.zarr", tmp_path / "m.safetensors")
    assert (tmp_path / "m.safetensors").read_bytes() == demo_model.read_bytes()
    text = done("bf16codecs", "verify", tmp_path / "m.zarr", demo_model)
    assert "39 tensors, 988.81 kB, intact, identical to" in text


def test_quiet_prints_nothing(model: Path, tmp_path: Path) -> None:
    assert done("st2zarr", model, tmp_path / "m.zarr", "--quiet") == ""
    assert done("zarr2st", tmp_path / "m.zarr", tmp_path / "back", "--quiet") == ""
    assert done("bf16codecs", "verify", tmp_path / "m.zarr", "--quiet") == ""


def test_existing_targets(model: Path, store: Path) -> None:
    assert "exists" in refused("st2zarr", model, store).lower()
    assert "exists" in refused("zarr2st", store, model).lower()
    done("st2zarr", model, store, "--overwrite")
    done("zarr2st", store, model, "--overwrite")


def test_errors_of_users_are_one_line(model: Path, store: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert "missing" in refused("st2zarr", missing, tmp_path / "x")
    assert "missing" in refused("zarr2st", missing, tmp_path / "x")
    assert "missing" in refused("st2zarr", model, missing / "x")
    assert "missing" in refused("bf16codecs", "info", missing)
    assert "missing" in refused("bf16codecs", "verify", missing)
    assert "missing" in refused("bf16codecs", "verify", store, missing)
    assert "not a Zarr store" in refused("zarr2st", model, tmp_path / "x")
    assert "local" in refused("st2zarr", model, "s3://bucket/m.zarr")
    model.write_bytes(model.read_bytes()[:-1])
    assert "truncated" in refused("st2zarr", model, tmp_path / "x")
    (tmp_path / "new\nline").write_bytes(b"")
    assert "new\\nline" in refused("st2zarr", tmp_path / "new\nline", tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_damaged_store(model: Path, store: Path) -> None:
    (store / "a" / "c.0.0").unlink()
    for args in (("verify", store), ("verify", store, model)):
        assert "chunk a/c.0.0: it is missing" in refused("bf16codecs", *args)
    refused("zarr2st", store, store.with_name("back"))
    root = json.loads((store / "zarr.json").read_text())
    root["attributes"]["bf16codecs"]["layout"] = 2
    (store / "zarr.json").write_text(json.dumps(root))
    assert "upgrade" in refused("bf16codecs", "info", store)


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("one",),
        ("a", "b", "--codec", "lzma"),
        ("a", "b", "--codec", "zstd", "--level", "23"),
        ("a", "b", "--codec", "zstd", "--level", "best"),
        ("a", "b", "--codec", "huffman", "--level", "3"),
        ("a", "b", "--codec", "arithmetic", "--level", "3"),
        ("a", "b", "--threads", "0"),
        ("a", "b", "--zarr-format", "4"),
        ("a", "b", "--chunk-size", "0"),
        ("a", "b", "--chunk-size", "-1"),
        ("a", "b", "--chunk-size", "many"),
        ("a", "b", "--chunk-size", "1T"),
        ("a", "b", "--unknown"),
    ],
)
def test_usage(args: tuple[str, ...]) -> None:
    result = run("st2zarr", *args)
    assert result.exit_code == 2
    assert result.stderr.startswith("Usage: ")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1000", 1000),
        ("8B", 8),
        ("4k", 4096),
        ("32M", 32 << 20),
        ("32 MiB", 32 << 20),
        ("1GB", 1 << 30),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert ByteSize().convert(text, None, None) == size


def test_sizes_are_shown_in_decimal_units() -> None:
    sizes = [999, 1000, 1.5e6, 2e9, 3e12]
    assert [format_size(n) for n in sizes] == ["999 B", "1.00 kB", "1.50 MB", "2.00 GB", "3.00 TB"]


def test_version_and_help() -> None:
    assert __version__ in done("bf16codecs", "--version")
    for command in COMMANDS:
        assert done(command, "--help").startswith(f"Usage: {command}")
    assert isinstance(cli.main, click.Group)
    for name in cli.main.commands:
        assert done("bf16codecs", name, "--help").startswith("Usage: bf16codecs " + name)


def test_info(store: Path, model: Path) -> None:
    lines = done("bf16codecs", "info", store).splitlines()
    assert lines[0].split() == ["tensor", "dtype", "shape", "codec", "size", "stored", "ratio"]
    assert lines[1].split()[:6] == ["a", "BF16", "64x8", "arithmetic", "1.02", "kB"]
    assert lines[2].split()[:6] == ["b", "I32", "50", "zstd", "200", "B"]
    assert lines[3].startswith("2 tensors")
    assert lines[4].startswith(f"m.safetensors: {model.stat().st_size} bytes, SHA-256 ")


def test_info_shows_any_name_whole(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m", [(name, "F64", ()) for name in TRICKY_NAMES])
    done("st2zarr", model, tmp_path / "m.zarr")
    lines = done("bf16codecs", "info", tmp_path / "m.zarr").splitlines()
    shown = {line[: line.rindex("F64")].rstrip() for line in lines[1 : len(TRICKY_NAMES) + 1]}
    assert shown == {one_line(name) for name in TRICKY_NAMES}


def test_demo() -> None:
    text = done("bf16codecs", "demo")
    for codec in ("arithmetic fast", "arithmetic best", "huffman", "zstd", "split", "none"):
        assert re.search(rf"^{codec} .* bit-exact", text, re.MULTILINE)


def test_python_of_the_document_runs(
    root: Path, demo_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(demo_model, "model.safetensors")
    (code,) = re.findall(r"```python\n(.*?)```", (root / "docs/cli.md").read_text(), re.DOTALL)
    exec(compile(code, "cli.md", "exec"), {})
    assert (tmp_path / "restored.safetensors").read_bytes() == demo_model.read_bytes()


def test_options_of_the_document_exist(root: Path) -> None:
    text = (root / "docs/cli.md").read_text()
    commands = [cli.st2zarr, cli.zarr2st, cli.st2h5, cli.h52st, *cli.main.commands.values()]
    known = {o for c in commands for p in c.params for o in (*p.opts, *p.secondary_opts)}
    assert set(re.findall(r"`(--[a-z-]+)`", text)) == {o for o in known if o.startswith("--")}


def test_example_runs(root: Path) -> None:
    done = subprocess.run(
        [sys.executable, root / "examples" / "convert_model.py"],
        capture_output=True,
        text=True,
        env=package_environment(),
    )
    assert done.stdout.endswith("identical: True\n"), done.stderr


def start(command: str, *args: Any, before: str = "", **options: Any) -> subprocess.Popen[str]:
    """Start a command as a process of its own."""
    entry = "main" if command == "bf16codecs" else command
    # A shell that runs the tests in the background has them, and this child, ignore SIGINT.
    code = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv[0] = {command!r}
{before}
from bf16codecs.cli import {entry} as entry
entry()
"""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=options.pop("stderr", subprocess.PIPE),
        text=True,
        env=package_environment(**options),
    )


@pytest.fixture
def slow_model(tmp_path: Path) -> Path:
    """Return a model on which zstd's highest level is busy for seconds."""
    model = write_model(
        tmp_path / "m.safetensors", [(f"t{i}", "BF16", (1 << 18,)) for i in range(64)]
    )
    raw = model.read_bytes()
    model.write_bytes(raw[: -(1 << 25)] + (raw[-4096:] * (1 << 13)))
    return model


def interrupt(model: Path, number: int, *options: str) -> subprocess.Popen[str]:
    """Send a signal to a conversion that has begun to write."""
    args = (model, model.with_name("m.zarr"), "--codec", "zstd", "--level", "22", *options)
    process = start("st2zarr", *args)
    deadline = time.monotonic() + 60
    while not list(model.parent.glob(".bf16codecs-*.tmp/t1/c*")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(number)
    return process


@POSIX
@pytest.mark.parametrize(
    ("number", "status", "message"),
    [(signal.SIGINT, 130, "st2zarr: interrupted"), (signal.SIGTERM, 143, "st2zarr: terminated")],
)
@pytest.mark.parametrize("existing", [False, True])
def test_interruption_leaves_nothing(
    slow_model: Path, number: int, status: int, message: str, existing: bool
) -> None:
    target = slow_model.with_name("m.zarr")
    if existing:
        small = write_model(slow_model.with_name("small"), [("x", "BF16", (4, 4))])
        done("st2zarr", small, target)
    process = interrupt(slow_model, number, *(["--overwrite"] if existing else []))
    out, err = process.communicate(timeout=60)
    assert process.returncode == status, err
    assert (out, err.strip()) == ("", message)
    left = {p.name for p in slow_model.parent.iterdir()} - {"small"}
    assert left == ({"m.safetensors", "m.zarr"} if existing else {"m.safetensors"})
    if existing:
        done("bf16codecs", "verify", target, small)


@POSIX
def test_kill_leaves_no_target_and_does_no_harm(slow_model: Path) -> None:
    process = interrupt(slow_model, signal.SIGKILL)
    process.communicate(timeout=60)
    target = slow_model.with_name("m.zarr")
    assert not target.exists()
    assert list(slow_model.parent.glob(".bf16codecs-*.tmp"))
    done("st2zarr", slow_model, target)
    done("bf16codecs", "verify", target, slow_model)


@POSIX
@pytest.mark.parametrize("target", ["m.zarr", "m.zip"])
def test_limit_on_file_size(slow_model: Path, tmp_path: Path, target: str) -> None:
    """A disk that takes no more, in both directions."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000))"
    process = start("st2zarr", slow_model, tmp_path / target, "--codec", "none", before=limit)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert (out, len(err.splitlines())) == ("", 1)
    assert "File too large" in err
    assert {p.name for p in tmp_path.iterdir()} == {"m.safetensors"}
    done("st2zarr", slow_model, tmp_path / target)
    process = start("zarr2st", tmp_path / target, tmp_path / "back", before=limit)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "File too large" in err
    assert {p.name for p in tmp_path.iterdir()} == {"m.safetensors", target}


@POSIX
def test_target_folder_that_cannot_be_written(model: Path, store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o500)
    if os.access(folder, os.W_OK):
        pytest.skip("permissions do not bind this user")
    assert "Permission denied" in refused("st2zarr", model, folder / "x")
    assert "Permission denied" in refused("zarr2st", store, folder / "x")


@POSIX
def test_progress_is_for_terminals(slow_model: Path, tmp_path: Path) -> None:
    import pty

    shown = []
    for options in ((), ("--quiet",)):
        leader, follower = pty.openpty()
        args = (slow_model, tmp_path / "m.zarr", "--overwrite", *options)
        process = start("st2zarr", *args, stderr=follower, TERM="xterm")
        os.close(follower)
        text = b""
        while True:
            try:
                part = os.read(leader, 4096)
            except OSError:  # how Linux tells that the other end was closed
                break
            if not part:
                break
            text += part
        process.communicate(timeout=60)
        os.close(leader)
        assert process.returncode == 0
        shown.append(text.decode())
    assert "convert" in shown[0]
    assert re.search(r"\d+(\.\d+)?/\d+(\.\d+)? MB", shown[0])
    assert shown[1] == ""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_is_bounded(tmp_path: Path, run_python: Any) -> None:
    """Both directions, on a model larger than what they may take."""
    model = write_model(tmp_path / "m.safetensors", [("t", "BF16", (1 << 24,))])
    content = model.read_bytes()
    header = file_bytes({f"t{i}": entry("BF16", [1 << 24], i << 25) for i in range(10)})
    with open(model, "wb") as file:
        file.write(header)
        for _ in range(10):
            file.write(content[-(1 << 25) :])
    assert model.stat().st_size > 300e6
    code = """
import sys
from pathlib import Path
from bf16codecs.convert import safetensors_to_zarr, zarr_to_safetensors
safetensors_to_zarr(sys.argv[1], sys.argv[2], threads=2)
zarr_to_safetensors(sys.argv[2], sys.argv[3], threads=2)
status = Path("/proc/self/status").read_text()
print(status.split("VmHWM:")[1].split()[0])
"""
    done = run_python(code, str(model), str(tmp_path / "m.zarr"), str(tmp_path / "back"))
    assert int(done.stdout) * 1024 < 300e6
    shutil.rmtree(tmp_path)


def test_reader_that_has_had_enough(store: Path) -> None:
    process = start("bf16codecs", "info", store)
    assert process.stdout is not None
    process.stdout.close()
    process.wait(timeout=60)
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()
