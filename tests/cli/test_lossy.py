"""The commands name lossy stores as such everywhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from bf16codecs._base.half import HalfLoss
from invoked import done, info_table, refused, run

WEIGHTS = np.random.default_rng(0).normal(0, 0.02, (70, 30)).astype("f4")
HALVES = WEIGHTS.astype("f2")
LOSS = HalfLoss.of(WEIGHTS, HALVES)
LINE = f"lossy: FP32 in half precision, not the original: {LOSS}"


def lines(command: str, *args: Any) -> list[str]:
    return done(command, *args).splitlines()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "m.safetensors"
    save_file({"w": WEIGHTS, "half": WEIGHTS.astype("f2")}, path)
    return path


@pytest.mark.parametrize("zarr_format", ["3", "2"])
def test_every_command_says_lossy(source, tmp_path, zarr_format):
    store, back = tmp_path / "m.zarr", tmp_path / "back.safetensors"
    save_file({"w": HALVES.astype("f4"), "half": WEIGHTS.astype("f2")}, tmp_path / "x")
    for codec in (
        ["delta-rle"],
        ["delta-deflate"],
        ["delta-deflate", "--level", "6"],
        ["huffman"],
    ):
        options = ["--lossy", "float16", "--zarr-format", zarr_format, "--codec", *codec]
        assert lines("st2zarr", source, store, *options, "--overwrite")[1] == LINE, codec
        assert lines("zarr2st", store, back, "--overwrite")[1] == LINE, codec
        assert back.read_bytes() == (tmp_path / "x").read_bytes(), codec
        assert lines("bf16codecs", "verify", store)[1] == LINE, codec
        first, second = lines("bf16codecs", "verify", store, source)
        assert re.search(r"identical to .*m\.safetensors in half precision,", first), codec
        assert second == LINE, codec
        assert lines("st2zarr", source, store, *options, "--overwrite", "--quiet") == [], codec


def test_info(source, tmp_path):
    lines("st2zarr", source, tmp_path / "m.zarr", "--lossy", "float16", "--codec", "delta-rle")
    table = lines("bf16codecs", "info", tmp_path / "m.zarr")
    assert re.search(r"ratio +lossy: error +relative$", info_table(tmp_path / "m.zarr")[0])
    errors = rf" +{LOSS.absolute:.4g} +{LOSS.relative:.4g}"
    rows = {line.split()[0]: line for line in table if line}
    assert re.search(rf"^w +F32 +70x30 +delta\+rle\+crc32c .*{errors}$", rows["w"])
    assert re.search(r"^half +F16 +70x30 +delta\+rle\+crc32c .*[\d.]+ *$", rows["half"])
    assert re.search(rf"^2 tensors .*{errors}$", rows["2"])
    assert LINE in table
    assert re.search(r"^m\.safetensors: \d+ bytes$", table[-3])
    assert re.search(r"^  BLAKE3 [0-9a-f]{64}$", table[-2])
    assert re.search(r"^  of the original, which is not restored: BLAKE3 [0-9a-f]{64}$", table[-1])
    lines("st2zarr", source, tmp_path / "whole.zarr")
    assert "lossy" not in "".join(lines("bf16codecs", "info", tmp_path / "whole.zarr"))


def test_wrong_usage(source, tmp_path):
    for command, options, message in (
        ("st2zarr", ["--codec", "delta-rle"], "codec 'delta-rle' is for lossy stores alone"),
        ("st2zarr", ["--codec", "delta-deflate", "--level", 6], "is for lossy stores alone"),
        ("st2zarr", ["--lossy", "float16", "--codec", "split"], "not 'split'"),
        ("st2zarr", ["--lossy", "float16", "--codec", "none"], "not 'none'"),
        ("st2zarr", ["--lossy", "float32"], "'float32' is not 'float16'"),
        ("st2zarr", ["--lossy", "float16", "--codec", "delta-rle", "--level", 3], "has no levels"),
        ("st2zarr", ["--lossy", "float16", "--codec", "delta-deflate", "--level", 0], "1 and 9"),
        ("st2zarr", ["--lossy", "float16", "--codec", "delta-deflate", "--level", 10], "1 and 9"),
        ("st2zarr", ["--lossy", "float16", "--base", "m"], "excludes --base and --dask"),
        ("st2zarr", ["--lossy", "float16", "--dask", "a:1"], "excludes --base and --dask"),
        ("st2zarr", ["--lossy", "float16", "--series"], "does not go with --series and --append"),
        ("st2zarr", ["--lossy", "float16", "--append"], "does not go with --series and --append"),
        ("st2h5", ["--lossy", "float16"], "lossy stores are Zarr stores: use st2zarr --lossy"),
    ):
        result = run(command, source, tmp_path / "target", *options)
        assert result.exit_code == 2, options
        assert message in result.stderr.splitlines()[-1], options
        assert not (tmp_path / "target").exists(), options


def test_models_without_floats_are_named(tmp_path):
    save_file({"ids": np.arange(9), "half": np.ones(9, "f2")}, tmp_path / "ids.safetensors")
    line = refused("st2zarr", tmp_path / "ids.safetensors", tmp_path / "t", "--lossy", "float16")
    assert "ids.safetensors: has no FP32 tensor" in line


def test_options_that_hdf5_does_not_have_are_not_listed() -> None:
    text = done("st2h5", "--help")
    assert "--codec" in text
    assert "lossy" not in text
    assert "delta" not in text
