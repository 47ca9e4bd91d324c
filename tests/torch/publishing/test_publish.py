"""`publish` adds steps to a run, which everything reads that reads runs."""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

import bf16codecs
from bf16codecs.codecs.frames import encode_delta
from bf16codecs.convert import (
    append_to_run,
    run_to_safetensors,
    safetensors_to_zarr,
    undo_append,
    verify_store,
    zarr_to_safetensors,
)
from bf16codecs.errors import BaseMismatchError, StoreError
from models import every_dtype
from published import bits_in, bits_of, changed, copies, first_state, published, states

torch = pytest.importorskip("torch")
publish = pytest.importorskip("bf16codecs.torch").publish


@pytest.fixture(params=["disk", "bucket"])
def place(request: Any, tmp_path: Path) -> tuple[str, dict[str, Any]]:
    """Return the path or address of a run, and options for it."""
    if request.param == "disk":
        return str(tmp_path / "policy.zarr"), {}
    bucket, s3 = request.getfixturevalue("bucket"), request.getfixturevalue("s3")
    return f"{bucket}/policy.zarr", {"storage_options": s3}


def root_of(path: Path) -> Any:
    return json.loads((path / "zarr.json").read_text())["attributes"]["bf16codecs"]


def files_in(path: Path) -> set[str]:
    return {p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file()}


def test_steps_are_read_as_those_of_a_run(place: tuple[str, dict[str, Any]]) -> None:
    path, options = place
    some = states(6)
    results = list(published(path, some, keyframe_every=4, **options))
    assert [r.change_nbytes > 0 for r in results] == [False] + 5 * [True]
    assert [r.whole_nbytes > 0 for r in results] == [True, False, False, False, True, False]
    with bf16codecs.open_run(path, **options) as run:
        assert run.steps == [0, 10, 20, 30, 40, 50]
        for number, state in zip(run.steps, some, strict=True):
            assert bits_in(run[number]) == bits_of(state), number
        over_time = run["layers.0.weight"][:, 3, :]
        for index, state in enumerate(some):
            row = state["layers.0.weight"][3].view(torch.int16).numpy()
            assert over_time[index].view("int16").tolist() == row.tolist()
    with bf16codecs.open_model(f"{path}@30", **options) as model:
        assert model.step == 30
        assert bits_in(model) == bits_of(some[3])


@pytest.mark.parametrize(("have", "wanted"), [(0, 10), (0, 50), (30, 40), (10, 50), (40, 50)])
def test_an_update_reads_the_changes_between_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, have: int, wanted: int
) -> None:
    path, some = tmp_path / "policy.zarr", states(6)
    list(published(path, some, keyframe_every=4))
    for whole in path.glob("steps/*/whole.*"):
        whole.unlink()
    tensors = copies(some[have // 10])
    with bf16codecs.open_model(f"{path}@{wanted}") as model:
        model.update(tensors, have=have)
    assert bits_of(tensors) == {
        name: tensor for name, tensor in bits_of(some[wanted // 10]).items() if name in tensors
    }


def test_an_update_of_other_values_is_refused(tmp_path: Path) -> None:
    path, some = tmp_path / "policy.zarr", states(3)
    list(published(path, some))
    tensors = copies(first_state(seed=9))
    before = bits_of(tensors)
    with (
        bf16codecs.open_model(f"{path}@20") as model,
        pytest.raises(BaseMismatchError, match="do not have the values of `have`"),
    ):
        model.update(tensors, have=10)
    assert bits_of(tensors) == before


def test_a_step_takes_little_more_than_the_frames_of_its_differences(tmp_path: Path) -> None:
    random = torch.Generator().manual_seed(1)
    old = {f"{n}": torch.randn(512, 512, generator=random).bfloat16() for n in range(12)}
    new = changed(old, 1)
    publish(tmp_path / "policy.zarr", old, 1)
    change = publish(tmp_path / "policy.zarr", new, 2).change_nbytes
    codec = bf16codecs.BF16Arithmetic()
    frames = (
        encode_delta(codec, n.view(torch.int16).numpy(), o.view(torch.int16).numpy())
        for n, o in zip(new.values(), old.values(), strict=True)
    )
    assert change <= 1.03 * sum(map(len, frames))


def test_a_job_that_begins_again_reads_the_step_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bf16codecs.torch.publishing import copies as kept

    some = states(5)
    for keep_copy in (True, False):
        path = tmp_path / f"{keep_copy}.zarr"
        for number, state in enumerate(some):
            monkeypatch.setattr(kept, "_copies", OrderedDict())
            result = publish(
                path, state, number, keep_copy=keep_copy, keyframe_every=3 if not number else None
            )
            assert not number or result.change_nbytes
        with bf16codecs.open_run(path) as run:
            assert [bits_in(run[number]) for number in run.steps] == list(map(bits_of, some))


def test_copies_of_another_run_at_the_path_are_not_used(tmp_path: Path) -> None:
    path, some = tmp_path / "policy.zarr", states(2)
    other = first_state(seed=5)
    list(published(path, some))
    path.rename(tmp_path / "old.zarr")
    publish(path, other, 0)
    publish(path, some[1], 10)
    with bf16codecs.open_run(path) as run:
        assert bits_in(run[10]) == bits_of(some[1])


def test_tensors_may_change_after_publishing(tmp_path: Path) -> None:
    path, state = tmp_path / "policy.zarr", {"w": torch.zeros(100, 100, dtype=torch.bfloat16)}
    expected = []
    for number in range(4):
        state["w"] += 1
        expected.append(state["w"].clone())
        publish(path, state, number)
    with bf16codecs.open_run(path) as run:
        assert all(torch.equal(run[n]["w"].torch(), expected[n]) for n in range(4))


def test_views_are_published_as_they_look(tmp_path: Path) -> None:
    whole = torch.randn(64, 64)
    state = {
        "t": whole.T,
        "rows": whole[::2],
        "neg": torch._neg_view(whole),
        "columns": whole[:, 3],
    }
    publish(tmp_path / "policy.zarr", state, 0)
    publish(tmp_path / "policy.zarr", state, 1)
    with bf16codecs.open_model(tmp_path / "policy.zarr@1") as model:
        assert all(torch.equal(model[name].torch(), tensor) for name, tensor in state.items())


def test_early_steps_are_dropped_by_groups(place: tuple[str, dict[str, Any]]) -> None:
    path, options = place
    some = states(9)
    list(published(path, some, keyframe_every=3, keep_last=2, **options))
    with bf16codecs.open_run(path, **options) as run:
        assert run.steps == [60, 70, 80]
        assert [bits_in(run[n]) for n in run.steps] == list(map(bits_of, some[6:]))
    tensors = copies(some[6])
    with bf16codecs.open_model(f"{path}@80", **options) as model:
        model.update(tensors, have=60)
        assert bits_of(tensors)["half"] == bits_of(some[8])["half"]
    tensors = copies(some[4])
    with bf16codecs.open_model(f"{path}@80", **options) as model:
        model.update(tensors, have=40)  # was dropped: the step is read as a whole
        assert bits_of(tensors)["half"] == bits_of(some[8])["half"]


def test_nothing_of_dropped_steps_is_left(tmp_path: Path) -> None:
    path = tmp_path / "policy.zarr"
    list(published(path, states(9), keyframe_every=3, keep_last=1))
    listed = root_of(path)
    assert listed["published"]["dropped"] == 6
    keys = {
        f"{step['key']}/{name}"
        for step in listed["steps"]
        for kind in ("change", "whole")
        for name in step.get(kind, {})
    }
    assert files_in(path) == {"zarr.json", listed["published"]["plan"], *keys}
    assert sorted(os.listdir(path)) == ["plan", "steps", "zarr.json"]


def test_what_a_dead_writer_has_left_is_removed(tmp_path: Path) -> None:
    path, some = tmp_path / "policy.zarr", states(4)
    left = path / "steps" / "5-0123abcd"
    later = path / "steps" / "500-0123abcd"
    for folder in (left, later):
        folder.mkdir(parents=True)
        (folder / "change.0.0").write_bytes(b"half a pack")
    list(published(path, some, keyframe_every=2))
    assert not left.exists()
    assert later.exists()  # whoever writes it may be alive


@pytest.mark.parametrize("step", [-1, 2**63, 1.5, "7", None])
def test_a_step_that_is_no_number_is_refused(tmp_path: Path, step: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        publish(tmp_path / "policy.zarr", first_state(), step)
    assert not (tmp_path / "policy.zarr").exists()


def test_steps_have_to_ascend(place: tuple[str, dict[str, Any]]) -> None:
    path, options = place
    some = states(3)
    list(published(path, some, **options))
    for step, what in ((20, "is there already"), (15, "is not after the last one")):
        with pytest.raises(StoreError, match=rf"step {step} {what}: the last one is 20"):
            publish(path, some[0], step, **options)
    publish(path, some[0], 21, **options)
    with bf16codecs.open_run(path, **options) as run:
        assert run.steps == [0, 10, 20, 21]
        assert bits_in(run[21]) == bits_of(some[0])


def changed_in(name: str, new: Any) -> Any:
    state = first_state()
    if new is None:
        del state[name]
    else:
        state[name] = new
    return state


@pytest.mark.parametrize(
    ("name", "new", "text"),
    [
        ("half", None, "it lacks half"),
        ("more", [1.0], "it also has more"),
        ("half", [1.0], "these have another dtype or shape: half"),
        ("head.weight", "untied", "no longer tied: head.weight"),
        ("head.weight", None, "it lacks head.weight"),
    ],
)
def test_a_step_with_other_tensors_is_refused(
    tmp_path: Path, name: str, new: Any, text: str
) -> None:
    path = tmp_path / "policy.zarr"
    publish(path, first_state(), 0)
    before = files_in(path)
    if new == "untied":
        new = first_state()[name].clone()
    state = changed_in(name, torch.tensor(new) if isinstance(new, list) else new)
    with pytest.raises(StoreError, match=text):
        publish(path, state, 1)
    assert files_in(path) == before


@pytest.mark.parametrize(
    "state",
    [
        {"epoch": 3},
        {"w": [1.0]},
        {1: 2},
        [("w", 1)],
        {},
    ],
)
def test_what_is_no_tensor_is_refused(tmp_path: Path, state: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        publish(tmp_path / "policy.zarr", state, 0)
    assert not (tmp_path / "policy.zarr").exists()


def test_tensors_that_cannot_be_stored_are_refused(tmp_path: Path) -> None:
    for tensor in (torch.zeros(3, dtype=torch.complex128), torch.zeros(3, device="meta")):
        with pytest.raises(ValueError, match="tensor 'w'"):
            publish(tmp_path / "policy.zarr", {"w": tensor}, 0)
    assert not files_in(tmp_path)


@pytest.mark.parametrize(
    "option",
    [
        {"keep_last": 0},
        {"keyframe_every": 0},
        {"keyframe_every": 5000},
        {"threads": 0},
        {"codec": "zstd"},
        {"codec": "other"},
        {"level": "slow"},
        {"storage_options": {"key": "k"}},
    ],
)
def test_an_invalid_option_is_refused(tmp_path: Path, option: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        publish(tmp_path / "policy.zarr", first_state(), 0, **option)
    assert not files_in(tmp_path)


def test_options_of_another_run_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.zarr"
    publish(path, first_state(), 0, keyframe_every=4, level="best")
    for option in ({"keyframe_every": 5}, {"level": "fast"}, {"codec": "huffman"}):
        with pytest.raises(ValueError, match="was made with"):
            publish(path, first_state(), 1, **option)
    publish(path, first_state(), 1, keyframe_every=4, level="best")


def test_other_things_at_the_path_are_left_alone(tmp_path: Path) -> None:
    store = tmp_path / "model.zarr"
    safetensors_to_zarr(every_dtype(tmp_path / "model.safetensors"), store)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    for path in (store, folder, tmp_path / "folder" / "notes.txt"):
        with pytest.raises((StoreError, ValueError), match=r"publish to another path|by its name"):
            publish(path, first_state(), 0)
    assert (folder / "notes.txt").read_text() == "mine"
    verify_store(store)


def test_only_publishing_changes_a_published_run(tmp_path: Path) -> None:
    path, file = tmp_path / "policy.zarr", every_dtype(tmp_path / "model-step00100.safetensors")
    list(published(path, states(3)))
    before = files_in(path)
    for change in (lambda: append_to_run(file, path), lambda: undo_append(path)):
        with pytest.raises(StoreError, match=r"only bf16codecs\.torch\.publish adds steps to it"):
            change()
    assert files_in(path) == before


def test_all_tools_read_it(tmp_path: Path) -> None:
    path, some = tmp_path / "policy.zarr", states(5)
    list(published(path, some, keyframe_every=3))
    summary = verify_store(path)
    assert (summary.steps, summary.has_checksums) == (5, True)
    run_to_safetensors(path, tmp_path / "all")
    zarr_to_safetensors(f"{path}@30", tmp_path / "one.safetensors")
    files = pytest.importorskip("safetensors.torch")
    for number, state in enumerate(some):
        (file,) = (tmp_path / "all" / f"step-{10 * number}").iterdir()
        assert bits_of(files.load_file(file)) == bits_of(state)
    assert bits_of(files.load_file(tmp_path / "one.safetensors")) == bits_of(some[3])
    with bf16codecs.open_run(path) as run:
        assert "groups of 3" in str(run.info(sizes=True))
        with pytest.raises(ValueError, match="has no Zarr array"):
            run[10]["half"].zarr()
    safetensors_to_zarr(tmp_path / "one.safetensors", tmp_path / "fine.zarr", base=f"{path}@20")
    with bf16codecs.open_model(tmp_path / "fine.zarr") as fine:
        assert bits_in(fine) == bits_of(some[3])


def test_a_run_begins_anew_with_any_step(place: tuple[str, dict[str, Any]]) -> None:
    path, options = place
    some, others = states(4), states(2, seed=7)
    list(published(path, some, keyframe_every=3, **options))
    others = [{n: t for n, t in state.items() if n != "mask"} for state in others]
    publish(path, others[0], 15, restart=True, **options)
    publish(path, others[1], 16, **options)
    with bf16codecs.open_run(path, **options) as run:
        assert run.steps == [15, 16]
        assert [bits_in(run[n]) for n in run.steps] == list(map(bits_of, others))
    if not options:
        assert len(os.listdir(Path(path) / "plan")) == 1
        assert len(os.listdir(Path(path) / "steps")) == 2


def test_tensors_that_are_all_empty_make_a_run(tmp_path: Path) -> None:
    path, state = tmp_path / "policy.zarr", {"e": torch.zeros(0, 3), "f": torch.zeros(2, 0)}
    publish(path, state, 0)
    publish(path, state, 1)
    with bf16codecs.open_model(f"{path}@1") as model:
        assert model["e"].shape == (0, 3)
    verify_store(path)


def test_tied_tensors_are_tied_again_when_they_are_loaded(tmp_path: Path) -> None:
    from bf16codecs.torch import load_file

    path, some = tmp_path / "policy.zarr", states(2)
    list(published(path, some))
    found = load_file(f"{path}@10")
    assert bits_of(found) == bits_of(some[1])
    assert found["head.weight"] is found["embed.weight"]


def test_shards_of_one_memory_and_other_shapes_are_not_tied(tmp_path: Path) -> None:
    whole = torch.randn(6, 4)
    state = {"a": whole, "rows": whole[:3], "flat": whole.view(-1), "same": whole, "late": whole}
    publish(tmp_path / "policy.zarr", state, 0)
    with bf16codecs.open_model(tmp_path / "policy.zarr@0") as model:
        assert bits_in(model) == bits_of(state)


def test_a_damaged_root_can_be_replaced(tmp_path: Path) -> None:
    path, some = tmp_path / "policy.zarr", states(3)
    list(published(path, some))
    root = json.loads((path / "zarr.json").read_text())
    root["attributes"]["bf16codecs"]["published"]["group"] = 0
    (path / "zarr.json").write_text(json.dumps(root))
    with pytest.raises(StoreError, match="is not the size of a group"):
        publish(path, some[0], 30)
    publish(path, some[0], 30, restart=True)
    with bf16codecs.open_run(path) as run:
        assert run.steps == [30]
    assert len(os.listdir(path / "steps")) == 1


def test_a_store_of_another_kind_gets_no_file(tmp_path: Path) -> None:
    store = tmp_path / "model.zarr"
    safetensors_to_zarr(every_dtype(tmp_path / "model.safetensors"), store)
    before = sorted(os.listdir(store))
    with pytest.raises(StoreError, match="publish to another path"):
        publish(store, first_state(), 0)
    assert sorted(os.listdir(store)) == before


def test_restart_is_a_truth_value(tmp_path: Path) -> None:
    path, (state,) = tmp_path / "policy.zarr", states(1)
    publish(path, state, 1)
    with pytest.raises(TypeError, match="restart must be True or False, not 'no'"):
        publish(path, state, 2, restart="no")  # type: ignore[arg-type]
    with bf16codecs.open_run(path) as run:
        assert [*run.steps] == [1]
