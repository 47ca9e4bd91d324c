"""Runs: tensors over time, and each step as a model."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import bf16codecs
import tiers
from bf16codecs.errors import StepNotFoundError, StoreError, TensorNotFoundError
from bits import assert_same_bits
from run_stores import KINDS, assert_is_step, drifting, eventful, make_run, write_checkpoints

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated metadata")

STEPS = eventful()
NUMBERS = list(STEPS)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_checkpoints(tmp_path_factory.mktemp("checkpoints"), STEPS)


@pytest.fixture(scope="module", params=tiers.by_tier(["zarr 3", "zip"], list(KINDS)))
def path(
    request: pytest.FixtureRequest,
    checkpoints: list[Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    return make_run(request.param, checkpoints, folder, keyframe_every=4, chunk_size=512)


@pytest.fixture
def run(path: Path) -> Iterator[bf16codecs.Run]:
    with bf16codecs.open_run(path) as run:
        yield run


def over_time(name: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return what a tensor of this dtype and shape is at all steps."""
    fill = 0 if np.dtype(dtype).kind in "biu" else np.nan
    found = np.full((len(STEPS), *shape), fill, dtype)
    for place, arrays in enumerate(STEPS.values()):
        array = arrays.get(name)
        if array is not None and (array.dtype, array.shape) == (found.dtype, shape):
            found[place] = array
    return found


def test_is_a_mapping_of_tensors_over_time(run: bf16codecs.Run) -> None:
    assert run.steps == NUMBERS
    changing = {f"changes@{number}" for number in (0, 40, 51, 52)}
    names = {name for arrays in STEPS.values() for name in arrays} - {"changes"} | changing
    assert set(run.keys()) == set(run) == names
    assert len(run) == len(names)
    assert "embed" in run
    assert 40 in run
    assert "changes@40" in run
    assert 41 not in run
    assert "changes@41" not in run
    for name, tensor in run.items():
        expected = over_time(name.partition("@")[0], tensor.dtype.name, tensor.shape[1:])
        assert_same_bits(tensor[...], expected)
        at = [n for n, own in STEPS.items() if name in own]
        if "@" not in name:
            assert tensor.steps == at
    assert [tensor.name for tensor in run.values()] == run.keys()


def test_each_step_is_a_model(run: bf16codecs.Run, checkpoints: list[Path]) -> None:
    for number, checkpoint in zip(NUMBERS, checkpoints, strict=True):
        with bf16codecs.open_model(checkpoint) as source:
            model = run[number]
            assert set(model.keys()) == set(source.keys())
            assert model.metadata() == source.metadata()
        assert_is_step(model, STEPS[number])
        assert repr(model).startswith("<Model ")
        assert f"@{number}" in repr(model)


def test_one_step_is_opened_alone(path: Path) -> None:
    for number in NUMBERS:
        with bf16codecs.open_model(f"{path}@{number}") as model:
            assert_is_step(model, STEPS[number])


def test_closing_a_step_leaves_the_run_open(run: bf16codecs.Run) -> None:
    with run[40] as model:
        tensor = model["embed"]
    with pytest.raises(ValueError, match="closed"):
        model["embed"]
    with pytest.raises(ValueError, match="closed"):
        tensor[0]
    assert_same_bits(run[40]["embed"][...], STEPS[40]["embed"])


EMBED = over_time("embed", "bfloat16", (40, 24))
HEAD = over_time("head", "bfloat16", (40, 24))
ROUNDED = over_time("rounded", "bfloat16", (32, 24))
SELECTIONS = [
    np.s_[...],
    np.s_[3],
    np.s_[-1, 7],
    np.s_[:, 10, :],
    np.s_[:, 10, 3],
    np.s_[::-1, 5:9, ::7],
    np.s_[1:6:2, -3:, 5],
    np.s_[[5, 0, 2, 2], :, 3],
    np.s_[[1, 6], [39, 0], [2, 3]],
    np.s_[:, [3, 1]],
    np.s_[None, 3:5, None, ..., 1],
    np.s_[4:4],
    np.s_[np.arange(7) % 3 == 0],
    EMBED > 0.02,
]


@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_selections_are_numpys(run: bf16codecs.Run) -> None:
    for name, expected in (("embed", EMBED), ("head", HEAD)):
        for selection in SELECTIONS:
            actual = run[name][selection]
            assert type(actual) is type(expected[selection])
            assert_same_bits(actual, expected[selection])
    for selection in (7, np.s_[0, 40], np.s_[0, 0, 0, 0], [7], 1.5, np.s_[..., ...]):
        with pytest.raises(IndexError):
            run["head"][selection]


@settings(max_examples=tiers.by_tier(8, 30))
@given(data=st.data())
def test_any_selection_is_numpys(path: Path, data: st.DataObject) -> None:
    with bf16codecs.open_run(path) as run:
        for name, expected in (("embed", EMBED), ("rounded", ROUNDED)):
            selection = data.draw(hnp.basic_indices(expected.shape, allow_newaxis=True))
            assert_same_bits(run[name][selection], expected[selection])
            result_shape = hnp.array_shapes(max_dims=2, max_side=4)
            points = data.draw(hnp.integer_array_indices(expected.shape, result_shape=result_shape))
            assert_same_bits(run[name][points], expected[points])
            step = data.draw(st.sampled_from(NUMBERS))
            selection = data.draw(hnp.basic_indices(expected.shape[1:]))
            assert_same_bits(run[step][name][selection], STEPS[step][name][selection])


def test_tensors_that_change_are_several(run: bf16codecs.Run) -> None:
    with pytest.raises(StoreError) as caught:
        run["changes"]
    text = str(caught.value)
    assert "tensor 'changes' is from step 0 on BF16 of shape (5, 6), from step 40 on" in text
    assert "read it as 'changes@0' or 'changes@40' or" in text
    assert run["changes@0"].steps == [0, 10, 50]
    assert run["changes@51"].steps == [51]
    assert run["changes@51"].get_dtype() == "F16"
    assert run["changes@52"].shape == (7, 30)
    # A tensor that does not change has such a name as well.
    assert_same_bits(run["embed@0"][...], EMBED)
    assert run["step@11"].steps == [11, 50, 52]


def test_zarr_arrays(run: bf16codecs.Run) -> None:
    for name in ("embed", "always", "scalar", "comes.and.goes", "changes@0", "step"):
        array = run[name].zarr
        assert isinstance(array, zarr.Array)
        assert_same_bits(np.asarray(array), run[name][...])
    for name in ("head", "rounded"):
        with pytest.raises(ValueError, match="has no Zarr array: it is in several, or rounded"):
            _ = run[name].zarr
    # A step's selection has all steps.
    assert run[40]["embed"].zarr.shape == (7, 40, 24)


def test_zarr_arrays_that_are_of_another_tensor_at_some_steps(tmp_path: Path) -> None:
    embed = drifting((40, 24), 0)
    steps = {0: {"embed": embed, "head": embed}, 1: {"embed": embed}}
    checkpoints = write_checkpoints(tmp_path / "checkpoints", steps)
    with bf16codecs.open_run(make_run("zarr 3", checkpoints, tmp_path)) as run:
        assert np.isnan(run["head"][1].astype("f4")).all()
        with pytest.raises(ValueError, match=r"at some steps, it is that of 'embed'$"):
            _ = run["head"].zarr
        assert run["embed"].zarr.shape == (2, 40, 24)


def test_missing_names_are_reported(run: bf16codecs.Run, path: Path) -> None:
    with pytest.raises(
        TensorNotFoundError, match=r"no step has a tensor 'embd'; did you mean 'embed'\?"
    ):
        run["embd"]
    for name in ("", "@", "changes@1", "changes@", "embed@10", "embed@x"):
        with pytest.raises(TensorNotFoundError, match="no step has a tensor"):
            run[name]
    with pytest.raises(StepNotFoundError, match=r"no step 41; there are 0, 10, 11, \.\.\., 51, 52"):
        run[41]
    with pytest.raises(StepNotFoundError, match=r"no step -1; .*52.*: the last one is run\[run"):
        run[-1]
    with pytest.raises(TensorNotFoundError, match=r"steps are integers: there are 0, 10"):
        run["40"]
    with pytest.raises(
        TensorNotFoundError, match=r"'zzz'; it has \d+ tensors, such as 'embed': keys"
    ):
        run["zzz"]
    for key in (1.5, None, ("embed",), slice(0, 1)):
        with pytest.raises(TypeError, match=r"steps and names of tensors, not .*: run\.steps and"):
            run[key]
    assert_is_step(run[np.int64(40)], STEPS[40])
    with pytest.raises(StepNotFoundError):
        bf16codecs.open_model(f"{path}@41")
    with pytest.raises(StoreError, match=r"a run, with steps .*: name one of them, as in .*@52"):
        bf16codecs.open_model(path)
    with pytest.raises(StoreError, match=r"@52: a step, not a run: .* open it with open_model"):
        bf16codecs.open_run(f"{path}@52")
    with pytest.raises(TensorNotFoundError, match="no tensor 'comes'"):
        run[0]["comes"]


def test_a_model_is_no_run(checkpoints: list[Path], tmp_path: Path) -> None:
    store = tmp_path / "m.zarr"
    bf16codecs.convert.safetensors_to_zarr(checkpoints[0], store)
    with pytest.raises(StoreError, match="one model, not a run: open it with open_model"):
        bf16codecs.open_run(store)
    with pytest.raises(StoreError, match="one model, not a run with a step 3: leave out @3"):
        bf16codecs.open_model(f"{store}@3")


def test_repr_and_len(run: bf16codecs.Run, path: Path) -> None:
    assert repr(run) == f"<Run {path}: 7 steps, 19 tensors>"
    assert repr(run["embed"]) == "RunTensor('embed', shape=(7, 40, 24), dtype=bfloat16)"
    assert len(run["embed"]) == 7
    assert run["embed"].nbytes == 7 * 40 * 24 * 2


def test_a_closed_run_is_not_read(path: Path) -> None:
    run = bf16codecs.open_run(path)
    tensor, model = run["embed"], run[0]
    part = model["embed"]
    run.close()
    run.close()
    for read in (
        lambda: run["embed"],
        lambda: run[0],
        lambda: run.steps,
        lambda: tensor[0],
        lambda: model["embed"],
        lambda: part[0],
    ):
        with pytest.raises(ValueError, match="the run is closed"):
            read()


def test_a_closed_step_is_not_read(run: bf16codecs.Run) -> None:
    model = run[0]
    model.close()
    with pytest.raises(ValueError, match="the model is closed"):
        model["embed"]
    assert run.steps


def test_pickles_are_references(run: bf16codecs.Run) -> None:
    for thing in (run["head"], run["changes@40"], run[40]["embed"]):
        raw = pickle.dumps(thing)
        assert len(raw) < 1000
        found = pickle.loads(raw)
        assert type(found) is type(thing)
        assert_same_bits(found[...], thing[...])
    assert pickle.loads(pickle.dumps(run["comes"])).steps == [11]
    again = pickle.loads(pickle.dumps(run))
    assert again.steps == run.steps
    assert_same_bits(again["embed"][...], EMBED)
    assert_is_step(pickle.loads(pickle.dumps(run[11])), STEPS[11])


def test_a_reference_finds_appended_steps(checkpoints: list[Path], tmp_path: Path) -> None:
    store = make_run("zarr 3", checkpoints[:2], tmp_path, by_appends=True)
    with bf16codecs.open_run(store) as run, bf16codecs.open_model(f"{store}@0") as model:
        raw, at_zero = pickle.dumps(run["embed"]), pickle.dumps(model["embed"])
        assert pickle.loads(raw).shape[0] == 2
        bf16codecs.convert.append_to_run(checkpoints[2], store)
        assert pickle.loads(raw).shape[0] == 3
        assert_same_bits(pickle.loads(at_zero)[...], STEPS[0]["embed"])
        # A run that was opened before is unchanged.
        assert run.steps == NUMBERS[:2]
        assert_same_bits(run["embed"][...], EMBED[:2])


def test_dask(run: bf16codecs.Run) -> None:
    pytest.importorskip("dask.array")
    for name, expected in (("embed", EMBED), ("head", HEAD)):
        lazy = run[name].dask()
        assert lazy.chunks[0] == (4, 3)
        assert_same_bits(lazy[:, 5].compute(scheduler="threads"), expected[:, 5])
    # Two steps of one run are two arrays.
    first, second = run[0]["embed"].dask(), run[52]["embed"].dask()
    assert first.name != second.name
    assert_same_bits(first.compute(), EMBED[0])
    assert_same_bits(second.compute(), EMBED[-1])
    assert run[0]["embed"].dask().name == first.name


def test_dask_of_steps_that_are_opened_alone(path: Path) -> None:
    pytest.importorskip("dask.array")
    with bf16codecs.open_model(f"{path}@0") as one, bf16codecs.open_model(f"{path}@52") as other:
        assert one["embed"].dask().name != other["embed"].dask().name


def test_torch(run: bf16codecs.Run) -> None:
    torch = pytest.importorskip("torch")
    tensor = run["embed"].torch()
    assert tensor.dtype == torch.bfloat16
    assert_same_bits(tensor.view(torch.uint16).numpy(), EMBED.view("u2"))
    loaded = run[40].load(framework="torch")
    assert_same_bits(loaded["head"].view(torch.uint16).numpy(), STEPS[40]["head"].view("u2"))


def test_xarray(run: bf16codecs.Run) -> None:
    pytest.importorskip("xarray")
    data = run.xarray()
    assert list(data.coords) == ["step"]
    assert data.step.values.tolist() == NUMBERS
    # A tensor with the coordinate's name is renamed here.
    assert set(data) == {*run.keys(), "step@11"} - {"step"}
    assert data["head"].dims == ("step", "dim0_40", "dim1_24")
    assert_same_bits(data["head"].sel(step=40)[5].values, STEPS[40]["head"][5])
    assert_same_bits(
        data["embed"].isel(step=[3, 0], dim1_24=[7, 2, 2]), EMBED[[3, 0]][:, :, [7, 2, 2]]
    )
    assert_same_bits(data["embed"][::-2, ::-1, 3], EMBED[::-2, ::-1, 3])
    assert_same_bits(data["changes@40"][3], STEPS[40]["changes"])
    assert_same_bits(data["step@11"], run["step"][...])
    assert_same_bits(data["scalar"], np.arange(7))


def test_threads_may_share_a_run(run: bf16codecs.Run) -> None:
    def read(i: int) -> bool:
        number = NUMBERS[i % 7]
        name = ("embed", "head", "master", "rounded")[i % 4]
        return bool(
            (run[number][name][...].tobytes() == STEPS[number][name].tobytes())
            and run[name][i % 7, 3].tobytes() == STEPS[number][name][3].tobytes()
        )

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(tiers.by_tier(28, 64))))


def test_ranges_of_tensors_over_time(run: bf16codecs.Run) -> None:
    """Even of tensors whose steps are in several arrays, or in none."""
    for name, tensor in run.items():
        whole = tensor[...].tobytes()
        start, stop = len(whole) // 3, len(whole) - len(whole) // 5
        out = np.empty(stop - start, np.uint8)
        tensor.ranges().read_range(start, stop, out)
        assert out.tobytes() == whole[start:stop], name
