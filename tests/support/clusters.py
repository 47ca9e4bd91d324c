"""Clusters of dask, and comparisons of what they make."""

from __future__ import annotations

import filecmp
import os
import signal
import threading
from contextlib import contextmanager

import pytest


@contextmanager
def client_of_cluster(processes):
    distributed = pytest.importorskip("distributed")
    options = {"threads_per_worker": 1, "dashboard_address": ":0"}
    with (
        distributed.LocalCluster(n_workers=2, processes=processes, **options) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


class Killing:
    """A callback that kills a worker, once."""

    def __init__(self, client):
        self.pids = list(client.run(os.getpid).values())
        self.done = threading.Event()

    def __call__(self, *args):
        if not self.done.is_set():
            os.kill(self.pids[0], signal.SIGKILL)
            self.done.set()


def assert_same_files(one, other):
    def files(root):
        return {p.relative_to(root): p for p in root.rglob("*") if p.is_file()}

    ours, theirs = files(one), files(other)
    assert ours.keys() == theirs.keys()
    for key, path in ours.items():
        assert filecmp.cmp(path, theirs[key], shallow=False), key


def downloaded(address, s3, folder):
    """Copy a folder of an object store to the disk."""
    import fsspec

    fs = fsspec.filesystem("s3", skip_instance_cache=True, **s3)
    fs.get(f"{address}/", f"{folder}/", recursive=True)
    return folder
