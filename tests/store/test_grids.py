"""Weights that were quantised once in stores: how large they are, and what `info` tells of them."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tiers
from bf16codecs import _core
from bf16codecs._arrays import zipped
from bf16codecs._base.messages import quantised_lines
from bf16codecs.bench.synthetic import RECIPES
from bf16codecs.convert import safetensors_to_hdf5, safetensors_to_run, safetensors_to_zarr
from bf16codecs.hdf5.direct import Decoding
from bf16codecs.model import open_model, open_run
from invoked import done, info_table
from lazy_models import weights, write_safetensors
from servers import FileServer, serving

#: Names of stores, what makes them, and options.
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "v3.zarr": (safetensors_to_zarr, {}),
    "v2.zarr": (safetensors_to_zarr, {"zarr_format": 2, "codec": "huffman"}),
    "m.zarr.zip": (safetensors_to_zarr, {}),
    "m.h5": (safetensors_to_hdf5, {}),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def quantised(recipe: str, dtype: Any = ml_dtypes.bfloat16, seed: int = 0) -> Any:
    normal = np.random.default_rng(seed).normal(0, 0.02, (256, 512)).astype(np.float32)
    return RECIPES[recipe](normal).astype(dtype)


def write_kind(kind: str, source: Path, **more: Any) -> Path:
    """Convert a model to a store of a kind, beside it."""
    convert, options = KINDS[kind]
    convert(source, source.with_name(kind), **options, **more)
    return source.with_name(kind)


@kinds
def test_codecs_see_the_rows_of_tensors(tmp_path: Path, kind: str) -> None:
    """Columns are found only where the codec knows the rows."""
    tensors = {"w": quantised("int8-columns")}
    store = write_kind(kind, write_safetensors(tmp_path / "m.safetensors", tensors))
    with open_model(store) as model:
        (stored,) = model.info().table()["stored_nbytes"]
    assert stored < 0.51 * tensors["w"].nbytes


#: Tensors of a model, and what `info` tells of each.
TOLD = {
    "tiles": "FP8 E4M3, tiles of 128 x 128",
    "rows": "INT8, rows",
    "kernels": "FP8 E4M3, rows",
    "half": "NF4, groups of 64",
    "flat": "INT4, groups of 128",
    "plain": None,
    "mask": None,
    "none": None,
    "same": "NF4, groups of 64",
}


def write_quantised(path: Path) -> Path:
    tensors = {
        "tiles": quantised("fp8-tiles"),
        "rows": quantised("int8-rows"),
        "kernels": quantised("fp8-rows").reshape(256, 32, 4, 4),
        "half": quantised("nf4", np.float16),
        "flat": quantised("int4-g128", np.float32).reshape(-1),
        "plain": weights((64, 64)),
        "mask": np.zeros(2000, bool),
        "none": weights((0, 5)),
        "same": quantised("nf4", np.float16),
    }
    return write_safetensors(path, tensors)


def info_of(store: str | Path, *args: Any) -> dict[str, Any]:
    document = json.loads(done("bf16codecs", "info", "--json", *map(str, (store, *args))))
    assert isinstance(document, dict)
    return document


def told(about: dict[str, Any]) -> dict[str, str | None]:
    return {tensor["name"]: tensor["grid"] for tensor in about["tensors"]}


@kinds
def test_info_tells_what_was_quantised(tmp_path: Path, kind: str) -> None:
    store = write_kind(kind, write_quantised(tmp_path / "m.safetensors"))
    about = info_of(store)
    assert told(about) == TOLD
    assert about["grids"]["NF4, groups of 64"] == 2
    assert sum(about["grids"].values()) == 6
    lines = done("bf16codecs", "info", str(store)).splitlines()
    assert "quantised once: FP8 E4M3, tiles of 128 x 128 (1 of 9 tensors)" in lines
    assert "quantised once: NF4, groups of 64 (2 of 9 tensors)" in lines
    header, *rows = info_table(store)
    assert header.split()[-1] == "grid"
    assert sum(row.endswith("FP8 E4M3, tiles of 128 x 128") for row in rows) == 1
    with open_model(store) as model:
        assert model.info().table()["grid"] == list(TOLD.values())
    assert told(info_of(store, "--tensor", "rows")) == {"rows": TOLD["rows"]}


def test_a_summary_has_the_commonest_grids_first() -> None:
    names = [f"grid {i}" for i in range(9)]
    grids = [None, *names, *names[4:], *names[7:]]
    lines = list(quantised_lines(grids, 40))
    assert lines[0] == "quantised once: grid 7 (3 of 40 tensors)"
    assert lines[2] == "quantised once: grid 4 (2 of 40 tensors)"
    assert lines[6:] == ["quantised once: 3 more grids (3 tensors)"]
    assert len(list(quantised_lines(names[:7], 7))) == 7


def test_where_there_is_no_grid_info_has_no_column(tmp_path: Path) -> None:
    source = write_safetensors(tmp_path / "m.safetensors", {"w": weights((64, 64))})
    store = write_kind("v3.zarr", source)
    assert info_of(store)["grids"] == {}
    assert info_of(source)["grids"] is None
    assert info_table(store)[0].split()[-1] == "ratio"


def test_chunks_that_can_only_be_read_whole_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_quantised(tmp_path / "m.safetensors")
    with (
        zipfile.ZipFile(write_kind("m.zarr.zip", source)) as stored,
        zipfile.ZipFile(tmp_path / "d.zarr.zip", "w", zipfile.ZIP_DEFLATED) as deflated,
    ):
        for name in stored.namelist():
            deflated.writestr(name, stored.read(name))
    found: list[str] = []
    inflate = zipped._inflate
    monkeypatch.setattr(zipped, "_inflate", lambda m, s: found.append(m.filename) or inflate(m, s))
    assert set(told(info_of(tmp_path / "d.zarr.zip")).values()) == {None}
    assert not [name for name in found if "/c." in name and "header" not in name]
    monkeypatch.setattr(Decoding, "file_of", lambda self, dataset: None)  # as without preadv
    assert set(told(info_of(write_kind("m.h5", source))).values()) == {None}


def test_damaged_and_missing_chunks_have_no_grid(tmp_path: Path) -> None:
    store = write_kind("v3.zarr", write_quantised(tmp_path / "m.safetensors"))
    whole = info_of(store)
    chunk = store / "tiles" / "c.0.0"
    frame = chunk.read_bytes()
    begin = _core.Index(frame).offset(0)
    damages = {
        "header": bytes(20) + frame[20:],
        "end": frame[:-1],
        "head alone": frame[: begin + 3],
        "grid": frame[: begin + 6] + b"\xff" * 20 + frame[begin + 26 :],
        "empty": b"",
    }
    for what, damaged in damages.items():
        chunk.write_bytes(damaged)
        about = info_of(store)
        assert told(about) == {**TOLD, "tiles": None}, what
        assert len(about["tensors"]) == len(whole["tensors"])
    chunk.unlink()
    assert told(info_of(store)) == {**TOLD, "tiles": None}


@pytest.mark.parametrize("kind", tiers.by_tier(["v3.zarr", "m.h5"], list(KINDS)))
def test_differences_are_coded_whole_on_a_grid(tmp_path: Path, kind: str) -> None:
    shape = 256, 512
    (tmp_path / "base").mkdir()
    before = {"new": weights(shape), "near": weights(shape, seed=1)}
    base = write_safetensors(tmp_path / "base" / "m.safetensors", before)
    after = {"new": quantised("int4-g128"), "near": before["near"] * before["near"].dtype.type(2)}
    store = write_kind(kind, write_safetensors(tmp_path / "m.safetensors", after), base=base)
    base.unlink()  # it is not opened
    assert told(info_of(store)) == {"new": "INT4, groups of 128", "near": None}


@pytest.mark.parametrize("as_hdf5", [False, True])
def test_runs_and_their_steps(tmp_path: Path, as_hdf5: bool) -> None:
    grids = ["INT4, groups of 128", "NF4, groups of 64", None]
    steps = [quantised("int4-g128"), quantised("nf4", seed=1), weights((256, 512))]
    sources = [
        write_safetensors(tmp_path / f"step-{number}.safetensors", {"w": step})
        for number, step in enumerate(steps)
    ]
    run = tmp_path / ("run.h5" if as_hdf5 else "run.zarr")
    safetensors_to_run(sources, run, as_hdf5=as_hdf5)
    assert told(info_of(run)) == {"w": grids[0]}
    for number, grid in enumerate(grids):
        assert told(info_of(f"{run}@{number}")) == {"w": grid}
    with open_run(run) as opened:
        assert opened.info().table()["grid"] == [grids[0]]


def chunks_asked(server: FileServer) -> list[str | None]:
    """Return the ranges that were requested of tensors' chunks."""
    requests = [(path, part) for _, path, part in server.requests if "header" not in path]
    return [part for path, part in requests if "/c." in path]


def test_servers_are_asked_on_demand(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    store = write_kind("v3.zarr", write_quantised(tmp_path / "m.safetensors"))
    with serving(tmp_path) as server:
        address = f"{server.url}/{store.name}"
        about = info_of(address)
        assert (about["grids"], set(told(about).values())) == (None, {None})
        assert not [
            path for _, path, _ in server.requests if "/c." in path and "header" not in path
        ]
        lines = done("bf16codecs", "info", address).splitlines()
        assert "Quantised once? --grids looks at the head of each tensor's first chunk." in lines
        server.clear()
        assert told(info_of(address, "--grids")) == TOLD
        asked = [
            part for _, path, part in server.requests if "/c." in path and "header" not in path
        ]
        assert asked == ["bytes=0-4095"] * 7  # a request for each tensor that may have one
        with open_model(address) as model:
            assert model.info(grids=True).table()["grid"] == list(TOLD.values())
