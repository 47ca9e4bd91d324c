"""`bf16codecs analyze`: input that it refuses at once, and its reports on damaged stores."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from based_models import write_steps
from bf16codecs import analysis
from bf16codecs.convert import safetensors_to_hdf5, safetensors_to_run, safetensors_to_zarr
from commands import ended, start
from invoked import refused, row_cells, run
from lazy_models import weights, write_safetensors, write_store
from tiers import by_tier

POSIX = pytest.mark.skipif(os.name != "posix", reason="terminals, signals and rights of POSIX")
ANALYZE = ("bf16codecs", "analyze")


def spoil(path: Path, at: int | None = None) -> None:
    """Change a byte in the middle of a file, or anywhere else."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if at is None else at] ^= 0xFF
    path.write_bytes(content)


def test_folders_that_are_refused(model: Path) -> None:
    Path("full").mkdir()
    Path("full/mine").touch()
    Path("dangling").symlink_to("nowhere")
    for path in ("full", "dangling", model):
        assert "exists and is not an empty folder: name" in refused(*ANALYZE, model, "--out", path)
    assert "No such folder" in refused(*ANALYZE, model, "--out", "no/where")
    assert "is empty" in refused(*ANALYZE, model, "--out", "")
    assert {path.name for path in Path().iterdir()} == {model.name, "full", "dangling"}


@POSIX
@pytest.mark.parametrize("name", ["closed/new", "closed"])
def test_a_folder_that_cannot_be_written(
    model: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(analysis, "analyze", None)
    folder = Path("closed")
    folder.mkdir()
    folder.chmod(0o555)
    try:
        if os.access(folder, os.W_OK):
            pytest.skip("permissions do not bind this user")
        assert f"{name}: Permission denied" in refused(*ANALYZE, model, "--out", name)
    finally:
        folder.chmod(0o755)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
@pytest.mark.parametrize("option", ["--json", "--html"])
def test_a_report_for_which_the_disk_has_no_space(
    model: Path, option: str, draw_less: Callable[[], None]
) -> None:
    draw_less()
    line = refused(*ANALYZE, "--quiet", model, option, "/dev/full")
    assert "/dev/full: No space left on device; free some space, or choose another disk" in line


def test_of_a_folder_all_is_written_or_nothing(
    model: Path, monkeypatch: pytest.MonkeyPatch, draw_less: Callable[[], None]
) -> None:
    draw_less()

    def fail(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bf16codecs.analysis.folder.write_report", fail)
    Path("empty").mkdir()
    for name in by_tier(("empty",), ("new", "empty")):
        result = run(*ANALYZE, model, "--out", name)
        assert result.exit_code == 1
        assert f"{name}: No space left on device; free some space" in result.stderr
    assert not Path("new").exists()
    assert not list(Path("empty").iterdir())


def test_what_is_refused(model: Path) -> None:
    for arguments, status, text in (
        (["--kind", "router=("], 1, "the rule of kind 'router' is not a regular expression"),
        (["--base", "missing"], 1, "missing: No such file or directory"),
    ):
        assert text in refused(*ANALYZE, model, *arguments, status=status), arguments


def test_wrong_usage(model: Path) -> None:
    for arguments, text in (
        (["--kind", "router"], "'router' is not NAME=REGEX"),
        (["--sample", "0"], "'0' is not a size"),
        (["--threads", "0"], "'--threads'"),
    ):
        result = run(*ANALYZE, model, *arguments)
        assert (result.exit_code, result.stdout) == (2, ""), arguments
        assert text in result.stderr, arguments


def test_no_such_path() -> None:
    assert refused(*ANALYZE, "missing").endswith("missing: No such file or directory")
    assert run(*ANALYZE).exit_code == 2


def test_the_base_cannot_be_a_run(tmp_path: Path, demo_model: Path) -> None:
    safetensors_to_run(list(write_steps(tmp_path, demo_model).values()), tmp_path / "run.zarr")
    line = refused(*ANALYZE, demo_model, "--base", "run.zarr")
    assert "a run, with steps 300, 399, 400: name the one that is the base, as in" in line
    assert "run.zarr@400" in line


@pytest.mark.parametrize("arrays", [{}, {"w": weights((0, 5))}], ids=["nothing", "empty"])
def test_models_without_values(arrays: dict[str, Any]) -> None:
    write_safetensors(Path("m.safetensors"), arrays)
    assert "m.safetensors: has no values" in refused(*ANALYZE, "m.safetensors", "--json", "a.json")
    assert not Path("a.json").exists()


def damaged(kind: str, model: Path) -> str:
    """Make a store of a kind, of two tensors, in which one cannot be read."""
    if kind == "run":
        safetensors_to_run([model], "run.zarr", steps=[7])
    elif kind == "hdf5":
        import h5py

        safetensors_to_hdf5(model, "m.h5")
        with h5py.File("m.h5") as file:
            chunk = file["layers/0/mlp/weight"].id.get_chunk_info(0)
        spoil(Path("m.h5"), chunk.byte_offset + chunk.size // 2)
        return "m.h5"
    else:
        safetensors_to_zarr(model, "m.zarr")
    store = "run.zarr" if kind == "run" else "m.zarr"
    (chunk,) = (p for p in Path(store, "layers/0/mlp/weight").iterdir() if p.name != "zarr.json")
    if kind == "missing":
        chunk.unlink()
    else:
        spoil(chunk)
    return store


@pytest.mark.parametrize("kind", ["zarr", "hdf5", "run", "missing"])
def test_readable_parts_are_reported(model: Path, kind: str, draw_less: Callable[[], None]) -> None:
    draw_less()
    store = damaged(kind, model)
    draws = by_tier(kind == "zarr", True)
    result = run(*ANALYZE, store, "--json", "a.json", *(["--out", "new"] if draws else []))
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.endswith("1 tensor could not be read, or only in part")
    assert row_cells(result.stdout, "attention")[2:4] == ["1", "6400"]
    told = result.stdout.splitlines()[-1]
    assert told.startswith("tensor 'layers.0.mlp.weight', chunk ")
    document = json.loads(Path("a.json").read_text())
    (damage,) = document["damage"]
    assert (damage["tensor"], damage["message"]) == ("layers.0.mlp.weight", told)
    assert document["model"]["statistics"]["values"] == 6400
    assert [tensor["statistics"]["values"] for tensor in document["tensors"]] == [0, 6400]
    if draws:
        assert "What could not be read" in Path("new/report.html").read_text(encoding="utf-8")
    piped = run(*ANALYZE, store, "--json", "-")
    assert piped.exit_code == 1
    assert json.loads(piped.stdout) == document


def test_nothing_can_be_read(model: Path) -> None:
    write_store(Path("m.zarr"), {"w": weights((80, 80))})
    spoil(Path("m.zarr/w/c.0.0"))
    line = refused(*ANALYZE, "m.zarr", "--json", "a.json")
    assert "tensor 'w', chunk" in line
    assert not Path("a.json").exists()


@pytest.mark.parametrize(
    "option",
    [("--html", "page.html"), pytest.param(("--out", "new"), marks=pytest.mark.slow)],
    ids=" ".join,
)
def test_without_matplotlib_nothing_is_computed(model: Path, option: tuple[str, str]) -> None:
    before = "sys.modules['matplotlib'] = None; import bf16codecs.analysis as a; a.analyze = None"
    out, err = ended(start(*ANALYZE, model, *option, before=before))
    assert out == ""
    (line,) = err.splitlines()
    assert "pip install 'bf16codecs[plot]'" in line
    assert {path.name for path in Path().iterdir()} == {model.name}


WAITING = """
import os, time
from bf16codecs.analysis.pieces import Tensor
analyze = Tensor.analyze

def analyze_and_wait(self, *args):
    os.write({pipe}, b"x")
    time.sleep(0.5)
    return analyze(self, *args)

Tensor.analyze = analyze_and_wait
"""


@POSIX
def test_interruption_leaves_nothing(model: Path) -> None:
    reading, writing = os.pipe()
    options = ("--json", "a.json", "--html", "page.html", "--out", "new")
    before = WAITING.format(pipe=writing)
    process = start(*ANALYZE, model, *options, before=before, pass_fds=[writing])
    os.close(writing)
    assert os.read(reading, 1), process.communicate()
    os.close(reading)
    process.send_signal(signal.SIGINT)
    out, err = ended(process)
    assert (process.returncode, out, err) == (130, "", "bf16codecs analyze: interrupted\n")
    assert {path.name for path in Path().iterdir()} == {model.name}


def test_a_signal_in_an_import_ends_it(tmp_path: Path, demo_model: Path, run_python: Any) -> None:
    """No exception is raised in the middle of imports; the command checks for signals later."""
    code = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # who began this may ignore it
class Late:
    def find_spec(self, name, path=None, target=None):
        if name == "matplotlib":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Late())
from bf16codecs.cli import main
main()
"""
    commands = (["analyze", "--out", "out"], ["bench", "--quick", "--plot", "out.png"])
    for command in by_tier(commands[:1], commands):
        done = run_python(code, command[0], str(demo_model), *command[1:], check=False)
        assert done.returncode == 130, done.stderr
        assert done.stderr.endswith("interrupted\n")
        assert not done.stdout
        assert not list(tmp_path.glob("out*"))
