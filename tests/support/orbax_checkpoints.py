"""Orbax checkpoints for tests. Orbax and JAX are imported when a test first uses them."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from bits import assert_same_bits
from lazy_imports import lazily

# Before any test imports jax: arrays on several devices are saved in several chunks.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

jax = lazily("jax")
ocp = lazily("orbax.checkpoint")
#: Modules that convert checkpoints and read their arrays: both import tensorstore.
orbax = lazily("bf16codecs.convert.orbax")
arrays = lazily("bf16codecs.convert.orbax.arrays")
#: The key of a model's metadata that has the documents of the checkpoint.
KEY = "bf16codecs.orbax"
needs_orbax = pytest.mark.skipif(
    not (find_spec("jax") and find_spec("orbax")), reason="Orbax or JAX is not installed"
)


def normal(*shape: int) -> np.ndarray:
    """Return FP32 numbers that depend on the shape alone, not on earlier draws."""
    return np.random.default_rng(shape).normal(size=shape).astype("f4")


FORMATS = {
    f"{'ocdbt' if ocdbt else 'folders'}-zarr{3 if zarr3 else 2}": {
        "use_ocdbt": ocdbt,
        "use_zarr3": zarr3,
    }
    for ocdbt in (True, False)
    for zarr3 in (True, False)
}
FLOATS = np.array([0x7FA00001, 0xFFC12345, 0x80000000, 0x00000001, 0x7F800000], "u4").view("f4")


def on_devices(array: np.ndarray, *axes: str | None) -> Any:
    """Return an array that is cut along axes, which are named "x" and "y", at 2 x 2 devices."""
    devices = np.array(jax.devices()[:4]).reshape(2, 2)
    mesh = jax.sharding.Mesh(devices, ("x", "y"))
    return jax.device_put(
        array, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
    )


def bfloat16(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).integers(0, 2**16, shape, "u2").view(ml_dtypes.bfloat16)


def save(path: Path, tree: Any, **options: Any) -> Path:
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**options)) as checkpointer:
        checkpointer.save(path, tree)
    return path


def restored(path: Path) -> Any:
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        return checkpointer.restore(path)


def assert_same_tree(actual: Any, expected: Any) -> None:
    def is_leaf(node: Any) -> bool:
        return node is None

    ours, tree = jax.tree.flatten(actual, is_leaf)
    theirs, other = jax.tree.flatten(expected, is_leaf)
    assert tree == other
    for own, their in zip(ours, theirs, strict=True):
        assert type(own) is type(their)
        if hasattr(own, "dtype"):
            assert_same_bits(own, their)
        else:
            assert own == their
