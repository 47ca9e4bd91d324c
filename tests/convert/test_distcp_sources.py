"""Checkpoints of torch.distributed.checkpoint become stores, and come back byte for byte."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bf16codecs import open_model
from folders import content_of
from invoked import done, refused
from reference_store import ReferenceStore
from round_trips import assert_comes_back
from torch_files import call, pickled, plain

CHECKPOINT = Path(__file__).parent / "goldens" / "distcp_files"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a checkpoint of two processes that may be changed."""
    return Path(shutil.copytree(CHECKPOINT, tmp_path / "checkpoint"))


def test_checkpoints_come_back(tmp_path: Path) -> None:
    assert_comes_back(CHECKPOINT, tmp_path)
    files = {path.name: path.read_bytes() for path in CHECKPOINT.iterdir()}
    assert ReferenceStore(tmp_path / "m.zarr").files() == files


def test_tensors_and_shards_have_names(tmp_path: Path) -> None:
    done("st2zarr", CHECKPOINT, tmp_path / "m.zarr")
    with open_model(tmp_path / "m.zarr") as model:
        assert sorted(model) == ["model.bias", "model.weight[0, 0]", "model.weight[8, 0]"]
        assert model["model.bias"][...].tolist() == list(range(12))
        assert model["model.weight[8, 0]"].shape == (8, 12)


def test_other_files_are_named(copy: Path, tmp_path: Path) -> None:
    (copy / "notes.txt").write_text("mine")
    assert "notes.txt" in done("st2zarr", copy, tmp_path / "m.zarr")


def test_damaged_checkpoints(copy: Path, tmp_path: Path) -> None:
    def refusal() -> str:
        line = refused("st2zarr", copy, tmp_path / "m.zarr")
        assert not (tmp_path / "m.zarr").exists()
        return line

    shard = copy / "__1_0.distcp"
    content = shard.read_bytes()
    shard.write_bytes(content[:-100])
    assert "truncated" in refusal()
    shard.unlink()
    assert "No such file" in refusal()
    metadata = (copy / ".metadata").read_bytes()
    (copy / ".metadata").write_bytes(metadata[:-10])
    assert "damaged pickle" in refusal()
    (copy / ".metadata").write_bytes(pickled({"a": plain(1)}))
    assert "not the metadata of a checkpoint" in refusal()


def test_metadata_of_strangers(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing runs, and no file beside the checkpoint's is read."""
    monkeypatch.chdir(tmp_path)
    (copy / ".metadata").write_bytes(pickled(call("os", "system", plain("echo > ran"))))
    assert "not the metadata" in refused("st2zarr", copy, tmp_path / "m.zarr")
    assert not (tmp_path / "ran").exists()
    metadata = (CHECKPOINT / ".metadata").read_bytes()
    (copy / ".metadata").write_bytes(metadata.replace(b"__1_0.distcp", b"../x.safeten"))
    assert "no plain name" in refused("st2zarr", copy, tmp_path / "m.zarr")


def test_parts_in_other_forms_are_bytes(copy: Path, tmp_path: Path) -> None:
    """A part may be compressed."""
    shard = copy / "__0_0.distcp"
    content = bytearray(shard.read_bytes())
    at = content.rfind(b"PK\x03\x04", 0, content.find(b"/data.pkl"))
    content[at] ^= 1
    shard.write_bytes(content)
    done("st2zarr", copy, tmp_path / "m.zarr")
    done("zarr2st", tmp_path / "m.zarr", tmp_path / "back")
    assert content_of(tmp_path / "back") == content_of(copy)
