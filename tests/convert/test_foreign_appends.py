"""Appending to runs that other software has rewritten."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import pytest
import zarr

from bf16codecs.convert import append_to_run, verify_store
from bf16codecs.errors import BF16CodecsError, StoreError
from folders import content_of
from run_stores import drifting, make_run, restored, write_checkpoints

MESSAGE = (
    r"tensor 'a\.w': its chunks are not growing frames of {}.*\(run_to_safetensors\)"
    r".*\(safetensors_to_run\)"
)


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    arrays = {n: {"a.w": drifting((16, 8), n), "b": drifting((8,), n)} for n in range(6)}
    return write_checkpoints(tmp_path_factory.mktemp("steps"), arrays)


def refused(run: Path, step: Path, group: int) -> None:
    before = content_of(run)
    steps = "1 step" if group == 1 else f"{group} steps"
    with pytest.raises(StoreError, match=MESSAGE.format(steps)):
        append_to_run(step, run)
    assert content_of(run) == before
    verify_store(run)


@pytest.mark.parametrize(("group", "count"), [(2, 2), (2, 3), (3, 2), (1, 1), (1, 2)])
def test_zarr(steps: list[Path], tmp_path: Path, group: int, count: int) -> None:
    store = make_run("zarr 3", steps[:count], tmp_path, keyframe_every=group)
    for change in ("codec", "first axis", "other axis", "separator"):
        run = rewritten(store, change)
        refused(run, steps[count], group)
        shutil.rmtree(run)


def test_chunks_that_are_frames_of_versions(steps: list[Path], tmp_path: Path) -> None:
    """zarr writes them with the array's codec."""
    run = rewritten(make_run("zarr 3", steps[:3], tmp_path, keyframe_every=2), "")
    for _ in range(2):
        with pytest.raises(BF16CodecsError, match=r"a.w.c\.1\.0\.0"):
            append_to_run(steps[3], run)
        verify_store(run)


def rewritten(store: Path, change: str) -> Path:
    """Let zarr rewrite a run, with a change of one array."""
    source = zarr.open_group(store, mode="r")
    path = store.with_name("rewritten.zarr")
    target = zarr.create_group(path, attributes=dict(source.attrs))
    for name, array in sorted(source.members(max_depth=None)):
        if isinstance(array, zarr.Group):
            target.require_group(name)
            continue
        chunks, options = list(array.chunks), {"separator": "."}
        codecs: dict[str, Any] = {"compressors": array.compressors, "filters": array.filters}
        codecs["serializer"] = array.serializer
        if name == "a/w":
            if change == "codec":
                codecs = {}
            elif change == "first axis":
                chunks[0] *= 2
            elif change == "other axis":
                chunks[2] //= 2
            elif change == "separator":
                options["separator"] = "/"
        copy = target.create_array(
            name,
            shape=array.shape,
            chunks=tuple(chunks),
            dtype=array.dtype,
            fill_value=array.fill_value,
            config={"write_empty_chunks": True},
            attributes=dict(array.attrs),
            dimension_names=array.metadata.dimension_names,
            chunk_key_encoding={"name": "default", **options},
            **codecs,
        )
        copy[...] = array[...]
    zarr.consolidate_metadata(path)
    return path


@pytest.mark.parametrize("count", [1, 2, 3])
def test_hdf5(steps: list[Path], tmp_path: Path, count: int) -> None:
    run = tmp_path / "run.h5"
    for step in steps[:count]:
        append_to_run(step, run, as_hdf5=True, keyframe_every=2)
    rewritten = tmp_path / "rewritten.h5"
    with h5py.File(run) as source, h5py.File(rewritten, "w", libver="v110") as target:

        def copy(name: str, found: Any) -> None:
            if isinstance(found, h5py.Dataset):
                options = {"chunks": found.chunks, "maxshape": found.maxshape}
                kind = found.id.get_type()
                made = target.create_dataset(name, found.shape, kind, compression="gzip", **options)
                made[...] = found[...]
                made.attrs.update(found.attrs)

        source.visititems(lambda name, found: copy(name, found))
        target.attrs.update(source.attrs)
    refused(rewritten, steps[count], 2)


def test_an_array_of_a_tensor_that_has_gone(tmp_path: Path) -> None:
    """An append that fails is undone: where chunks are others, those of old steps would go."""
    arrays = {n: {"b": drifting((8,), n)} for n in range(4)}
    for n in (0, 1):
        arrays[n]["a.w"] = drifting((16, 8), n)
    paths = write_checkpoints(tmp_path / "from", arrays)
    run = make_run("zarr 3", paths[:3], tmp_path, keyframe_every=2)
    values = zarr.open_array(run / "a/w", mode="r")[:]
    attributes = dict(zarr.open_array(run / "a/w", mode="r").attrs)
    made = zarr.create_array(
        run / "a/w",
        shape=values.shape,
        chunks=(1, 16, 8),
        dtype="bfloat16",
        attributes=attributes,
        dimension_names=["step", "dim0_16", "dim1_8"],
        chunk_key_encoding={"name": "default", "separator": "."},
        overwrite=True,
    )
    made[:] = values
    zarr.consolidate_metadata(run)
    before = content_of(run)

    def fail(*_: Any) -> None:
        raise OSError("full")

    with pytest.raises((StoreError, OSError), match=r"not growing frames|full"):
        append_to_run(paths[3], run, progress=fail)
    assert content_of(run) == before
    assert restored(run, tmp_path / "back") == {p.name: p.read_bytes() for p in paths[:3]}


def test_documents_that_were_only_written_anew(steps: list[Path], tmp_path: Path) -> None:
    """By other software that keeps all of the codec and the keys."""
    run = make_run("zarr 3", steps[:3], tmp_path, keyframe_every=2)
    for path in [run / "zarr.json", run / "a/w/zarr.json"]:
        path.write_text(json.dumps(json.loads(path.read_text()), indent=2, sort_keys=True))
    append_to_run(steps[3], run)
    assert restored(run, tmp_path / "back") == {p.name: p.read_bytes() for p in steps[:4]}
