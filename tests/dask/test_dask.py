"""dask and xarray read model stores."""

from __future__ import annotations

import functools
import os
import pickle

import pytest

import bf16codecs
from bits import assert_same_bits
from lazy_models import weights, write_store

pytestmark = [
    pytest.mark.filterwarnings("ignore:invalid value encountered in equal"),
    pytest.mark.filterwarnings("ignore:Consolidated metadata"),
]


@pytest.fixture(scope="module", autouse=True)
def da():
    return pytest.importorskip("dask.array", reason="dask is not installed")


@functools.cache
def arrays():
    return {
        "model.embed.weight": weights((700, 256)),
        "model.layers.0.up.weight": weights((128, 300), seed=1),
        "model.layers.0.norm.weight": weights((300,), "float32", 2),
        "model.layers.0.cube": weights((5, 6, 7), "float64", 3),
        "scalar": weights((), seed=4),
        "empty": weights((0, 3)),
    }


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("d") / "m.zarr", arrays(), chunk_size=1 << 15)


def test_tensors_are_dask_arrays(store, da):
    with bf16codecs.open_model(store) as model:
        for name, array in arrays().items():
            lazy = model[name].dask()
            assert isinstance(lazy, da.Array)
            assert (lazy.shape, lazy.dtype) == (array.shape, array.dtype)
            assert_same_bits(lazy.compute(scheduler="sync"), array)
        embed = model["model.embed.weight"]
        assert embed.dask().chunksize == embed.chunks
        assert embed.dask(chunks=(350, 100)).chunks == ((350, 350), (100, 100, 56))
        assert_same_bits(
            embed.dask()[5:600:100, ::7].compute(), arrays()[embed.name][5:600:100, ::7]
        )
        assert embed.dask().name == embed.dask().name
        assert embed.dask().name != model["model.layers.0.up.weight"].dask().name


def total(tensors):
    return sum(t.astype("float64").sum() for t in tensors)


@pytest.mark.parametrize(
    "scheduler", ["sync", "threads", pytest.param("processes", marks=pytest.mark.slow)]
)
def test_a_sum_over_all_tensors(store, scheduler):
    with bf16codecs.open_model(store) as model:
        lazy = total(t.dask() for t in model.values())
        assert float(lazy.compute(scheduler=scheduler)) == pytest.approx(total(arrays().values()))


def test_a_graph_holds_references(store):
    with bf16codecs.open_model(store) as model:
        lazy = model["model.embed.weight"].dask()
        assert len(pickle.dumps(dict(lazy.__dask_graph__()))) < 20_000


def test_dask_reads_plain_zarr(store, da):
    lazy = da.from_zarr(os.fspath(store), component="model/embed/weight")
    assert_same_bits(lazy.compute(), arrays()["model.embed.weight"])


def test_xarray(store):
    xarray = pytest.importorskip("xarray")
    dataset = xarray.open_zarr(store, group="model/embed", chunks=None)
    array = dataset["weight"]
    assert array.dims == ("dim0_700", "dim1_256")
    assert array.dtype == "bfloat16"
    assert_same_bits(array[10:20, 3].values, arrays()["model.embed.weight"][10:20, 3])
    chunked = xarray.open_zarr(store, group="model/layers/0/up")["weight"]
    assert_same_bits(chunked.data.compute(), arrays()["model.layers.0.up.weight"])
    tree = xarray.open_datatree(store, engine="zarr", chunks=None)
    norm = tree["model/layers/0/norm/weight"]
    assert_same_bits(norm.values, arrays()["model.layers.0.norm.weight"])


def test_xarray_format_2(tmp_path):
    xarray = pytest.importorskip("xarray")
    store = write_store(tmp_path / "m.zarr", arrays(), zarr_format=2)
    # In format 2, xarray masks by the fill value, and knows none for these dtypes.
    options = {"chunks": None, "mask_and_scale": False}
    array = xarray.open_zarr(store, group="model/embed", **options)["weight"]
    assert array.dims == ("dim0_700", "dim1_256")
    assert_same_bits(array[10:20, 3].values, arrays()["model.embed.weight"][10:20, 3])
