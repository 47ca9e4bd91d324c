"""Lossy stores: their arrays, the files that they restore, and their attributes."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps
from safetensors.numpy import save_file
from zarr.storage import LocalStore, ZipStore

from bf16codecs import open_model
from bf16codecs._base.half import HalfLoss, from_half, to_half
from bf16codecs.convert import (
    rebase_store,
    safetensors_to_hdf5,
    safetensors_to_run,
    safetensors_to_zarr,
    verify_store,
    zarr_to_safetensors,
)
from bf16codecs.errors import BaseMismatchError, CorruptDataError, SourceMismatchError, StoreError
from edit_store import edit_array, edit_attributes
from folders import files_in
from lazy_models import write_shards
from reference_lossy import restored_tensor
from tiers import by_tier

CODECS: list[dict[str, Any]] = [
    {"codec": "delta-rle"},
    {"codec": "delta-deflate", "level": 6},
    {"codec": "arithmetic"},
    {"codec": "huffman"},
    {"codec": "zstd", "level": 5},
]
DELTAS = CODECS[:2]
STORES = [(3, "m.zarr"), (3, "m.zarr.zip"), (2, "m.zarr"), (2, "m.zarr.zip")]
deltas = pytest.mark.parametrize("codec", DELTAS, ids=lambda c: c["codec"])
formats = pytest.mark.parametrize("zarr_format", [3, 2])

# Numbers at every edge: zeros, subnormals, the largest, infinities, NaNs that are quiet or not.
EDGES = [0x0, 0x80000000, 0x1, 0x33000000, 0x33000001, 0x387FE000, 0x477FEFFF, 0x477FF000]
EDGES += [0x7F7FFFFF, 0xFF800000, 0x7F800001, 0xFFC00000, 0x7FD55555, 0x7F802000]


def tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    weights = rng.normal(0, 0.02, (90, 33)).astype("f4")
    return {
        "w": weights,
        "w2": weights.copy(),
        "rounded": weights.astype(ml_dtypes.bfloat16),
        "edges": np.array(EDGES * 40, "<u4").view("f4"),
        "every half": np.arange(1 << 16, dtype="<u2").view("<f2").astype("f4"),
        "scalar": np.array(1e9, "f4"),
        "empty": np.empty((0, 3), "f4"),
        "half": rng.normal(0, 1, (40, 5)).astype("f2"),
        "double": rng.normal(0, 1, (7,)),
        "ids": np.arange(50),
    }


def lossy(array: np.ndarray) -> np.ndarray:
    return from_half(to_half(array)) if array.dtype == np.float32 else array


def total_loss(arrays: dict[str, np.ndarray]) -> HalfLoss:
    loss = HalfLoss()
    for array in arrays.values():
        if array.dtype == np.float32:
            loss = loss.joined(HalfLoss.of(array, to_half(array)))
    return loss


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lossy") / "m.safetensors"
    save_file(tensors(), path, {"format": "pt"})
    return path


def convert(source: Path, store: Path, **options: Any) -> Any:
    options = {"lossy": "float16", "chunk_size": 5000, "sync": False, **options}
    return safetensors_to_zarr(source, store, **options)


def restored(source: Path) -> bytes:
    """Return the file that a lossy store of a source restores."""
    raw = source.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    out = bytearray(raw)
    for name, info in json.loads(raw[8:start]).items():
        if name != "__metadata__" and info["dtype"] == "F32":
            first, stop = (start + n for n in info["data_offsets"])
            out[first:stop] = lossy(np.frombuffer(raw[first:stop], "<f4")).tobytes()
    return bytes(out)


@pytest.mark.parametrize("place", range(len(CODECS)), ids=[c["codec"] for c in CODECS])
def test_restored_and_read_numbers(source, tmp_path, place):
    arrays = tensors()
    # Of each codec one kind of store; together, they have all kinds.
    for zarr_format, name in by_tier([STORES[place % len(STORES)]], STORES):
        options = {"zarr_format": zarr_format, "overwrite": True, **CODECS[place]}
        summary = convert(source, tmp_path / name, **options)
        assert summary.loss == total_loss(arrays)
        back = zarr_to_safetensors(tmp_path / name, tmp_path / "back", overwrite=True)
        assert back.loss == summary.loss
        assert (tmp_path / "back").read_bytes() == restored(source)
        assert verify_store(tmp_path / name, source).loss == summary.loss
        with open_model(tmp_path / name) as model:
            loaded = model.load()
            for tensor, array in arrays.items():
                expected = lossy(array)
                assert loaded[tensor].dtype == model[tensor].dtype == array.dtype
                assert loaded[tensor].tobytes() == expected.tobytes(), tensor
            w = lossy(arrays["w"])
            assert model["w"].get_dtype() == "F32"
            assert model["w"][40:7:-3, 5].tobytes() == w[40:7:-3, 5].tobytes()
            assert model["w"][[3, 80], [4, 5]].tobytes() == w[[3, 80], [4, 5]].tobytes()
            assert model["w"].zarr.dtype == np.float16
            assert model["w"].zarr[3:].tobytes() == to_half(arrays["w"])[3:].tobytes()


@pytest.mark.parametrize("place", range(len(CODECS)), ids=[c["codec"] for c in CODECS])
def test_zarr_alone_reads_the_halves(source, tmp_path, place):
    for zarr_format, name in by_tier([STORES[(place + 1) % len(STORES)]], STORES):
        path = tmp_path / name
        convert(source, path, zarr_format=zarr_format, overwrite=True, **CODECS[place])
        with ZipStore(path, mode="r") if path.is_file() else LocalStore(path) as store:
            group = zarr.open_group(store, mode="r")
            for tensor, array in tensors().items():
                found = group[group.attrs["bf16codecs"]["tensors"][tensor]]
                if array.dtype == np.float32:
                    array = to_half(array)
                    assert found.dtype == np.float16
                    assert math.isnan(found.fill_value)
                assert np.asarray(found[...]).tobytes() == array.tobytes(), tensor


@deltas
@formats
def test_arrays_are_what_the_document_says(source, tmp_path, codec, zarr_format):
    convert(source, tmp_path / "m.zarr", zarr_format=zarr_format, **codec)
    for tensor, path in (("w", "w"), ("edges", "edges"), ("scalar", "scalar"), ("empty", "empty")):
        expected = lossy(tensors()[tensor]).tobytes()
        assert restored_tensor(tmp_path / "m.zarr", path) == expected


@settings(max_examples=by_tier(10, 25))
@given(
    nps.arrays("<u4", nps.array_shapes(max_dims=3, max_side=9), elements=st.integers(0, 2**32 - 1))
)
def test_any_numbers(tmp_path_factory, bits):
    folder = tmp_path_factory.mktemp("any")
    save_file({"x": bits.view("f4")}, folder / "m.safetensors")
    for zarr_format, codec in ((3, "delta-rle"), (2, "delta-deflate")):
        store = folder / f"{zarr_format}.zarr"
        convert(folder / "m.safetensors", store, codec=codec, zarr_format=zarr_format)
        expected = lossy(bits.view("f4")).tobytes()
        assert restored_tensor(store, "x") == expected
        with open_model(store) as model:
            assert model.load()["x"].tobytes() == expected


def test_a_store_states_its_loss(source, tmp_path):
    convert(source, tmp_path / "m.zarr", codec="delta-rle")
    root = json.loads((tmp_path / "m.zarr/zarr.json").read_text())
    content = root["attributes"]["bf16codecs"]
    assert content["layout"] == 2
    assert (content["lossy"]["to"], content["lossy"]["absolute"]) == ("float16", "Infinity")
    (file,) = content["files"]
    assert file["blake3"] != file["restored_blake3"]
    attributes = root["consolidated_metadata"]["metadata"]["w"]["attributes"]["bf16codecs"]
    assert attributes["dtype"] == "F32"
    w = tensors()["w"]
    one = HalfLoss.of(w, to_half(w))
    assert attributes["lossy"] == {"to": "float16", **vars(one), "to_zero": 2 * one.to_zero}
    assert (
        "lossy" not in root["consolidated_metadata"]["metadata"]["half"]["attributes"]["bf16codecs"]
    )


def test_copies_are_shared_and_roundings_kept(source, tmp_path):
    convert(source, tmp_path / "m.zarr")
    attributes = json.loads((tmp_path / "m.zarr/zarr.json").read_text())["attributes"]
    places = attributes["bf16codecs"]["tensors"]
    assert places["w2"] == places["w"]
    assert places["rounded"] == "rounded"
    exact = {"w": lossy(tensors()["w"])}
    exact["rounded"] = exact["w"].astype(ml_dtypes.bfloat16)
    save_file(exact, tmp_path / "exact.safetensors")
    convert(tmp_path / "exact.safetensors", tmp_path / "exact.zarr")
    zarr_to_safetensors(tmp_path / "exact.zarr", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == (tmp_path / "exact.safetensors").read_bytes()


@formats
def test_stores_are_the_same_bytes_each_time(source, tmp_path, zarr_format):
    for codec in DELTAS:
        for name in ("a.zip", "b.zip"):
            options = {"zarr_format": zarr_format, "threads": 1, "overwrite": True}
            convert(source, tmp_path / name, **options, **codec)
        assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_a_store_of_several_files(tmp_path):
    rng = np.random.default_rng(0)
    shards = [{name: rng.normal(0, 1, (30, 30)).astype("f4")} for name in "ab"]
    folder = write_shards(tmp_path / "shards", shards)
    convert(folder, tmp_path / "m.zarr", codec="delta-deflate")
    zarr_to_safetensors(tmp_path / "m.zarr", tmp_path / "back")
    found = files_in(tmp_path / "back")
    assert found == {
        path.name: path.read_bytes() if path.suffix == ".json" else restored(path)
        for path in folder.iterdir()
    }
    assert len(found) == 3
    assert verify_store(tmp_path / "m.zarr", folder).files == 2


def test_a_lossy_store_is_a_base_of_its_restored_files(tmp_path):
    rng = np.random.default_rng(0)
    old = {"w": rng.normal(0, 1, (64, 64)).astype("f4")}
    save_file(old, tmp_path / "old.safetensors")
    convert(tmp_path / "old.safetensors", tmp_path / "old.zarr", codec="delta-rle")
    save_file({"w": lossy(old["w"]) * np.float32(1.001)}, tmp_path / "new.safetensors")
    options = {"base": tmp_path / "old.zarr"}
    safetensors_to_zarr(tmp_path / "new.safetensors", tmp_path / "new.zarr", **options)
    assert verify_store(tmp_path / "new.zarr", tmp_path / "new.safetensors").loss is None
    zarr_to_safetensors(tmp_path / "old.zarr", tmp_path / "back.safetensors")
    verify_store(tmp_path / "new.zarr", base=tmp_path / "back.safetensors")
    with pytest.raises(BaseMismatchError, match="is not the base"):
        verify_store(tmp_path / "new.zarr", base=tmp_path / "old.safetensors")


NO_SENSE: list[tuple[dict[str, Any], str]] = [
    ({"lossy": "int8"}, "^lossy must be float16, not 'int8'$"),
    ({"codec": "delta-rle"}, r"^codec 'delta-rle' is for lossy stores alone"),
    ({"codec": "delta-rle", "lossy": "float16", "level": 1}, "has no levels"),
    ({"codec": "delta-deflate", "lossy": "float16", "level": 0}, "between 1 and 9"),
    ({"codec": "delta-deflate", "lossy": "float16", "level": "10"}, "between 1 and 9"),
    ({"codec": "delta-deflate", "lossy": "float16", "level": "best"}, "between 1 and 9"),
    ({"codec": "split", "lossy": "float16"}, "^the codec of a lossy store must be arithmetic"),
    ({"codec": "none", "lossy": "float16"}, "^the codec of a lossy store must be arithmetic"),
    ({"lossy": "float16", "base": "old.zarr"}, "^a lossy store has no base"),
]


def test_options_that_make_no_sense(source, tmp_path):
    for options, message in NO_SENSE:
        with pytest.raises(ValueError, match=message):
            safetensors_to_zarr(source, tmp_path / "m.zarr", **options)
        assert not list(tmp_path.iterdir()), options


def test_models_without_fp32_are_refused(tmp_path, demo_model):
    with pytest.raises(ValueError, match=f"{demo_model.name}: has no FP32 tensor"):
        convert(demo_model, tmp_path / "m.zarr")
    assert not list(tmp_path.iterdir())


def test_lossy_stores_are_not_rewritten_and_make_no_runs(source, tmp_path):
    convert(source, tmp_path / "m.zarr")
    with pytest.raises(StoreError, match=r"m\.zarr: lossy stores cannot be rebased"):
        rebase_store(tmp_path / "m.zarr", source)
    assert rebase_store(tmp_path / "m.zarr").is_unchanged
    with pytest.raises(ValueError, match="is for lossy stores alone"):
        safetensors_to_run([source], tmp_path / "run.zarr", codec="delta-rle")


def test_the_source_is_compared_in_half_precision(source, tmp_path):
    convert(source, tmp_path / "m.zarr", codec="delta-rle")
    arrays = tensors()
    arrays["w"].view("u4")[0, 0] ^= 1  # half precision has no such bit
    save_file(arrays, tmp_path / "near.safetensors", {"format": "pt"})
    verify_store(tmp_path / "m.zarr", tmp_path / "near.safetensors")
    arrays["w"][0, 0] *= -1
    save_file(arrays, tmp_path / "other.safetensors", {"format": "pt"})
    with pytest.raises(SourceMismatchError, match="differs from"):
        verify_store(tmp_path / "m.zarr", tmp_path / "other.safetensors")


def read(store: Path) -> None:
    verify_store(store)
    with open_model(store) as model:
        model.load()


def _root(change: Any) -> Any:
    return lambda store: edit_attributes(store, change)


def _array(change: Any) -> Any:
    return lambda store: edit_array(store, "w", change)


DAMAGES: list[tuple[Any, str]] = [
    (_root(lambda a: a.pop("lossy")), "damaged store attributes: files have a digest"),
    (_root(lambda a: a["files"][0].pop("restored_blake3")), "files have a digest"),
    (_root(lambda a: a["files"][0].update(restored_blake3=1)), "is not a string"),
    (_root(lambda a: a["lossy"].update(to="int8")), "'int8' is not a data type"),
    (_root(lambda a: a["lossy"].pop("to_zero")), "damaged store attributes: without 'to_zero'"),
    (_root(lambda a: a["lossy"].update(relative=-1)), "-1 is not a valid value of relative"),
    (_root(lambda a: a["lossy"].update(absolute="much")), "'much' is not a valid value"),
    (_root(lambda a: a["lossy"].update(absolute=True)), "True is not a valid value of absolute"),
    (_root(lambda a: a["lossy"].update(to_zero=0.5)), "0.5 is not a valid value of to_zero"),
    (_root(lambda a: a["lossy"].update(to_infinite="Infinity")), "not a valid value of to_inf"),
    (
        _root(lambda a: a["lossy"].update(relative_of_normal="Infinity")),
        "value of relative_of_normal",
    ),
    (_root(lambda a: a.update(layout=1)), "float16|array path is not a string|no digest"),
    (_root(lambda a: a["files"][0].update(restored_blake3="0")), "than when it was stored"),
    (_array(lambda n: n["attributes"]["bf16codecs"].pop("lossy")), "float16"),
    (_array(lambda n: n.update(data_type="bfloat16")), "say lossy, but it is bfloat16"),
    (_array(lambda n: n["attributes"]["bf16codecs"].update(dtype="F16")), "F16"),
]


def test_damaged_attributes(source, tmp_path):
    store = tmp_path / "m.zarr"
    convert(source, store, codec="delta-rle")
    sound = (store / "zarr.json").read_bytes()
    for number, (damage, message) in enumerate(DAMAGES):
        (store / "zarr.json").write_bytes(sound)
        damage(store)
        with pytest.raises((StoreError, CorruptDataError)) as caught:
            read(store)
        assert re.search(message, str(caught.value)), (number, message)
        assert "\n" not in str(caught.value)


def test_no_lossy_stores_in_hdf5(source, tmp_path):
    store = tmp_path / "m.h5"
    safetensors_to_hdf5(source, store)
    convert(source, tmp_path / "m.zarr")
    root = json.loads((tmp_path / "m.zarr/zarr.json").read_text())
    loss = root["attributes"]["bf16codecs"]["lossy"]

    def change(content: Any) -> None:
        content.update(layout=2, lossy=loss)
        content["files"][0]["restored_blake3"] = content["files"][0]["blake3"]

    edit_attributes(store, change)
    with pytest.raises(StoreError, match=r"m\.h5: it is lossy, as no store but those in Zarr"):
        open_model(store)


@deltas
@formats
def test_damaged_chunks_are_noticed(source, tmp_path, codec, zarr_format):
    """Run lengths in format 2 have no checksum: the digest of the file detects their damage."""
    store = tmp_path / "m.zarr"
    convert(source, store, zarr_format=zarr_format, **codec)
    chunk = store / ("w/c.0.0" if zarr_format == 3 else "w/0.0")
    good = chunk.read_bytes()
    other = bytearray(good)
    other[len(good) // 2] ^= 1
    for bad in (
        good[:-1],
        good[: len(good) // 2],
        bytes(other),
        b"",
        bytes(len(good)),
    ):
        chunk.write_bytes(bad)
        message = r"tensor 'w2?'|another BLAKE3"
        with pytest.raises((StoreError, ValueError), match=message) as caught:
            verify_store(store)
        assert "\n" not in str(caught.value)
    chunk.write_bytes(good)
    verify_store(store)
