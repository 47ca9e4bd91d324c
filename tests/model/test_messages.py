"""Messages about damage, bases and errors of zarr: in this package's words, with advice."""

from __future__ import annotations

from pathlib import Path

import pytest

import bf16codecs
from bf16codecs.convert import safetensors_to_hdf5, safetensors_to_zarr, verify_store
from bf16codecs.errors import TruncatedDataError
from bf16codecs.store import StoreError


def test_damage_is_called_so(demo_model: Path, tmp_path: Path) -> None:
    """Once, even for a base's damage, and with advice."""
    base, fine = tmp_path / "base.zarr", tmp_path / "fine.zarr"
    safetensors_to_zarr(demo_model, base)
    safetensors_to_zarr(demo_model, fine, base=base)
    (chunk,) = (base / "lm_head" / "weight").glob("c.*")
    chunk.write_bytes(chunk.read_bytes()[:100])
    for store in (base, fine):
        with bf16codecs.open_model(store) as model, pytest.raises(TruncatedDataError) as caught:
            model["lm_head.weight"][:]
        text = str(caught.value)
        assert text.count("damaged: ") == text.count("; restore it from its source or a copy") == 1


@pytest.mark.parametrize("name", ["m.h5", "m.zarr.zip"])
def test_truncated_files_are_reported_as_such(demo_model: Path, tmp_path: Path, name: str) -> None:
    """The message does not quote the libraries that read them."""
    convert = safetensors_to_hdf5 if name == "m.h5" else safetensors_to_zarr
    convert(demo_model, tmp_path / name)
    whole = (tmp_path / name).read_bytes()
    for size in (600, len(whole) // 2, len(whole) - 1):
        (tmp_path / name).write_bytes(whole[:size])
        with pytest.raises(StoreError, match=r"cut off: .*; restore it from") as caught:
            bf16codecs.open_model(tmp_path / name)
        if name == "m.h5":
            assert f"it has {size} bytes of {len(whole)};" in str(caught.value)


def test_a_base_that_is_not_there_is_named_plainly(demo_model: Path, tmp_path: Path) -> None:
    base, fine = tmp_path / "base.zarr", tmp_path / "fine.zarr"
    safetensors_to_zarr(demo_model, base)
    safetensors_to_zarr(demo_model, fine, base=base)
    base.rename(tmp_path / "moved.zarr")
    with pytest.raises(StoreError) as caught:
        bf16codecs.open_model(fine)
    assert f"its base cannot be opened: {base}: No such file or directory; name" in str(
        caught.value
    )


def test_verify_refuses_metadata_that_zarr_refuses(demo_model: Path, tmp_path: Path) -> None:
    """A codec's configuration, which this package does not need to decode frames."""
    store = tmp_path / "m.zarr"
    safetensors_to_zarr(demo_model, store)
    root = (store / "zarr.json").read_text()
    (store / "zarr.json").write_text(root.replace('"fast"', '"bset"'))
    with pytest.raises(StoreError, match=r"tensor 'lm_head\.weight': level must be .* not 'bset'"):
        verify_store(store)


def test_a_folder_that_cannot_be_closed(tmp_path: Path, run_python) -> None:
    code = """
import os, sys
from bf16codecs._files.folders import Folder
folder = Folder(sys.argv[1])
os.close(folder._descriptor)
del folder
"""
    assert run_python(code, str(tmp_path)).stderr == ""


def test_a_process_ends_quietly(demo_model: Path, tmp_path: Path, run_python) -> None:
    """With a model in a global, and in a thread that keeps reading: no errors at exit."""
    safetensors_to_zarr(demo_model, tmp_path / "m.zarr")
    code = """
import sys, threading, bf16codecs
model = bf16codecs.open_model(sys.argv[1])
tensor = model["lm_head.weight"]
has_read = threading.Event()
def go_on(tensor):
    while True:
        tensor[:3]
        has_read.set()
threading.Thread(target=go_on, args=[tensor], daemon=True).start()
tensor[:3]
has_read.wait()
"""
    assert run_python(code, str(tmp_path / "m.zarr")).stderr == ""
