"""Arrays are updated from one model to another, whose differences are decoded against them."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import bf16codecs
from bf16codecs import _core
from bf16codecs.convert import (
    append_to_run,
    safetensors_to_hdf5,
    safetensors_to_run,
    safetensors_to_zarr,
)
from bf16codecs.errors import (
    BaseMismatchError,
    BF16CodecsError,
    CorruptDataError,
    StoreError,
    TensorNotFoundError,
    UpdateError,
)
from bf16codecs.model import updating
from lazy_models import weights, write_safetensors

Arrays = dict[str, NDArray[Any]]

#: Of several chunks and blocks, of less than a block, of no dimension, empty, and of bytes.
FIRST: Arrays = {
    "large": weights((1500, 700)),
    "small": weights((60,), "float32"),
    "scalar": weights((), "float16"),
    "empty": weights((0, 5)),
    "bytes": np.arange(1000, dtype=np.uint8),
    "equal": weights((40, 8)),
}


def changed(arrays: Arrays, seed: int) -> Arrays:
    """Return arrays in which every 50th value differs, except in one."""
    found = {}
    for name, array in arrays.items():
        values = array.reshape(-1).copy()
        if name != "equal":
            raw = values.view(f"u{array.itemsize}")
            raw[seed % 50 :: 50] ^= 1
        found[name] = values.reshape(array.shape)
    return found


SECOND = changed(FIRST, 1)
THIRD = changed(SECOND, 2)
MODELS = (FIRST, SECOND, THIRD)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return [
        write_safetensors(tmp_path / f"step-{n}.safetensors", arrays)
        for n, arrays in enumerate(MODELS, 1)
    ]


def copies(arrays: Arrays) -> Arrays:
    return {name: array.copy() for name, array in arrays.items()}


def assert_same(found: Arrays, expected: Arrays) -> None:
    assert found.keys() == expected.keys()
    for name, array in found.items():
        assert array.tobytes() == expected[name].tobytes(), name


def update(path: Any, arrays: Arrays, have: Any, **options: Any) -> None:
    with bf16codecs.open_model(path) as model:
        model.update(arrays, have, **options)


Make = Callable[[list[Path], Path], Any]


def as_run(files: list[Path], folder: Path) -> str:
    safetensors_to_run(files, folder / "run.zarr", chunk_size=1 << 20)
    return f"{folder / 'run.zarr'}@3"


def as_hdf5_run(files: list[Path], folder: Path) -> str:
    safetensors_to_run(files, folder / "run.h5", as_hdf5=True)
    return f"{folder / 'run.h5'}@3"


def as_chain(files: list[Path], folder: Path) -> str:
    safetensors_to_zarr(files[0], folder / "1.zarr")
    safetensors_to_zarr(files[1], folder / "2.zarr", base=folder / "1.zarr", chunk_size=1 << 20)
    safetensors_to_zarr(files[2], folder / "3.zarr", base=folder / "2.zarr")
    return str(folder / "3.zarr")


def as_hdf5_chain(files: list[Path], folder: Path) -> str:
    safetensors_to_hdf5(files[0], folder / "1.h5")
    safetensors_to_hdf5(files[1], folder / "2.h5", base=folder / "1.h5")
    safetensors_to_hdf5(files[2], folder / "3.h5", base=folder / "2.h5")
    return str(folder / "3.h5")


def have_in(path: str, number: int) -> Any:
    """Return what `update` calls a model that another comes from."""
    return number if "@" in path else path.replace("3.", f"{number}.")


@pytest.mark.parametrize("make", [as_run, as_hdf5_run, as_chain, as_hdf5_chain])
@pytest.mark.parametrize("trust_base", [False, True])
def test_from_models_that_it_comes_from(
    files: list[Path], tmp_path: Path, make: Make, trust_base: bool
) -> None:
    path = make(files, tmp_path)
    for number in (1, 2):
        arrays = copies(MODELS[number - 1])
        update(path, arrays, have_in(path, number), trust_base=trust_base)
        assert_same(arrays, THIRD)


@pytest.mark.parametrize("make", [as_run, as_hdf5_run, as_chain, as_hdf5_chain])
def test_other_values_are_refused_and_kept(
    files: list[Path], tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(files, tmp_path)
    arrays = copies(SECOND)
    arrays["bytes"][500] ^= 1
    before = copies(arrays)
    with pytest.raises(BaseMismatchError, match=r"do not have the values of `have`: .*'bytes'"):
        update(path, arrays, have_in(path, 2))
    assert_same(arrays, before)
    # Without the comparison, others are new when it is found.
    monkeypatch.setattr(updating, "_TOGETHER_BYTES", 0)
    with pytest.raises(UpdateError, match=r"new by now: .*; all other tensors are as before") as e:
        update(path, arrays, have_in(path, 2), trust_base=True)
    assert isinstance(e.value.__cause__, BaseMismatchError)
    for name, array in arrays.items():
        expected = THIRD if name in e.value.updated else before
        assert array.tobytes() == expected[name].tobytes(), name
    assert "bytes" not in e.value.updated
    assert e.value.updated


def damaged_everywhere(path: Path, start: int, stop: int | None) -> None:
    content = bytearray(path.read_bytes())
    stop = len(content) if stop is None else stop
    content[start:stop] = bytes(byte ^ 0x55 for byte in content[start:stop])
    path.write_bytes(content)


def test_of_a_base_nothing_is_read_but_metadata(files: list[Path], tmp_path: Path) -> None:
    path = as_chain(files, tmp_path)
    for name in ("1.zarr", "2.zarr"):
        for chunk in (tmp_path / name).rglob("*"):
            is_header = "safetensors" in chunk.parts and "differences" not in chunk.parts
            if chunk.is_file() and chunk.suffix != ".json" and not is_header:
                damaged_everywhere(chunk, 0, None)
    with pytest.raises(BF16CodecsError), bf16codecs.open_model(path) as model:
        model.load()
    arrays = copies(SECOND)
    update(path, arrays, tmp_path / "2.zarr")
    assert_same(arrays, THIRD)


def test_of_a_run_no_earlier_version_is_read(files: list[Path], tmp_path: Path) -> None:
    path = as_run(files, tmp_path)
    for chunk in (tmp_path / "run.zarr").rglob("c.*"):
        content = chunk.read_bytes()
        if "safetensors" not in chunk.parts and _core.is_growing(content):
            index = _core.GrowingIndex(content)
            # All frames but the last one, which is a difference to the one before.
            damaged_everywhere(chunk, index.directory_size, index.ends[1])
    with pytest.raises(BF16CodecsError), bf16codecs.open_model(path) as model:
        model.load()
    arrays = copies(SECOND)
    update(path, arrays, 2)
    assert_same(arrays, THIRD)


def test_where_nothing_is_known_of_the_values_all_is_read(
    files: list[Path], tmp_path: Path
) -> None:
    other = tmp_path / "other.zarr"
    safetensors_to_zarr(files[2], other)
    for path in (as_run(files, tmp_path), as_chain(files, tmp_path), str(files[2])):
        for have in (None, other, *([77, f"{path[:-2]}@1"] if "@" in path else [])):
            is_step = isinstance(have, str)
            arrays = copies(FIRST) if is_step else {n: np.zeros_like(a) for n, a in FIRST.items()}
            update(path, arrays, have)
            assert_same(arrays, THIRD)


def test_steps_of_other_groups(files: list[Path], tmp_path: Path) -> None:
    run = tmp_path / "run.zarr"
    safetensors_to_run(files[:2], run, keyframe_every=2)
    append_to_run(files[2], run)
    for number in (1, 2):
        arrays = copies(MODELS[number - 1])
        update(f"{run}@3", arrays, number)
        assert_same(arrays, THIRD)


def test_steps_with_other_tensors_and_shapes(tmp_path: Path) -> None:
    first = {"a": weights((30, 20)), "b": weights((30, 20), seed=1)}
    second = {"a": changed(first, 1)["a"], "b": weights((10, 20), seed=2), "c": weights((3,))}
    files = [
        write_safetensors(tmp_path / f"{n}.safetensors", arrays)
        for n, arrays in ((1, first), (2, second))
    ]
    safetensors_to_run(files, tmp_path / "run.zarr", allow_changed_tensors=True)
    safetensors_to_zarr(files[0], tmp_path / "1.zarr")
    safetensors_to_zarr(files[1], tmp_path / "2.zarr", base=tmp_path / "1.zarr")
    for path, have in (
        (f"{tmp_path / 'run.zarr'}@2", 1),
        (tmp_path / "2.zarr", tmp_path / "1.zarr"),
    ):
        arrays = {
            "a": first["a"].copy(),
            "b": np.empty_like(second["b"]),
            "c": np.empty_like(second["c"]),
        }
        update(path, arrays, have)
        assert_same(arrays, second)


def test_some_tensors(files: list[Path], tmp_path: Path) -> None:
    arrays = {name: FIRST[name].copy() for name in ("small", "large")}
    update(as_run(files, tmp_path), arrays, 1)
    assert_same(arrays, {name: THIRD[name] for name in arrays})
    update(f"{tmp_path / 'run.zarr'}@2", {}, 1)


def test_tensors_that_share_memory(tmp_path: Path) -> None:
    tied = {"a": weights((300, 20)), "b": weights((300, 20)), "other": weights((300, 20), seed=1)}
    second = {name: (array * np.float32(2)).astype(array.dtype) for name, array in tied.items()}
    files = [
        write_safetensors(tmp_path / f"{n}.safetensors", arrays)
        for n, arrays in ((1, tied), (2, second))
    ]
    safetensors_to_run(files, tmp_path / "run.zarr")
    path, array = f"{tmp_path / 'run.zarr'}@2", tied["a"].copy()
    update(path, {"a": array, "b": array}, 1)
    assert array.tobytes() == second["a"].tobytes()
    both = np.concatenate([tied["a"], tied["other"]])
    before = both.copy()
    for one, other in ((array, array), (both[:300], both[200:500])):
        for have in (1, None):
            with pytest.raises(ValueError, match="tensors 'a' and 'other' share memory"):
                update(path, {"a": one, "other": other}, have)
    assert both.tobytes() == before.tobytes()
    update(path, {"a": both[:300], "other": both[300:]}, 1)
    assert both.tobytes() == np.concatenate([second["a"], second["other"]]).tobytes()


def test_a_log_is_empty_after_an_update(files: list[Path], tmp_path: Path) -> None:
    """It would keep memory, and addresses of arrays that may be gone."""
    path, arrays = as_chain(files, tmp_path), copies(SECOND)
    update(path, arrays, have_in(path, 2))
    updating._thread.log.undo()
    assert_same(arrays, THIRD)


def test_the_step_itself_and_later_ones(files: list[Path], tmp_path: Path) -> None:
    as_run(files, tmp_path)
    for step, have in ((3, 3), (2, 3), (1, 2)):
        arrays = {name: np.zeros_like(array) for name, array in FIRST.items()}
        update(f"{tmp_path / 'run.zarr'}@{step}", arrays, have)
        assert_same(arrays, MODELS[step - 1])


def test_models_as_what_there_is(files: list[Path], tmp_path: Path) -> None:
    run, chain = as_run(files, tmp_path), as_chain(files, tmp_path)
    for path, known in ((run, f"{run[:-1]}2"), (chain, tmp_path / "2.zarr")):
        with bf16codecs.open_model(known) as have:
            arrays = copies(SECOND)
            update(path, arrays, have)
            assert_same(arrays, THIRD)
            arrays["large"][3, 4] += 1
            with pytest.raises(BaseMismatchError):
                update(path, arrays, have)


def test_in_zip_files_that_are_compressed(files: list[Path], tmp_path: Path) -> None:
    as_chain(files, tmp_path)
    again = tmp_path / "3.zarr.zip"
    with zipfile.ZipFile(again, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted((tmp_path / "3.zarr").rglob("*")):
            if file.is_file():
                archive.write(file, file.relative_to(tmp_path / "3.zarr"))
    arrays = copies(SECOND)
    arrays["bytes"][500] ^= 1
    before = copies(arrays)
    with pytest.raises(BaseMismatchError, match="do not have the values of `have`"):
        update(again, arrays, tmp_path / "2.zarr")
    assert_same(arrays, before)
    arrays = copies(SECOND)
    update(again, arrays, tmp_path / "2.zarr")
    assert_same(arrays, THIRD)


def test_signals_in_the_middle_do_not_tear_a_tensor(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, interrupts = as_run(files, tmp_path), [2, 1]
    undo = _core.UndoLog.undo

    def interrupted(log: Any) -> None:
        if interrupts:
            interrupts.pop()
            raise KeyboardInterrupt
        undo(log)

    monkeypatch.setattr(_core.UndoLog, "undo", interrupted)
    jobs = updating._Work.jobs

    def few_jobs(work: Any, log: Any) -> Any:
        yield next(jobs(work, log))
        raise KeyboardInterrupt

    monkeypatch.setattr(updating._Work, "jobs", few_jobs)
    arrays = copies(SECOND)
    with pytest.raises(KeyboardInterrupt):
        update(path, {"large": arrays["large"]}, 2)
    assert interrupts == []
    assert_same(arrays, SECOND)


def test_thousands_of_small_tensors(tmp_path: Path) -> None:
    """Grouping them takes no time that grows with their square."""
    items = [updating._Item(Small(), updating.Against(None), None)] * 200_000  # type: ignore
    groups = list(updating.grouped(items, 1 << 20))
    assert sum(map(len, groups)) == 200_000
    assert len(groups) == -(-200_000 * 64 // (1 << 20))


class Small:
    nbytes = 16


def test_a_damaged_difference_leaves_each_tensor_old_or_new(
    files: list[Path], tmp_path: Path
) -> None:
    path = as_chain(files, tmp_path)
    chunks = [p for p in (tmp_path / "3.zarr").rglob("*") if p.is_file() and "large" in str(p)]
    damaged_everywhere(max(chunks, key=lambda chunk: chunk.stat().st_size), 200, None)
    for trust_base in (False, True):
        arrays = copies(SECOND)
        with pytest.raises((CorruptDataError, UpdateError)) as e:
            update(path, arrays, tmp_path / "2.zarr", trust_base=trust_base)
        new = getattr(e.value, "updated", ())
        for name, array in arrays.items():
            expected = THIRD if name in new else SECOND
            assert array.tobytes() == expected[name].tobytes(), name


def test_arguments(files: list[Path], tmp_path: Path) -> None:
    run, chain = as_run(files, tmp_path), as_chain(files, tmp_path)
    large = FIRST["large"]
    floats, columns = large.astype("float32"), np.asfortranarray(large)
    (tmp_path / "folder").mkdir()
    no_array = "an array of NumPy or a tensor of PyTorch is needed, not list"
    for error, text, path, tensors, have in (
        (TensorNotFoundError, "no tensor 'none'", run, {"none": large}, 1),
        (TypeError, no_array, run, {"large": [1]}, 1),
        (ValueError, "is bfloat16, and the array float32", run, {"large": floats}, 1),
        (ValueError, "shape .1500, 700., and the array .700, 1500.", run, {"large": large.T}, 1),
        (ValueError, "not contiguous", run, {"large": columns}, 1),
        (ValueError, "have=1: the number of a step, but .* is no step of a run", chain, {}, 1),
        (TypeError, "have must be an integer", run, {}, 1.5),
        (FileNotFoundError, "missing", chain, {}, tmp_path / "missing.zarr"),
        (StoreError, "not a model store", chain, {}, tmp_path / "folder"),
    ):
        with pytest.raises(error, match=text):
            update(path, tensors, have)
    read_only = FIRST["small"].copy()
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        update(run, {"small": read_only}, 1)
