"""Round trips of sources: a store is made of one, and restores it byte for byte."""

from __future__ import annotations

from pathlib import Path

from bf16codecs.convert import safetensors_to_zarr, zarr_to_safetensors
from folders import content_of
from invoked import CONVERTERS, done
from looping import noted


def stored(source: Path, folder: Path) -> Path:
    """Return a Zarr store of a file, which is known to restore it."""
    store, back = folder / "m.zarr", folder / "back.bin"
    safetensors_to_zarr(source, store, overwrite=True)
    zarr_to_safetensors(store, back.with_suffix(source.suffix), overwrite=True)
    assert content_of(back.with_suffix(source.suffix)) == content_of(source)
    return store


def assert_comes_back(source: Path, folder: Path) -> None:
    """Assert that stores of each kind, made in a folder by commands, restore a source."""
    for target, (store, restore) in CONVERTERS.items():
        with noted(target):
            back = folder / f"{target}-back{source.suffix}"
            done(store, source, folder / target)
            done(restore, folder / target, back)
            assert content_of(back) == content_of(source)
            assert "identical" in done("bf16codecs", "verify", folder / target, source)
