"""A model store behaves like the model, with the habits of safetensors."""

from __future__ import annotations

import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes  # noqa: F401  (safetensors.numpy needs its dtypes)
import numpy as np
import pytest
import safetensors
import zarr
from zarr.storage import LocalStore

import bf16codecs
import tiers
from bf16codecs.convert import safetensors_to_hdf5, safetensors_to_zarr, zarr_to_safetensors
from bf16codecs.model import TensorNotFoundError, open_model
from bits import assert_same_bits
from edit_store import edit_json
from folders import files_in
from lazy_models import in_memory, weights, write_safetensors, write_shards, write_store

ARRAYS = {
    "model.embed_tokens.weight": weights((300, 64)),
    "model.layers.0.mlp.up_proj.weight": weights((128, 64), seed=1),
    "model.layers.0.input_layernorm.weight": weights((64,), "float32", 2),
    "steps": np.arange(5),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    return write_safetensors(folder / "model.safetensors", ARRAYS, {"format": "pt", "x": "é"})


@pytest.fixture(scope="module", params=["folder", "zip", "format 2", "safetensors", "hdf5"])
def path(request, source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    if request.param == "safetensors":
        return source
    if request.param == "hdf5":
        safetensors_to_hdf5(source, folder / "m.h5", chunk_size=1 << 14)
        return folder / "m.h5"
    target = folder / ("m.zarr.zip" if request.param == "zip" else "m.zarr")
    zarr_format = 2 if request.param == "format 2" else 3
    safetensors_to_zarr(source, target, chunk_size=1 << 14, zarr_format=zarr_format)
    return target


@pytest.fixture
def store(source, tmp_path):
    safetensors_to_zarr(source, tmp_path / "m.zarr", chunk_size=1 << 14)
    return tmp_path / "m.zarr"


def test_is_a_mapping_of_lazy_tensors(path):
    with open_model(path) as model:
        assert len(model) == 4
        assert model.keys() == list(model) == list(ARRAYS)
        assert dict(model.items()).keys() == ARRAYS.keys()
        assert [t.name for t in model.values()] == list(ARRAYS)
        assert "steps" in model
        assert "step" not in model
        for name, array in ARRAYS.items():
            tensor = model[name]
            assert isinstance(tensor, bf16codecs.LazyTensor)
            assert (tensor.name, tensor.shape, tensor.dtype) == (name, array.shape, array.dtype)
            assert (tensor.ndim, tensor.size) == (array.ndim, array.size)
            assert (tensor.nbytes, len(tensor)) == (array.nbytes, len(array))
            assert repr(tensor) == f"LazyTensor({name!r}, shape={array.shape}, dtype={array.dtype})"
            assert_same_bits(np.asarray(tensor), array)
        assert repr(model) == f"<Model {path}: 4 tensors>"


def test_arrays_of_tensors(path):
    with open_model(path) as model:
        tensor, array = model["steps"], ARRAYS["steps"]
        assert_same_bits(np.asarray(tensor, dtype="float32"), array.astype("float32"))
        assert_same_bits(np.stack(list(tensor)), array)
        assert (np.add(tensor, 1) == array + 1).all()
        with pytest.raises(ValueError, match="copy"):
            np.array(tensor, copy=False)


def test_has_the_habits_of_safe_open(path, source):
    with (
        safetensors.safe_open(source, "numpy") as theirs,
        open_model(path) as ours,
    ):
        assert sorted(ours.keys()) == sorted(theirs.keys())
        assert ours.metadata() == theirs.metadata() == {"format": "pt", "x": "é"}
        for name in theirs.keys():  # noqa: SIM118  (it is not a mapping)
            their_slice, our_slice = theirs.get_slice(name), ours.get_slice(name)
            assert our_slice.get_shape() == their_slice.get_shape()
            assert our_slice.get_dtype() == their_slice.get_dtype()
            assert_same_bits(our_slice[1:3], their_slice[1:3])
            assert_same_bits(ours.get_tensor(name), theirs.get_tensor(name))


def test_missing_metadata_is_none(tmp_path):
    with open_model(write_store(tmp_path / "m.zarr", ARRAYS)) as model:
        assert model.metadata() is None


def test_loads_all_or_some(path):
    with open_model(path) as model:
        loaded = model.load()
        assert list(loaded) == list(ARRAYS)
        for name, array in loaded.items():
            assert_same_bits(array, ARRAYS[name])
            assert array.flags.writeable
            assert array.flags.c_contiguous
        some = model.load("np", ["steps", "model.embed_tokens.weight"])
        assert list(some) == ["steps", "model.embed_tokens.weight"]
        with pytest.raises(TensorNotFoundError):
            model.load(names=["step"])
        with pytest.raises(ValueError, match="framework"):
            model.load("tensorflow")
        with pytest.raises(ValueError, match="CPU"):
            model.load("numpy", device="cuda")


def test_loads_with_any_number_of_threads(path):
    before = bf16codecs.get_num_threads()
    try:
        for threads in (1, 2, 4):
            bf16codecs.set_num_threads(threads)
            with open_model(path) as model:
                for name, array in model.load().items():
                    assert_same_bits(array, ARRAYS[name])
    finally:
        bf16codecs.set_num_threads(before)


def test_threads_may_share_a_tensor(path):
    name, array = "model.embed_tokens.weight", ARRAYS["model.embed_tokens.weight"]
    with open_model(path) as model, ThreadPoolExecutor(8) as pool:
        tensor = model[name]
        rng = tiers.rng("threads share a tensor")
        rows = [rng.randrange(len(array)) for _ in range(tiers.by_tier(150, 400))]
        for row, found in zip(rows, pool.map(tensor.__getitem__, rows), strict=True):
            assert_same_bits(found, array[row])


def test_a_sharded_model_is_one_model(tmp_path):
    names = list(ARRAYS)
    shards = [{n: ARRAYS[n] for n in names[:2]}, {n: ARRAYS[n] for n in names[2:]}]
    folder = write_shards(tmp_path / "model", shards)
    safetensors_to_zarr(folder, tmp_path / "m.zarr")
    for path in (tmp_path / "m.zarr", folder, folder / "model.safetensors.index.json"):
        with open_model(path) as model:
            assert sorted(model) == sorted(ARRAYS)
            assert model.metadata() == {"format": "pt"}
            for name, array in model.load().items():
                assert_same_bits(array, ARRAYS[name])
    zarr_to_safetensors(tmp_path / "m.zarr", tmp_path / "again")
    assert files_in(tmp_path / "again") == files_in(folder)


class CountingStore(LocalStore):
    """Records requests."""

    async def get(self, key, prototype=None, byte_range=None):
        self.__dict__.setdefault("keys", []).append(key)
        return await super().get(key, prototype, byte_range)


def test_opening_is_one_request(store, monkeypatch):
    monkeypatch.setattr(
        "bf16codecs.store.remote.opening.LocalStore", ()
    )  # so that it is read like a remote one
    counting = CountingStore(store)
    model = open_model(counting)
    for tensor in model.values():
        assert tensor.shape is not None
    assert counting.keys == ["zarr.json"]


@pytest.mark.parametrize("zarr_format", [3, 2])
def test_without_consolidated_metadata(source, tmp_path, zarr_format):
    store = tmp_path / "m.zarr"
    safetensors_to_zarr(source, store, zarr_format=zarr_format)
    if zarr_format == 2:
        (store / ".zmetadata").unlink()
    else:
        edit_json(store, "zarr.json", lambda root: root.pop("consolidated_metadata"))
    with open_model(store) as model:
        for name, array in ARRAYS.items():
            assert_same_bits(np.asarray(model[name]), array)
        assert model["steps"].get_dtype() == "I64"


def test_stores_of_zarr(store):
    for target in (in_memory(store), LocalStore(store), f"file://{store}"):
        with open_model(target) as model:
            assert_same_bits(np.asarray(model["steps"]), ARRAYS["steps"])


def test_zarr_arrays(path):
    with open_model(path) as model:
        if path.suffix in (".safetensors", ".h5"):
            with pytest.raises(ValueError, match="no Zarr arrays"):
                model["steps"].zarr  # noqa: B018
            return
        array = model["model.embed_tokens.weight"].zarr
        assert isinstance(array, zarr.Array)
        assert array.shape == (300, 64)
        assert_same_bits(array[7:9, 3], ARRAYS["model.embed_tokens.weight"][7:9, 3])


def test_pickles_are_references(path, monkeypatch, tmp_path):
    monkeypatch.chdir(path.parent)
    with open_model(path.name) as model:
        tensor = model["model.embed_tokens.weight"]
        pickled, pickled_model = pickle.dumps(tensor), pickle.dumps(model)
    assert len(pickled) < 1000
    monkeypatch.chdir(tmp_path)
    restored = pickle.loads(pickled)
    assert_same_bits(restored[5:9], ARRAYS["model.embed_tokens.weight"][5:9])
    assert pickle.loads(pickled)._handle is restored._handle, "a model is opened once"
    with pickle.loads(pickled_model) as model:
        assert model.keys() == list(ARRAYS)


def test_a_reference_finds_a_replaced_store(tmp_path):
    first, second = weights((30, 30)), weights((40, 20), seed=1)
    path = write_store(tmp_path / "m.zarr", {"w": first})
    with open_model(path) as model:
        pickled = pickle.dumps(model["w"])
    assert_same_bits(pickle.loads(pickled)[:], first)
    write_store(path, {"w": second})
    assert_same_bits(pickle.loads(pickled)[:], second)


def test_names_that_do_not_exist(path):
    with open_model(path) as model:
        for get in (model.__getitem__, model.get_tensor, model.get_slice):
            with pytest.raises(KeyError) as error:
                get("model.embed_token.weight")
            message = str(error.value)
            assert message.startswith(f"{path}: no tensor 'model.embed_token.weight'; did you")
            assert "'model.embed_tokens.weight'" in message
        with pytest.raises(TensorNotFoundError) as error:
            model["zzz"]
        assert str(error.value) == (
            f"{path}: no tensor 'zzz'; it has {len(ARRAYS)} tensors, such as {model.keys()[0]!r}:"
            " keys() lists all names"
        )


def test_a_part_of_many_names(tmp_path):
    names = [f"layers.{i}.weight" for i in range(10)]
    path = write_store(tmp_path / "many.zarr", {name: np.arange(3) for name in names})
    with open_model(path) as model, pytest.raises(TensorNotFoundError) as error:
        model["weight"]
    assert str(error.value).endswith(
        "; did you mean 'layers.0.weight', 'layers.1.weight', 'layers.2.weight' or one of 7 more?"
        " keys() lists all names"
    )


def test_keys_that_are_no_names(path):
    with open_model(path) as model:
        for get, error in (
            (model.__getitem__, TensorNotFoundError),
            (model.get_tensor, TypeError),
            (model.get_slice, TypeError),
        ):
            for key in (None, 1.5, b"steps", ("steps",)):
                with pytest.raises(error, match=r"must be a string, not .*: keys\(\) lists"):
                    get(key)
            with pytest.raises(TypeError, match=r"must be a string, not \[1\] \(list\)"):
                get([1])
            with pytest.raises(error, match=r"not 600 \(int\): .*open_run gives steps by number"):
                get(600)
        assert 600 not in model
        assert model.get(600) is None


def test_a_closed_model_is_not_read(path):
    with open_model(path) as model:
        tensor = model["steps"]
    for read in (lambda: tensor[:], lambda: model["steps"], model.load, model.metadata):
        with pytest.raises(ValueError, match="closed"):
            read()
    model.close()


def test_compressed_zip_members(store, tmp_path):
    packed = shutil.make_archive(str(tmp_path / "deflated"), "zip", store)
    with open_model(packed) as model:
        for name, array in ARRAYS.items():
            assert_same_bits(np.asarray(model[name]), array)
            assert_same_bits(model[name][1:3], array[1:3])
