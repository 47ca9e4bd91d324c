"""Clusters of dask, and a model to convert on them."""

from __future__ import annotations

import pytest

import tiers
from bf16codecs.convert import safetensors_to_zarr
from clusters import client_of_cluster
from lazy_models import weights, write_shards


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Two shards of some megabytes, in chunks that make many tasks."""
    names = ["a.weight", "b.weight", "c.weight", "steps"]
    big = {n: weights((1000, 700), seed=i) for i, n in enumerate(names[:3])}
    folder = tmp_path_factory.mktemp("shards") / "model"
    return write_shards(folder, [dict(list(big.items())[:2]), {"c.weight": big["c.weight"]}])


@pytest.fixture(scope="module")
def expected(shards, tmp_path_factory):
    path = tmp_path_factory.mktemp("expected") / "m.zarr"
    safetensors_to_zarr(shards, path, chunk_size=1 << 16)
    return path


@pytest.fixture(scope="module")
def started():
    """Return a client of a cluster: of processes in the full tier, of threads in the quick one."""
    with client_of_cluster(processes=tiers.IS_FULL) as client:
        yield client


@pytest.fixture
def small_batches(monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr("bf16codecs._base.cluster._LEAST_BYTES", 1 << 17)
    monkeypatch.setattr("bf16codecs._base.cluster._MOST_BYTES", 1 << 17)


@pytest.fixture
def cluster(started, small_batches):
    return started


@pytest.fixture
def processes(small_batches):
    """Return a client of its own cluster of processes, which may be killed."""
    with client_of_cluster(processes=True) as client:
        yield client
