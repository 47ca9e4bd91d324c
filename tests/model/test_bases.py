"""Models stored as differences: how little is read, and from which bases."""

from __future__ import annotations

import gc
import pickle
import shutil
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

import bf16codecs
import tiers
from based_models import KINDS, assert_same_tensors, convert, write_nearby
from bf16codecs.errors import BaseMismatchError
from bf16codecs.store import StoreError
from bits import assert_same_bits
from lazy_models import in_memory, weights, write_safetensors
from measured_reads import linux
from servers import serving

kinds = pytest.mark.parametrize("kind", ["zarr3", "zarr2", "hdf5"])

#: A row has 2 KiB, a block 256 rows, and a chunk 2048 rows or fewer.
SHAPE = (4096, 1024)
BLOCK = 1 << 19

Models = list[tuple[Path, np.ndarray]]
Reads = list[tuple[Any, Any]]


@pytest.fixture(scope="module")
def chains(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Models]:
    """Return, for each kind, a store, one that is a difference to it, and one to that."""
    chains: dict[str, Models] = {kind: [] for kind in KINDS}
    folder = tmp_path_factory.mktemp("chains")
    array = weights(SHAPE)
    for level in range(3):
        source = write_safetensors(folder / f"{level}.safetensors", {"w": array})
        for kind, models in chains.items():
            (folder / kind).mkdir(exist_ok=True)
            base = models[-1][0] if models else None
            options = {"chunk_size": (1 << 22) >> level, "base": base, "verify": False}
            store = convert(kind, source, folder / kind / f"level{level}", **options)
            models.append((store, array))
        array = (array * np.float32(1.001 + level / 500)).astype(array.dtype)
    return chains


def fetched(reads: Reads) -> list[int]:
    """Return the bytes of each read of blocks: not the first look at a frame."""
    looks = [(key, ranges) for key, ranges in reads if ranges and ranges != [(0, 4096)]]
    return [sum(stop - start for start, stop in ranges) for _, ranges in looks]


# --- reads ----------------------------------------------------------------------------------------


@kinds
def test_a_row_is_a_block_of_each_level(chains: dict[str, Models], reads: Reads, kind: str) -> None:
    store, array = chains[kind][-1]
    for row in (0, 255, 256, 1024, 2047, 2048, 4095):
        reads.clear()
        with bf16codecs.open_model(store) as model:
            tensor = model["w"]
            assert_same_bits(tensor[row], array[row])
            sizes = fetched(reads)
            assert len(sizes) == 3, row
            assert sum(sizes) < 2 * BLOCK, row
            reads.clear()
            assert_same_bits(tensor[row : row + 1, 5:9], array[row : row + 1, 5:9])
            assert len(reads) == 3, f"row {row}: where the blocks are is known by now"


@kinds
def test_a_selection_reads_the_same_blocks_of_each_level(
    chains: dict[str, Models], reads: Reads, kind: str
) -> None:
    store, array = chains[kind][-1]
    with bf16codecs.open_model(store) as model:
        tensor = model["w"]
        tensor[:]
        for selection, blocks in [
            (np.s_[10:20, ::7], 1),
            (np.s_[250:260], 2),
            (np.s_[::2048], 2),
            (np.s_[[5, 3000, 6, 2000]], 3),
            (np.s_[[5, 3000], [3, 4]], 2),
            (np.s_[2040:2056], 2),
        ]:
            reads.clear()
            assert_same_bits(tensor[selection], array[selection])
            assert 0.4 * BLOCK * blocks < sum(fetched(reads)) < 1.4 * BLOCK * blocks
            # The last level takes less than half of what the first one takes.


@kinds
def test_opening_and_listing_reads_metadata_alone(
    chains: dict[str, Models], reads: Reads, kind: str
) -> None:
    store, _ = chains[kind][-1]
    with bf16codecs.open_model(store) as model:
        assert [(t.name, t.shape, t.dtype.name) for t in model.values()] == [
            ("w", SHAPE, "bfloat16")
        ]
        documents = [key for key, _ in reads if isinstance(key, str)]
        assert all("/" not in key or "header" in key for key in documents)
        assert len(documents) <= 3 + 1


@pytest.mark.filterwarnings("ignore:Unclosed client session")
def test_requests_to_a_server(chains: dict[str, Models], tmp_path: Path) -> None:
    """Both, one beside the other; or the base alone."""
    pytest.importorskip("aiohttp")
    (store, array), folder = chains["zarr3"][1], chains["zarr3"][0][0].parent
    with serving(folder) as server:
        with bf16codecs.open_model(f"{server.url}/level1.zarr") as model:
            assert sorted(path for _, path, _ in server.requests) == [
                "/level0.zarr/zarr.json",
                "/level1.zarr/zarr.json",
            ]
            server.clear()
            assert_same_bits(model["w"][700], array[700])
            assert len(server.requests) == 4, "a look at each frame, and a block of each"
            assert sum(server.sent) < 1.5 * BLOCK
            server.clear()
            assert_same_bits(model["w"][600:701:100], array[600:701:100])
            assert len(server.requests) == 2
            assert_same_bits(model["w"][...], array)
        server.clear()
        with bf16codecs.open_model(store, base=f"{server.url}/level0.zarr") as model:
            assert_same_bits(model["w"][700], array[700])
            assert len(server.requests) == 3
            assert_same_bits(model.load()["w"], array)
        server.drop = "/level0.zarr/w/c.1.0"
        with bf16codecs.open_model(store, base=f"{server.url}/level0.zarr") as model:
            message = (
                r"level1\.zarr: tensor 'w', chunk w/c\.2\.0: .*level0\.zarr: tensor 'w', chunk"
            )
            with pytest.raises(OSError, match=message):
                model["w"][2100]


def test_several_bases_are_read_at_a_time(chains: dict[str, Models]) -> None:
    """As many as a remote store itself is read with."""
    store, _ = chains["zarr3"][1]
    memory = in_memory(chains["zarr3"][0][0])
    with bf16codecs.open_model(store) as near, bf16codecs.open_model(store, base=memory) as far:
        assert near["w"]._array.concurrency == 1
        assert far["w"]._array.concurrency == 8


@linux
@pytest.mark.parametrize("kind", tiers.by_tier(["zarr3"], ["zarr3", "zarr2", "hdf5"]))
def test_loading_takes_the_models_size_and_little_more(
    chains: dict[str, Models], kind: str, run_python: Callable[..., Any]
) -> None:
    code = """
import resource, sys
import bf16codecs, bf16codecs.model, h5py
bf16codecs.set_num_threads(2)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with bf16codecs.open_model(sys.argv[1]) as model:
    model["w"][5]
    arrays = model.load()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    store, _ = chains[kind][-1]
    extra = int(run_python(code, str(store)).stdout) * 1024 - 2 * SHAPE[0] * SHAPE[1]
    assert extra < 30e6


@pytest.mark.parametrize("kind", KINDS)
def test_closing_frees_decoded_chunks(chains: dict[str, Models], kind: str) -> None:
    """At once, not only when Python collects cycles."""
    gc.disable()
    try:
        with bf16codecs.open_model(chains[kind][1][0]) as model:
            model["w"][5]
            reader = model._handle.opened
            assert reader.base is not None
            left = [weakref.ref(reader), weakref.ref(reader.base)]
            del reader
        assert [found() for found in left] == [None, None]
    finally:
        gc.enable()


# --- which base -----------------------------------------------------------------------------------


@pytest.fixture
def trio(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Return a base, a model, and a store of that as a difference."""
    base = write_safetensors(tmp_path / "base.safetensors", {"a": weights((64, 40))})
    fine = write_nearby(base, tmp_path / "fine.safetensors")
    return base, fine, convert("zarr3", fine, tmp_path / "fine", base=base)


@pytest.mark.parametrize("kind", [*KINDS, "safetensors"])
def test_an_open_model_as_base(trio: tuple[Path, Path, Path], kind: str) -> None:
    """It stays open, and is not opened again."""
    base, fine, store = trio
    place = base if kind == "safetensors" else convert(kind, base, base.with_name("b"))
    with bf16codecs.open_model(place) as opened:
        for _ in range(2):
            with bf16codecs.open_model(store, base=opened) as model:
                assert_same_tensors(model, fine)
        assert_same_tensors(opened, base)
        other = write_safetensors(base.with_name("o.safetensors"), {"a": weights((64, 41))})
        store = convert("zip", other, base.with_name("z"), base=other)
        with pytest.raises(BaseMismatchError, match="is not its base"):
            bf16codecs.open_model(store, base=opened)


def test_models_on_one_open_base(chains: dict[str, Models]) -> None:
    """Read by several threads at a time."""
    first, array = chains["hdf5"][0]
    with bf16codecs.open_model(first) as base:
        models = [bf16codecs.open_model(chains[k][1][0], base=base) for k in ("zarr3", "hdf5")]
        expected = chains["hdf5"][1][1]

        def read(i: int) -> None:
            rows = slice(i * 37 % 4000, i * 37 % 4000 + 90)
            assert_same_bits(models[i % 2]["w"][rows], expected[rows])
            assert_same_bits(base["w"][rows], array[rows])

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(read, range(100)))
        for model in models:
            model.close()
        assert_same_bits(base["w"][5], array[5])


def test_while_hdf5s_lock_is_held(tmp_path: Path, run_python: Callable[..., Any]) -> None:
    """As in h5py's loops over values: no other thread can read the base then."""
    source = write_safetensors(tmp_path / "m.safetensors", {"w": weights((64, 40), "float32")})
    base = convert("hdf5", source, tmp_path / "base", codec="none")
    with h5py.File(base, "r+") as file:
        old = file["w"]
        values, attributes = old[...], dict(old.attrs)
        del file["w"]
        file.create_dataset("w", data=values).attrs.update(attributes)  # not in chunks
    store = convert("zarr3", source, tmp_path / "m", base=base, chunk_size=1000)
    code = """
import sys
import bf16codecs
from h5py._hl.base import phil
with bf16codecs.open_model(sys.argv[1]) as model, phil:
    print(model["w"][...].tobytes().hex())
"""
    assert run_python(code, str(store), timeout=60).stdout.strip() == values.tobytes().hex()


def test_a_base_that_is_closed_first(trio: tuple[Path, Path, Path]) -> None:
    base, _, store = trio
    opened = bf16codecs.open_model(convert("hdf5", base, base.with_name("b")))
    model = bf16codecs.open_model(store, base=opened)
    opened.close()
    with pytest.raises(StoreError, match=r"b\.h5: array 'a': the file is closed"):
        model["a"][0]
    with pytest.raises(ValueError, match=r"b\.h5: the model is closed"):
        bf16codecs.open_model(store, base=opened)


# --- other processes ------------------------------------------------------------------------------


def test_pickled(trio: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """With the base that the caller gave, from any working folder."""
    base, fine, store = trio
    moved = base.with_name("moved.safetensors")
    monkeypatch.chdir(store.parent)
    with bf16codecs.open_model(store) as model:
        pickled = [pickle.dumps((model, model["a"]))]
    shutil.copy(base, moved)
    base.unlink()
    with bf16codecs.open_model("moved.safetensors") as opened:
        for given in (moved, "moved.safetensors", opened):
            with bf16codecs.open_model("fine.zarr", base=given) as model:
                pickled.append(pickle.dumps((model, model["a"])))
    monkeypatch.chdir("/")
    with pytest.raises(StoreError, match="its base cannot be opened"):
        pickle.loads(pickled.pop(0))
    for one in pickled:
        model, tensor = pickle.loads(one)
        assert_same_tensors(model, fine)
        with bf16codecs.open_model(fine) as source:
            assert_same_bits(tensor[5:9], source["a"][5:9])


def test_in_a_process_of_its_own(
    trio: tuple[Path, Path, Path], tmp_path: Path, run_python: Callable[..., Any]
) -> None:
    base, _, store = trio
    with bf16codecs.open_model(base) as opened, bf16codecs.open_model(store, base=opened) as model:
        (tmp_path / "pickled").write_bytes(pickle.dumps(model["a"]))
        expected = model["a"][3].tobytes().hex()
    code = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb'))[3].tobytes().hex())"
    assert run_python(code, str(tmp_path / "pickled")).stdout.strip() == expected


def test_dask(chains: dict[str, Models]) -> None:
    pytest.importorskip("dask.array")
    store, array = chains["zarr3"][-1]
    with bf16codecs.open_model(store) as model:
        blocks = model["w"].dask()
        assert blocks.chunksize == (512, 1024)
        assert_same_bits(blocks[700:900].compute(scheduler="threads"), array[700:900])
        scheduler = tiers.by_tier("threads", "processes")
        total = blocks.astype("float64").sum().compute(scheduler=scheduler, num_workers=1)
        assert total == pytest.approx(array.astype("float64").sum())


def test_torch(chains: dict[str, Models]) -> None:
    torch = pytest.importorskip("torch")
    import bf16codecs.torch

    store, array = chains["hdf5"][-1]
    with bf16codecs.open_model(store) as model:
        for found in (
            model.load("torch")["w"],
            model["w"].torch(),
            bf16codecs.torch.load_file(store)["w"],
        ):
            assert found.dtype == torch.bfloat16
            assert_same_bits(found.view(torch.uint16).numpy(), array.view(np.uint16))


# --- other readers --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["zarr3", "zarr2"])
def test_zarr_sees_the_whole_tensors(tmp_path: Path, kind: str) -> None:
    """zarr sees no arrays of differences, which have other numbers."""
    arrays = {"a": weights((64, 40)), "x.b": weights((64, 40), seed=1)}
    base = write_safetensors(tmp_path / "base.safetensors", {"a": arrays["a"]})
    source = write_safetensors(tmp_path / "m.safetensors", arrays)
    store = convert(kind, source, tmp_path / "m", base=base)
    group = zarr.open_group(store, mode="r")
    assert set(group) == {"x", "safetensors"}
    assert_same_bits(group["x/b"][...], arrays["x.b"])
    with bf16codecs.open_model(store) as model:
        assert_same_bits(model["x.b"].zarr[...], arrays["x.b"])
        with pytest.raises(ValueError, match="'a': has no Zarr array: it is stored as a diff"):
            _ = model["a"].zarr


def test_h5py_refuses_differences(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arrays = {"a": weights((64, 40)), "x.b": weights((64, 40), "float32", seed=1)}
    base = write_safetensors(tmp_path / "base.safetensors", {"a": arrays["a"]})
    source = write_safetensors(tmp_path / "m.safetensors", arrays)
    store = convert("hdf5", source, tmp_path / "m", base=base)
    with h5py.File(store) as file:
        assert_same_bits(file["x/b"][...], arrays["x.b"])
        with pytest.raises(OSError, match="filter returned failure"):
            file["a"].astype("f4")[...]
        assert "its frame has differences to a base outside of it" in capfd.readouterr().err
        with pytest.raises(BaseMismatchError, match=r"open the store with bf16codecs\.open_model"):
            bf16codecs.hdf5.read_tensor(file["a"])
