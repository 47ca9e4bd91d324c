"""Conversions to every kind of store: names, and common behaviour."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bf16codecs.convert import (
    open_store,
    safetensors_to_hdf5,
    safetensors_to_zarr,
    zarr_to_safetensors,
)
from models import write_model
from tiers import by_tier


@settings(max_examples=by_tier(8, 15))
@given(st.sets(st.text(max_size=9) | st.text("aA./\\", max_size=5), max_size=8))
def test_any_names(tmp_path_factory: Any, tensors: set[str]) -> None:
    tmp_path = tmp_path_factory.mktemp("names")
    named = [(name, "F16", (2,)) for name in tensors - {"__metadata__"}]
    source = write_model(tmp_path / "m.safetensors", named)
    safetensors_to_zarr(source, tmp_path / "m.zarr", codec="none")
    zarr_to_safetensors(tmp_path / "m.zarr", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == source.read_bytes()


def test_zarr_and_hdf5_hold_the_same(demo_model: Path, tmp_path: Path) -> None:
    safetensors_to_zarr(demo_model, tmp_path / "m.zarr")
    safetensors_to_hdf5(demo_model, tmp_path / "m.h5")
    ours, theirs = open_store(tmp_path / "m.h5"), open_store(tmp_path / "m.zarr")
    assert ours.info == theirs.info
    for path in ours.info.paths.values():
        assert ours.plan(path) == theirs.plan(path)
        assert ours.stored.codec_name(path) == theirs.stored.codec_name(path)
    ours.close()
    theirs.close()


@pytest.mark.skipif(not hasattr(os, "preadv"), reason="this system has no preadv")
def test_the_file_that_cannot_be_read_is_named(
    demo_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading has only a descriptor, but the error names the source, not the target."""

    def fail(*args: Any) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)) as caught:
        safetensors_to_zarr(demo_model, tmp_path / "m.zarr")
    assert caught.value.filename == str(demo_model)
    assert not list(tmp_path.iterdir())
