"""HDF5 stores through `open_model` and the commands, and what interruptions leave."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bf16codecs import cli, hdf5
from bf16codecs.convert import safetensors_to_hdf5
from checkout import package_environment
from models import entry, file_bytes, write_model

POSIX = pytest.mark.skipif(os.name != "posix", reason="signals and limits of POSIX")


def names_in(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()}


def run(command: str, *arguments: Any) -> str:
    result = CliRunner().invoke(getattr(cli, command), [str(a) for a in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_commands(demo_model: Path, tmp_path: Path) -> None:
    target, back = tmp_path / "m.h5", tmp_path / "back"
    assert "verified" in run("st2h5", demo_model, target, "--codec", "huffman")
    assert "restored" in run("h52st", target, back)
    assert back.read_bytes() == demo_model.read_bytes()
    assert "huffman" in run("main", "info", target).splitlines()[1]
    assert "intact, identical to" in run("main", "verify", target, demo_model)
    assert run("main", "plugin-path").strip() == hdf5.PLUGIN_PATH
    result = CliRunner().invoke(cli.st2h5, [str(demo_model), str(target)])
    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 1)


def start(code: str, *arguments: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code + "\ncli.st2h5()", *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=-1, stderr=-1, text=True, env=package_environment(), cwd=os.path.sep
    )


@POSIX
@pytest.mark.parametrize("codec", ["none", "arithmetic"])
def test_disk_that_takes_no_more(tmp_path: Path, codec: str) -> None:
    model = write_model(tmp_path / "m.safetensors", [("a", "BF16", (1 << 20,))])
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000))"
    code = f"from bf16codecs import cli\n{limit}"
    process = start(code, model, tmp_path / "m.h5", "--codec", codec, "--chunk-size", "64K")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, len(err.splitlines())) == (1, "", 1), err
    assert "File too large" in err
    assert names_in(tmp_path) == {"m.safetensors"}


@POSIX
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interruption_leaves_nothing(tmp_path: Path, number: int, status: int) -> None:
    model = write_model(tmp_path / "m.safetensors", [("a", "BF16", (1 << 23,))])
    options = ("--codec", "arithmetic", "--level", "best", "--chunk-size", "256K")
    process = start("from bf16codecs import cli", model, tmp_path / "m.h5", *options)
    deadline = time.monotonic() + 60
    while not any(p.stat().st_size > 1 << 20 for p in tmp_path.glob(".bf16codecs-*.tmp")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, len(err.splitlines())) == (status, "", 1), err
    assert names_in(tmp_path) == {"m.safetensors"}


MEMORY = """
import sys
from pathlib import Path
from bf16codecs.convert import hdf5_to_safetensors, safetensors_to_hdf5
safetensors_to_hdf5(sys.argv[1], "m.h5", threads=2)
hdf5_to_safetensors("m.h5", "back", threads=2)
status = Path("/proc/self/status").read_text()
print(status.split("VmHWM:")[1].split()[0])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_is_bounded(tmp_path: Path, run_python: Any) -> None:
    """Both directions, on a model larger than what they may take."""
    model = write_model(tmp_path / "m.safetensors", [("t", "BF16", (1 << 24,))])
    data = model.read_bytes()[-(1 << 25) :]
    with open(model, "wb") as file:
        file.write(file_bytes({f"t{i}": entry("BF16", [1 << 24], i << 25) for i in range(10)}))
        for _ in range(10):
            file.write(data)
    assert model.stat().st_size > 300e6
    assert int(run_python(MEMORY, str(model)).stdout) * 1024 < 300e6
    for path in tmp_path.iterdir():
        path.unlink()


def test_zarr_commands_do_not_import_h5py(run_python: Any, demo_model: Path) -> None:
    code = """
import sys
from bf16codecs import cli
from bf16codecs.convert import safetensors_to_zarr, verify_store
safetensors_to_zarr(sys.argv[1], "m.zarr")
verify_store("m.zarr")
print("h5py" in sys.modules)
"""
    assert run_python(code, str(demo_model)).stdout.strip() == "False"


def test_examples(root: Path, tmp_path: Path, demo_model: Path, run_python: Any) -> None:
    example = (root / "examples" / "read_hdf5.py").read_text("utf-8")
    safetensors_to_hdf5(demo_model, tmp_path / "m.h5", codec="huffman")
    for arguments in ([], [str(tmp_path / "m.h5")]):
        shown = run_python(example, *arguments).stdout.splitlines()
        assert shown[0].startswith("39 tensors; lm_head.weight: shape (256, 96)")
        assert shown[1].startswith("as bfloat16: [0.0703125 -0.108887")
        assert shown[2] == "as float32, the same numbers: True"
    text = (root / "docs" / "hdf5_filter.md").read_text("utf-8")
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        run_python(code)
