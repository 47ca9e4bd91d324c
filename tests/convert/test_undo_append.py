"""The last step of a run is removed as if it had not been appended."""

from __future__ import annotations

import errno
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

import bf16codecs
from bf16codecs._files import journal as _journal
from bf16codecs.convert import (
    append_to_run,
    safetensors_to_run,
    safetensors_to_zarr,
    undo_append,
    verify_store,
)
from bf16codecs.errors import BF16CodecsError, StoreError
from bf16codecs.store.zarr import undo as zarr_undo
from folders import content_of, files_in, names_in
from invoked import done, run
from lazy_models import write_safetensors
from run_stores import (
    TARGETS,
    Arrays,
    assert_is_step,
    drifting,
    eventful,
    make_run,
    restored,
    write_checkpoints,
)
from tiers import by_tier

KINDS = ["zarr 3", "zarr 2", "hdf5"]
STEPS = eventful()


@pytest.fixture(scope="module")
def eventful_steps(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_checkpoints(tmp_path_factory.mktemp("eventful"), STEPS)


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    arrays: dict[int, Arrays] = {
        n: {"a.w": drifting((16, 8), n), "b": drifting((8,), n)} for n in range(5)
    }
    arrays[2]["x.y.new"] = drifting((4, 4), 2)
    return write_checkpoints(tmp_path_factory.mktemp("plain"), arrays)


def numbers_of(store: Path) -> list[int]:
    """Return the steps of a run, all of which are sound."""
    verify_store(store)
    with bf16codecs.open_run(store) as opened:
        return list(opened.steps)


@pytest.mark.parametrize(("kind", "group"), [("zarr 3", 3), ("zarr 2", 16), ("hdf5", 3)])
def test_step_by_step(eventful_steps: list[Path], tmp_path: Path, kind: str, group: int) -> None:
    """Tensors that came go, those that had gone or changed go on, and so do appends."""
    options = {"keyframe_every": group, "chunk_size": 256}
    paths, numbers = eventful_steps[: by_tier(5, 7)], list(STEPS)[: by_tier(5, 7)]
    store, former = tmp_path / TARGETS[kind][0], []
    for path in paths:
        make_run(kind, [path], tmp_path, by_appends=True, **options)
        former.append(names_in(store) if store.is_dir() else {})
    whole = content_of(store)
    for left in range(len(paths) - 1, 0, -1):
        undone = undo_append(store, sync=False)
        assert (undone.step, undone.steps) == (numbers[left], tuple(numbers[:left]))
        assert undone.files == (paths[left].name,)
        assert (undone.nbytes, undone.tensors) == (
            paths[left].stat().st_size,
            len(STEPS[numbers[left]]),
        )
        assert numbers_of(store) == numbers[:left]
        assert (names_in(store) if store.is_dir() else {}) == former[left - 1]
        expected = {path.name: path.read_bytes() for path in paths[:left]}
        assert restored(store, tmp_path / f"back-{left}") == expected
    with bf16codecs.open_run(store) as opened:
        assert_is_step(opened[0], STEPS[0])
        assert opened["embed"].shape == (1, 40, 24)
    make_run(kind, paths[1:], tmp_path, by_appends=True, **options)
    assert restored(store, tmp_path / "back") == {p.name: p.read_bytes() for p in paths}
    assert numbers_of(store) == numbers
    assert store.is_file() or content_of(store) == whole


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [2, 3])
def test_a_checkpoint_of_another_kind(
    steps: list[Path], tmp_path: Path, kind: str, count: int
) -> None:
    """In the middle of a group, and as the first step of one."""
    store = make_run(kind, steps[:count], tmp_path, keyframe_every=3)
    before = content_of(store)
    arrays = {"a.w": drifting((16, 8), 7, "float32"), "b": drifting((8,), 7, "float32")}
    other = write_safetensors(tmp_path / "step-77.safetensors", arrays)
    make_run(kind, [other], tmp_path, by_appends=True)
    with bf16codecs.open_run(store) as opened, pytest.raises(StoreError):
        opened["a.w"]
    undo_append(store)
    with bf16codecs.open_run(store) as opened:
        assert opened["a.w"].shape == (count, 16, 8)
    assert numbers_of(store) == list(range(count))
    if store.is_dir():
        assert content_of(store) == before
    append_to_run(steps[count], store)
    assert numbers_of(store) == list(range(count + 1))


def test_other_readers_of_hdf5(steps: list[Path], tmp_path: Path) -> None:
    """Extents, dimension scales and groups are those of a run that never had the step."""
    store = make_run("hdf5", steps[:3], tmp_path)
    undo_append(store)
    with h5py.File(store) as file:
        assert sorted(file) == ["a", "b", "safetensors", "step"]
        assert file["step"][:].tolist() == [0, 1]
        assert file["a/w"].shape == (2, 16, 8)
        assert file["a/w"].dims[0]["step"] == file["step"]
        expected = [drifting((16, 8), n).view("u2") for n in (0, 1)]
        found = np.empty((2, 16, 8), "u2")
        file["a/w"].id.read(h5py.h5s.ALL, h5py.h5s.ALL, found, mtype=file["a/w"].id.get_type())
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_runs_without_a_coordinate(steps: list[Path], tmp_path: Path, kind: str) -> None:
    """Readers use the attributes; an append and its undoing write the coordinate again."""
    store = make_run(kind, steps[:3], tmp_path)
    if store.is_dir():
        shutil.rmtree(store / "step")
        zarr.consolidate_metadata(store)
    else:
        with h5py.File(store, "a") as file:
            del file["step"]
    undo_append(store)
    assert numbers_of(store) == [0, 1]


def test_chunks_in_hdf5_are_not_journalled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are written behind the file, also those that end it: a journal is in memory."""
    arrays = {n: {"w": drifting((256, 512), n), "v": drifting((512, 256), n)} for n in range(3)}
    paths = write_checkpoints(tmp_path / "from", arrays)
    store = make_run("hdf5", paths, tmp_path)
    with h5py.File(store, "r+", libver=("v110", "v110")) as file:
        chunk = file["w"].id.read_direct_chunk((0, 0, 0))[1]
        file["w"].id.write_direct_chunk((0, 0, 0), chunk + bytes(64))
    size = store.stat().st_size
    with h5py.File(store) as file:
        last = file["w"].id.get_chunk_info(0)
    assert last.byte_offset + last.size == size
    with monkeypatch.context() as patch:
        patch.setattr(_journal, "_MOST_PAGES", 600)  # of 128 bytes
        undo_append(store)
    assert store.stat().st_size < 2.2 * size
    assert numbers_of(store) == [0, 1]
    append_to_run(paths[2], store)
    assert restored(store, tmp_path / "back") == {p.name: p.read_bytes() for p in paths}


@pytest.mark.parametrize("kind", ["zarr 3", "zarr 2"])
def test_other_readers_of_zarr(steps: list[Path], tmp_path: Path, kind: str) -> None:
    store = make_run(kind, steps[:3], tmp_path)
    undo_append(store)
    for consolidated in (True, False):
        group = zarr.open_group(store, mode="r", use_consolidated=consolidated)
        assert sorted(group) == ["a", "b", "safetensors", "step"]
        assert group["step"][:].tolist() == [0, 1]
        expected = [drifting((16, 8), n).view("u2") for n in (0, 1)]
        assert np.array_equal(group["a/w"][:].view("u2"), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_refused(steps: list[Path], tmp_path: Path, kind: str) -> None:
    store = make_run(kind, steps[:2], tmp_path)
    before = content_of(store)
    for other in (0, 2):
        with pytest.raises(ValueError, match=rf"{store}: its last step is 1, not {other}"):
            undo_append(store, other)
    with pytest.raises(ValueError, match="leave out @1"):
        undo_append(f"{store}@1")
    assert content_of(store) == before
    assert undo_append(store, 1).steps == (0,)
    for step in (None, 0):
        with pytest.raises(StoreError, match=r"0 is its only step, .*: remove the run itself$"):
            undo_append(store, step)
    assert numbers_of(store) == [0]


def test_stores_that_are_no_appendable_runs(steps: list[Path], tmp_path: Path) -> None:
    packed = make_run("zip", steps[:2], tmp_path)
    safetensors_to_zarr(steps[0], tmp_path / "model.zarr")
    for path, error, said in (
        (packed, StoreError, r"unzip it into a folder, such as run\.zarr, and undo the append in"),
        (tmp_path / "model.zarr", StoreError, "one model, not a run"),
        (steps[0], StoreError, "not a run, but a safetensors model"),
        (tmp_path / "none.zarr", FileNotFoundError, "none.zarr"),
    ):
        before = content_of(path) if path.exists() else None
        with pytest.raises(error, match=said):
            undo_append(path)
        assert before is None or content_of(path) == before


def test_runs_that_other_software_has_rewritten(steps: list[Path], tmp_path: Path) -> None:
    """Their chunks are not growing frames, and others lie where the group's would."""
    store = make_run("zarr 3", steps[:3], tmp_path, keyframe_every=2)
    array = zarr.open_array(store / "b", mode="r")
    values, attributes = array[:], dict(array.attrs)
    shutil.rmtree(store / "b")
    made = zarr.create_array(
        store / "b",
        shape=values.shape,
        chunks=(1, 8),
        dtype="bfloat16",
        compressors=None,
        attributes=attributes,
        dimension_names=["step", "dim0_8"],
    )
    made[:] = values
    zarr.consolidate_metadata(store)
    before = files_in(store)
    with pytest.raises(StoreError, match="its chunks are not growing frames"):
        undo_append(store)
    assert files_in(store) == before


def chunk_of(store: Path) -> tuple[Path, int, int]:
    """Return the file that has the chunk of a run's tensor b, and where that begins and ends."""
    if store.is_dir():
        path = next(path for path in (store / "b").rglob("*0") if path.is_file())
        return path, 0, path.stat().st_size
    with h5py.File(store) as file:
        info = file["b"].id.get_chunk_info(0)
    end = info.byte_offset + info.size  # without the room for later versions
    return store, info.byte_offset, len(store.read_bytes()[:end].rstrip(b"\0"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_last_step_that_is_damaged(steps: list[Path], tmp_path: Path, kind: str) -> None:
    store = make_run(kind, steps[:3], tmp_path)
    path, _, end = chunk_of(store)
    content = bytearray(path.read_bytes())
    content[end - 2] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(BF16CodecsError):
        verify_store(store)
    undo_append(store)
    assert numbers_of(store) == [0, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_chunk_that_is_damaged_stays_so(steps: list[Path], tmp_path: Path, kind: str) -> None:
    """Nothing is cut off that a repair may need, and nothing is appended behind it."""
    store = make_run(kind, steps[:3], tmp_path)
    path, start, end = chunk_of(store)
    content = bytearray(path.read_bytes())
    content[start + 33] ^= 0xFF  # in the first version's entry
    path.write_bytes(content)
    undo_append(store)
    path, after, _ = chunk_of(store)
    assert path.read_bytes()[after:][: end - start] == content[start:end]
    for refused in (lambda: verify_store(store), lambda: append_to_run(steps[3], store)):
        with pytest.raises(BF16CodecsError):
            refused()


@pytest.mark.parametrize("kind", KINDS)
def test_a_reader_that_has_the_run_open(steps: list[Path], tmp_path: Path, kind: str) -> None:
    """It keeps reading the other steps; of the removed one, it gets the old content or an error."""
    store = make_run(kind, steps[:3], tmp_path)
    with bf16codecs.open_run(store) as opened:
        undo_append(store)
        assert opened.steps == [0, 1, 2]
        assert opened[1]["a.w"][...].tobytes() == drifting((16, 8), 1).tobytes()
        with suppress(BF16CodecsError):
            assert opened[2]["a.w"][...].tobytes() == drifting((16, 8), 2).tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_one_at_a_time(steps: list[Path], tmp_path: Path, kind: str) -> None:
    store = make_run(kind, steps[:2], tmp_path)
    refused = []

    def meanwhile(*_: Any) -> None:
        if not refused:
            with pytest.raises(BlockingIOError) as caught:
                undo_append(store)
            refused.append(caught)

    append_to_run(steps[2], store, progress=meanwhile)
    assert refused
    assert numbers_of(store) == [0, 1, 2]


@pytest.mark.parametrize("kind", ["zarr 3", "zarr 2"])
def test_failures_after_the_removal_of_the_step(
    steps: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    store = make_run(kind, steps[:3], tmp_path)

    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, "broken", "x")

    with monkeypatch.context() as patch:
        patch.setattr(zarr_undo, "_remove_arrays", fail)
        with pytest.raises(OSError, match="broken; the step is removed, and the next append"):
            undo_append(store, 2)
    with bf16codecs.open_run(store) as opened:
        assert opened.steps == [0, 1]
    assert (store / "x").exists()
    # A second try names the step, removes no other, and tidies up.
    with pytest.raises(ValueError, match="its last step is 1, not 2"):
        undo_append(store, 2)
    assert not (store / "x").exists()
    assert numbers_of(store) == [0, 1]


@pytest.mark.parametrize("kind", ["zarr 3", "hdf5"])
def test_command(steps: list[Path], tmp_path: Path, kind: str) -> None:
    store = make_run(kind, steps[:4], tmp_path)
    line = done("bf16codecs", "undo-append", store)
    size = steps[3].stat().st_size
    assert line == (
        f"{store}: removed step 3 (2 tensors, {size} B: model-step00003.safetensors); remaining"
        " steps: 0, 1, 2\n"
    )
    again = run("bf16codecs", "undo-append", store, "--step", 3)
    assert (again.exit_code, again.stdout) == (1, "")
    assert "its last step is 2, not 3" in again.stderr
    about = json.loads(done("bf16codecs", "undo-append", store, "--step", 2, "--json"))
    assert about == {
        "target": str(store),
        "done": "removed",
        "step": 2,
        "files": ["model-step00002.safetensors"],
        "nbytes": steps[2].stat().st_size,
        "tensors": 3,
        "steps": [0, 1],
    }
    assert done("bf16codecs", "undo-append", store, "--quiet") == ""
    assert numbers_of(store) == [0]
    last = run("bf16codecs", "undo-append", store)
    assert (last.exit_code, last.stderr.count("\n")) == (1, 1)


def test_links(steps: list[Path], tmp_path: Path) -> None:
    """The run may be named by a link; nothing below it is changed through one."""
    for kind in ("zarr 3", "hdf5"):
        folder = tmp_path / kind
        folder.mkdir()
        store, link = make_run(kind, steps[:2], folder), tmp_path / f"{kind} link"
        link.symlink_to(store)
        undo_append(link)
        assert link.is_symlink()
        assert numbers_of(store) == [0]
    store = tmp_path / "zarr 3" / "run.zarr"
    append_to_run(steps[1], store)
    shutil.move(store / "a", tmp_path / "elsewhere")
    (store / "a").symlink_to(tmp_path / "elsewhere")
    before = files_in(tmp_path / "elsewhere")
    with pytest.raises((StoreError, OSError)):
        undo_append(store)
    assert files_in(tmp_path / "elsewhere") == before
    assert os.path.islink(store / "a")


def test_series_that_were_made_at_once(steps: list[Path], tmp_path: Path) -> None:
    """The last step need not have been appended by itself."""
    for name, options in TARGETS.values():
        if not name.endswith(".zip"):
            safetensors_to_run(steps, tmp_path / name, overwrite=True, sync=False, **options)
            assert undo_append(tmp_path / name, sync=False).step == 4
            assert numbers_of(tmp_path / name) == [0, 1, 2, 3]
