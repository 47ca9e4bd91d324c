"""The command `pack-hf`: its output, and refused folders."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from invoked import done, refused, run
from model_folders import contents, write_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "model")


def test_there_and_back(folder: Path, tmp_path: Path) -> None:
    packed, back = tmp_path / "packed", tmp_path / "back"
    lines = done("bf16codecs", "pack-hf", folder, packed, "--level", "best").splitlines()
    assert lines[0].startswith(f"{folder} -> {packed}: 4 tensors, ")
    assert lines[0].endswith(", verified")
    assert lines[1].startswith("3 stores: adapter_model.zarr, model.zarr, unet/deep/")
    assert lines[1].endswith("; 7 files copied")
    assert lines[2] == "not packed, since only safetensors are: pytorch_model.bin"
    (line,) = done("bf16codecs", "pack-hf", packed, back, "--restore").splitlines()
    assert line.startswith(f"{packed} -> {back}: 4 tensors, ")
    assert line.endswith(", restored")
    assert contents(back) == contents(folder)


def test_json_and_quiet(folder: Path, tmp_path: Path) -> None:
    told = json.loads(done("bf16codecs", "pack-hf", folder, tmp_path / "a", "--json"))
    assert (told["done"], told["verified"], told["tensors"]) == ("converted", True, 4)
    assert told["stores"][1] == "model.zarr"
    assert "config.json" in told["kept"]
    back = ["pack-hf", tmp_path / "a", tmp_path / "b", "--restore", "--json"]
    told = json.loads(done("bf16codecs", *back))
    assert told["done"] == "restored"
    assert done("bf16codecs", "pack-hf", folder, tmp_path / "a", "--overwrite", "--quiet") == ""


def test_errors(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "no weights to pack" in refused("bf16codecs", "pack-hf", folder / "empty", out)
    assert "No such folder" in refused("bf16codecs", "pack-hf", tmp_path / "typo", out)
    line = refused("bf16codecs", "pack-hf", folder, out, "--restore")
    assert "not a packed folder" in line
    assert "pack-hf without --restore makes one" in line
    done("bf16codecs", "pack-hf", folder, out)
    assert "--overwrite replaces it" in refused("bf16codecs", "pack-hf", folder, out)
    assert "--restore undoes it" in refused("bf16codecs", "pack-hf", out, tmp_path / "two")
    assert sorted(os.listdir(tmp_path)) == ["model", "out"]


def test_what_was_changed(folder: Path, tmp_path: Path) -> None:
    packed, back = tmp_path / "packed", tmp_path / "back"
    done("bf16codecs", "pack-hf", folder, packed)
    (packed / "config.json").write_text("{}")
    line = refused("bf16codecs", "pack-hf", packed, back, "--restore")
    assert line.endswith(
        "changed since it was packed: config.json: --no-verify restores what is there now"
    )
    lines = done("bf16codecs", "pack-hf", packed, back, "--restore", "--no-verify").splitlines()
    assert lines[1] == "changed since packing, and restored as changed: config.json"
    assert (back / "config.json").read_text() == "{}"


def test_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    line = refused("bf16codecs", "pack-hf", "http://127.0.0.1:1/llama", "out")
    assert "http://127.0.0.1:1/llama: an address, and only local folders are packed" in line


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="needs a folder that takes no files")
def test_folders_that_take_no_files(folder: Path) -> None:
    line = refused("bf16codecs", "pack-hf", folder, "/proc/zz")
    assert "/proc/zz: " in line
    assert "or takes no files" in line


def test_wrong_usage(folder: Path, tmp_path: Path) -> None:
    for options, told in (
        (["--restore", "--codec", "zstd"], "--codec does not go with --restore"),
        (["--restore", "--sha256"], "--sha256 does not go with --restore"),
        (["--max-bytes", "1G"], "--max-bytes goes with --restore"),
        (["--lossy", "float16"], "--lossy does not go with pack-hf"),
        (["--base", "x"], "No such option"),
        (["--codec", "zstd", "--level", "99"], "level"),
    ):
        result = run("bf16codecs", "pack-hf", folder, tmp_path / "out", *options)
        assert result.exit_code == 2, options
        assert told in result.stderr, options
        assert os.listdir(tmp_path) == ["model"], options
