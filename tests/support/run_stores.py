"""Checkpoints of small runs, and every kind of store made from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import bf16codecs
from bf16codecs.convert import append_to_run, run_to_safetensors, safetensors_to_run
from folders import files_in
from lazy_models import weights, write_safetensors

Arrays = dict[str, NDArray[Any]]

#: Kinds of Zarr stores, and all kinds: the stores' names, and options of conversions.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "zarr 3": ("run.zarr", {}),
    "zarr 2": ("run.zarr", {"zarr_format": 2}),
    "zip": ("run.zarr.zip", {}),
}
TARGETS: dict[str, tuple[str, dict[str, Any]]] = {**KINDS, "hdf5": ("run.h5", {"as_hdf5": True})}


def drifting(shape: tuple[int, ...], step: int, dtype: str = "bfloat16") -> NDArray[Any]:
    """Return weights of which a few more items change with each step."""
    base = weights(shape, "float32")
    rng = np.random.default_rng(1)
    for _ in range(step):
        base += rng.normal(0, 0.0002, shape)
    return base.astype(dtype)


def eventful() -> dict[int, Arrays]:
    """Return tensors by step that appear, vanish, come back, change, are tied and part."""
    steps: dict[int, Arrays] = {}
    for i, number in enumerate([0, 10, 11, 40, 50, 51, 52]):
        embed, master = drifting((40, 24), i), drifting((32, 24), i, "float32")
        steps[number] = {
            "embed": embed,
            "always": drifting((70, 8), i),
            "constant": np.full((33, 5), 0.5, "bfloat16"),
            "scalar": np.array(i, "int64"),
            "empty": np.empty((0, 4), "bfloat16"),
            "head": embed if i not in (2, 3) else drifting((40, 24), i + 7),
            "master": master,
            "rounded": master.astype("bfloat16") if i not in (1, 5) else drifting((32, 24), i),
            "mask": np.arange(i, i + 50) % 3 == 0,
        }
    for number in (10, 40, 51):
        steps[number]["comes.and.goes"] = drifting((9, 9), number // 10)
        steps[number]["counts"] = np.arange(number, number + 300, dtype="uint16")
    steps[11]["comes"] = drifting((3,), 2)  # takes paths that the others would have
    steps[50]["Always"] = drifting((2, 2), 3)
    for number, shape in {0: (5, 6), 10: (5, 6), 40: (6, 6), 50: (5, 6), 52: (30,)}.items():
        steps[number]["changes"] = drifting(shape, 1)
    steps[51]["changes"] = drifting((5, 6), 1, "float16")
    for number in (11, 50, 52):
        steps[number]["step"] = np.array(number, "int32")
        steps[number]["step.0"] = drifting((4,), 1)
    return steps


def write_checkpoints(folder: Path, steps: Mapping[int, Arrays]) -> list[Path]:
    """Write a file for each step, named by it, each with metadata of its own."""
    folder.mkdir(exist_ok=True)
    return [
        write_safetensors(
            folder / f"model-step{number:05}.safetensors",
            arrays,
            {"format": "pt", "loss": str(1 / (1 + number))},
        )
        for number, arrays in steps.items()
    ]


def make_run(
    kind: str, checkpoints: Sequence[Path], folder: Path, by_appends: bool = False, **options: Any
) -> Path:
    """Make a run store, at once or step by step; tensors may change, as in `eventful`."""
    name, own = TARGETS[kind]
    own = {**own, "allow_changed_tensors": True}
    store = folder / name
    if not by_appends:
        safetensors_to_run(checkpoints, store, sync=False, **own, **options)
        return store
    for checkpoint in checkpoints:
        append_to_run(checkpoint, store, sync=False, **own, **options)
    return store


def restored(store: Path, folder: Path) -> dict[str, bytes | None]:
    """Return all files of a run."""
    run_to_safetensors(store, folder, sync=False, overwrite=True)
    return files_in(folder)


def assert_is_step(model: bf16codecs.Model, arrays: Arrays) -> None:
    """Compare a step of a run with its tensors, bit by bit."""
    assert set(model.keys()) == set(arrays)
    for name, array in model.load().items():
        assert (array.dtype, array.shape) == (arrays[name].dtype, arrays[name].shape)
        assert array.tobytes() == arrays[name].tobytes(), name
