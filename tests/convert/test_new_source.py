"""Sources: a new kind is one module, here one that the suite writes; no file stays open."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from bf16codecs import open_model, open_run
from bf16codecs.convert import (
    append_to_run,
    run_to_safetensors,
    safetensors_to_run,
    sources,
    verify_store,
    zarr_to_safetensors,
)
from bf16codecs.errors import StoreError
from bf16codecs.safetensors import read_header
from invoked import done, refused
from lazy_models import weights, write_safetensors

#: Models of a made-up kind: each line has a tensor's name and numbers.
MODULE = """
import numpy as np

from bf16codecs.safetensors import make_header
from bf16codecs.store.files import FilesReader, ModelFile, ReadBytes


SUFFIXES = (".numbers",)


def is_source(place):
    return place.name.endswith(".numbers")


def open_source(place):
    path = place.where
    with place.open(place.name) as file:
        text = file.part(0, file.size).decode()
    lines = [line.split() for line in text.splitlines()]
    tensors = {name: np.array(numbers, np.float32) for name, *numbers in lines}
    forms = {name: ("F32", array.shape) for name, array in tensors.items()}
    header = make_header(forms, {"made by": "numbers"}, path)
    data = b"".join(tensors[tensor.name].tobytes() for tensor in header.tensors)

    def read(offset, out):
        start = offset - header.data_start
        out[:] = np.frombuffer(data, np.uint8)[start : start + out.size]

    file = ModelFile("m.safetensors", header, ReadBytes(read, header.file_size), path)
    return FilesReader(path, [file], paths=[])
"""

TEXT = "a 1 2 3\nb.c 0.5 -0\n" + "d " + " ".join(map(str, range(5000))) + "\n"


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "kinds"
    folder.mkdir()
    (folder / "numbers_in_lines.py").write_text(MODULE)
    monkeypatch.setattr(sources, "__path__", [*sources.__path__, str(folder)])
    path = tmp_path / "m.numbers"
    path.write_text(TEXT)
    yield path
    sys.modules.pop("bf16codecs.convert.sources.numbers_in_lines", None)


@pytest.mark.parametrize("command", ["st2zarr", "st2h5"])
def test_what_all_sources_can(model: Path, tmp_path: Path, command: str) -> None:
    store = tmp_path / ("m.h5" if command == "st2h5" else "m.zarr")
    assert "3 tensors" in done(command, model, store)
    assert verify_store(store, model).tensors == 3
    with open_model(store) as opened:
        assert opened["d"][:].tolist() == list(range(5000))
        assert np.signbit(opened["b.c"][:]).tolist() == [False, True]
    based = tmp_path / "based.zarr"
    assert "3 tensors as differences" in done("st2zarr", model, based, "--base", store)
    (tmp_path / "other.numbers").write_text(TEXT.replace("0.5", "0.25"))
    assert "differs" in refused("bf16codecs", "verify", store, tmp_path / "other.numbers")


def test_steps_and_files(model: Path, tmp_path: Path) -> None:
    run = tmp_path / "run.zarr"
    for step in (1, 2):
        append_to_run(model, run, step)
    with open_run(run) as opened:
        assert opened["d"].shape == (2, 5000)
    zarr_to_safetensors(run, tmp_path / "back.safetensors", step=2)
    assert read_header(tmp_path / "back.safetensors").metadata == {"made by": "numbers"}


def test_what_it_cannot_read(model: Path, tmp_path: Path) -> None:
    model.write_text("a one\n")
    assert "could not convert" in refused("st2zarr", model, tmp_path / "m.zarr")
    assert not (tmp_path / "m.zarr").exists()
    with pytest.raises(StoreError):
        open_model(model)


@pytest.mark.skipif(sys.platform != "linux", reason="lists descriptors in /proc")
def test_files_are_open_while_they_are_read_alone(tmp_path: Path) -> None:
    """Hundreds of shards or thousands of checkpoints would exhaust descriptors."""
    folder = tmp_path / "steps"
    folder.mkdir()
    for step in range(1, 7):
        write_safetensors(folder / f"step-{step}.safetensors", {"w": weights((64, 64), seed=step)})
    files = sorted(folder.iterdir())
    most = 0

    def count(*_: object) -> None:
        nonlocal most
        links = (os.path.realpath(link) for link in Path("/proc/self/fd").iterdir())
        most = max(most, sum(link.startswith(str(folder)) for link in links))

    safetensors_to_run(files, tmp_path / "run.zarr", progress=count)
    run_to_safetensors(tmp_path / "run.zarr", tmp_path / "back")
    verify_store(tmp_path / "run.zarr", folder, progress=count)
    count()
    assert most <= 1
