"""The examples on reading run as described."""

from __future__ import annotations

import re

import numpy as np
import pytest

import bf16codecs
from bf16codecs.convert import safetensors_to_zarr
from lazy_models import write_store
from servers import serving


def test_compare_checkpoints(tmp_path, run_example, demo_model):
    with bf16codecs.open_model(demo_model) as model:
        arrays = model.load()
    old, new = dict(arrays), dict(arrays)
    changed = arrays["lm_head.weight"].copy()
    changed[:64] *= 2
    new["lm_head.weight"] = changed
    new["extra"] = old.pop("model.norm.weight")
    del new["model.norm.weight"]
    new["model.embed_tokens.weight"] = new["model.embed_tokens.weight"][:100]
    for name, part in (("old", old), ("new", new)):
        write_store(tmp_path / f"{name}.zarr", part)
    paths = [tmp_path / "old.zarr", tmp_path / "new.zarr"]
    lines = run_example("compare_checkpoints.py", *paths).splitlines()
    assert re.match(r"lm_head.weight +25\.0% +[45]\.\d+e-01 ", lines[1])
    assert re.match(r"model.embed_tokens.weight +\(256, 96\) became \(100, 96\)", lines[2])
    assert re.match(r"model.layers.0.input_layernorm.weight +0.0%  0.00e\+00  0.00e\+00", lines[3])
    assert lines[-1].split() == ["extra", "only", "in", str(paths[1])]
    assert run_example("compare_checkpoints.py", demo_model, demo_model).count(" 0.0% ") == 39


def test_remote_svd(tmp_path, run_example, demo_model):
    pytest.importorskip("aiohttp")
    safetensors_to_zarr(demo_model, tmp_path / "step-0400.zarr")
    name = "model.layers.0.mlp.up_proj.weight"
    with serving(tmp_path) as server:
        address = f"{server.url}/step-0400.zarr"
        output = run_example("remote_svd.py", address, name, 'headers={"X-Token": "x"}')
        assert len(server.requests) == 2
    with bf16codecs.open_model(demo_model) as model:
        weight = np.asarray(model[name], "float32")
    largest = np.linalg.svd(weight, compute_uv=False)[0]
    assert f"largest singular values: {largest:.3f} " in output


@pytest.mark.slow
def test_measure_loading(tmp_path, run_example, demo_model):
    pytest.importorskip("safetensors.torch")
    few = ["--gigabytes", "0.02", "--rounds", "1", "--folder", tmp_path]
    output = run_example("measure_loading.py", demo_model, *few)
    assert len(re.findall(r"^written +(?:cpu|meta) +load_into [\d.]+ .* ratio", output, re.M)) == 2
    assert not list(tmp_path.iterdir())


def test_measure_reading(tmp_path, run_example, demo_model):
    safetensors_to_zarr(demo_model, tmp_path / "model.zarr")
    output = run_example("measure_reading.py", tmp_path / "model.zarr")
    assert output.startswith("lm_head.weight: bfloat16 (256, 96)")
    assert float(output.split()[-1]) > 0
