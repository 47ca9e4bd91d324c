"""The interface that safetensors' users expect: names, frameworks, ties, messages."""

from __future__ import annotations

import pickle

import h5py
import ml_dtypes
import numpy as np
import pytest

import bf16codecs
from bf16codecs import BF16Arithmetic, BF16Huffman, hdf5, open_model
from bf16codecs.convert import zarr_to_safetensors
from lazy_imports import lazily
from lazy_models import weights, write_store

torch = lazily("torch")
safetensors_torch = lazily("safetensors.torch")
bf16torch = lazily("bf16codecs.torch")
modules = lazily("torch_modules")


@pytest.fixture
def store(tmp_path):
    return write_store(tmp_path / "m.zarr", {"w": weights((30, 20)), "n": np.arange(6)})


# --- as safe_open ---------------------------------------------------------------------------------


def test_a_model_opened_for_torch_gives_tensors(store):
    array = weights((30, 20))
    for framework in ("pt", "torch", "pytorch"):
        with open_model(store, framework=framework, device="cpu") as model:
            part = model.get_slice("w")
            assert (part.get_shape(), part.get_dtype(), len(part)) == ([30, 20], "BF16", 30)
            for selection in (np.s_[1:2], np.s_[..., ::3], np.s_[::-1, ::-2], np.s_[[3, 1, 3]], 4):
                found = part[selection]
                assert found.dtype == torch.bfloat16, framework
                assert (found.view(torch.int16).numpy() == array[selection].view("i2")).all()
            assert part[1, 2].shape == (), framework
            assert isinstance(model.get_tensor("w"), torch.Tensor), framework
            assert isinstance(model.get_tensor("w", framework="np"), np.ndarray), framework
            assert isinstance(model.get_slice("w", framework="np")[:2], np.ndarray), framework
            for loaded in (model.get_tensors(), model.load()):
                assert list(loaded) == ["w", "n"], framework
                assert all(isinstance(t, torch.Tensor) for t in loaded.values()), framework
            again = pickle.loads(pickle.dumps(model))
            assert isinstance(again.get_tensor("w"), torch.Tensor), framework


def test_devices(store):
    with open_model(store, framework="pt", device="meta") as model:
        assert model.get_slice("w")[1:2].device.type == "meta"
        assert model.get_tensor("w").device.type == "meta"
        assert model.get_tensor("w", device="cpu").device.type == "cpu"
        assert isinstance(model.get_tensor("w", framework="numpy"), np.ndarray)
    with pytest.raises(ValueError, match="NumPy arrays are on the CPU, not on 'cuda'"):
        open_model(store, device="cuda")


def test_names_as_in_safe_open(store):
    with open_model(store) as model:
        assert model.offset_keys() == model.keys() == ["w", "n"]
        assert model.get("w").shape == (30, 20)
        assert model.get("v") is None
        assert model.get("v", 3) == 3
        assert isinstance(model.get_slice("w")[1:2], np.ndarray)
        assert {type(a) for a in model.get_tensors().values()} == {np.ndarray}


# --- tensors instead of arrays -------------------------------------------------------------------


def test_codecs_take_tensors():
    for dtype in ("bfloat16", "float32", "float8_e4m3fn", "int16", "bool"):
        tensor = torch.randn(40, 50).to(getattr(torch, dtype))
        array = tensor.view(torch.uint8).numpy().view(dtype) if dtype != "bool" else tensor.numpy()
        for codec in (BF16Arithmetic("auto", level="best"), BF16Huffman("auto")):
            frame = codec.encode(tensor)
            assert frame == codec.encode(array), (dtype, codec)
            out = torch.zeros_like(tensor)
            assert codec.decode(frame, out=out) is out, (dtype, codec)
            assert torch.equal(out.view(torch.uint8), tensor.view(torch.uint8)), (dtype, codec)
        base = torch.zeros_like(tensor)
        frame = bf16codecs.encode_delta(codec, tensor, base)
        assert bf16codecs.decode(frame, base=base) == array.tobytes(), dtype


def test_tensors_that_have_no_array():
    for tensor in (torch.eye(3).to_sparse(), torch.zeros(3, device="meta")):
        with pytest.raises(TypeError, match="has no array"):
            BF16Huffman().encode(tensor)
    with pytest.raises(ValueError, match=r"one-dimension|contiguous"):
        BF16Huffman().encode(torch.zeros(4, 4)[::2, ::2])
    frame = BF16Huffman().encode(torch.zeros(4, dtype=torch.bfloat16))
    conjugated = torch.zeros(1, dtype=torch.complex64).conj()
    with pytest.raises(ValueError, match="memory is not the CPU's"):
        BF16Huffman().decode(frame, out=conjugated)


def test_write_tensor_takes_tensors(tmp_path):
    tensors = {
        "bfloat16": torch.randn(40, 30).bfloat16(),
        "grown": torch.randn(40, 30, requires_grad=True),
        "turned": torch.randn(40, 30).bfloat16().t(),
        "float8": torch.randn(40, 30).to(torch.float8_e5m2),
        "conjugated": torch.randn(4, 3, dtype=torch.complex64).conj(),
        "scalar": torch.tensor(1.5).bfloat16(),
    }
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for name, tensor in tensors.items():
            dataset = hdf5.write_tensor(file, name, tensor)
            found = bf16torch.as_tensor(hdf5.read_tensor(dataset))
            assert found.dtype == tensor.dtype
            assert torch.equal(
                found.float() if "8" in name else found, tensor.float() if "8" in name else tensor
            )


def test_read_tensor_with_several_arrays(tmp_path):
    array = np.arange(4000).reshape(20, 10, 20).astype(ml_dtypes.bfloat16)
    mask = array.astype("f4") % 7 == 0
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for name, options in (("x", {}), ("plain", {"compression": None})):
            dataset = hdf5.write_tensor(file, name, array, chunks=(7, 10, 6), **options)
            for selection in (
                np.s_[[1, 5, 1], [0, 9, 3]],
                np.s_[[1, 5, 1], :, [0, 19, 3]],
                np.s_[[[1], [5]], [0, 9], 3],
                np.s_[[], [], []],
                mask,
            ):
                found = hdf5.read_tensor(dataset, selection)
                expected = array[selection]
                assert found.dtype == expected.dtype
                assert found.shape == expected.shape
                assert found.tobytes() == expected.tobytes()
                out = np.empty_like(expected)
                assert hdf5.read_tensor(dataset, selection, out=out) is out
                assert out.tobytes() == expected.tobytes()
            with pytest.raises(IndexError):
                hdf5.read_tensor(dataset, np.s_[[1, 2], [1, 2, 3]])
            with pytest.raises(ValueError, match="out has shape"):
                hdf5.read_tensor(dataset, np.s_[[1, 2], [1, 2]], out=np.empty(3, array.dtype))


# --- names ----------------------------------------------------------------------------------------


def test_the_suffix_says_which_kind_of_store(tmp_path):
    for name, begins in (
        ("t.h5", b"\x89HDF"),
        ("t.HDF5", b"\x89HDF"),
        ("t.zarr.zip", b"PK"),
        ("t.zip", b"PK"),
    ):
        tensors = {"w": torch.randn(30, 20).bfloat16()}
        for _ in range(2):  # the second one replaces the first
            bf16torch.save_file(tensors, tmp_path / name, codec="huffman")
        assert (tmp_path / name).read_bytes().startswith(begins), name
        assert torch.equal(bf16torch.load_file(tmp_path / name)["w"], tensors["w"]), name
        with open_model(tmp_path / name) as model:
            assert model.info().to_json()["files"][0]["name"] == "t.safetensors", name


def test_other_stores_are_folders(tmp_path):
    for name in ("t.zarr", "t"):
        bf16torch.save_file({"w": torch.zeros(3)}, tmp_path / name)
        assert (tmp_path / name / "zarr.json").exists(), name


def test_other_suffixes_are_refused(tmp_path):
    for name in ("t.safetensors", "t.pt", "t.hdf", "t.zarr.gz"):
        message = r"a folder \(.zarr\), a ZIP file \(.zarr.zip\) or an HDF5 file \(.h5, .hdf5\)"
        with pytest.raises(ValueError, match=message):
            bf16torch.save_file({"w": torch.zeros(3)}, tmp_path / name)
        assert not list(tmp_path.iterdir()), name


def test_storage_options(tmp_path):
    pytest.importorskip("fsspec")
    store = write_store(tmp_path / "m.zarr", {"w": weights((30, 20))})
    with pytest.raises(ValueError, match="storage_options apply to addresses only"):
        bf16torch.load_file(store, storage_options={"anon": True})


# --- ties -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["m.zarr", "m.h5"])
def test_tied_tensors_stay_tied(tmp_path, name):
    state = modules.TiedTwice().state_dict()
    bf16torch.save_file(state, tmp_path / name, {"format": "pt"})
    with open_model(tmp_path / name) as model:
        assert model.metadata() == {
            "format": "pt",
            "head.weight": "embed.weight",
            "bias": "again",
        }
    for device in ("cpu", None):
        loaded = bf16torch.load_file(tmp_path / name, device=device)
        assert loaded.keys() == state.keys()
        assert all(torch.equal(loaded[key], state[key]) for key in state)
        assert loaded["head.weight"] is loaded["embed.weight"]
        assert loaded["again"] is loaded["bias"]
        equal = loaded["norm.weight"], loaded["other_norm.weight"]
        assert equal[0].data_ptr() != equal[1].data_ptr(), "equal, and not tied"
    with open_model(tmp_path / name) as model:
        arrays = model.load()
        assert not np.shares_memory(arrays["head.weight"], arrays["embed.weight"])
        assert list(model.load("torch", ["head.weight"])) == ["head.weight"]


@pytest.mark.parametrize("name", ["m.zarr", "m.h5", "restored.safetensors"])
def test_constant_tensors_stay_tied(tmp_path, name):
    """Writers store constant tensors as single arrays, as safetensors does with all tensors."""
    for size in (3, 1280):
        zeros = torch.zeros(size, dtype=torch.bfloat16)
        ordered = torch.arange(float(size))
        state = {"a": zeros, "b": zeros, "c": zeros.clone(), "d": ordered, "e": ordered}
        store = tmp_path / "m.zarr" if name == "restored.safetensors" else tmp_path / name
        bf16torch.save_file(state, store)
        if store.name != name:
            zarr_to_safetensors(store, tmp_path / name, overwrite=True)
        for device in ("cpu", "cpu:0"):
            loaded = bf16torch.load_file(tmp_path / name, device)
            assert list(loaded) == list(open_model(tmp_path / name).keys()), size
            assert loaded["a"] is loaded["b"], size
            assert loaded["d"] is loaded["e"], size
            assert loaded["c"].data_ptr() != loaded["a"].data_ptr(), size
            assert all(torch.equal(loaded[key], state[key]) for key in state), size
        on_meta = bf16torch.load_file(tmp_path / name, "meta")
        assert all(on_meta[key].shape == state[key].shape for key in state), size


def test_metadata_are_not_believed(tmp_path):
    tensors = {
        "a": torch.ones(600),
        "b": torch.ones(600),
        "c": torch.zeros(600),
        "d": torch.ones(3),
    }
    claims = {"b": "a", "c": "a", "a": "d", "d": "d"}
    bf16torch.save_file(tensors, tmp_path / "m.zarr", claims)
    for name, tensor in bf16torch.load_file(tmp_path / "m.zarr").items():
        assert torch.equal(tensor, tensors[name])


def test_save_model_and_load_model_are_those_of_safetensors(tmp_path):
    module = modules.TiedTwice()
    theirs = tmp_path / "theirs.safetensors"
    safetensors_torch.save_model(module, theirs, {"format": "pt"})
    bf16torch.save_model(module, tmp_path / "m.zarr", {"format": "pt"})
    zarr_to_safetensors(tmp_path / "m.zarr", tmp_path / "ours.safetensors")
    ours = tmp_path / "ours.safetensors"
    ours_data = safetensors_torch.load_file(ours)
    theirs_data = safetensors_torch.load_file(theirs)
    assert ours_data.keys() == theirs_data.keys()
    assert all(torch.equal(ours_data[name], theirs_data[name]) for name in ours_data)
    for path in (tmp_path / "m.zarr", theirs):
        other = modules.TiedTwice()
        assert bf16torch.load_model(other, path) == ([], [])
        assert other.head.weight is other.embed.weight
        pairs = zip(module.parameters(), other.parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
    assert safetensors_torch.load_model(modules.TiedTwice(), ours) == (set(), [])


def test_load_model_reports_mismatches(tmp_path):
    bf16torch.save_file({"weight": torch.zeros(3, 2), "more": torch.zeros(1)}, tmp_path / "m.zarr")
    module = torch.nn.Linear(2, 3)
    with pytest.raises(RuntimeError, match="a Linear: missing bias; unexpected more"):
        bf16torch.load_model(module, tmp_path / "m.zarr")
    assert bf16torch.load_model(module, tmp_path / "m.zarr", strict=False) == (["bias"], ["more"])
    assert not module.weight.any()


def test_save_model_reports_unsupported_tensors(tmp_path):
    for module, error, message in (
        (modules.Extra(2, 3), TypeError, "tensor '_extra_state' is a dict, not a torch.Tensor"),
        (modules.Sparse(), ValueError, r"'mask': .* layout torch.strided \(.to_dense\(\)\)"),
    ):
        with pytest.raises(error, match=message):
            bf16torch.save_model(module, tmp_path / "m.zarr")
    assert not list(tmp_path.iterdir())


def test_load_model_misses_what_no_store_has(tmp_path):
    bf16torch.save_model(torch.nn.Linear(2, 3), tmp_path / "m.zarr")
    missing = ["_extra_state"], []
    assert bf16torch.load_model(modules.Extra(2, 3), tmp_path / "m.zarr", strict=False) == missing
    with pytest.raises(RuntimeError, match="missing mask; unexpected bias, weight"):
        bf16torch.load_model(modules.Sparse(), tmp_path / "m.zarr")


# --- refused --------------------------------------------------------------------------------------


def test_conjugated_and_negated_tensors_are_saved_as_they_read(tmp_path):
    numbers = torch.randn(40, 3, dtype=torch.complex64)
    tensors = {"conj": numbers.conj(), "neg": numbers.conj().imag, "plain": numbers}
    assert tensors["conj"].is_conj()
    assert tensors["neg"].is_neg()
    bf16torch.save_file(tensors, tmp_path / "m.zarr")
    for name, tensor in bf16torch.load_file(tmp_path / "m.zarr").items():
        assert torch.equal(tensor, tensors[name])


def test_messages_about_tensors(tmp_path):
    for tensors, error, message in (
        ({3: torch.zeros(3)}, TypeError, r"names of tensors must be strings, not 3 \(int\)"),
        ([torch.zeros(3)], TypeError, "tensors must be a dict of tensors by name, not list"),
        ({"w": torch.zeros(3, device="meta")}, ValueError, "tensor 'w': .*meta, and has no data"),
        ({"w": torch.zeros(3, dtype=torch.complex128)}, ValueError, "dtypes are bool, .*float64"),
        ({"w": torch.eye(3).to_sparse()}, ValueError, r"layout torch.strided \(.to_dense\(\)\)"),
    ):
        with pytest.raises(error, match=message):
            bf16torch.save_file(tensors, tmp_path / "m.zarr")
    assert not list(tmp_path.iterdir())


def test_messages_about_arguments(store):
    path = r"a model is a path, an address or a store of zarr's, not {} \({}\)$"
    for call in (open_model, bf16torch.load_file, bf16codecs.open_run):
        with pytest.raises(TypeError, match=path.format("3", "int")):
            call(3)
        with pytest.raises(TypeError, match=path.format("None", "NoneType")):
            call(None)
        with pytest.raises(TypeError, match=path.format("b'm.zarr'", "bytes")):
            call(b"m.zarr")
    with pytest.raises(TypeError, match="path of the store must be a string or a path, not 3"):
        bf16torch.save_file({}, 3)
    with pytest.raises(TypeError, match=r"storage_options must be a dict, not 'anon' \(str\)"):
        open_model(store, "anon")
    with pytest.raises(TypeError, match="max_bytes must be an integer, not '1G'"):
        open_model(store, max_bytes="1G")
    with pytest.raises(
        ValueError, match=r"framework must be numpy, torch or jax \(or np, pt, flax\), not 'tf'"
    ):
        open_model(store, framework="tf")
    with pytest.raises(TypeError, match="framework must be numpy, torch or jax"):
        open_model(store, framework=["pt"])
    with open_model(store) as model:
        for call in (model.get_tensor, model.get_slice):
            with pytest.raises(TypeError, match=r"name must be a string, not 5 \(int\)"):
                call(5)
        with pytest.raises(TypeError, match="not one string, 'w'"):
            model.load(names="w")
        with pytest.raises(TypeError, match=r"name must be a string, not 5 \(int\)"):
            model.load(names=["w", 5])
