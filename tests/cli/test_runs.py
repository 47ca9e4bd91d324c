"""Contradictory options of runs are usage errors, before anything is read."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest

from bf16codecs.convert import safetensors_to_run
from folders import files_in
from invoked import done, run


def refused(command: str, *args: Any) -> str:
    """Return the last line of a command that is used wrongly."""
    result = run(command, *args)
    assert result.exit_code == 2
    return result.stderr.splitlines()[-1]


@pytest.mark.parametrize("command", ["st2zarr", "st2h5"])
def test_codecs_that_have_no_steps_or_differences(
    demo_model: Path, tmp_path: Path, command: str
) -> None:
    for codec in ("zstd", "split", "none"):
        where = [demo_model, tmp_path / "store"]
        for option in ("--series", "--append"):
            assert f"codec '{codec}'" in refused(command, *where, option, "--codec", codec), codec
        if codec == "none":
            based = refused(command, *where, "--base", demo_model, "--codec", codec)
            assert "codec 'none' stores no differences: choose another codec" in based, codec
        assert list(tmp_path.iterdir()) == [], codec


@pytest.mark.parametrize("command", ["zarr2st", "h52st"])
def test_step_that_is_named_twice(demo_model: Path, tmp_path: Path, command: str) -> None:
    run = tmp_path / "run"
    safetensors_to_run([demo_model], run, steps=[7], as_hdf5=command == "h52st")
    for options in (["--step", 7], ["--all"]):
        text = refused(command, f"{run}@7", tmp_path / "back", *options)
        assert text.endswith(f"{run}@7 is already one step: leave out --step and --all")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("command", ["zarr2st", "h52st"])
def test_step_beside_a_path_that_reads_as_it(
    demo_model: Path, tmp_path: Path, command: str
) -> None:
    """A number after @ is a step, whatever files exist; and no target gets such a name."""
    run_store, other = tmp_path / "run", tmp_path / "run@7"
    safetensors_to_run([demo_model], run_store, steps=[7], as_hdf5=command == "h52st")
    refused_name = run("st2zarr", demo_model, other)
    assert refused_name.exit_code == 1
    assert (
        f"{other}: reads as step 7 of {run_store}: choose another name, or leave out @7"
        in refused_name.stderr
    )
    other.mkdir()
    back = tmp_path / "back.safetensors"
    assert run(command, run_store, back, "--step", 7).exit_code == 0
    assert back.read_bytes() == demo_model.read_bytes()


@pytest.mark.parametrize("command", ["st2zarr", "st2h5"])
def test_a_run_that_is_begun_says_so(demo_model: Path, tmp_path: Path, command: str) -> None:
    """A mistyped path would silently begin another run."""
    store = tmp_path / "run"
    line = done(command, demo_model, store, "--append", "--step", 1)
    assert line.endswith(", began a new run, verified\n")
    line = done(command, demo_model, store, "--append", "--step", 2)
    assert line.endswith(", appended, verified\n")
    for step, word in ((1, "begun"), (2, "appended")):
        other = tmp_path / "other"
        about = json.loads(done(command, demo_model, other, "--append", "--step", step, "--json"))
        assert about["done"] == word


@pytest.mark.parametrize("command", ["st2zarr", "st2h5"])
def test_one_model_does_not_replace_a_run(demo_model: Path, tmp_path: Path, command: str) -> None:
    """The user may have meant --append."""
    suffix = ".h5" if command == "st2h5" else ".zarr"
    store, link = tmp_path / f"run{suffix}", tmp_path / f"link{suffix}"
    link.symlink_to(store)
    for step in (1, 2):
        done(command, demo_model, store, "--append", "--step", step)
    before = (tmp_path / "run.h5").read_bytes() if suffix == ".h5" else files_in(store)
    for options in ([], ["--overwrite"]):
        for target in (store, link):
            result = run(command, demo_model, target, *options)
            assert result.exit_code == 1
            assert "is a run of 2 steps: --append adds to it; to replace it" in result.stderr
    assert before == ((tmp_path / "run.h5").read_bytes() if suffix == ".h5" else files_in(store))
    other = tmp_path / "model-step3.safetensors"
    other.symlink_to(demo_model)
    done(command, "--series", other, store, "--overwrite")


def test_the_line_of_an_append_names_the_step(demo_model: Path, tmp_path: Path) -> None:
    """A wrong number, read from a file's name, has to be visible."""
    source, store = tmp_path / "checkpoint-500" / "llama-3-8b.safetensors", tmp_path / "run.zarr"
    source.parent.mkdir()
    shutil.copy(demo_model, source)
    line = done("st2zarr", source, store, "--append")
    assert line.endswith(", step 500 (by its name 'checkpoint-500'), began a new run, verified\n")
    line = done("st2zarr", source, store, "--append", "--step", 600)
    assert line.endswith(", step 600, appended, verified\n")
    about = json.loads(done("st2zarr", source, tmp_path / "other", "--append", "--json"))
    assert (about["step"], about["step_by"]) == (500, "name 'checkpoint-500'")
    about = json.loads(done("st2zarr", source, store, "--append", "--step", 700, "--json"))
    assert (about["step"], about["step_by"]) == (700, None)
    unsure = run("st2zarr", demo_model, store, "--append").stderr
    assert unsure.endswith(", or append it with --append --step N\n")


def damage_attributes(store: Path, change: Callable[[str], str]) -> None:
    if store.is_dir():
        (store / "zarr.json").write_text(change((store / "zarr.json").read_text()))
        return
    with h5py.File(store, "r+") as file:
        file.attrs["bf16codecs"] = change(file.attrs["bf16codecs"])


@pytest.mark.parametrize("command", ["st2zarr", "st2h5"])
def test_one_model_does_not_replace_a_damaged_run(
    demo_model: Path, tmp_path: Path, command: str
) -> None:
    """Nor a store that may be one; a damaged model is replaced."""
    store = tmp_path / ("run.h5" if command == "st2h5" else "run.zarr")
    for change, said in (
        (lambda text: re.sub(r'"steps": *\[', r'"steps": [0, ', text, count=1), "is a run that"),
        (lambda text: text[:-1], "may be a run, which"),
    ):
        done(command, demo_model, store, "--append", "--step", 1)
        damage_attributes(store, change)
        line = run(command, demo_model, store, "--overwrite").stderr
        assert f"exists and {said} cannot be opened (" in line
        assert line.endswith("): to replace it by one model, remove it first\n")
        shutil.rmtree(store) if store.is_dir() else store.unlink()
    done(command, demo_model, store)
    damage_attributes(store, lambda text: text.replace('"tensors"', '"tensor"'))
    done(command, demo_model, store, "--overwrite")


def test_tensors_of_a_whole_run_are_counted_once(demo_model: Path, tmp_path: Path) -> None:
    """As `info` and `st2zarr` count them; the JSON document counts those of all steps."""
    store = tmp_path / "run.zarr"
    safetensors_to_run([demo_model, demo_model], store, steps=[7, 8])
    count = int(re.search(r"in (\d+) tensors", done("bf16codecs", "info", store))[1])  # type: ignore[index]
    assert f"run.zarr: {count} tensors at 2 steps, " in done("bf16codecs", "verify", store)
    restored = done("zarr2st", store, tmp_path / "back", "--all")
    assert f": {count} tensors at 2 steps, " in restored
    assert json.loads(done("bf16codecs", "verify", store, "--json"))["tensors"] == 2 * count
    one = done("bf16codecs", "verify", f"{store}@7")
    assert f"run.zarr@7: {count} tensors, " in one
