"""Checkpoints to a run and back, byte for byte, at once and one by one."""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bf16codecs
from based_models import tensors_of, write_steps
from bf16codecs.convert import (
    append_to_run,
    run_to_safetensors,
    safetensors_to_run,
    safetensors_to_zarr,
    verify_store,
    zarr_to_safetensors,
)
from bf16codecs.errors import SafetensorsError, StoreError, TensorChangeWarning
from folders import content_of, files_in, names_in
from lazy_models import weights, write_safetensors, write_shards
from run_stores import (
    KINDS,
    Arrays,
    assert_is_step,
    drifting,
    eventful,
    make_run,
    restored,
    write_checkpoints,
)
from tiers import by_tier

STEPS = eventful()
GROUPS = [1, 2, 3, 4, 16]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_checkpoints(tmp_path_factory.mktemp("checkpoints"), STEPS)


# The grouping of steps does not depend on the kind of store.
PAIRS = [(kind, group) for kind in KINDS for group in (GROUPS if kind == "zarr 3" else (3, 16))]


@pytest.mark.parametrize(
    ("kind", "group"), by_tier([("zarr 3", 3), ("zarr 2", 16), ("zip", 1)], PAIRS)
)
def test_round_trip(checkpoints: list[Path], tmp_path: Path, kind: str, group: int) -> None:
    checkpoints = checkpoints[: by_tier(4, len(STEPS))]
    options = {"keyframe_every": group, "chunk_size": 256}
    store = make_run(kind, checkpoints, tmp_path, **options)
    assert names_in(tmp_path) == {store.name}
    originals = {path.name: path.read_bytes() for path in checkpoints}
    assert restored(store, tmp_path / "back") == originals
    numbers = list(STEPS)[: len(checkpoints)]
    for path, number in zip(checkpoints, numbers, strict=True):
        zarr_to_safetensors(f"{store}@{number}", tmp_path / "one", overwrite=True, sync=False)
        assert (tmp_path / "one").read_bytes() == originals[path.name]
        verify_store(f"{store}@{number}", path)
    assert verify_store(store).tensors == sum(len(STEPS[number]) for number in numbers)
    if store.is_dir():
        (tmp_path / "by appends").mkdir()
        own = make_run(kind, checkpoints, tmp_path / "by appends", by_appends=True, **options)
        assert files_in(own) == files_in(store)


def test_codecs_and_threads(checkpoints: list[Path], tmp_path: Path) -> None:
    checkpoints = checkpoints[: by_tier(4, len(STEPS))]
    originals = {path.name: path.read_bytes() for path in checkpoints}
    found = []
    cases: list[Arrays] = [{"level": "best"}, {"codec": "huffman"}, {"threads": 3}, {"threads": 1}]
    for place, options in enumerate(cases):
        folder = tmp_path / str(place)
        folder.mkdir()
        store = make_run("zarr 3", checkpoints, folder, keyframe_every=4, **options)
        assert restored(store, folder / "back") == originals, options
        found.append(files_in(store))
    assert found[2] == found[3]


def test_options_that_are_not_those_of_the_run(checkpoints: list[Path], tmp_path: Path) -> None:
    store = make_run("zarr 3", checkpoints[:2], tmp_path, keyframe_every=4)
    before = files_in(store)
    for name, own, other in (
        ("codec", "arithmetic", "huffman"),
        ("level", "fast", "best"),
        ("keyframe_every", 4, 16),
        ("zarr_format", 3, 2),
    ):
        with pytest.raises(ValueError, match=rf"{name} {own}, which all of its .* not {other}$"):
            append_to_run(checkpoints[2], store, **{name: other})
        assert files_in(store) == before
    own = {"codec": "arithmetic", "level": "fast", "keyframe_every": 4, "zarr_format": 3}
    append_to_run(checkpoints[2], store, **own)
    assert restored(store, tmp_path / "back") == {p.name: p.read_bytes() for p in checkpoints[:3]}


def test_a_run_in_a_zip_file_is_not_begun_by_an_append(
    checkpoints: list[Path], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="cannot grow: name a folder"):
        append_to_run(checkpoints[0], tmp_path / "run.zarr.zip")
    assert not (tmp_path / "run.zarr.zip").exists()


def test_a_run_in_a_zip_file_grows_once_it_is_unzipped(
    checkpoints: list[Path], tmp_path: Path
) -> None:
    packed, folder = tmp_path / "run.zarr.zip", tmp_path / "run.zarr"
    safetensors_to_run(checkpoints[:2], packed)
    with pytest.raises(StoreError, match=r"unzip it into a folder, such as run\.zarr, and append"):
        append_to_run(checkpoints[2], packed)
    shutil.unpack_archive(packed, folder)
    append_to_run(checkpoints[2], folder)
    assert restored(folder, tmp_path / "back") == {p.name: p.read_bytes() for p in checkpoints[:3]}


# --- real weights ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return two tensors of a model at steps 300, 399 and 400, the last with FP32 masters."""
    steps = write_steps(tmp_path_factory.mktemp("trained"), demo_model)
    with bf16codecs.open_model(steps[400]) as model:
        arrays = model.load()
    # Their own low bits are not at hand; any that are rounded away will do.
    below = np.random.default_rng(0)
    for name in list(arrays):
        bits = arrays[name].view("u2").astype("u4") << 16
        bits += below.integers(-0x7FFF, 0x7FFF, bits.shape).astype("u4")
        arrays[f"master.{name}"] = bits.view("f4")
    write_safetensors(steps[400], arrays)
    return list(steps.values())


def test_trained_weights(trained: list[Path], tmp_path: Path) -> None:
    store = make_run("zarr 3", trained, tmp_path)
    assert restored(store, tmp_path / "back") == {p.name: p.read_bytes() for p in trained}
    with bf16codecs.open_run(store) as run:
        weight, other = run.keys()[:2]
        assert (
            run[400][weight][7].tobytes() == bf16codecs.open_model(trained[2])[weight][7].tobytes()
        )
        own = {number: run[number].info().to_json() for number in run.steps}
    sizes = [own[number]["stored_nbytes"] for number in (300, 399, 400)]
    # 6 bits a weight where a whole one takes 10.6; roundings of stored tensors take nothing.
    assert sizes[1] < 0.62 * sizes[0]
    assert {t["name"]: t["codec"] for t in own[400]["tensors"]}[other] == "rounded"
    masters = {
        name: tensor[...]
        for name, tensor in bf16codecs.open_model(trained[2]).items()
        if name.startswith("master")
    }
    alone = tmp_path / "alone.zarr"
    safetensors_to_zarr(write_safetensors(tmp_path / "masters.safetensors", masters), alone)
    assert sizes[2] < sum(tensor["stored_nbytes"] for tensor in tensors_of(alone).values())


# --- any history ----------------------------------------------------------------------------------

VARIANTS = [
    lambda place: drifting((40, 24), place),
    lambda place: drifting((40, 24), place, "float32"),
    lambda place: drifting((40, 24), place, "float32").astype("bfloat16"),
    lambda place: drifting((40, 24), 0),
    lambda place: drifting((24, 40), place),
    lambda place: np.arange(place, place + 600, dtype="int16"),
    lambda place: np.array(place, "bool"),
    lambda place: np.empty((0, 3), "float16"),
]
NAMES = ["a", "a.b", "A", "b", "step", "safetensors.header.0", "=", ""]
histories = st.lists(
    st.dictionaries(st.sampled_from(NAMES), st.integers(0, len(VARIANTS) - 1), min_size=1),
    min_size=1,
    max_size=7,
)


@settings(max_examples=by_tier(4, 25))
@given(history=histories, group=st.sampled_from([1, 2, 3, 16]), is_appended=st.booleans())
def test_any_history(
    tmp_path_factory: pytest.TempPathFactory,
    history: list[dict[str, int]],
    group: int,
    is_appended: bool,
) -> None:
    # A checkpoint without any tensor of the earlier ones belongs to another run.
    steps: dict[int, Arrays] = {}
    for place, chosen in enumerate(history):
        arrays = {name: VARIANTS[which](place) for name, which in chosen.items()}
        steps[place] = {"always": np.array(place, "int64"), **arrays}
    folder = tmp_path_factory.mktemp("history")
    checkpoints = write_checkpoints(folder / "checkpoints", steps)
    store = make_run("zarr 3", checkpoints, folder, is_appended, keyframe_every=group)
    assert restored(store, folder / "back") == {p.name: p.read_bytes() for p in checkpoints}
    with bf16codecs.open_run(store) as run:
        for number, arrays in steps.items():
            assert_is_step(run[number], arrays)
        for tensor in run.values():
            name = tensor.name.partition("@")[0]
            for place, own in enumerate(tensor[...]):
                array = steps[place].get(name)
                is_there = array is not None and (array.dtype, array.shape) == (
                    own.dtype,
                    own.shape,
                )
                assert (place in tensor.steps) == is_there
                if is_there:
                    assert own.tobytes() == array.tobytes()
                else:
                    assert not np.any(own == own) or not np.any(own)


def test_tensors_that_change_are_warned_of(tmp_path: Path) -> None:
    a, b = weights((64, 24)), weights((30, 8), seed=1)
    history = [
        ({"a": a, "b": b}, ""),
        ({"a": a, "b": b, "new": b}, ""),
        ({"a": a.astype("float32"), "b": b}, r"'a' \(F32, not BF16\): .*'a@0'"),
        ({"a": a, "b": b}, ""),
        ({"a": a[:9], "b": b[:3]}, r"'a' \(of shape \(9, 24\), not \(64, 24\)\), and 1 more: "),
        ({"a": b, "b": b}, r"'a' \(of shape \(30, 8\), not \(9, 24\)\): "),
    ]
    paths = write_checkpoints(
        tmp_path / "from", {i: {"always": b, **own} for i, (own, _) in enumerate(history)}
    )
    for path, (_, text) in zip(paths, history, strict=True):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            append_to_run(path, tmp_path / "run.zarr", allow_changed_tensors=True)
        assert len(found) == bool(text)
        for own in found:
            assert own.category is TensorChangeWarning
            assert own.filename == __file__
            assert re.search(f"{re.escape(str(path))}: .* {text}", str(own.message))
    with pytest.warns(TensorChangeWarning):
        safetensors_to_run(paths, tmp_path / "series.zarr", allow_changed_tensors=True)


# --- sharded checkpoints --------------------------------------------------------------------------


def test_shards(tmp_path: Path) -> None:
    """Indexes and shards change in number and content."""
    a, b = weights((64, 24)), weights((30, 8), seed=1)
    folders = [
        write_shards(tmp_path / "checkpoint-100", [{"a": a}, {"b": b}]),
        write_shards(tmp_path / "checkpoint-200", [{"a": a, "b": b}]),
        write_shards(tmp_path / "checkpoint-300", [{"b": b}, {"a": a}, {"c": a}]),
    ]
    (folders[1] / "model.safetensors.index.json").unlink()
    with_index = folders[0] / "model.safetensors.index.json"
    store = make_run("zarr 3", [with_index, *folders[1:]], tmp_path, keyframe_every=2)
    found = {
        name: content
        for name, content in restored(store, tmp_path / "back").items()
        if content is not None
    }
    assert found == {
        f"step-{number}/{path.name}": path.read_bytes()
        for number, folder in zip((100, 200, 300), folders, strict=True)
        for path in folder.iterdir()
    }
    for number, folder in zip((100, 200, 300), folders, strict=True):
        verify_store(f"{store}@{number}", folder)
        target = tmp_path / f"one-{number}"
        zarr_to_safetensors(f"{store}@{number}", target)
        expected = files_in(folder) if number != 200 else next(iter(files_in(folder).values()))
        assert content_of(target) == expected
    # a is kept once a step, though two tensors have its bytes at the last one.
    content = json.loads((store / "zarr.json").read_text())["attributes"]["bf16codecs"]
    assert content["tensors"]["c"] == [{"path": "a", "at": [[2, None]]}]


def test_files_of_one_name(tmp_path: Path) -> None:
    paths = []
    for number in (1, 2):
        folder = tmp_path / f"step{number}"
        folder.mkdir()
        paths.append(
            write_safetensors(folder / "model.safetensors", {"w": drifting((8, 8), number)})
        )
    store = make_run("zarr 3", paths, tmp_path)
    found = restored(store, tmp_path / "back")
    assert found["step-1/model.safetensors"] == paths[0].read_bytes()
    assert found["step-2/model.safetensors"] == paths[1].read_bytes()
    # They are replaced by the same, and nothing else is.
    run_to_safetensors(store, tmp_path / "back", overwrite=True)
    with pytest.raises(FileExistsError):
        run_to_safetensors(store, tmp_path / "back")
    for name in ("mine", "step-1/mine"):
        (tmp_path / "back" / name).write_text("x")
        with pytest.raises(FileExistsError, match=f"exists and contains '{name}', which is not"):
            run_to_safetensors(store, tmp_path / "back", overwrite=True)
        (tmp_path / "back" / name).unlink()


# --- refused --------------------------------------------------------------------------------------


def test_series_that_make_no_sense(checkpoints: list[Path], tmp_path: Path) -> None:
    target = tmp_path / "run.zarr"
    with pytest.raises(SafetensorsError, match=r"model-step00000.*: is named twice, as step 0:"):
        safetensors_to_run([*checkpoints, checkpoints[0]], target)
    with pytest.raises(ValueError, match="at least one"):
        safetensors_to_run([], target)
    like_it = {name: weights((3, *array.shape)) for name, array in STEPS[0].items()}
    for arrays in ({"other": weights((8, 8))}, like_it):
        other = write_safetensors(tmp_path / "step99.safetensors", arrays)
        for steps, first, second in (
            ([0, 99], "model-step00000", "step99"),
            ([100, 99], "step99", "model-step00000"),
        ):
            with pytest.raises(StoreError, match=rf"{second}\.saf.* in common with .*{first}\.saf"):
                safetensors_to_run([checkpoints[0], other], target, steps=steps)
    for options in (
        {"keyframe_every": 0},
        {"keyframe_every": 5000},
        {"chunk_size": 0},
        {"zarr_format": 4},
        {"codec": "zstd"},
        {"codec": "none"},
        {"level": "best", "codec": "huffman"},
    ):
        with pytest.raises(ValueError, match=r"must be|has no|stores no differences"):
            safetensors_to_run(checkpoints, target, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="would replace the source"):
        safetensors_to_run(checkpoints, checkpoints[0].parent, overwrite=True)
    assert names_in(tmp_path) == {"step99.safetensors"}


def test_the_order_of_sources_does_not_matter(checkpoints: list[Path], tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one = make_run("zarr 3", checkpoints, tmp_path / "a")
    other = make_run("zarr 3", checkpoints[::-1], tmp_path / "b")
    assert files_in(one) == files_in(other)
    given = tmp_path / "given.zarr"
    safetensors_to_run(checkpoints[:2], given, steps=[7, 3])
    with bf16codecs.open_run(given) as run:
        assert run.steps == [3, 7]
        assert_is_step(run[7], STEPS[0])


def test_existing_targets(checkpoints: list[Path], tmp_path: Path) -> None:
    store = make_run("zarr 3", checkpoints[:2], tmp_path)
    before = files_in(store)
    with pytest.raises(FileExistsError):
        safetensors_to_run(checkpoints, store, allow_changed_tensors=True)
    with pytest.raises(SafetensorsError, match="not a safetensors file"):
        safetensors_to_run([checkpoints[0], Path(__file__)], store, overwrite=True, steps=[1, 2])
    assert files_in(store) == before
    safetensors_to_run(checkpoints[:1], store, overwrite=True)
    with bf16codecs.open_run(store) as run:
        assert run.steps == [0]
    assert names_in(tmp_path) == {"run.zarr"}


def test_restored_files_are_bounded_in_all(checkpoints: list[Path], tmp_path: Path) -> None:
    store = make_run("zarr 3", checkpoints, tmp_path)
    total = sum(path.stat().st_size for path in checkpoints)
    for read in (
        verify_store,
        lambda store, **o: run_to_safetensors(store, tmp_path / "back", **o),
    ):
        with pytest.raises(StoreError, match=r"the original files: .* more than max_bytes allows"):
            read(store, max_bytes=total - 1)
        read(store, max_bytes=total)


def test_a_source_that_changes_while_it_is_read(checkpoints: list[Path], tmp_path: Path) -> None:
    source = tmp_path / "step1.safetensors"
    source.write_bytes(checkpoints[0].read_bytes())

    def touch(phase: str, done: int, total: int) -> None:
        with open(source, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"x")

    with pytest.raises(SafetensorsError, match="changed while it was read"):
        safetensors_to_run([source], tmp_path / "run.zarr", progress=touch)
    assert names_in(tmp_path) == {"step1.safetensors"}
