"""Runs in an object store: steps are appended, whatever happens meanwhile."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bf16codecs import open_run
from bf16codecs.convert import (
    append_to_run,
    run_to_safetensors,
    safetensors_to_run,
    safetensors_to_zarr,
    undo_append,
    verify_store,
)
from bf16codecs.errors import StoreError
from invoked import done
from lazy_models import weights, write_safetensors
from looping import noted
from object_store import Killed, dying, keys_in

obstore = pytest.importorskip("obstore.store")
zarr = pytest.importorskip("zarr")
lease = pytest.importorskip("bf16codecs.store.remote.lease")
object_folder = pytest.importorskip("bf16codecs.store.remote.object_folder")

pytestmark = [
    pytest.mark.filterwarnings("ignore::bf16codecs.errors.LeftoverWarning"),
    pytest.mark.usefixtures("impatient"),
]

GROUP = 3
#: The requests of one append are far fewer.
MANY = 100


def values(step: int) -> dict[str, Any]:
    rng = np.random.default_rng(step)
    base = weights((90, 40)).view("u2") + rng.integers(0, 2, (90, 40), "u2")
    return {
        "a.w": base.view(weights(()).dtype),
        "b": weights((7,), "float32", seed=step),
        **({"late": weights((5,), seed=step)} if step >= 2 else {}),
    }


@pytest.fixture
def checkpoints(tmp_path: Path) -> list[Path]:
    return [
        write_safetensors(tmp_path / f"model-step{step:05}.safetensors", values(step))
        for step in range(6)
    ]


@pytest.fixture
def run(bucket: str) -> str:
    return f"{bucket}/run.zarr"


def assert_has(run: str, s3: dict[str, str], checkpoints: list[Path], folder: Path) -> None:
    """Compare a run with its checkpoints, byte for byte."""
    run_to_safetensors(run, folder / "back", storage_options=s3, overwrite=True)
    names = {path.name: path.read_bytes() for path in checkpoints}
    assert {path.name: path.read_bytes() for path in (folder / "back").iterdir()} == names


def test_steps_are_appended(
    checkpoints: list[Path], run: str, s3: dict[str, str], tmp_path: Path
) -> None:
    summary = append_to_run(checkpoints[0], run, keyframe_every=GROUP, storage_options=s3)
    assert (summary.is_begun, summary.step) == (True, 0)
    for i, path in enumerate(checkpoints[1:], 1):
        summary = append_to_run(path, run, storage_options=s3)
        assert (summary.is_begun, summary.step) == (False, i)
        assert_has(run, s3, checkpoints[: i + 1], tmp_path)
    verify_store(run, storage_options=s3)
    with open_run(run, storage_options=s3) as opened:
        assert opened.steps == [0, 1, 2, 3, 4, 5]
    local = tmp_path / "local.zarr"
    safetensors_to_run(checkpoints, local, keyframe_every=GROUP)
    group = zarr.open_group(run, mode="r", storage_options=s3)
    expected = zarr.open_group(local, mode="r")
    for name in ("a/w", "b", "late", "step"):
        found, wanted = group[name][...], expected[name][...]
        assert found.tobytes() == wanted.tobytes(), name
    with pytest.raises(ValueError, match="has step 5 already"):
        append_to_run(checkpoints[5], run, storage_options=s3)
    with pytest.raises(ValueError, match="was made with keyframe_every 3"):
        append_to_run(checkpoints[5], run, 9, keyframe_every=4, storage_options=s3)
    with pytest.raises(FileNotFoundError, match="No run is there"):
        undo_append(f"{run}x", storage_options=s3)
    with pytest.raises(ValueError, match="its last step is 5, not 4"):
        undo_append(run, 4, storage_options=s3)


def test_the_last_step_is_removed(
    checkpoints: list[Path], run: str, s3: dict[str, str], fsspec: Any, tmp_path: Path
) -> None:
    """And appended again; objects that only it had are gone."""
    fs = fsspec.filesystem("s3", **s3)

    def keys() -> set[str]:
        fs.invalidate_cache()
        return set(fs.find(run))

    before = []
    for checkpoint in checkpoints:
        before.append(keys())
        append_to_run(checkpoint, run, keyframe_every=GROUP, storage_options=s3)
    options = "--storage-options", json.dumps(s3)
    for number in reversed(range(1, 6)):
        report = done("bf16codecs", "undo-append", run, "--step", number, *options)
        assert f"removed step {number} (" in report
        (tmp_path / str(number)).mkdir()
        assert_has(run, s3, checkpoints[:number], tmp_path / str(number))
        assert keys() == before[number]
    with pytest.raises(StoreError, match="0 is its only step"):
        undo_append(run, storage_options=s3)
    for checkpoint in checkpoints[1:3]:
        append_to_run(checkpoint, run, storage_options=s3)
    assert_has(run, s3, checkpoints[:3], tmp_path)


def test_series(checkpoints: list[Path], run: str, s3: dict[str, str], tmp_path: Path) -> None:
    options = "--storage-options", json.dumps(s3)
    report = done("st2zarr", "--series", *checkpoints[:4], run, "--keyframe-every", 3, *options)
    assert "4 steps" in report or "3 tensors" in report
    assert_has(run, s3, checkpoints[:4], tmp_path)
    done("st2zarr", "--append", checkpoints[4], run, *options)
    assert_has(run, s3, checkpoints[:5], tmp_path)
    done("bf16codecs", "verify", run, *options)
    phases: dict[str, tuple[int, int]] = {}
    safetensors_to_run(
        checkpoints[:2],
        f"{run}2",
        storage_options=s3,
        progress=lambda phase, at, total: phases.update({phase: (at, total)}),
    )
    assert phases["upload"][0] == phases["upload"][1] > 0
    for source in (checkpoints, checkpoints[:1]):
        with pytest.raises(FileExistsError, match="is a run: remove it first"):
            safetensors_to_run(source, run, overwrite=True, storage_options=s3)
    model = run.replace("run", "model")
    safetensors_to_zarr(checkpoints[0], model, storage_options=s3)
    with pytest.raises(FileExistsError, match="is a store of a model: remove it first"):
        safetensors_to_run(checkpoints, model, overwrite=True, storage_options=s3)
    with pytest.raises(StoreError, match="one model, not a run"):
        append_to_run(checkpoints[1], model, storage_options=s3)
    with pytest.raises(ValueError, match="stores are folders"):
        safetensors_to_run(checkpoints, model, as_hdf5=True, storage_options=s3)


def test_an_append_takes_few_requests(
    checkpoints: list[Path],
    run: str,
    s3: dict[str, str],
    s3_faults: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At most six beside those of chunks of tensors."""
    for name in ("_RENEW_SECONDS", "_FRESH_SECONDS"):
        monkeypatch.setattr(lease, name, 60)
    safetensors_to_run(checkpoints[:3], run, keyframe_every=8, storage_options=s3)
    append_to_run(checkpoints[3], run, storage_options=s3)
    s3_faults.clear()
    append_to_run(checkpoints[4], run, storage_options=s3)
    others = [
        (method, path)
        for method, path in s3_faults.requests
        if not any(f"/{name}/c." in path for name in ("a/w", "b", "late"))
    ]
    assert len(others) <= 6, others


def state_of(memory: Any) -> dict[int, dict[str, bytes]]:
    """Return the tensors of all steps of a run."""
    with open_run(zarr.storage.ObjectStore(memory, read_only=True)) as run:
        return {
            number: {name: np.asarray(t[...]).tobytes() for name, t in run[number].items()}
            for number in run.steps
        }


@pytest.mark.parametrize("is_sent", [False, True])
@pytest.mark.parametrize("before", [1, 2, 3])
def test_an_append_that_is_killed_at_any_request(
    is_sent: bool,
    before: int,
    checkpoints: list[Path],
    memory: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Readers see the run without the step, or with it; the next append makes it whole."""
    monkeypatch.setattr(lease, "DEAD_SECONDS", 0)
    append = partial(append_to_run, store="s3://bucket/run.zarr")
    make = partial(safetensors_to_run, store="s3://bucket/run.zarr", keyframe_every=GROUP)
    expected = {}
    for count in (before, before + 1):
        memory.delete(keys_in(memory))
        make(checkpoints[:count])
        expected[count] = state_of(memory)
    for number in range(1, MANY):
        memory.delete(keys_in(memory))
        make(checkpoints[:before])
        is_done = False
        with noted(f"request {number}"):
            with suppress(Killed), dying(number, is_sent):
                append(checkpoints[before])
                is_done = True
            found = state_of(memory)
            assert found in expected.values()
            if len(found) == before:
                # Other weights than those that the dead one has left.
                append(checkpoints[before + 1])
                values_ = state_of(memory)[before + 1]
                assert values_["b"] == values(before + 1)["b"].tobytes()
                assert values_["a.w"] == values(before + 1)["a.w"].tobytes()
        if is_done:
            return
    raise AssertionError("it was never done")


@pytest.mark.parametrize("is_sent", [False, True])
@pytest.mark.parametrize("left", [2, 3])
def test_a_removal_that_is_killed_at_any_request(
    is_sent: bool,
    left: int,
    checkpoints: list[Path],
    memory: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Readers see the run with the step or without it; the next append goes on from there."""
    monkeypatch.setattr(lease, "DEAD_SECONDS", 0)
    run = "s3://bucket/run.zarr"
    append = partial(append_to_run, store=run)
    safetensors_to_run(checkpoints[: left + 2], run, keyframe_every=GROUP)
    expected = state_of(memory)
    seen = set()
    for number in range(1, MANY):
        memory.delete(keys_in(memory))
        safetensors_to_run(checkpoints[: left + 1], run, keyframe_every=GROUP)
        is_done = False
        with noted(f"request {number}"):
            with suppress(Killed), dying(number, is_sent):
                undo_append(run)
                is_done = True
            seen.add(len(state_of(memory)))
            for step in range(len(state_of(memory)), left + 2):
                append(checkpoints[step])
            assert state_of(memory) == expected
        if is_done:
            assert seen == {left, left + 1}
            return
    raise AssertionError("it was never done")


def test_two_appends(checkpoints: list[Path], memory: Any) -> None:
    make = partial(safetensors_to_run, store="s3://bucket/run.zarr", keyframe_every=GROUP)
    append = partial(append_to_run, store="s3://bucket/run.zarr")
    make(checkpoints[:2])
    refusals = []

    def meanwhile(*progress: object) -> None:
        if not refusals:
            with pytest.raises(BlockingIOError, match="another process is writing it"):
                append(checkpoints[3])
            refusals.append(1)

    append(checkpoints[2], progress=meanwhile)
    assert refusals
    assert list(state_of(memory)) == [0, 1, 2]


def test_an_append_that_was_taken_for_dead(
    checkpoints: list[Path], memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another has appended meanwhile; the first fails, and harms nothing."""
    monkeypatch.setattr(lease.Lease, "_keep", lambda self: None)
    append = partial(append_to_run, store="s3://bucket/run.zarr")
    safetensors_to_run(checkpoints[:2], "s3://bucket/run.zarr", keyframe_every=GROUP)
    written: list[int] = []

    def meanwhile(*progress: object) -> None:
        if not written:
            written.append(1)
            append(checkpoints[3])

    with pytest.raises(StoreError, match=r"another process (took over|wrote it)"):
        append(checkpoints[2], progress=meanwhile)
    found = state_of(memory)
    assert list(found) == [0, 1, 3]
    assert found[3]["a.w"] == values(3)["a.w"].tobytes()
