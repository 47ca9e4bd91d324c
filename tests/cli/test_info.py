"""Output of `info` and of `--json`: figures are consistent and match the files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

from based_models import write_nearby
from bf16codecs._files.reading import disk_size
from bf16codecs.safetensors import read_header
from invoked import CONVERTERS, done, info_table, refused
from invoked import run as run_command
from models import write_model


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def json_of(*args: Any) -> dict[str, Any]:
    """Return the output of a command with --json."""
    document = json.loads(done(*args, "--json"))
    assert isinstance(document, dict)
    return document


@pytest.mark.parametrize("name", CONVERTERS)
def test_sizes_are_those_of_the_files(demo_model: Path, name: str) -> None:
    to, back = CONVERTERS[name]
    stored = json_of(to, demo_model, name)
    restored = json_of(back, name, "m.safetensors")
    verified = json_of("bf16codecs", "verify", name, demo_model)
    about = json_of("bf16codecs", "info", name)
    for document in (stored, restored, verified, about):
        assert document["nbytes"] == demo_model.stat().st_size
        assert document["stored_nbytes"] == disk_size(Path(name))
        assert document["ratio"] == document["nbytes"] / document["stored_nbytes"]
        assert document["lossy"] is None
    for document in (stored, restored):
        assert document["verified"]
        assert (document["files"], document["tensors"]) == (1, 39)
        assert (document["seconds"] > 0, document["base"]) == (True, None)
    assert (stored["source"], stored["target"]) == (str(demo_model), name)
    assert (stored["done"], restored["done"]) == ("converted", "restored")
    assert verified["intact"]
    assert not json_of(to, demo_model, name, "--no-verify", "--overwrite")["verified"]
    assert json_of(to, demo_model, name, "--quiet", "--overwrite")["verified"]


@pytest.mark.parametrize("name", CONVERTERS)
def test_the_table_adds_up(demo_model: Path, name: str) -> None:
    done(CONVERTERS[name][0], demo_model, name)
    about = json_of("bf16codecs", "info", name)
    header = read_header(demo_model)
    assert [t["name"] for t in about["tensors"]] == [t.name for t in header.tensors]
    assert [tuple(t["shape"]) for t in about["tensors"]] == [t.shape for t in header.tensors]
    assert about["parameters"] == sum(t["parameters"] for t in about["tensors"]) == 492384
    assert sum(t["nbytes"] for t in about["tensors"]) == header.file_size - header.data_start
    assert sum(t["stored_nbytes"] for t in about["tensors"]) < about["stored_nbytes"]
    assert about["codecs"] == {"arithmetic fast": 39}
    assert about["lossless"]
    lines = done("bf16codecs", "info", name).splitlines()
    (total,) = (line.split() for line in lines if line.startswith("total"))
    assert total[-1] == f"{about['ratio']:.3f}"
    assert f"(ratio {about['ratio']:.3f}), lossless" in done("bf16codecs", "info", name)


def test_order_of_tensors(demo_model: Path) -> None:
    done("st2zarr", demo_model, "m.zarr")
    rows = json_of("bf16codecs", "info", "m.zarr")["tensors"]
    for sort, key in (
        ("file", lambda _: 0),
        ("name", lambda row: row["name"]),
        ("size", lambda row: -row["nbytes"]),
        ("ratio", lambda row: -row["ratio"]),
    ):
        names = [row["name"] for row in sorted(rows, key=key)]
        found = json_of("bf16codecs", "info", "m.zarr", "--sort", sort)["tensors"]
        assert [row["name"] for row in found] == names
        lines = info_table("m.zarr", "--sort", sort)[1:]
        assert [line.split()[0] for line in lines] == names


def test_safetensors_and_shards(demo_model: Path, tmp_path: Path) -> None:
    about = json_of("bf16codecs", "info", demo_model)
    assert (about["kind"], about["ratio"], about["dtypes"]) == ("safetensors", 1, {"BF16": 39})
    lines = done("bf16codecs", "info", demo_model).splitlines()
    assert lines[0] == f"{demo_model}: a safetensors model"
    assert lines[1:3] == ["parameters: 492384 in 39 tensors: BF16", "size: 988.81 kB"]
    assert lines[-1] == f"{demo_model.name}: 988808 bytes"
    assert info_table(demo_model)[1].split() == ["lm_head.weight", "BF16", "256x96", "49.15", "kB"]
    (tmp_path / "shards").mkdir()
    write_model(tmp_path / "shards" / "a.safetensors", [("a", "F32", (3, 4))])
    write_model(tmp_path / "shards" / "b.safetensors", [("b", "I8", (5,)), ("c", "F32", ())])
    about = json_of("bf16codecs", "info", "shards")
    assert [t["name"] for t in about["tensors"]] == ["a", "b", "c"]
    assert (about["dtypes"], about["parameters"]) == ({"F32": 2, "I8": 1}, 18)
    assert [file["name"] for file in about["files"]] == ["a.safetensors", "b.safetensors"]


def test_runs_and_their_steps(demo_model: Path) -> None:
    write_nearby(demo_model, Path("step-1.safetensors"), seed=1)
    write_nearby(Path("step-1.safetensors"), Path("step-2.safetensors"), seed=2)
    series = json_of("st2zarr", "--series", "step-1.safetensors", "step-2.safetensors", "run.zarr")
    assert series["source"] == ["step-1.safetensors", "step-2.safetensors"]
    about = json_of("bf16codecs", "info", "run.zarr")
    assert (about["nbytes"], about["stored_nbytes"]) == (
        series["nbytes"],
        series["stored_nbytes"],
    )
    assert [(s["step"], s["parent"]) for s in about["steps"]] == [(1, None), (2, 1)]
    assert about["parameters"] == 492384
    lines = done("bf16codecs", "info", "run.zarr").splitlines()
    assert lines[0] == "run.zarr: a run of 2 steps in a Zarr store, format 3"
    assert "steps: 1, 2; groups of 16" in lines
    assert "coded whole: 1; against an earlier step: 1" in lines
    step = json_of("bf16codecs", "info", "run.zarr@2")
    assert (step["step"], step["steps"], step["nbytes"]) == (2, None, demo_model.stat().st_size)
    assert step["stored_nbytes"] == sum(t["stored_nbytes"] for t in step["tensors"])


def test_one_tensor(demo_model: Path) -> None:
    done("st2zarr", demo_model, "m.zarr")
    header, row = done("bf16codecs", "info", "m.zarr", "--tensor", "lm_head.weight").splitlines()
    assert header.split()[:2] == ["tensor", "dtype"]
    assert row.split()[:3] == ["lm_head.weight", "BF16", "256x96"]
    (found,) = json_of("bf16codecs", "info", "m.zarr", "--tensor", "lm_head.weight")["tensors"]
    whole = json_of("bf16codecs", "info", "m.zarr")["tensors"]
    assert found in whole
    line = refused("bf16codecs", "info", "m.zarr", "--tensor", "embed")
    assert line.endswith("no tensor 'embed'; did you mean 'model.embed_tokens.weight'?")
    line = refused("bf16codecs", "info", "m.zarr", "--tensor", "zzz")
    assert line.endswith(
        "no tensor 'zzz'; it has 39 tensors, such as 'lm_head.weight': bf16codecs info lists all"
        " names"
    )


@pytest.mark.parametrize("run", ["run.zarr", "run.h5"])
def test_the_size_of_each_step(demo_model: Path, run: str) -> None:
    near = write_nearby(demo_model, Path("step-2.safetensors"), seed=1)
    to = "st2h5" if run == "run.h5" else "st2zarr"
    done(to, "--append", demo_model, run, "--step", "1")
    done(to, "--append", near, run)
    steps = json_of("bf16codecs", "info", run, "--steps")["steps"]
    alone = [json_of("bf16codecs", "info", f"{run}@{n}")["stored_nbytes"] for n in (1, 2)]
    assert [step["stored_nbytes"] for step in steps] == alone
    assert alone[1] < alone[0]
    assert {s["stored_nbytes"] for s in json_of("bf16codecs", "info", run)["steps"]} == {None}
    *_, first, second = done("bf16codecs", "info", run, "--steps").splitlines()
    assert (first.split()[:2], second.split()[:2]) == (["1", "whole"], ["2", "1"])
    result = run_command("bf16codecs", "info", demo_model, "--steps")
    assert (result.exit_code, "--steps goes with runs" in result.stderr) == (2, True)


def test_tensors_that_change_over_time() -> None:
    """Parameters are those of the last step, with its tensors and their dtypes."""
    for step, tensors in enumerate(
        (
            [("a", "BF16", (4, 3)), ("b", "BF16", (7,)), ("gone", "I8", (5,))],
            [("a", "F32", (4, 3)), ("b", "BF16", (7,))],
        )
    ):
        source = write_model(Path(f"step-{step}.safetensors"), tensors)
        done("st2zarr", source, "run.zarr", "--append", "--allow-changed-tensors", "--quiet")
    assert json_of("bf16codecs", "info", "run.zarr")["parameters"] == 19
    lines = done("bf16codecs", "info", "run.zarr").splitlines()
    assert lines[1:3] == [
        "parameters of the last step: 19 in 2 tensors: F32 (1), BF16 (1)",
        "over all steps: 4 tensors: BF16 (2), F32 (1), I8 (1)",
    ]


def test_holes_in_hdf5_are_reported(demo_model: Path) -> None:
    for step in (1, 2, 3):
        done("st2h5", demo_model, "run.h5", "--append", "--step", step)
    about = json_of("bf16codecs", "info", "run.h5")
    assert about["stored_nbytes"] == Path("run.h5").stat().st_size
    assert about["disk_nbytes"] == disk_size(Path("run.h5"))
    if about["disk_nbytes"] < about["stored_nbytes"]:  # this file system reports holes
        line = done("bf16codecs", "info", "run.h5").splitlines()[3]
        assert line.startswith("on the disk: ")
        assert line.endswith("; the rest is room for steps to come")
    done("st2h5", demo_model, "m.h5")
    assert json_of("bf16codecs", "info", "m.h5")["disk_nbytes"] is None


def test_a_base_and_what_is_lost(demo_model: Path) -> None:
    write_nearby(demo_model, Path("fine.safetensors"), seed=1)
    done("st2zarr", "fine.safetensors", "fine.zarr", "--base", demo_model)
    about = json_of("bf16codecs", "info", "fine.zarr")
    assert Path(about["base"]["path"]).name == demo_model.name
    assert {t["way"] for t in about["tensors"]} == {"difference"}
    assert json_of("bf16codecs", "rebase", "fine.zarr")["done"] == "whole"
    write_model(Path("f.safetensors"), [("w", "F32", (64,))])
    done("st2zarr", "f.safetensors", "f.zarr", "--lossy", "float16")
    about = json_of("bf16codecs", "info", "f.zarr")
    assert not about["lossless"]
    assert about["lossy"]["to"] == "float16"
    assert about["tensors"][0]["lossy"]["absolute"] == about["lossy"]["absolute"]
    assert done("bf16codecs", "info", "f.zarr").startswith("f.zarr: a lossy model in a Zarr store")


def test_files_that_are_no_model_stores_are_named() -> None:
    for zarr_format in (2, 3):
        array, group = f"array{zarr_format}", f"group{zarr_format}"
        zarr.create_array(array, shape=(3,), dtype="f4", zarr_format=zarr_format)
        zarr.open_group(group, mode="w", zarr_format=zarr_format)
        for command in ("info", "verify"):
            assert "a Zarr array: zarr.open reads it" in refused("bf16codecs", command, array)
            assert "a Zarr group: zarr.open reads it" in refused("bf16codecs", command, group)
    with h5py.File("f.h5", "w") as file:
        file["x"] = np.zeros(3)
    for command in ("info", "verify"):
        assert "an HDF5 file: h5py reads it" in refused("bf16codecs", command, "f.h5")


@pytest.mark.slow
def test_demo_explains_what_is_smaller_than_the_default() -> None:
    lines = done("bf16codecs", "demo").splitlines()
    at = lines.index("The default, arithmetic fast, is not the smallest here:")
    assert lines[at + 1].startswith("  arithmetic best: ")
    document = json_of("bf16codecs", "demo")
    sizes = {codec["name"]: codec["stored_nbytes"] for codec in document["codecs"]}
    smaller = [name for name, size in sizes.items() if size < sizes["arithmetic fast"]]
    assert [line.strip().partition(":")[0] for line in lines[at + 1 :]] == smaller
    assert all(codec["exact"] for codec in document["codecs"])
