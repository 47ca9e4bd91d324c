"""`safe_open` does what `safetensors.safe_open` does, without PyTorch."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import safetensors

import bf16codecs
from bf16codecs.convert import safetensors_to_zarr
from lazy_models import weights, write_safetensors

ARRAYS = {
    "z": weights((6, 5), "float32"),
    "a": np.arange(12, dtype="i8").reshape(3, 4),
    "s": np.array(2.5, "f4"),
    "none": np.zeros((0, 3), "f2"),
}
SELECTIONS = [np.s_[...], np.s_[:], np.s_[1:2], np.s_[1], np.s_[:, 2:], np.s_[-1, ...]]


@pytest.fixture(params=["store", "file"])
def paths(request, tmp_path):
    """A safetensors file, and what is opened by ours: a store of it, or itself."""
    file = write_safetensors(tmp_path / "m.safetensors", ARRAYS, {"k": "v"})
    if request.param == "file":
        return file, file
    safetensors_to_zarr(file, tmp_path / "m.zarr")
    return file, tmp_path / "m.zarr"


def public(thing):
    return {name for name in dir(thing) if not name.startswith("_")}


def test_the_whole_surface_is_there(paths):
    assert public(safetensors.safe_open) <= public(bf16codecs.safe_open)
    assert {"__enter__", "__exit__"} <= set(dir(bf16codecs.safe_open))
    file, store = paths
    with safetensors.safe_open(file, "np") as theirs, bf16codecs.safe_open(store, "np") as ours:
        assert public(theirs.get_slice("a")) <= public(ours.get_slice("a"))


def test_parameters_are_theirs():
    """Of those in their text signature: the same names, in the same order and of the same kind."""
    text = getattr(safetensors.safe_open, "__text_signature__", None)
    if not text:
        pytest.skip("this safetensors tells no signature")
    ours = inspect.signature(bf16codecs.safe_open).parameters
    theirs = inspect.signature(safetensors.safe_open).parameters
    assert [(n, ours[n].kind) for n in theirs] == [(n, p.kind) for n, p in theirs.items()]


def test_it_gives_the_same(paths):
    file, store = paths
    with safetensors.safe_open(file, "np") as theirs, bf16codecs.safe_open(store, "np") as ours:
        assert ours.keys() == theirs.keys()
        assert ours.offset_keys() == theirs.offset_keys()
        assert ours.metadata() == theirs.metadata()
        if hasattr(theirs, "get_tensors"):  # of safetensors 0.6
            assert list(ours.get_tensors()) == list(theirs.get_tensors())
        for name in theirs.keys():  # noqa: SIM118  (it is no mapping)
            mine, known = ours.get_tensor(name), theirs.get_tensor(name)
            assert (mine.dtype, mine.shape) == (known.dtype, known.shape)
            assert mine.tobytes() == known.tobytes()
            mine, known = ours.get_slice(name), theirs.get_slice(name)
            assert mine.get_shape() == known.get_shape()
            assert mine.get_dtype() == known.get_dtype()
        for selection in SELECTIONS:
            mine = ours.get_slice("z")[selection]
            assert np.array_equal(mine, theirs.get_slice("z")[selection]), selection


def test_without_metadata(tmp_path):
    file = write_safetensors(tmp_path / "m.safetensors", ARRAYS)
    with safetensors.safe_open(file, "np") as theirs, bf16codecs.safe_open(file, "np") as ours:
        assert ours.metadata() is theirs.metadata() is None


def test_wrong_use(paths, tmp_path):
    _, store = paths
    with pytest.raises(FileNotFoundError, match="nothing-here"):
        bf16codecs.safe_open(tmp_path / "nothing-here.zarr", "np")
    with pytest.raises(ValueError, match="framework must be numpy or torch"):
        bf16codecs.safe_open(store, "flax")
    with pytest.raises(ValueError, match="backend must be mmap or pread, not 'rust'"):
        bf16codecs.safe_open(store, "np", backend="rust")
    with bf16codecs.safe_open(store, "np", backend="pread") as f:
        with pytest.raises(KeyError, match="no tensor 'q'"):
            f.get_tensor("q")
        with pytest.raises(TypeError, match="must be a string"):
            f.get_slice(3)
    with pytest.raises(ValueError, match="closed"):
        f.get_tensor("a")
