"""Measure how fast arrays are updated from one step of a run to the next.

    python examples/measure_updates.py SRC [--megabytes 1024] [--changed 0.01] [--rounds 5]

SRC's bfloat16 tensors, repeated to the size, are the first step. In the second one, so many of the
values have moved to a neighbour, as after a step of reinforcement learning. Arrays that have the
first step are updated to the second, which is decoded against them, with one thread: with all of
them compared before (`trust_base=False`) and without. Each line has the median of GB/s, with
minimum and maximum, beside copying the arrays in the same round.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np

import bf16codecs
from bf16codecs.convert import safetensors_to_run

SHAPE = 8192, 4096


def first_step(source: str, nbytes: int) -> dict[str, np.ndarray]:
    """Return matrices of a model's values, each of them in another order."""
    with bf16codecs.open_model(source) as model:
        tensors = [t[...].reshape(-1) for t in model.values() if t.dtype == ml_dtypes.bfloat16]
    if not tensors:
        raise ValueError(f"{source}: no bfloat16 tensors")
    values, size = np.concatenate(tensors), SHAPE[0] * SHAPE[1]
    count = max(1, nbytes // (2 * size))
    return {f"w{n}": np.resize(np.roll(values, 1009 * n), SHAPE) for n in range(count)}


def next_step(arrays: dict[str, np.ndarray], changed: float) -> dict[str, np.ndarray]:
    """Return arrays in which a part of the values is a neighbour of what it was."""
    chance, found = np.random.default_rng(0), {}
    for name, array in arrays.items():
        bits = array.view(np.uint16).copy()
        where = np.flatnonzero(chance.random(bits.size, np.float32) < changed)
        bits.reshape(-1)[where] += chance.choice(np.array([1, -1], np.int16), where.size).view(
            np.uint16
        )
        found[name] = bits.view(array.dtype)
    return found


def as_file(arrays: dict[str, np.ndarray], path: Path) -> Path:
    """Write a safetensors file."""
    from safetensors.numpy import save_file

    save_file(arrays, path)
    return path


def seconds(work: Callable[[], object]) -> float:
    """Return how long something takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    """Make a run, and measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source", metavar="SRC")
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--changed", type=float, default=0.01)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    bf16codecs.set_num_threads(1)
    first = first_step(options.source, options.megabytes << 20)
    second = next_step(first, options.changed)
    nbytes = sum(array.nbytes for array in first.values())
    arrays = {name: array.copy() for name, array in first.items()}
    rates: dict[str, list[float]] = {"copied": [], "compared": [], "trusted": []}

    def reset() -> None:
        for name, array in arrays.items():
            np.copyto(array, first[name])

    with tempfile.TemporaryDirectory() as folder:
        files = [
            as_file(step, Path(folder, f"step-{number}.safetensors"))
            for number, step in enumerate((first, second), 1)
        ]
        safetensors_to_run(files, Path(folder, "run.zarr"), verify=False)
        with bf16codecs.open_model(f"{folder}/run.zarr@2") as model:
            for _ in range(options.rounds):
                for kind, trust in (("compared", False), ("trusted", True)):
                    rates["copied"].append(nbytes / seconds(reset) / 1e9)
                    taken = seconds(lambda trust=trust: model.update(arrays, 1, trust_base=trust))
                    rates[kind].append(nbytes / taken / 1e9)
                    assert all(a.tobytes() == second[n].tobytes() for n, a in arrays.items())
        with bf16codecs.open_run(f"{folder}/run.zarr") as run:
            stored = run.info().to_json()
    print(f"{nbytes / 1e6:.0f} MB, {100 * options.changed:g} % of the values changed")
    print(f"{len(stored['steps'])} steps in {stored['stored_nbytes'] / 1e6:.1f} MB")
    for kind, found in rates.items():
        middle = statistics.median(found)
        print(f"{kind:9} {middle:6.2f} GB/s ({min(found):.2f}-{max(found):.2f})")


if __name__ == "__main__":
    try:
        main()
    except (bf16codecs.errors.BF16CodecsError, OSError, ValueError) as error:
        sys.exit(f"measure_updates.py: {error}")
