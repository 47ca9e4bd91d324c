"""Retention of a folder's checkpoints, and of differences to the removed ones."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from bf16codecs import open_model
from bf16codecs.errors import CheckpointWarning
from lazy_imports import lazily

torch = lazily("torch")
dcp = lazily("torch.distributed.checkpoint")
checkpoint = lazily("bf16codecs.torch.checkpoint")

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def numbers(step: int) -> torch.Tensor:
    values = [torch.randn((64, 300), generator=torch.Generator().manual_seed(i)) for i in (0, 1)]
    return (values[0] + step * 1e-4 * values[1]) / 30


def save(folder: Path, step: int, **options: Any) -> None:
    writer = checkpoint.StoreWriter(folder / f"step-{step}.zarr", **options)
    dcp.save({"w": numbers(step), "step": step}, storage_writer=writer)


def steps(folder: Path) -> list[int]:
    """Return the steps in the folder, each of which has to be whole."""
    found = sorted(int(path.stem[5:]) for path in folder.glob("step-*.zarr"))
    assert len(os.listdir(folder)) == len(found), "something else is left"
    for step in found:
        state = {"w": torch.zeros(64, 300), "step": 0}
        dcp.load(state, storage_reader=checkpoint.StoreReader(folder / f"step-{step}.zarr"))
        assert torch.equal(state["w"], numbers(step))
        assert state["step"] == step
    return found


def base(folder: Path, step: int) -> str | None:
    with open_model(folder / f"step-{step}.zarr") as model:
        reference = model.info().to_json()["base"]
    return None if reference is None else reference["path"]


def test_the_last_are_kept(tmp_path: Path) -> None:
    for step in range(1, 6):
        save(tmp_path, step, keep_last=2)
    assert steps(tmp_path) == [4, 5]


def test_the_last_one(tmp_path: Path) -> None:
    latest = checkpoint.latest_checkpoint
    assert latest(tmp_path / "run") is None
    run = tmp_path / "run"
    for step in (9, 10):
        save(run, step, base="previous")
    (run / "step-11.zarr").mkdir()
    with pytest.warns(CheckpointWarning, match=r"step-11\.zarr: not taken .* without a store"):
        assert latest(run) == str(run / "step-10.zarr")
    (run / "step-11.zarr").rmdir()
    assert latest(run, "step-1.zarr") == str(run / "step-10.zarr")
    assert latest(run, "lr1-step-1.zarr") is None
    dcp.save({"w": numbers(1)}, storage_writer=checkpoint.StoreWriter(run / "lr1-step-7.zarr"))
    with pytest.raises(ValueError, match=r"several series .* lr1-step-7\.zarr, step-10\.zarr"):
        latest(run)
    assert latest(run, "lr1-step-1.zarr") == str(run / "lr1-step-7.zarr")
    with pytest.raises(ValueError, match="has no step in its name"):
        latest(run, "last.zarr")
    shutil.rmtree(run / "step-9.zarr")
    with pytest.warns(CheckpointWarning, match=r"step-10\.zarr: not taken as the last"):
        assert latest(run, "step-1.zarr") is None


def test_every_so_many_are_kept(tmp_path: Path) -> None:
    for step in range(10, 80, 10):
        save(tmp_path, step, keep_last=1, keep_every=30)
    assert steps(tmp_path) == [30, 60, 70]


def test_files_of_the_user_are_kept(tmp_path: Path) -> None:
    for step in (1, 2):
        save(tmp_path, step, keep_last=2)
    note = tmp_path / "step-1.zarr" / "README.md"
    note.write_text("mine")
    with pytest.warns(CheckpointWarning, match=r"step-1\.zarr: not removed: 'README\.md' in"):
        save(tmp_path, 3, keep_last=1)
    assert steps(tmp_path) == [1, 3]
    note.unlink()
    save(tmp_path, 4, keep_last=1)
    assert steps(tmp_path) == [4]


def test_numbers_and_not_letters_order_them(tmp_path: Path) -> None:
    for step in (9, 10, 100):
        save(tmp_path, step, keep_last=2, base="previous")
    assert steps(tmp_path) == [10, 100]
    assert base(tmp_path, 100) == "step-10.zarr"


def test_differences_are_rewritten_first(tmp_path: Path) -> None:
    for step in range(1, 7):
        save(tmp_path, step, keep_last=3, base="previous")
        kept = list(range(max(1, step - 2), step + 1))
        assert steps(tmp_path) == kept
        bases = [base(tmp_path, own) for own in kept]
        assert bases == [None, *(f"step-{own}.zarr" for own in kept[:-1])]


def test_differences_are_rewritten_onto_what_stays(tmp_path: Path) -> None:
    """Step 4 was a difference to step 3, and that to step 2, which stays."""
    for step in range(2, 6):
        save(tmp_path, step, keep_last=2, keep_every=2, base="previous")
    assert steps(tmp_path) == [2, 4, 5]
    assert [base(tmp_path, step) for step in (2, 4, 5)] == [None, "step-2.zarr", "step-4.zarr"]


def test_chains_are_not_longer_than_readers_like(tmp_path: Path) -> None:
    for step in range(10):
        save(tmp_path, step, base="previous")
    whole = [step for step in range(10) if base(tmp_path, step) is None]
    assert whole == [0, 8]
    assert steps(tmp_path) == list(range(10))


def test_files_of_others_stay(tmp_path: Path) -> None:
    """Other models, files, and names without a number."""
    from bf16codecs.torch import save_file

    save_file({"w": numbers(0)}, tmp_path / "step-0.zarr")
    save_file({"w": numbers(0)}, tmp_path / "best-1.h5")
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-1" / "log.txt").write_text("x")
    (tmp_path / "step-2.txt").write_text("x")
    for step in (3, 4, 5):
        save(tmp_path, step, keep_last=1)
    expected = ["best-1.h5", "step-0.zarr", "step-1", "step-2.txt", "step-5.zarr"]
    assert sorted(os.listdir(tmp_path)) == expected


def test_other_models_that_are_differences(tmp_path: Path) -> None:
    """A fine-tune in the same folder is rewritten as well."""
    from bf16codecs.torch import save_file

    save(tmp_path, 1)
    tuned = numbers(1) + 1e-4
    save_file({"w": tuned}, tmp_path / "tuned.h5", base=tmp_path / "step-1.zarr")
    save(tmp_path, 2, keep_last=1)
    assert sorted(os.listdir(tmp_path)) == ["step-2.zarr", "tuned.h5"]
    with open_model(tmp_path / "tuned.h5") as model:
        assert torch.equal(model["w"].torch(), tuned)


def test_checkpoints_that_cannot_be_rewritten_keep_their_base(tmp_path: Path) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2, base="previous")
    chunk = next((tmp_path / "step-2.zarr" / "w").glob("c.*"))
    chunk.write_bytes(chunk.read_bytes()[:-1])
    with pytest.warns(CheckpointWarning, match=r"step-2\.zarr: not rewritten, so that its base"):
        save(tmp_path, 3, keep_last=2)
    assert sorted(os.listdir(tmp_path)) == [f"step-{step}.zarr" for step in (1, 2, 3)]


@pytest.mark.parametrize("keep_last", [2, 3])
def test_nothing_is_lost_where_nothing_can_be_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep_last: int
) -> None:
    from bf16codecs.torch.checkpoint import series_disks

    for step in range(1, 5):
        save(tmp_path, step, base="previous")

    def fail(*arguments: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(series_disks, "rebase_store", fail)
    with pytest.warns(CheckpointWarning, match="not rewritten"):
        save(tmp_path, 5, base="previous", keep_last=keep_last)
    assert steps(tmp_path) == [1, 2, 3, 4, 5]
    monkeypatch.undo()
    save(tmp_path, 6, base="previous", keep_last=keep_last)
    assert steps(tmp_path) == list(range(7 - keep_last, 7))


def test_the_only_one_is_whole(tmp_path: Path) -> None:
    """A difference to a checkpoint that is removed at once would be rewritten at once."""
    for step in range(1, 4):
        save(tmp_path, step, base="previous", keep_last=1)
        assert steps(tmp_path) == [step]
        assert base(tmp_path, step) is None
    save(tmp_path, 4, base="previous", keep_last=1, keep_every=3)
    assert steps(tmp_path) == [3, 4]
    assert base(tmp_path, 4) == "step-3.zarr"


def rewrite_root(store: Path, old: str, new: str) -> None:
    document = store / "zarr.json"
    text = document.read_text()
    assert old in text
    document.write_text(text.replace(old, new))


def test_checkpoints_that_cannot_be_opened_keep_their_base(tmp_path: Path) -> None:
    """A newer release's store names its base; an unreadable one might depend on any."""
    for step in (1, 2):
        save(tmp_path, step, base="previous")
    shutil.copytree(tmp_path / "step-2.zarr", tmp_path / "newer.zarr")
    rewrite_root(tmp_path / "newer.zarr", '"layout":2', '"layout":9')
    with pytest.warns(CheckpointWarning, match=r"newer\.zarr: not rewritten"):
        save(tmp_path, 3, keep_last=1)
    names = ["newer.zarr", "step-1.zarr", "step-3.zarr"]
    assert sorted(os.listdir(tmp_path)) == names
    (tmp_path / "newer.zarr" / "zarr.json").write_text("{")
    with pytest.warns(CheckpointWarning, match="may be a difference to any checkpoint"):
        save(tmp_path, 4, keep_last=1)
    assert sorted(os.listdir(tmp_path)) == [*names, "step-4.zarr"]


def test_checkpoints_that_are_not_readable_for_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bf16codecs.torch.checkpoint import series_disks

    for step in (1, 2):
        save(tmp_path, step, base="previous")
    series_disks._known.clear()
    read = series_disks.model_attributes

    def fail(path: Path) -> Any:
        if path.name == "step-2.zarr":
            raise OSError(24, "Too many open files", str(path))
        return read(path)

    monkeypatch.setattr(series_disks, "model_attributes", fail)
    with pytest.warns(CheckpointWarning, match="Too many open files"):
        save(tmp_path, 3, keep_last=2)
    assert steps(tmp_path) == [1, 2, 3]
    with pytest.raises(dcp.api.CheckpointException, match="Too many open files"):
        save(tmp_path, 1, overwrite=True)
    assert steps(tmp_path) == [1, 2, 3]


def test_a_base_elsewhere_that_has_its_own_in_here(tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "tuned.zarr"
    save(run, 1)
    dcp.save(
        {"w": numbers(1) + 1e-5},
        storage_writer=checkpoint.StoreWriter(other, base=run / "step-1.zarr"),
    )
    save(run, 2, base=other)
    save(run, 3, keep_last=2)
    assert steps(run) == [1, 2, 3]


def test_hidden_ones(tmp_path: Path) -> None:
    """They are checkpoints like others."""
    for step in range(1, 4):
        writer = checkpoint.StoreWriter(
            tmp_path / f".step-{step}.zarr", base="previous", keep_last=2
        )
        dcp.save({"w": numbers(step)}, storage_writer=writer)
    assert sorted(os.listdir(tmp_path)) == [".step-2.zarr", ".step-3.zarr"]


def test_neighbours_that_nobody_can_open(tmp_path: Path) -> None:
    """Newer or damaged ones are left alone, and training goes on."""
    save(tmp_path, 1)
    for name in ("newer.zarr", "step-0.zarr"):
        shutil.copytree(tmp_path / "step-1.zarr", tmp_path / name)
        document = tmp_path / name / "zarr.json"
        document.write_text(document.read_text().replace('"layout":2', '"layout":9'))
    (tmp_path / "odd.safetensors").write_bytes(b"x")
    save(tmp_path, 2, base="previous", keep_last=1)
    expected = ["newer.zarr", "odd.safetensors", "step-0.zarr", "step-2.zarr"]
    assert sorted(os.listdir(tmp_path)) == expected


def test_two_series_in_one_folder(tmp_path: Path) -> None:
    for step in (1, 2):
        for job in ("lr1", "lr2"):
            writer = checkpoint.StoreWriter(
                tmp_path / f"{job}-step-{step}.zarr", base="previous", keep_last=1
            )
            dcp.save({"w": numbers(step)}, storage_writer=writer)
    assert sorted(os.listdir(tmp_path)) == ["lr1-step-2.zarr", "lr2-step-2.zarr"]


def test_a_damaged_one_is_no_base(tmp_path: Path) -> None:
    """Training goes on."""
    save(tmp_path, 1)
    save(tmp_path, 2, base="previous")
    shutil.rmtree(tmp_path / "step-1.zarr")
    with pytest.warns(CheckpointWarning, match=r"step-2\.zarr: not taken as the base of step-3"):
        save(tmp_path, 3, base="previous")
    assert base(tmp_path, 3) is None


def test_names_without_numbers(tmp_path: Path) -> None:
    """Nor names with other numbers than a step's: removal must not guess."""
    with pytest.raises(dcp.api.CheckpointException, match=r"name it like step-600\.zarr"):
        dcp.save(
            {"w": numbers(1)},
            storage_writer=checkpoint.StoreWriter(tmp_path / "llama-3-8b.zarr", keep_last=2),
        )
    with pytest.raises(dcp.api.CheckpointException, match=r"name it like step-600\.zarr"):
        dcp.save(
            {"w": numbers(1)}, storage_writer=checkpoint.StoreWriter(tmp_path / "last", keep_last=2)
        )
    with pytest.raises(dcp.api.CheckpointException, match='base="previous" goes by the step'):
        dcp.save(
            {"w": numbers(1)},
            storage_writer=checkpoint.StoreWriter(tmp_path / "z", base="previous"),
        )
    assert os.listdir(tmp_path) == []


def test_a_branch_from_an_earlier_step(tmp_path: Path) -> None:
    """Its own checkpoints are kept, and those that come later are left alone."""
    for step in (10, 20, 30):
        save(tmp_path, step, keep_last=3)
    for step in (11, 12, 13):
        save(tmp_path, step, keep_last=2)
    assert steps(tmp_path) == [12, 13, 20, 30]


def test_a_checkpoint_before_that_is_damaged(tmp_path: Path) -> None:
    """Training goes on: tensors that cannot be read from it are stored whole."""
    save(tmp_path, 1)
    (chunk,) = (tmp_path / "step-1.zarr" / "w").glob("c.*")
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 1
    chunk.write_bytes(content)
    with pytest.warns(CheckpointWarning, match="the checkpoint before cannot be read"):
        save(tmp_path, 2, base="previous")
    state = {"w": torch.zeros(64, 300), "step": 0}
    dcp.load(state, storage_reader=checkpoint.StoreReader(tmp_path / "step-2.zarr"))
    assert torch.equal(state["w"], numbers(2))


def test_a_disk_that_fails_under_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training goes on, with one warning."""
    from bf16codecs.torch.checkpoint import encoding

    save(tmp_path, 1, chunk_size=4096)

    def fail(*arguments: Any) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(encoding.ChunkBase, "read", fail)
        with pytest.warns(CheckpointWarning, match="Input/output error") as told:
            save(tmp_path, 2, base="previous", chunk_size=4096)
    assert len([w for w in told if w.category is CheckpointWarning]) == 1
    assert steps(tmp_path) == [1, 2]


def test_another_model_before(tmp_path: Path) -> None:
    """A checkpoint without a common tensor is stored whole."""
    for step in range(2):
        writer = checkpoint.StoreWriter(tmp_path / f"step-{step}.zarr", base="previous")
        dcp.save({"e": step}, storage_writer=writer)
    with pytest.warns(CheckpointWarning, match="no tensor in common .* stored without one"):
        save(tmp_path, 2, base="previous")
    assert base(tmp_path, 2) is None


def test_unreadable_checkpoints_are_not_counted(tmp_path: Path) -> None:
    for step in range(6):
        save(tmp_path, step, base="previous")
    shutil.rmtree(tmp_path / "step-4.zarr")
    with pytest.warns(CheckpointWarning, match=r"step-5\.zarr: not counted"):
        save(tmp_path, 6, base="previous", keep_last=2)
    left = [f"step-{step}.zarr" for step in (3, 5, 6)]
    assert sorted(os.listdir(tmp_path)) == left
    shutil.rmtree(tmp_path / "step-5.zarr")
    assert steps(tmp_path) == [3, 6]


def test_a_folder_that_has_lost_its_root(tmp_path: Path) -> None:
    for step in (1, 2):
        save(tmp_path, step)
    (tmp_path / "step-2.zarr" / "zarr.json").unlink()
    with pytest.warns(CheckpointWarning, match=r"step-2\.zarr: not taken .* without a store"):
        save(tmp_path, 3, base="previous")
    assert base(tmp_path, 3) == "step-1.zarr"
