"""Tensors that are stored once: those with the same bytes, and FP32 ones with their roundings."""

from __future__ import annotations

import itertools
import json
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from based_models import (
    FEW_KINDS,
    KINDS,
    assert_holds,
    attributes_of,
    convert,
    restore,
    tensors_of,
    total_size,
    write_nearby,
)
from bf16codecs import open_model
from bf16codecs._base import half as _half
from bf16codecs.convert import plan
from bf16codecs.store import StoreError
from bf16codecs.store.files import open_safetensors
from bits import assert_same_bits, bits
from edit_store import edit_array, edit_attributes
from lazy_models import weights, write_safetensors, write_shards
from models import TRICKY_NAMES, entry, file_bytes
from tiers import by_tier

kinds = pytest.mark.parametrize("kind", KINDS)
few_kinds = pytest.mark.parametrize("kind", FEW_KINDS)

#: More than is ignored for being small.
N = 4096


def master_weights(seed: int = 0) -> np.ndarray:
    """Return FP32 numbers of all kinds: NaNs with payloads, infinities, ties, the largest."""
    words = np.random.default_rng(seed).integers(0, 2**32, N, dtype=np.uint32)
    words[:512] = 0x7F800000 + np.arange(512) * 0x10203
    words[512:1024] = 0xFF800000 + np.arange(512) * 0x203
    words[1024:2048] = 0x3F808000 + np.arange(1024) * 0x8000
    words[2048:2056] = 0x7F7F7FFF + np.arange(8)  # to infinity, from 0x7F7F8000 on
    return words.view(np.float32).reshape(64, 64)


def rounded(values: np.ndarray) -> np.ndarray:
    """Round as ml_dtypes does; of a NaN, keep the upper half and make it quiet."""
    with np.errstate(all="ignore"):
        result = bits(values.astype(ml_dtypes.bfloat16)).copy()
    is_nan = np.isnan(values)
    result[is_nan] = (bits(values)[is_nan] >> 16).astype(np.uint16) | 0x40
    return result.view(ml_dtypes.bfloat16)


def stored(store: Path) -> dict[str, object]:
    """Return the entry of each tensor in a store's attributes."""
    return attributes_of(store)["tensors"]


# --- copies ---------------------------------------------------------------------------------------


@kinds
def test_tied_embeddings_are_stored_once(tmp_path: Path, kind: str) -> None:
    embeddings, other = weights((256, 128)), weights((256, 128), seed=1)
    arrays = {"b.head": embeddings, "a": other, "a.embed": embeddings, "b": embeddings}
    source = write_safetensors(tmp_path / "m.safetensors", arrays)
    store = convert(kind, source, tmp_path / "m")
    assert stored(store) == {"b.head": "b/head", "a": "a=", "a.embed": "b/head", "b": "b/head"}
    assert total_size(store) < 0.6 * source.stat().st_size
    assert_holds(store, source)


@few_kinds
def test_copies_of_a_difference(tmp_path: Path, kind: str) -> None:
    """The base may have other tensors there, or none."""
    tied, free = weights((64, 32)), weights((64, 32), seed=1)
    base = write_safetensors(tmp_path / "base.safetensors", {"head": free, "embed": tied})
    arrays = {"embed": tied * np.float32(1.01), "other": free}
    arrays = {name: array.astype(tied.dtype) for name, array in arrays.items()}
    arrays |= {"head": arrays["embed"], "x.y": arrays["embed"]}
    source = write_safetensors(tmp_path / "m.safetensors", arrays)
    for below in (base, convert(kind, base, tmp_path / "base", chunk_size=500)):
        store = convert(kind, source, tmp_path / f"on-{below.name}", base=below, chunk_size=700)
        found = stored(store)
        assert isinstance(found["embed"], dict)
        assert found["embed"]["copies"] == ["head", "x.y"]
        assert (found["head"], found["x.y"], found["other"]) == ("embed", "embed", "other")
        assert_holds(store, source)


@few_kinds
def test_copies_in_several_files(tmp_path: Path, kind: str) -> None:
    same, codes = weights((64, 32)), np.arange(3000, dtype=np.int16)
    shards = [{"b": same, "c": codes}, {"a": same, "d": codes, "e": codes.view(np.uint16)}]
    source = write_shards(tmp_path / "shards", shards)
    store = convert(kind, source, tmp_path / "m")
    assert stored(store) == {"b": "b", "c": "c", "a": "b", "d": "c", "e": "e"}
    restore(store, tmp_path / "back")
    for path in source.iterdir():
        assert (tmp_path / "back" / path.name).read_bytes() == path.read_bytes()
    assert_holds(store, source)


@few_kinds
def test_copies_under_tricky_names(tmp_path: Path, kind: str) -> None:
    same = weights((30, 20))
    source = write_safetensors(tmp_path / "m.safetensors", dict.fromkeys(TRICKY_NAMES, same))
    store = convert(kind, source, tmp_path / "m")
    assert len(set(map(str, stored(store).values()))) == 1
    assert_holds(store, source)


def test_tensors_that_are_not_shared(tmp_path: Path) -> None:
    """Small and constant tensors, other forms of the same bytes, and what differs in one bit."""
    array = weights((64, 32))
    nearly = {}
    for i, at in enumerate([(0, 0), (32, 16), (63, 31)]):
        other = array.copy()
        bits(other)[at] ^= 1
        nearly[f"nearly.{i}"] = other
    arrays = {
        "w": array,
        **nearly,
        "turned": array.reshape(32, 64),
        "half": array.view(np.float16),
        **{f"small.{i}": weights((511,)) for i in range(2)},
        **{f"zeros.{i}": np.zeros((64, 32), "bfloat16") for i in range(2)},
        **{f"empty.{i}": weights((0, 3)) for i in range(2)},
        **{f"scalar.{i}": weights(()) for i in range(2)},
    }
    source = write_safetensors(tmp_path / "m", arrays)
    assert plan.find_repeated(open_safetensors(source)) == ({}, {})


def test_all_parts_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Differences outside of the sample are found, even without a sample, and in small parts."""
    one = np.random.default_rng(0).integers(0, 256, 3_000_000, dtype=np.uint8)
    sources = []
    for at in (0, 2_000_000, 2_999_999):
        other = one.copy()
        other[at] ^= 1
        path = tmp_path / str(at)
        sources.append(write_safetensors(path, {"a": one, "b": other, "c": one}))
    for _ in range(2):
        for source in sources:
            assert plan.find_repeated(open_safetensors(source)).copies == {"c": "a"}, source.name
        monkeypatch.setattr(plan, "_PART_ITEMS", 1 << 16)


def test_packed_dtypes(tmp_path: Path) -> None:
    data = np.random.default_rng(0).bytes(3000)
    header = {
        "a": entry("F6_E2M3", (40, 100)),
        "b": entry("F6_E2M3", (40, 100), 3000),
        "c": entry("F4", (60, 100), 6000),
        "d": entry("F4", (60, 100), 9000),
    }
    source = tmp_path / "m.safetensors"
    source.write_bytes(file_bytes(header, data * 4))
    assert plan.find_repeated(open_safetensors(source)).copies == {"b": "a", "d": "c"}
    for kind in FEW_KINDS:
        assert_holds(convert(kind, source, tmp_path / kind), source)


# --- roundings ------------------------------------------------------------------------------------


@settings(max_examples=by_tier(25, 200))
@given(st.lists(st.integers(0, 2**32 - 1), max_size=50))
def test_rounding_is_to_nearest_even(words: list[int]) -> None:
    values = np.array(words, np.uint32).view(np.float32)
    assert_same_bits(_half.round_to_bfloat16(values), bits(rounded(values)))


def test_rounding_of_edges() -> None:
    cases = {
        0x3F808000: 0x3F80,  # a tie, to even
        0x3F818000: 0x3F82,
        0x3F807FFF: 0x3F80,
        0x3F808001: 0x3F81,
        0x7F7F7FFF: 0x7F7F,
        0x7F7F8000: 0x7F80,  # to infinity
        0xFF7F8000: 0xFF80,
        0x7F800000: 0x7F80,
        0x7F800001: 0x7FC0,  # a NaN whose payload is in the lower half
        0xFFFFFFFF: 0xFFFF,
        0x00008000: 0x0000,
        0x80000001: 0x8000,
    }
    values = np.array(list(cases), np.uint32).view(np.float32)
    assert _half.round_to_bfloat16(values).tolist() == list(cases.values())
    assert _half.round_to_bfloat16(values[:1].reshape(())).shape == ()


@few_kinds
def test_roundings_cost_nothing(tmp_path: Path, kind: str) -> None:
    master = master_weights()
    arrays = {"low": rounded(master), "master": master, "again": rounded(master)}
    source = write_safetensors(tmp_path / "m.safetensors", arrays)
    for chunk_size in (300, 1 << 20):
        store = convert(kind, source, tmp_path / "m", chunk_size=chunk_size, overwrite=True)
        rounding = {"rounded": "master"}
        assert stored(store) == {"low": rounding, "master": "master", "again": rounding}
        assert tensors_of(store)["low"]["codec"] == "rounded"
        assert tensors_of(store)["low"]["stored_nbytes"] == 0
        assert_holds(store, source)


@few_kinds
def test_a_rounding_with_one_bit_off_is_stored(tmp_path: Path, kind: str) -> None:
    master = master_weights()
    for at, flipped in itertools.product([0, 2048, 4095], [1, 0x8000]):
        low = rounded(master)
        bits(low).reshape(-1)[at] ^= flipped
        source = write_safetensors(tmp_path / "m.safetensors", {"low": low, "master": master})
        store = convert(kind, source, tmp_path / "m", overwrite=True)
        assert stored(store) == {"low": "low", "master": "master"}, (at, flipped)
        assert_holds(store, source)


def test_truncation_is_no_rounding(tmp_path: Path) -> None:
    master = master_weights()
    low = (bits(master) >> 16).astype(np.uint16).view(ml_dtypes.bfloat16)
    source = write_safetensors(tmp_path / "m.safetensors", {"low": low, "master": master})
    assert plan.find_repeated(open_safetensors(source)).roundings == {}


@few_kinds
def test_roundings_of_differences(tmp_path: Path, kind: str) -> None:
    """And of an FP32 tensor that is stored once for two, against a base of the same form."""
    arrays = {"z": master_weights(), "low": rounded(master_weights())}
    base = write_safetensors(tmp_path / "base.safetensors", arrays)
    near = np.frombuffer(write_nearby(base, tmp_path / "near").read_bytes()[-6 * N :], np.float32)
    master = near[:N].reshape(64, 64)
    arrays = {"low": rounded(master), "z": master, "y": master}
    source = write_safetensors(tmp_path / "m.safetensors", arrays)
    below = convert(kind, base, tmp_path / "base", chunk_size=500)
    store = convert(kind, source, tmp_path / "m", base=below, chunk_size=700)
    found = stored(store)
    assert isinstance(found["z"], dict)
    assert found["z"]["copies"] == ["y"]
    assert found["z"]["roundings"] == ["low"]
    assert (found["low"], found["y"]) == ({"rounded": "z"}, "z")
    assert_holds(store, source)


def test_more_dimensions_than_arrays_have(tmp_path: Path) -> None:
    """They are stored as bytes."""
    shape = [1] * 40 + [N]
    master = master_weights().reshape(-1)
    header = {"a": entry("F32", shape), "b": entry("BF16", shape, 4 * N)}
    header["c"] = entry("F32", shape, 6 * N)
    source = tmp_path / "m.safetensors"
    raw = master.tobytes()
    source.write_bytes(file_bytes(header, raw + rounded(master).tobytes() + raw))
    for kind in FEW_KINDS:
        store = convert(kind, source, tmp_path / kind)
        assert stored(store) == {"a": "a", "b": "b", "c": "a"}
        assert_holds(store, source)


# --- other readers --------------------------------------------------------------------------------


def test_in_hdf5_each_path_exists(tmp_path: Path) -> None:
    """By a hard link, which takes no space; not of roundings, which have no array."""
    same, master = weights((64, 32)), master_weights()
    arrays = {"a": same, "x.b": same, "m": master, "low": rounded(master)}
    source = write_safetensors(tmp_path / "m.safetensors", arrays)
    with h5py.File(convert("hdf5", source, tmp_path / "m")) as file:
        assert file["a"] == file["x/b"]
        assert set(file) == {"a", "x", "m", "safetensors"}
        assert json.loads(file["a"].attrs["bf16codecs"])["copies"] == ["x.b"]
        assert file["x/b"].id.get_storage_size() == file["a"].id.get_storage_size()


@pytest.mark.parametrize("kind", ["zarr3", "zarr2"])
def test_in_zarr_each_array_exists_once(tmp_path: Path, kind: str) -> None:
    same, master = weights((64, 32)), master_weights()
    arrays = {"a": same, "x.b": same, "m": master, "low": rounded(master)}
    source = write_safetensors(tmp_path / "m.safetensors", arrays)
    store = convert(kind, source, tmp_path / "m")
    group = zarr.open_group(store, mode="r")
    assert set(group) == {"a", "m", "safetensors"}
    assert_same_bits(group["a"][...], same)
    assert dict(group["m"].attrs)["bf16codecs"]["roundings"] == ["low"]
    with open_model(store) as model:
        assert_same_bits(model["x.b"].zarr[...], same)
        with pytest.raises(ValueError, match=r"'low': has no Zarr array: it is rounded from"):
            _ = model["low"].zarr


# --- damage ---------------------------------------------------------------------------------------


STRANGE_PLACES = [
    ("a", "c", "the array is that of 'c'"),
    ("b", "c", "the array is that of 'c'"),
    ("c", "a", "the array is that of 'a'"),
    ("low", "c", "array is that of 'c'"),
    ("low", {"rounded": "n"}, "the array is that of 'n'"),
    ("low", {"rounded": "a"}, "the rounding of bfloat16, not of float32"),
    ("low", {"rounded": "missing"}, "is missing"),
    ("low", {"rounded": "m#bfloat16"}, "not an array path"),
    ("low", {"rounded": 5}, "not an array path"),
    ("low", {}, "damaged store attributes"),
    ("low", 5, "neither the path of a tensor"),
    ("m", {"rounded": "m"}, "the array is that of 'm'"),
]


def test_arrays_name_all_that_they_stand_for(tmp_path: Path) -> None:
    same, master = weights((64, 32)), master_weights()
    arrays = {"a": same, "b": same, "c": weights((64, 32), seed=1), "m": master}
    arrays |= {"low": rounded(master), "n": master_weights(1)}
    source = write_safetensors(tmp_path / "m.safetensors", arrays)
    store = convert("zarr3", source, tmp_path / "m")
    sound = (store / "zarr.json").read_bytes()
    for tensor, value, message in STRANGE_PLACES:
        (store / "zarr.json").write_bytes(sound)
        edit_attributes(store, lambda a, change={tensor: value}: a["tensors"].update(change))
        with pytest.raises(StoreError) as caught, open_model(store) as model:
            model[tensor][...]
        assert message in str(caught.value), (tensor, value)


def test_array_attributes_may_be_anything(tmp_path: Path) -> None:
    same = weights((64, 32))
    source = write_safetensors(tmp_path / "m.safetensors", {"a": same, "b": same})
    store = convert("zarr3", source, tmp_path / "m")

    def say(array: Any, names: object) -> None:
        array["attributes"]["bf16codecs"].update(copies=names)

    for names in (5, "a", {"b": 1}, None, [["b"]], [5]):
        edit_array(store, "a", partial(say, names=names))
        with open_model(store) as model:
            assert_same_bits(model["a"][...], same)
            with pytest.raises(StoreError, match="the array is that of 'a'"):
                model["b"][...]
