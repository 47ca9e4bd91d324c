"""`info()` of models and runs: the command's output as an object."""

from __future__ import annotations

import json

import pytest

import bf16codecs
import tiers
from based_models import write_steps
from bf16codecs.bench.synthetic import RECIPES
from bf16codecs.convert import safetensors_to_hdf5, safetensors_to_run, safetensors_to_zarr
from invoked import done
from lazy_models import weights, write_safetensors
from servers import serving


@pytest.fixture(params=["safetensors", "zarr", "hdf5", "based", "run", "step", "lossy"])
def opened(request, tmp_path, demo_model, monkeypatch):
    """Return an opened model or run, and its path."""
    path = str(tmp_path / "m.zarr")
    if request.param == "safetensors":
        path = str(demo_model)
    elif request.param == "hdf5":
        path = str(tmp_path / "m.h5")
        safetensors_to_hdf5(demo_model, path)
    elif request.param in ("run", "step"):
        safetensors_to_run(list(write_steps(tmp_path, demo_model).values()), path)
        path += "@399" * (request.param == "step")
    elif request.param == "lossy":
        floats = {"a": weights((90, 90), "float32"), "b": weights((5,))}
        source = write_safetensors(tmp_path / "m.safetensors", floats)
        safetensors_to_zarr(source, path, lossy="float16")
    else:
        base = demo_model if request.param == "based" else None
        safetensors_to_zarr(demo_model, path, base=base)
    open_any = bf16codecs.open_run if request.param == "run" else bf16codecs.open_model
    with open_any(path) as model:
        yield model, path


def test_it_prints_what_the_command_prints(opened):
    model, path = opened
    for sort in tiers.by_tier(("file", "size"), ("file", "name", "size", "ratio")):
        found = model.info(sort=sort)
        assert f"{found}\n" == done("bf16codecs", "info", path, "--sort", sort), sort
        assert repr(found) == str(found)
        told = done("bf16codecs", "info", path, "--sort", sort, "--json")
        assert found.to_json() == json.loads(told), sort
    table = model.info("size").table()
    assert sorted(table["name"]) == sorted(model.keys())
    assert {len(column) for column in table.values()} == {len(model)}
    assert table["nbytes"] == sorted(table["nbytes"], reverse=True)
    for name in ("dtype", "shape", "parameters", "stored_nbytes", "ratio", "codec", "level", "way"):
        assert name in table
    assert "grid" in table


def test_grids_take_a_read_for_each_tensor(tmp_path, reads):
    normal = weights((256, 512), "float32")
    names = ("fp8-tiles", "int4-g128", "gaussian")
    tensors = {name: RECIPES[name](normal).astype("bfloat16") for name in names}
    source = write_safetensors(tmp_path / "m.safetensors", tensors)
    safetensors_to_zarr(source, tmp_path / "m.zarr")
    with bf16codecs.open_model(tmp_path / "m.zarr") as model:
        reads.clear()
        grids = model.info().table()["grid"]
    assert grids == ["FP8 E4M3, tiles of 128 x 128", "INT4, groups of 128", None]
    chunks = [asked for key, asked in reads if "header" not in key and "/c." in key]
    assert chunks == [[(0, 4096)]] * 3


def test_other_orders_are_refused(demo_model):
    with (
        bf16codecs.open_model(demo_model) as model,
        pytest.raises(ValueError, match="sort must be one of file, name, size, ratio, not 'x'"),
    ):
        model.info("x")


def test_sizes_are_asked_for(tmp_path, demo_model):
    pytest.importorskip("aiohttp")
    safetensors_to_zarr(demo_model, tmp_path / "m.zarr")
    with serving(tmp_path) as server, bf16codecs.open_model(f"{server.url}/m.zarr") as model:
        found = model.info()
        assert set(found.table()["stored_nbytes"]) == {None}
        assert str(found).endswith("sizes=True asks it for that of each chunk.")
        assert None not in model.info(sizes=True).table()["stored_nbytes"]
