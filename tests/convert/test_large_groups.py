"""Runs whose chunks, with all steps of a group, are larger than what a reader would decode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bf16codecs
from bf16codecs.convert import append_to_run, safetensors_to_run, verify_store
from bf16codecs.errors import StoreError
from bf16codecs.store.runs.reader import RunReader
from folders import names_in
from run_stores import TARGETS, drifting, restored, write_checkpoints

# Chunks of 1 GiB and more, in stores of a few kB.
GROUP = 2048


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    def arrays(step: int) -> dict[str, Any]:
        # Constant tensors are not stored as roundings.
        master = (np.arange(1 << 18).reshape(512, 512) // 1000 + step).astype("f4")
        return {"master": master, "rounded": master.astype("bfloat16")}

    return write_checkpoints(tmp_path_factory.mktemp("steps"), {n: arrays(n) for n in range(3)})


@pytest.mark.parametrize("kind", TARGETS)
def test_large_groups(steps: list[Path], tmp_path: Path, kind: str) -> None:
    name, options = TARGETS[kind]
    store = tmp_path / name
    safetensors_to_run(steps[:2], store, keyframe_every=GROUP, **options)
    if kind != "zip":
        append_to_run(steps[2], store)
    verify_store(store)
    last = len(bf16codecs.open_run(store).steps) - 1
    assert restored(store, tmp_path / "back") == {p.name: p.read_bytes() for p in steps[: last + 1]}
    with bf16codecs.open_run(store) as run, bf16codecs.open_model(steps[last]) as model:
        for tensor in ("master", "rounded"):
            expected = model[tensor][...]
            assert run[last][tensor][7].tobytes() == expected[7].tobytes()
            assert run[tensor][:, 3, 5][last].tobytes() == expected[3, 5].tobytes()
            rows, columns = np.array([0, 500, 3]), np.array([1, 2, 511])
            points = run[tensor][np.array([last] * 3), rows, columns]
            assert points.tobytes() == expected[rows, columns].tobytes()


def test_chunks_of_more_than_32_bits(tmp_path: Path) -> None:
    """Growing frames may have room for that; HDF5 has no such chunks."""
    arrays = {n: {"w": np.full((1024, 1024), n, "bfloat16")} for n in range(2)}
    steps = write_checkpoints(tmp_path / "steps", arrays)
    assert 2048 * arrays[0]["w"].nbytes == 1 << 32
    for make, options in (
        (safetensors_to_run, {"sources": steps}),
        (append_to_run, {"src": steps[0], "step": 0}),
    ):
        with pytest.raises(ValueError, match=r"2048 steps .*lower keyframe_every .*or chunk_size"):
            make(**options, store=tmp_path / "run.h5", keyframe_every=2048, as_hdf5=True)
    assert names_in(tmp_path) == {"steps"}
    store = tmp_path / "run.zarr"
    safetensors_to_run(steps[:1], store, keyframe_every=4096)
    append_to_run(steps[1], store)
    assert restored(store, tmp_path / "back") == {p.name: p.read_bytes() for p in steps}
    smaller = tmp_path / "smaller.h5"
    safetensors_to_run(steps[:1], smaller, keyframe_every=2048, chunk_size=1 << 20, as_hdf5=True)
    append_to_run(steps[1], smaller)
    assert restored(smaller, tmp_path / "back") == {p.name: p.read_bytes() for p in steps}


def test_a_version_is_bounded(steps: list[Path], tmp_path: Path) -> None:
    store = tmp_path / "run.zarr"
    safetensors_to_run(steps[:1], store, keyframe_every=GROUP)
    text = (store / "zarr.json").read_text()
    document = json.loads(text)
    array = document["consolidated_metadata"]["metadata"]["master"]
    array["chunk_grid"]["configuration"]["chunk_shape"] = [GROUP, 1 << 15, 1 << 15]
    (store / "zarr.json").write_text(json.dumps(document))
    with (
        bf16codecs.open_run(store) as run,
        pytest.raises(StoreError, match=f"a chunk of tensor 'master': {1 << 32} bytes"),
    ):
        run[0]["master"][0]


@pytest.mark.parametrize("kind", ["zip", "hdf5"])
def test_messages_name_the_target(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors name the target, not the temporary folder in which it is packed."""
    steps = write_checkpoints(tmp_path, {n: {"w": drifting((8, 8), n)} for n in range(2)})
    name, options = TARGETS[kind]

    def fail(run: RunReader, number: int) -> None:
        raise StoreError(f"{run.where}: something is wrong")

    monkeypatch.setattr(RunReader, "step", fail)
    with pytest.raises(StoreError, match=rf"^{tmp_path / name}: something is wrong"):
        safetensors_to_run(steps, tmp_path / name, **options)
    assert names_in(tmp_path) == {path.name for path in steps}
