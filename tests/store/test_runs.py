"""The metadata of runs, and the runs that their reader refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import bf16codecs
import tiers
from bf16codecs.convert import run_to_safetensors, safetensors_to_run, verify_store
from bf16codecs.errors import StoreError
from edit_store import edit_array, edit_attributes
from folders import names_in
from lazy_models import weights, write_safetensors
from looping import noted
from models import every_dtype, write_model
from run_stores import KINDS, drifting, make_run, restored, write_checkpoints
from servers import serving
from store_cases import put_back
from store_limits import lower_limits

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated metadata")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    steps = {n: {"w": drifting((40, 24), n), "n": np.arange(9)} for n in range(3)}
    checkpoints = write_checkpoints(tmp_path / "checkpoints", steps)
    return make_run("zarr 3", checkpoints, tmp_path, keyframe_every=2)


@pytest.mark.parametrize("kind", tiers.by_tier(["zarr 2"], list(KINDS)))
def test_every_dtype(tmp_path: Path, kind: str) -> None:
    for number in (7, 8, 9):
        (tmp_path / f"step{number}").mkdir()
        every_dtype(tmp_path / f"step{number}" / "m.safetensors")
    sources = sorted(tmp_path.glob("step*/*"))
    write_model(sources[2], [("F4.0", "F4", (7, 24)), ("F6_E2M3.2", "F6_E2M3", (8, 3))], 3)
    store = make_run(kind, sources, tmp_path, keyframe_every=2, chunk_size=100)
    expected = {
        f"step-{n}/m.safetensors": p.read_bytes() for n, p in zip((7, 8, 9), sources, strict=True)
    }
    found = restored(store, tmp_path / "back")
    assert {name: found[name] for name in expected} == expected
    with bf16codecs.open_run(store) as opened:
        for number, source in zip((7, 8, 9), sources, strict=True):
            with bf16codecs.open_model(source) as model:
                for name, tensor in model.items():
                    own = opened[number][name]
                    assert (own.dtype, own.shape) == (tensor.dtype, tensor.shape)
                    assert own.get_dtype() == tensor.get_dtype()
                    assert own[...].tobytes() == tensor[...].tobytes()
        assert opened["F4.0"].dtype == np.uint8
        assert opened["F8_E8M0.0"].dtype.name == "float8_e8m0fnu"
        assert opened["F8_E8M0.0"].steps == [7, 8]


@pytest.mark.parametrize("kind", KINDS)
def test_as_many_dimensions_as_there_can_be(tmp_path: Path, kind: str) -> None:
    shapes = {n: (2,) + (1,) * (n - 2) + (3,) for n in (31, 32, 33, 70)}
    tensors = [(f"{n} dimensions", "BF16", shape) for n, shape in shapes.items()]
    sources = [write_model(tmp_path / f"step{n}.safetensors", tensors, n) for n in range(3)]
    store = make_run(kind, sources, tmp_path, keyframe_every=2)
    found = restored(store, tmp_path / "back")
    assert found == {source.name: source.read_bytes() for source in sources}
    assert verify_store(store).tensors == 12
    with bf16codecs.open_run(store) as opened:
        assert opened["31 dimensions"].shape == (3, *shapes[31])
        data = bf16codecs.open_model(sources[1])
        for name in ("32 dimensions", "70 dimensions"):
            assert (opened[name].shape, opened[name].dtype) == ((3, 12), np.uint8)
            assert opened[1][name][...].tobytes() == data[name][...].tobytes()


def test_the_written_layout(run: Path) -> None:
    """As docs/runs.md describes it."""
    group = zarr.open_group(run, mode="r")
    content = group.attrs["bf16codecs"]
    assert isinstance(content, dict)
    assert content["layout"] == 2
    assert content["run"]["group"] == 2
    assert content["run"]["codec"]["name"] == "bf16codecs.arithmetic"
    assert [step["step"] for step in content["steps"]] == [0, 1, 2]
    assert [step["parent"] for step in content["steps"]] == [None, 0, None]
    assert content["tensors"] == {"w": [{"path": "w"}], "n": [{"path": "n"}]}
    array = group["w"]
    assert isinstance(array, zarr.Array)
    assert (array.shape, array.chunks) == ((3, 40, 24), (2, 40, 24))
    assert array.metadata.dimension_names == ("step", "dim0_40", "dim1_24")
    assert array.attrs["bf16codecs"] == {"tensor": "w", "dtype": "BF16"}
    assert np.asarray(group["step"]).tolist() == [0, 1, 2]
    assert group["step"].metadata.dimension_names == ("step",)
    # Headers differ, and each is kept.
    headers = sorted(p.name for p in (run / "safetensors" / "header").iterdir() if p.is_dir())
    assert headers == ["0", "1", "2"]


def test_a_header_is_kept_once(tmp_path: Path) -> None:
    sources = [
        write_safetensors(tmp_path / f"step{n}.safetensors", {"w": drifting((8, 8), n)})
        for n in range(5)
    ]
    store = tmp_path / "run.zarr"
    safetensors_to_run(sources, store)
    headers = [p.name for p in (store / "safetensors" / "header").iterdir() if p.is_dir()]
    assert headers == ["0"]


DAMAGES: dict[str, tuple[Callable[[Any], object], str]] = {
    "shorter": (lambda a: a["shape"].__setitem__(0, 2), "without"),
    "another shape": (lambda a: a["shape"].__setitem__(1, 39), "dimensions are named"),
    "another dtype": (
        lambda a: a["attributes"]["bf16codecs"].update(dtype="F16"),
        "tensor 'w' is F16",
    ),
    "no dtype": (lambda a: a["attributes"]["bf16codecs"].update(dtype=3), "as dtype"),
    "another name": (lambda a: a["dimension_names"].__setitem__(1, "dim0_41"), "are named"),
}


def test_arrays_that_are_not_what_they_should_be(run: Path) -> None:
    for name, (change, message) in DAMAGES.items():
        with noted(name), put_back(run):
            edit_array(run, "w", change)
            with bf16codecs.open_run(run) as opened:
                with pytest.raises(StoreError, match=message):
                    opened["w"]
                with pytest.raises(StoreError, match=message):
                    opened[2].load()


def test_tensors_whose_header_is_another(run: Path) -> None:
    edit_attributes(run, lambda a: a["steps"][0]["files"][0].update(header="w"))
    with bf16codecs.open_run(run) as opened:
        with pytest.raises(StoreError, match="not an array of bytes"):
            opened["w"][0]
        assert opened[1].load()["w"].shape == (40, 24)
        with pytest.raises(StoreError, match="not an array of bytes"):
            opened[0].load()


def test_tensors_over_time_have_the_shape_of_their_header(tmp_path: Path) -> None:
    """Datasets have one shape for all steps."""
    arrays = {"w": weights((6, 4)), "v": weights((24,))}
    paths = [write_safetensors(tmp_path / f"step{i}.safetensors", arrays) for i in (1, 2)]
    store = tmp_path / "run.h5"
    safetensors_to_run(paths, store, as_hdf5=True)

    def swap(attributes: Any) -> None:
        tensors = attributes["tensors"]
        tensors["w"], tensors["v"] = tensors["v"], tensors["w"]

    edit_attributes(store, swap)
    with bf16codecs.open_run(store) as run:
        for name in ("w", "v"):
            with pytest.raises(StoreError, match="shape"):
                run[name][...]


def test_over_http_no_header_is_read(run: Path) -> None:
    pytest.importorskip("aiohttp")
    with serving(run.parent) as server:
        with bf16codecs.open_run(f"{server.url}/{run.name}") as opened:
            assert server.requests == [("GET", "/run.zarr/zarr.json", None)]
            assert opened["w"].shape == (3, 40, 24)
            assert opened[1]["w"][3].shape == (24,)
        assert [path for _, path, _ in server.requests[1:]] == ["/run.zarr/w/c.0.0.0"]


def test_sizes_over_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server cannot list keys: the sizes of chunks count, of those that have to be there."""
    pytest.importorskip("aiohttp")
    lower_limits(monkeypatch, 1 << 12)
    steps: dict[int, Any] = {n: {"w": drifting((40, 24), n)} for n in range(5)}
    steps[4]["late"] = drifting((40, 24), 9)
    make_run("zarr 3", write_checkpoints(tmp_path / "c", steps), tmp_path, keyframe_every=2)
    with serving(tmp_path) as server:
        with bf16codecs.open_run(f"{server.url}/run.zarr") as opened:
            assert opened["w"][...].shape == (5, 40, 24)
            assert opened["late"][4].shape == (40, 24)
        with (
            bf16codecs.open_run(f"{server.url}/run.zarr", max_bytes=5000) as opened,
            pytest.raises(StoreError, match="more than max_bytes allows"),
        ):
            opened["w"][...]
        run_to_safetensors(f"{server.url}/run.zarr", tmp_path / "back")
    assert names_in(tmp_path / "back") == {f"model-step0000{n}.safetensors" for n in range(5)}
