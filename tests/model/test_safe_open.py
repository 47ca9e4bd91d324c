"""`safe_open` does what `safetensors.safe_open` does, without PyTorch."""

from __future__ import annotations

import inspect
import pickle
import sys

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
    """A safetensors file, and the path that this package opens: a store of it, or the file."""
    file = write_safetensors(tmp_path / "m.safetensors", ARRAYS, {"k": "v"})
    if request.param == "file":
        return file, file
    safetensors_to_zarr(file, tmp_path / "m.zarr")
    return file, tmp_path / "m.zarr"


def public(thing):
    return {name for name in dir(thing) if not name.startswith("_")}


def test_the_whole_interface_exists(paths):
    assert public(safetensors.safe_open) <= public(bf16codecs.safe_open)
    assert {"__enter__", "__exit__"} <= set(dir(bf16codecs.safe_open))
    file, store = paths
    with safetensors.safe_open(file, "np") as theirs, bf16codecs.safe_open(store, "np") as ours:
        assert public(theirs.get_slice("a")) <= public(ours.get_slice("a"))


def test_parameters_are_theirs():
    """The parameters of its text signature, with the same names, order and kinds."""
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
    for framework in ("tf", "mlx", "paddle"):
        with pytest.raises(ValueError, match=f"must be numpy, torch or jax .*, not '{framework}'"):
            bf16codecs.safe_open(store, framework)
    with pytest.raises(ValueError, match="backend must be mmap or pread, not 'rust'"):
        bf16codecs.safe_open(store, "np", backend="rust")
    with bf16codecs.safe_open(store, "np", backend="pread") as f:
        with pytest.raises(KeyError, match="no tensor 'q'"):
            f.get_tensor("q")
        with pytest.raises(TypeError, match="must be a string"):
            f.get_slice(3)
        with pytest.raises(IndexError, match="single ellipsis"):
            f.get_slice("z")[..., ...]
        with pytest.raises(IndexError, match="only integers"):
            f.get_slice("z")["a"]
    for call in (f.keys, f.offset_keys, f.metadata, f.get_tensors, lambda: f.get_tensor("a")):
        with pytest.raises(ValueError, match="closed"):
            call()


def test_selections_of_one_item_are_arrays(paths):
    file, store = paths
    with safetensors.safe_open(file, "np") as theirs, bf16codecs.safe_open(store, "np") as ours:
        for selection in (np.s_[1, 2], np.s_[-1, ..., 0], np.s_[..., 3, 4]):
            mine, known = (f.get_slice("z")[selection] for f in (ours, theirs))
            assert type(mine) is type(known) is np.ndarray
            assert (mine.shape, mine.dtype, mine) == (known.shape, known.dtype, known)


def test_pickled_ones_are_the_same(paths):
    with bf16codecs.safe_open(paths[1], "np") as f, pickle.loads(pickle.dumps(f)) as again:
        assert type(again) is bf16codecs.safe_open
        assert again.keys() == f.keys() == sorted(ARRAYS)
        assert type(again.get_slice("z")[1, 2]) is np.ndarray


@pytest.mark.parametrize("framework", ["flax", "jax"])
def test_arrays_of_jax(tmp_path, framework):
    jax = pytest.importorskip("jax")
    arrays = {"z": ARRAYS["z"], "b": weights((7, 5)), "s": ARRAYS["s"]}
    file = write_safetensors(tmp_path / "m.safetensors", arrays)
    with safetensors.safe_open(file, "flax") as theirs, bf16codecs.safe_open(file, framework) as f:
        for name in arrays:
            for mine, known in (
                (f.get_tensor(name), theirs.get_tensor(name)),
                (f.get_tensors()[name], theirs.get_tensor(name)),
                (f.get_slice(name)[...], theirs.get_slice(name)[...]),
            ):
                assert isinstance(mine, jax.Array)
                assert (mine.shape, mine.dtype) == (known.shape, known.dtype)
                assert np.asarray(mine).tobytes() == np.asarray(known).tobytes()
        assert isinstance(f.get_slice("z")[1, 2], jax.Array)
    with pytest.raises(ValueError, match="JAX are where it puts them, not on 'cuda'"):
        bf16codecs.safe_open(file, framework, "cuda")


def test_without_jax(paths, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(
        ImportError, match="framework='jax', another package is needed: pip install"
    ):
        bf16codecs.safe_open(paths[1], "flax")
