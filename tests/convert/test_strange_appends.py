"""Appending to untrusted runs: nothing but the run is read or changed."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import pytest

from bf16codecs.convert import append_to_run, safetensors_to_run
from bf16codecs.convert.runs import appending
from bf16codecs.errors import BF16CodecsError
from folders import content_of
from run_stores import Arrays, drifting, make_run, restored, write_checkpoints

POSIX = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="a system without FIFOs")

# The files that an append to a run of two steps in groups of four reads, and changes.
TOUCHED = {
    "zarr 3": [
        *("zarr.json", "a", "a/zarr.json", "a/w", "a/w/zarr.json", "a/w/c.0.0.0", "step"),
        *("step/zarr.json", "step/c.0", "step/.appending", "step/.appending/new"),
    ],
    "zarr 2": [
        *(".zmetadata", ".zattrs", "a/.zgroup", "a/w/.zarray", "a/w/.zattrs", "a/w/0.0.0"),
        *("step/.zarray", "step/0", "step/.appending", "step/.appending/new"),
    ],
}


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    arrays: dict[int, Arrays] = {
        n: {"a.w": drifting((16, 8), n), "z": drifting((40, 24), n)} for n in range(3)
    }
    return write_checkpoints(tmp_path_factory.mktemp("steps"), arrays)


@pytest.fixture(scope="module", params=["zarr 3", "zarr 2"])
def killed(
    request: pytest.FixtureRequest, steps: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    """Return a run of two steps, with the leftovers of a killed append that changed nothing.

    Its kind comes first. It is copied before it is changed.
    """
    kind = request.param
    run = make_run(kind, steps[:2], tmp_path_factory.mktemp("killed"), keyframe_every=4)
    (run / "step/.appending").mkdir()
    (run / "step/.appending/new").write_bytes(b"")
    return kind, run


@POSIX
def test_staged_links_are_not_followed(
    steps: list[Path], tmp_path: Path, killed: tuple[str, Path]
) -> None:
    run, other = shutil.copytree(killed[1], tmp_path / "run.zarr"), tmp_path / "other"
    other.write_text("precious")
    for number in range(8):
        (run / f"step/.appending/{number}").symlink_to(other)
    append_to_run(steps[2], run)
    assert other.read_text() == "precious"
    assert not (run / "step/.appending").exists()
    assert restored(run, tmp_path / "back") == {p.name: p.read_bytes() for p in steps}


@POSIX
@pytest.mark.parametrize("is_killed", [True, False], ids=["after a kill", "whole"])
def test_links_out_of_the_run(
    steps: list[Path], tmp_path: Path, killed: tuple[str, Path], is_killed: bool
) -> None:
    kind, original = killed
    for number, key in enumerate(TOUCHED[kind]):
        run = shutil.copytree(original, tmp_path / str(number) / "run.zarr")
        outside = run.with_name("outside")
        if not (is_killed or ".appending" in key):
            shutil.rmtree(run / "step/.appending")
        shutil.move(run / key, outside)
        (run / key).symlink_to(outside)
        before = content_of(outside)
        with suppress(BF16CodecsError, OSError):
            append_to_run(steps[2], run, sync=False)
        assert content_of(outside) == before, key


@pytest.mark.parametrize("is_killed", [True, False], ids=["after a kill", "whole"])
@pytest.mark.usefixtures("coded_whole")
def test_damaged_chunks(
    steps: list[Path], tmp_path: Path, killed: tuple[str, Path], is_killed: bool
) -> None:
    """An append would hide that a chunk was cut off, and new chunks would hide missing ones."""
    for kept in (-1, -100, 90, 10, None):
        run = shutil.copytree(killed[1], tmp_path / str(kept) / "run.zarr")
        # Of the last tensor: others have the step already.
        (chunk,) = (path for path in (run / "z").iterdir() if path.name.endswith("0.0.0"))
        if kept is None:
            chunk.unlink()
        else:
            os.truncate(chunk, kept if kept > 0 else chunk.stat().st_size + kept)
        if not is_killed:
            shutil.rmtree(run / "step/.appending")
        before = content_of(run)
        with pytest.raises(BF16CodecsError, match="damaged: ") as caught:
            append_to_run(steps[2], run)
        assert str(caught.value).startswith(f"{chunk}: "), kept
        assert "restore it from its source or a copy" in str(caught.value), kept
        shutil.rmtree(run / "step/.appending", ignore_errors=True)
        assert content_of(run) == {k: v for k, v in before.items() if ".appending" not in k}, kept


@pytest.fixture
def coded_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Encode steps without a parent, so that appends read no earlier steps."""
    monkeypatch.setattr(appending, "_choose", lambda *_: None)


@pytest.mark.parametrize("kept", [300, None])
@pytest.mark.usefixtures("coded_whole")
def test_damaged_chunks_in_hdf5(steps: list[Path], tmp_path: Path, kept: int | None) -> None:
    run = tmp_path / "run.h5"
    safetensors_to_run(steps[:2], run, keyframe_every=4, as_hdf5=True)
    with h5py.File(run, "r+") as file:
        array = file["z"]
        _, content = array.id.read_direct_chunk((0, 0, 0))
        array.resize(0, axis=0)  # which removes the chunk
        array.resize(2, axis=0)
        if kept is not None:
            array.id.write_direct_chunk((0, 0, 0), content[:kept])
    before = run.read_bytes()
    with pytest.raises(BF16CodecsError, match=r"run.h5: z, chunk \(0, 0, 0\): damaged: "):
        append_to_run(steps[2], run)
    assert run.read_bytes() == before


APPENDS = """
import sys
from bf16codecs.convert import append_to_run
from bf16codecs.errors import BF16CodecsError
for run in sys.argv[2:]:
    try:
        append_to_run(sys.argv[1], run)
        print("done")
    except (BF16CodecsError, OSError) as e:
        print(e if run in str(e) else "a message that does not name the run: " + str(e))
"""


@POSIX
def test_pipes_are_not_waited_for(
    steps: list[Path], tmp_path: Path, run_python: Any, killed: tuple[str, Path]
) -> None:
    kind, original = killed
    runs = []
    for number, key in enumerate(TOUCHED[kind]):
        run = shutil.copytree(original, tmp_path / str(number) / "run.zarr")
        if (run / key).is_dir():
            shutil.rmtree(run / key)
        (run / key).unlink(missing_ok=True)
        os.mkfifo(run / key)
        runs.append(run)
    lines = run_python(APPENDS, str(steps[2]), *map(str, runs)).stdout.splitlines()
    for key, run, line in zip(TOUCHED[kind], runs, lines, strict=True):
        # Files that are only replaced may have any content.
        assert line == "done" or str(run) in line, key
    assert sum(line != "done" for line in lines) > len(lines) // 2
