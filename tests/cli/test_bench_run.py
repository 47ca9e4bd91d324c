"""The bench of runs: it measures correctly, and leaves nothing behind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from based_models import write_nearby
from bf16codecs._files.reading import disk_size
from bf16codecs.bench import measure_run
from bf16codecs.cli import main
from bf16codecs.convert import safetensors_to_run, safetensors_to_zarr
from folders import names_in
from models import write_model
from tiers import by_tier


@pytest.fixture(scope="module")
def checkpoints(demo_model, tmp_path_factory):
    """Three steps, each near to the one before."""
    folder = tmp_path_factory.mktemp("run")
    paths = [folder / f"step-{number}.safetensors" for number in (5, 70, 9)]
    write_nearby(demo_model, paths[0], 1)
    write_nearby(paths[0], paths[2], 2)
    write_nearby(paths[2], paths[1], 3)
    return paths


@pytest.mark.parametrize("as_hdf5", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_sizes_are_those_of_the_stores(checkpoints, tmp_path, as_hdf5):
    (tmp_path / "place").mkdir()
    seen = []
    result = measure_run(
        checkpoints, as_hdf5=as_hdf5, repeats=1, folder=tmp_path / "place", progress=seen.append
    )
    assert seen == ["step 5", "step 9", "step 70"]
    assert not names_in(tmp_path / "place")
    assert [(step.number, step.base, step.parent) for step in result.steps] == [
        (5, None, None),
        (9, 5, 5),
        (70, 9, 9),
    ]
    assert sum(step.grown for step in result.steps) == result.nbytes
    for step in result.steps:
        assert 0 < step.in_run <= step.smallest <= step.whole
        assert min(step.whole_seconds, step.step_seconds) > 0
        assert step.written is None or step.written >= step.in_run
    if not as_hdf5:
        _, last, second = checkpoints
        run = safetensors_to_run(checkpoints, tmp_path / "run.zarr")
        assert result.nbytes == run.stored_nbytes
        safetensors_to_zarr(second, tmp_path / "second.zarr")
        on = safetensors_to_zarr(last, tmp_path / "last.zarr", base=tmp_path / "second.zarr")
        # The base's path is another one.
        assert abs(on.stored_nbytes - result.steps[2].smallest) < 200


@pytest.mark.slow
def test_command_prints_a_table_and_writes_a_file(checkpoints, tmp_path):
    arguments = [
        "--repeats",
        "1",
        "--level",
        by_tier("fast", "best"),
        "--json",
        str(tmp_path / "t.json"),
    ]
    done = CliRunner().invoke(main, ["bench-run", *map(str, checkpoints), *arguments])
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["step", "5", "9", "70", "run:", "opening:"]
    assert max(map(len, lines)) <= 80
    document = json.loads((tmp_path / "t.json").read_text())
    assert [step["number"] for step in document["steps"]] == [5, 9, 70]
    assert document["machine"]["threads"] == 1


def test_steps_with_nothing_in_common_are_no_bases(tmp_path):
    """Tensors come and go."""
    ab, b, bc, c = (tmp_path / f"step-{i}.safetensors" for i in range(4))
    for path, names in ((ab, "a b"), (b, "b"), (bc, "b c"), (c, "c")):
        write_model(path, [(name, "BF16", (64, 8)) for name in names.split()])
    result = measure_run([ab, b, bc, c], repeats=1)
    assert [step.number for step in result.steps] == [0, 1, 2, 3]
    assert result.steps[3].base in (None, 2)


def test_bad_input_is_one_line_before_anything_is_measured(checkpoints, tmp_path):
    first, other = str(checkpoints[0]), str(tmp_path / "step-6.safetensors")
    write_model(Path(other), [("x", "BF16", (64, 8))])
    nameless = shutil.copy(first, tmp_path / "m.safetensors")
    for arguments, error in (
        ([first, first], "is named twice, as step 5: leave one of them out"),
        (["no-such-file"], "no-such-file"),
        ([first, other], f"{other}: has no tensor in common with {first}, an earlier step: none"),
        ([first, "--json", str(tmp_path / "no" / "t.json")], "No such folder"),
        ([first, "--codec", "huffman", "--level", "best"], "huffman"),
        ([first, "--json", ""], "the path of the report is empty"),
        ([first, "--folder", ""], "the path of the folder of the stores is empty"),
        ([first, "--folder", str(tmp_path / "no")], f"{tmp_path / 'no'}: No such folder"),
        ([str(nameless)], "name it like model-step00600.safetensors"),
    ):
        done = CliRunner().invoke(main, ["bench-run", *arguments])
        assert done.exit_code == 1
        assert error in done.stderr
        assert done.stderr.count("\n") == 1
        assert done.stdout == ""


def test_holes_take_no_room(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 5000)
    assert disk_size(path) == 5000
    with open(path, "ab") as file:
        file.truncate(1 << 24)
    assert 5000 <= disk_size(path) <= 1 << 24
    if 512 * getattr(path.stat(), "st_blocks", 1 << 24) < 1 << 24:  # this file system reports holes
        assert disk_size(path) <= 1 << 16
    assert disk_size(tmp_path) == disk_size(path)
    assert disk_size(tmp_path / "none") == 0
