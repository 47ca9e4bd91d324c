"""Stores of differences restore the files, for every kind of model and base."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from based_models import (
    FEW_KINDS,
    KINDS,
    assert_holds,
    convert,
    tensors_of,
    total_size,
    write_nearby,
    write_steps,
)
from bf16codecs import open_model
from bf16codecs._base import limits as _limits
from bf16codecs.convert import safetensors_to_zarr
from bf16codecs.errors import StoreError
from folders import names_in
from lazy_models import weights, write_safetensors, write_shards
from looping import for_each
from models import every_dtype, write_model
from servers import serving
from tiers import by_tier

kinds = pytest.mark.parametrize("kind", KINDS)
few_kinds = pytest.mark.parametrize("kind", FEW_KINDS)

TENSORS = [("a", "BF16", (64, 40)), ("b", "F32", (30, 7)), ("c", "I32", (200,)), ("s", "F32", ())]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_model(tmp_path / "base.safetensors", TENSORS, 1)


@pytest.fixture
def fine(base: Path) -> Path:
    return write_nearby(base, base.with_name("fine.safetensors"))


def differing(store: Path) -> set[str]:
    """Return the tensors that a store has as differences."""
    return {name for name, found in tensors_of(store).items() if found["way"] == "difference"}


# --- kinds of bases -------------------------------------------------------------------------------


@kinds
def test_checkpoints_in_both_orders(demo_model: Path, tmp_path: Path, kind: str) -> None:
    steps = write_steps(tmp_path, demo_model)
    pairs = list(itertools.permutations([300, 399, 400], 2))
    for step, other in by_tier([(300, 400), (400, 399)], pairs):
        base = convert(kind, steps[other], tmp_path / "base", overwrite=True)
        store = convert(kind, steps[step], tmp_path / "fine", base=base, overwrite=True)
        assert_holds(store, steps[step])
        is_near = {step, other} == {399, 400}
        most = 0.25 if is_near else 0.7
        assert total_size(store) < most * total_size(base), (step, other)


@contextmanager
def base_of_kind(kind: str, source: Path) -> Iterator[Any]:
    """Make a base of a model, and yield its path or address."""
    folder = source.parent
    if kind in KINDS:
        yield convert(kind, source, folder / "base", chunk_size=500)
    elif kind == "safetensors":
        yield source
    elif kind in ("shards", "index"):
        with open_model(source) as model:
            arrays = model.load()
        halves = [{name: arrays[name] for name in names} for names in ("ab", "cs")]
        shards = write_shards(folder / "shards", halves)
        yield shards if kind == "shards" else next(shards.glob("*.json"))
    else:
        pytest.importorskip("aiohttp")
        (folder / "served").mkdir()
        store = convert("zarr3", source, folder / "served" / "base", chunk_size=500)
        with serving(store.parent) as server:
            yield f"{server.url}/{store.name}"


BASE_KINDS = [*KINDS, "safetensors", "shards", "index", "http"]


@pytest.mark.parametrize("base_kind", BASE_KINDS)
@pytest.mark.filterwarnings("ignore:Unclosed client session")
def test_bases_of_every_kind(base: Path, fine: Path, base_kind: str) -> None:
    # Writing a store does not depend on how its base is read: one kind each is enough.
    one = list(KINDS)[(BASE_KINDS.index(base_kind) + 1) % len(KINDS)]
    with base_of_kind(base_kind, base) as place:
        for kind in by_tier([one], list(KINDS)):
            store = convert(kind, fine, fine.with_name(f"fine-{kind}"), base=place, chunk_size=1000)
            assert differing(store) == {"a", "b", "c"}, kind
            assert_holds(store, fine)
            assert_holds(store, fine, base=place)


@pytest.mark.parametrize("kind", by_tier(["hdf5"], list(KINDS)))
def test_every_dtype_and_chunk_size(tmp_path: Path, kind: str) -> None:
    base = every_dtype(tmp_path / "base.safetensors")
    fine = write_nearby(base, tmp_path / "fine.safetensors")
    with open_model(base) as model:
        expected = {name for name, tensor in model.items() if tensor.shape and tensor.size}
    for chunk_size in by_tier([100], [40, 100, 10**9]):
        options = {"base": base, "chunk_size": chunk_size, "overwrite": True}
        store = convert(kind, fine, tmp_path / "fine", **options)
        assert differing(store) == expected, chunk_size
        assert_holds(store, fine)


CODECS = ["arithmetic", "arithmetic best", "huffman", "zstd", "zstd 9", "split"]


@few_kinds
@for_each("codec", CODECS)
def test_every_codec(base: Path, fine: Path, kind: str, codec: str) -> None:
    if kind == "hdf5" and codec.startswith("zstd"):
        pytest.importorskip("hdf5plugin")
    name, _, level = codec.partition(" ")
    options = {"codec": name, "level": level or None, "overwrite": True}
    below = convert(kind, base, base.with_name("base"), **options)
    store = convert(kind, fine, fine.with_name("fine"), base=below, **options)
    assert tensors_of(store)["a"]["codec"] == f"difference+{name}"
    assert_holds(store, fine)


@few_kinds
def test_a_codec_without_differences_is_refused(base: Path, fine: Path, kind: str) -> None:
    with pytest.raises(ValueError, match="'none' stores no differences: choose another codec"):
        convert(kind, fine, fine.with_name("fine"), base=base, codec="none")
    assert names_in(base.parent) == {base.name, fine.name}


def test_chain_of_all_kinds(base: Path, tmp_path: Path) -> None:
    """Each store has other chunks and codecs, and the last base is the files themselves."""
    models, below = [base], base
    chain = [*KINDS] * by_tier(1, 2)
    for i, kind in enumerate(chain):
        models.append(write_nearby(models[-1], tmp_path / f"{i}.safetensors", i))
        options = {"chunk_size": 300 * (i + 1), "codec": ["arithmetic", "huffman"][i % 2]}
        below = convert(kind, models[-1], tmp_path / str(i), base=below, **options)
        assert_holds(below, models[-1])
    (tmp_path / "0.zarr").rename(tmp_path / "moved")
    with pytest.raises(
        StoreError, match=rf"{len(chain) - 1}\.h5: its base .*1\.zarr: its base .*0\.zarr"
    ):
        open_model(below)


def test_shards_of_other_cuts(tmp_path: Path) -> None:
    """The base has the tensors in one file, and the model in two, with an index."""
    arrays = {name: weights((30, 50), seed=i) for i, name in enumerate("abcd")}
    others = {name: (a * np.float32(1.01)).astype(a.dtype) for name, a in arrays.items()}
    base = write_safetensors(tmp_path / "base.safetensors", others)
    fine = write_shards(
        tmp_path / "fine", [{n: arrays[n] for n in "da"}, {n: arrays[n] for n in "cb"}]
    )
    for kind in KINDS:
        store = convert(kind, fine, tmp_path / kind, base=base)
        assert differing(store) == set("abcd")
        assert_holds(store, fine)


# --- tensors that the base lacks ------------------------------------------------------------------


@few_kinds
def test_tensors_that_the_base_lacks_are_stored_whole(tmp_path: Path, kind: str) -> None:
    base = write_model(
        tmp_path / "base.safetensors",
        [
            ("same", "BF16", (40, 30)),
            ("transposed", "BF16", (30, 40)),
            ("half", "F16", (40, 30)),
            ("narrow", "F16", (40, 30)),
            ("gone", "BF16", (40, 30)),
            ("scalar", "F32", ()),
            ("empty", "F32", (0, 3)),
        ],
    )
    fine = write_model(
        tmp_path / "fine.safetensors",
        [
            ("new", "BF16", (40, 30)),
            ("same", "BF16", (40, 30)),
            ("transposed", "BF16", (40, 30)),
            ("half", "BF16", (40, 30)),
            ("narrow", "F32", (40, 30)),
            ("scalar", "F32", ()),
            ("empty", "F32", (0, 3)),
        ],
        seed=1,
    )
    store = convert(kind, fine, tmp_path / "fine", base=base)
    assert differing(store) == {"same"}
    assert_holds(store, fine)


@few_kinds
def test_nothing_in_common_is_refused(base: Path, tmp_path: Path, kind: str) -> None:
    for tensors in ([("x", "BF16", (64, 40))], [("a", "BF16", (64, 41))], [("s", "F32", ())], []):
        fine = write_model(tmp_path / "fine.safetensors", tensors)
        with pytest.raises(StoreError, match="no tensor in common") as caught:
            convert(kind, fine, tmp_path / "store", base=base)
        assert str(fine) in str(caught.value)
        assert str(base) in str(caught.value)
    assert names_in(tmp_path) == {base.name, fine.name}


@few_kinds
def test_bfloat16_against_its_master_weights(tmp_path: Path, kind: str) -> None:
    """The weights include NaNs, infinities and ties; a base need not be rounded exactly."""
    words = np.random.default_rng(0).integers(0, 2**32, (50, 40), dtype=np.uint32)
    words[0] = 0x7F800000 + np.arange(40) * 0x10001
    words[1] = 0x3F808000 + np.arange(40) * 0x10000
    master = {"w": words.view(np.float32)}
    base = write_safetensors(tmp_path / "base.safetensors", master)
    with np.errstate(invalid="ignore"):
        rounded = master["w"].astype("bfloat16")
    fine = write_safetensors(tmp_path / "fine.safetensors", {"w": rounded})
    near = write_nearby(fine, tmp_path / "near.safetensors")
    below = convert(kind, base, tmp_path / "base", chunk_size=900)
    for source in (fine, near):
        store = convert(kind, source, tmp_path / source.stem, base=below, chunk_size=700)
        assert differing(store) == {"w"}
        assert_holds(store, source)


@few_kinds
def test_master_weights_against_bfloat16(tmp_path: Path, kind: str) -> None:
    """Only the lower half is stored: 16 bits of 32, where the weights alone take 26."""
    master = weights((80, 64)).astype("f4") * np.float32(1.001)
    master[0] = np.float32("nan")
    master.view("u4")[1, :40] = 0x7F800001 + np.arange(40) * 0x10001
    master[2, :3] = np.inf, -0.0, 1e-45
    with np.errstate(invalid="ignore"):
        rounded = master.astype("bfloat16")
    rounded.view("u2")[3] = 0x7F81 + np.arange(64)  # of NaNs, all bits
    fine = write_safetensors(tmp_path / "fine.safetensors", {"w": master})
    below = convert(
        kind,
        write_safetensors(tmp_path / "base.safetensors", {"w": rounded}),
        tmp_path / "base",
        chunk_size=900,
    )
    store = convert(kind, fine, tmp_path / "fine", base=below, chunk_size=3000)
    assert differing(store) == {"w"}
    assert_holds(store, fine)
    with open_model(store) as model:
        assert model["w"][5:70:3, 7].tobytes() == master[5:70:3, 7].tobytes()
    assert tensors_of(store)["w"]["stored_nbytes"] < 0.6 * master.nbytes


# --- size -----------------------------------------------------------------------------------------


@few_kinds
def test_unchanged_tensors_take_no_space(tmp_path: Path, kind: str) -> None:
    arrays = {f"layer.{i}": weights((512, 512), seed=i) for i in range(3)}
    base = write_safetensors(tmp_path / "base.safetensors", arrays)
    arrays["layer.2"][5:9] *= 1.5
    fine = write_safetensors(tmp_path / "fine.safetensors", arrays)
    store = convert(kind, fine, tmp_path / "fine", base=base)
    sizes = [found["stored_nbytes"] for found in tensors_of(store).values()]
    assert max(sizes[:2]) < 200
    assert sizes[2] < 10_000


@few_kinds
def test_unchanged_tensors_are_credible(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Differences shrink more than 256 times: the bases' sizes count as well."""
    monkeypatch.setattr(_limits, "_SMALL", 1 << 16)
    base = write_safetensors(tmp_path / "m.safetensors", {"w": weights((1 << 20,))})
    below = convert(kind, base, tmp_path / "base")
    store = convert(kind, base, tmp_path / "fine", base=below)
    above = convert(kind, base, tmp_path / "above", base=store)
    assert 256 * total_size(above) < 2 << 20
    assert_holds(above, base)
    with pytest.raises(StoreError, match="more than max_bytes allows"):
        open_model(above, max_bytes=1 << 20)["w"][...]


# --- any models -----------------------------------------------------------------------------------

_DTYPES = ["bfloat16", "float32", "float8_e5m2", "int64", "uint8", "bool", "complex64"]


@st.composite
def arrays_of(draw: st.DrawFn) -> dict[str, np.ndarray]:
    found = {}
    for name in draw(st.lists(st.sampled_from("abc"), unique=True)):
        dtype = np.dtype(draw(st.sampled_from(_DTYPES)))
        shape = draw(st.lists(st.integers(0, 9), max_size=3))
        rng = np.random.default_rng(draw(st.integers(0, 3)))
        raw = rng.integers(0, 256, (*shape, dtype.itemsize), dtype=np.uint8)
        raw &= 1 if dtype.name == "bool" else 255
        found[name] = raw.reshape(-1).view(dtype).reshape(shape)
    return found


@settings(max_examples=by_tier(8, 40))
@given(
    chain=st.lists(st.tuples(arrays_of(), st.sampled_from([*KINDS])), min_size=2, max_size=4),
    chunk_size=st.sampled_from([1, 7, 64, 1 << 20]),
)
def test_any_models(
    tmp_path_factory: pytest.TempPathFactory,
    chain: list[tuple[dict[str, np.ndarray], str]],
    chunk_size: int,
) -> None:
    """Each model is stored against the one before, where that has a tensor of the same form."""
    folder = tmp_path_factory.mktemp("chain")
    below: dict[str, np.ndarray] = {}
    store = None
    for i, (arrays, kind) in enumerate(chain):
        model = write_safetensors(folder / f"{i}.safetensors", arrays)
        base = store if any(is_like(a, below.get(name)) for name, a in arrays.items()) else None
        store = convert(kind, model, folder / str(i), base=base, chunk_size=chunk_size, sync=False)
        assert_holds(store, model)
        below = arrays


def is_like(array: np.ndarray, other: np.ndarray | None) -> bool:
    """Return whether an array can be stored as a difference to another one."""
    if other is None or array.shape != other.shape or not array.shape or not array.size:
        return False
    return (array.dtype, other.dtype) == ("bfloat16", "float32") or array.dtype == other.dtype


def test_summary_names_the_base(base: Path, fine: Path) -> None:
    summary = safetensors_to_zarr(fine, fine.with_name("fine.zarr"), base=base)
    assert summary.base == "base base.safetensors: 3 of 4 tensors as differences"
    assert safetensors_to_zarr(fine, fine.with_name("whole.zarr")).base == ""
