"""Objects of checkpoints: loading them runs no code, unless the caller allows it."""

from __future__ import annotations

import argparse
import io
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from bf16codecs import open_model
from bf16codecs.errors import StoreError
from checkpoint_calls import failure, load, numbers, save
from invoked import done
from lazy_imports import lazily

torch = lazily("torch")
dcp = lazily("torch.distributed.checkpoint")
checkpoint = lazily("bf16codecs.torch.checkpoint")
own_torch = lazily("bf16codecs.torch")

pytestmark = pytest.mark.filterwarnings("ignore")


class Touch:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


class Writing:
    """Lets a planner save other bytes than PyTorch's for an object."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def planner(self) -> Any:
        content = self.content

        class Planner(dcp.DefaultSavePlanner):
            def transform_object(self, item: Any, found: Any) -> Any:
                return found if isinstance(found, torch.Tensor) else io.BytesIO(content)

        return Planner()


def store_of(content: bytes, path: Path) -> Path:
    """Make a checkpoint with an object of these bytes."""
    writer = checkpoint.StoreWriter(path, overwrite=True)
    state = {"w": numbers(), "thing": 0}
    dcp.save(state, storage_writer=writer, planner=Writing(content).planner())
    return path


def saved_bytes(thing: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(thing, file, **options)
    return file.getvalue()


def test_objects_of_strangers_run_nothing(tmp_path: Path) -> None:
    """In every encoding; nothing of the checkpoint is loaded then."""
    thing, script = Touch(tmp_path / "ran"), io.BytesIO()
    torch.jit.save(torch.jit.script(torch.nn.Identity()), script)
    for name, content in {
        "saved": saved_bytes(thing),
        "in a list": saved_bytes([1, {"a": (thing,)}]),
        "before zip files": saved_bytes(thing, _use_new_zipfile_serialization=False),
        "a pickle": pickle.dumps(thing),
        "TorchScript": script.getvalue(),
        "cut off": saved_bytes([1, 2])[:-30],
        "nothing": b"",
        "junk": b"abc",
    }.items():
        path = store_of(content, tmp_path / "c.zarr")
        state = {"w": torch.zeros(64, 300), "thing": 3}
        error = failure(load, state, path)
        assert isinstance(error, StoreError), name
        assert "c.zarr: object 'thing': " in str(error), name
        may_run = name in ("saved", "in a list", "before zip files", "a pickle")
        assert f"weights_only={not may_run}" in str(error) or name == "junk", name
        assert state["thing"] == 3, name
        assert not state["w"].any(), name
        assert not (tmp_path / "ran").exists(), name


def test_contents_of_objects_are_named(tmp_path: Path) -> None:
    save({"w": numbers(), "arguments": argparse.Namespace(rate=3)}, tmp_path / "c.zarr")
    state = {"w": torch.zeros(64, 300), "arguments": None}
    told = str(failure(load, state, tmp_path / "c.zarr"))
    assert "object 'arguments': has argparse.Namespace, and may run code" in told
    assert "\n" not in told
    with torch.serialization.safe_globals([argparse.Namespace]):
        load(state, tmp_path / "c.zarr")
    assert state["arguments"] == argparse.Namespace(rate=3)
    assert torch.equal(state["w"], numbers())


def test_who_trusts_an_object_may_load_it(tmp_path: Path) -> None:
    path = store_of(saved_bytes(Touch(tmp_path / "ran")), tmp_path / "c.zarr")
    state = {"w": torch.zeros(64, 300), "thing": 3}
    load(state, path, weights_only=False)
    assert (tmp_path / "ran").exists()
    for wrong in (None, 0, "no"):
        with pytest.raises(TypeError, match="weights_only must be True or False"):
            checkpoint.StoreReader(path, weights_only=wrong)


def test_planners_get_other_bytes_than_were_there(tmp_path: Path) -> None:
    """Two unpicklers may interpret the same bytes differently."""
    seen = []

    class Planner(dcp.DefaultLoadPlanner):
        def load_bytes(self, item: Any, value: io.BytesIO) -> None:
            seen.append(value.getvalue())
            super().load_bytes(item, value)

    content = saved_bytes({"a": [1, 2.5, "x", b"y", None]}) + b"and what follows"
    path = store_of(content, tmp_path / "c.zarr")
    state = {"w": torch.zeros(64, 300), "thing": 3}
    dcp.load(state, storage_reader=checkpoint.StoreReader(path), planner=Planner())
    assert state["thing"] == {"a": [1, 2.5, "x", b"y", None]}
    assert content not in seen
    with open_model(path) as model:
        assert model.object_bytes("thing") == content


def test_tensors_alone_are_loaded_whatever_else_is_there(tmp_path: Path) -> None:
    path = store_of(saved_bytes(Touch(tmp_path / "ran")), tmp_path / "c.zarr")
    state = {"w": torch.zeros(64, 300)}
    load(state, path)
    assert torch.equal(state["w"], numbers())
    assert not (tmp_path / "ran").exists()


def test_nothing_else_loads_objects(tmp_path: Path) -> None:
    path = store_of(saved_bytes(Touch(tmp_path / "ran")), tmp_path / "c.zarr")
    with open_model(path) as model:
        model.load()
        assert model.objects()
    module = torch.nn.Module()
    module.w = torch.nn.Parameter(torch.zeros(64, 300))
    own_torch.load_into(module, path)
    assert torch.equal(module.w.detach(), numbers())
    for command in ("info", "verify", "analyze"):
        assert done("bf16codecs", command, path)
    done("zarr2st", path, tmp_path / "c.safetensors")
    assert not (tmp_path / "ran").exists()


def test_state_dicts_that_no_reader_would_make(tmp_path: Path) -> None:
    """They are refused when they are saved."""
    deep: dict[str, Any] = {"w": numbers()}
    for _ in range(200):
        deep = {"x": deep}
    error = failure(save, deep, tmp_path / "c.zarr")
    assert isinstance(error, ValueError)
    assert "201 keys lead to 'x.x.x" in str(error)
    assert not list(tmp_path.iterdir())


def test_state_dicts_are_made_of_names(tmp_path: Path) -> None:
    """As PyTorch's tools outside of a job do."""
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

    save({"list": [{"w": numbers()}, 3], "epoch": 5}, tmp_path / "c.zarr")
    state: dict[str, Any] = {}
    reader = checkpoint.StoreReader(tmp_path / "c.zarr")
    planner = _EmptyStateDictLoadPlanner()
    _load_state_dict(state, storage_reader=reader, planner=planner, no_dist=True)
    assert state["epoch"] == 5
    assert torch.equal(state["list"][0]["w"], numbers())
    assert state["list"][1] == 3
