"""Stores that are compared with another model: differences are not damage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from based_models import convert, write_nearby
from bf16codecs.convert import run_to_safetensors, safetensors_to_run, verify_store
from bf16codecs.errors import SourceMismatchError, StoreError
from damage import error_of
from invoked import run
from lazy_models import weights, write_safetensors, write_shards

ARRAYS = {f"t{i}": weights((128, 64), seed=i) for i in range(4)}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_safetensors(tmp_path / "m-1.safetensors", ARRAYS)


def test_other_files(tmp_path: Path, source: Path) -> None:
    """The message names the files in a sentence, not as a Python list."""
    store, shards = convert("zarr3", source, tmp_path / "m"), tmp_path / "shards"
    write_shards(shards, [{name: array} for name, array in ARRAYS.items()])
    with pytest.raises(SourceMismatchError) as caught:
        verify_store(store, shards)
    names = ", ".join(f"model-{i:05}-of-00004.safetensors" for i in (1, 2, 3))
    assert f"has m-1.safetensors, not {names} and 1 more" in str(caught.value)


def test_an_index_on_one_side(tmp_path: Path) -> None:
    """The message names the side that has an index, and what to compare with instead."""
    folder = tmp_path / "shards"
    write_shards(folder, [ARRAYS])
    (file,) = folder.glob("*.safetensors")
    store = convert("zarr3", folder, tmp_path / "m")
    error = error_of(store, file, error=SourceMismatchError)
    advice = "name the folder or the index"
    assert str(error).endswith(f"it has an index, and {file} has none: {advice}")
    store = convert("zarr3", file, tmp_path / "n")
    error = error_of(store, folder, error=SourceMismatchError)
    (index,) = folder.glob("*.json")
    assert str(error).endswith(f"it has no index, and {folder} has {index}: name the file alone")


def test_another_header(tmp_path: Path, source: Path) -> None:
    """The message names the first difference."""
    store = convert("zarr3", source, tmp_path / "m")
    path = tmp_path / "other.safetensors"
    others = {
        "the store has no tensor 't9'": {**ARRAYS, "t9": weights((1,))},
        "tensor 't0' is BF16 of shape (128, 64), not BF16 of shape (64, 128)": {
            **ARRAYS,
            "t0": weights((64, 128)),
        },
    }
    for difference, arrays in others.items():
        error = error_of(store, write_safetensors(path, arrays), error=SourceMismatchError)
        assert str(error).endswith(f"its header differs from {path}: {difference}")
    raw = source.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header, data = raw[8 : 8 + size], raw[8 + size :]
    entries = json.loads(header)
    spaced = json.dumps(entries, indent=1).encode()
    swapped = {"t0": entries["t1"], "t1": entries["t0"]}
    named = {"__metadata__": {"step": "1"}}
    for difference, new in {
        "the same entries are written in another way": spaced,
        "at offset": json.dumps({**entries, **swapped}).encode(),
        "the metadata differ": json.dumps({**named, **entries}).encode(),
    }.items():
        path.write_bytes(len(new).to_bytes(8, "little") + new + data)
        error = error_of(store, path, error=SourceMismatchError)
        assert difference in str(error)


def test_another_source(tmp_path: Path, source: Path) -> None:
    """The message says that the store is intact, but differs from the model."""
    store = convert("zarr3", source, tmp_path / "m")
    near = write_nearby(source, tmp_path / "m-2.safetensors")
    error = error_of(store, near, error=SourceMismatchError)
    text = f"{store}: intact, but not what {near} holds: 4 of 4 tensors differ; the first: tensor"
    assert str(error).startswith(f"{text} 't0', chunk (0, 0) ")
    assert error.damage == ()
    assert {found.tensor for found in error.differences} == ARRAYS.keys()
    arrays = {**ARRAYS, "t2": weights((128, 64), seed=8)}
    other = write_safetensors(tmp_path / "other.safetensors", arrays)
    error = error_of(store, other, error=SourceMismatchError)
    assert "1 of 4 tensors differs; the first: tensor 't2', chunk (0, 0)" in str(error)
    few = write_safetensors(tmp_path / "few.safetensors", {"t0": ARRAYS["t0"]})
    error = error_of(store, few, error=SourceMismatchError)
    assert f"intact, but not what {few} holds: its header differs from {few}: " in str(error)
    assert str(error).endswith("the source has no tensor 't1'")
    error = error_of(source, near, error=SourceMismatchError)
    assert str(error).startswith(f"{source}: readable, but not what {near} holds: 4 of 4 tensors")
    result = run("bf16codecs", "verify", store, other, "--json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["intact"], document["damage"]) == (1, True, [])
    assert [own["tensor"] for own in document["differences"]] == ["t2"]
    assert json.loads(run("bf16codecs", "verify", store, "--json").stdout)["differences"] == []


@pytest.mark.parametrize("names", [["m-1", "m-2"], ["m", "m"]])
def test_a_run_and_the_folder_of_its_steps(names: list[str], tmp_path: Path, source: Path) -> None:
    """With and without folders for steps, as all of them are restored."""
    steps = [tmp_path / f"step-{i}" / f"{name}.safetensors" for i, name in enumerate(names)]
    for path in steps:
        path.parent.mkdir()
    steps[0].write_bytes(source.read_bytes())
    write_nearby(source, steps[1])
    store, folder = tmp_path / "run.zarr", tmp_path / "all"
    safetensors_to_run(steps, store, steps=[100, 600])
    with pytest.raises(FileNotFoundError):
        verify_store(store, folder)
    folder.mkdir()
    with pytest.raises(StoreError, match=r"2 steps, but .*all is not the folder with all of them"):
        verify_store(store, folder)
    run_to_safetensors(store, folder)
    assert verify_store(store, folder).files == 2
    extra = folder / "m-599.safetensors"
    extra.write_bytes(source.read_bytes())
    error = error_of(store, folder, error=SourceMismatchError)
    assert str(error).endswith(f"not what {folder} holds: {extra} belongs to none of its steps")
    extra.unlink()
    (last,) = folder.rglob("step-600/*" if names[0] == names[1] else "m-2*")
    last.write_bytes(source.read_bytes())
    error = error_of(store, folder, error=SourceMismatchError)
    assert "4 of 8 tensors differ; the first: step 600: tensor 't0', chunk (0, 0)" in str(error)
    assert {found.step for found in error.differences} == {600}
