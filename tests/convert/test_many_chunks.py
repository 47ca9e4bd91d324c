"""Very many small chunks: refused or warned of, and their removal is reported."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

from bf16codecs._files import publish as _replace
from bf16codecs.convert import (
    append_to_run,
    checks,
    safetensors_to_hdf5,
    safetensors_to_run,
    safetensors_to_zarr,
    zarr_to_safetensors,
)
from bf16codecs.errors import ManyFilesWarning
from folders import names_in
from invoked import done, run
from models import write_model

#: 25 chunks of 4 KiB.
TENSORS = [("a", "BF16", (50, 1024))]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "m-step1.safetensors", TENSORS)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the number of chunks that counts as many to 20."""
    for module in (checks, _replace):
        monkeypatch.setattr(module, "MANY_FILES", 20)


def as_run(source: Path, store: Path, **options: Any) -> None:
    safetensors_to_run([source], store, **options)


@pytest.mark.parametrize(
    "convert", [safetensors_to_zarr, safetensors_to_hdf5, as_run, append_to_run]
)
def test_tiny_chunks_are_for_tiny_models(
    convert: Any, model: Path, demo_model: Path, tmp_path: Path
) -> None:
    """Nobody wants five million files of a model of 10 MB."""
    source = Path(shutil.copy(demo_model, tmp_path / "step-1.safetensors"))
    with pytest.raises(ValueError, match="choose at least 4096"):
        convert(source, tmp_path / "x", chunk_size=1)
    assert names_in(tmp_path) == {model.name, source.name}
    tiny = write_model(tmp_path / "tiny-step1.safetensors", [("a", "BF16", (50, 20))])
    convert(tiny, tmp_path / "x", chunk_size=100)


@pytest.mark.usefixtures("few")
def test_many_chunks_are_reported_before_they_are_made(model: Path, tmp_path: Path) -> None:
    with pytest.warns(ManyFilesWarning, match="cuts the model into 25 chunks") as caught:
        safetensors_to_zarr(model, tmp_path / "x.zarr", chunk_size=4096)
    assert "such as 4M" in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        safetensors_to_zarr(model, tmp_path / "y.zarr", chunk_size=8192)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("convert", "name"),
    [
        (safetensors_to_zarr, "x.zarr"),
        (safetensors_to_zarr, "x.zarr.zip"),
        (safetensors_to_hdf5, "x.h5"),
        (as_run, "x"),
    ],
)
def test_reports_are_true_of_every_store(
    convert: Any, name: str, model: Path, tmp_path: Path
) -> None:
    """A ZIP or HDF5 file is no folder, however many chunks it has."""
    with pytest.warns(ManyFilesWarning, match="in a folder each one is a file"):
        convert(model, tmp_path / name, chunk_size=4096)


@pytest.mark.usefixtures("few")
def test_many_tensors_are_no_reason_to_warn(tmp_path: Path) -> None:
    source = write_model(tmp_path / "m", [(f"t{i}", "BF16", (3,)) for i in range(30)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        safetensors_to_zarr(source, tmp_path / "m.zarr", chunk_size=4096)


@pytest.mark.usefixtures("few")
def test_the_command_warns_in_one_line(model: Path, tmp_path: Path) -> None:
    args = (model, tmp_path / "x.zarr", "--chunk-size", "4K")
    result = run("st2zarr", *args)
    assert result.exit_code == 0
    (line,) = result.stderr.splitlines()
    assert line.startswith(
        "st2zarr: warning: a chunk size of 4096 bytes cuts the model into 25 chunks"
    )
    result = run("st2zarr", *args, "--overwrite", "--quiet")
    assert (result.exit_code, result.output) == (0, "")


def test_less_than_4_kib_is_wrong_usage(model: Path, tmp_path: Path) -> None:
    for command in ("st2zarr", "st2h5"):
        for size in ("1", "4095"):
            result = run(command, model, tmp_path / command, "--chunk-size", size)
            assert result.exit_code == 2
            assert "less than 4096 bytes" in result.stderr
        done(command, model, tmp_path / command, "--chunk-size", "4K")


@pytest.mark.usefixtures("few")
def test_long_removals_are_reported(model: Path, tmp_path: Path) -> None:
    """Removals of unfinished and of replaced stores."""
    store = tmp_path / "x.zarr"
    safetensors_to_zarr(model, store, chunk_size=8192)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        zarr_to_safetensors(store, tmp_path / "back")
    with pytest.warns(ManyFilesWarning, match="more than 20 files to remove"):
        safetensors_to_zarr(model, store, chunk_size=1 << 20, overwrite=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        safetensors_to_zarr(model, store, overwrite=True)
