"""Measure how fast a training job saves, beside PyTorch's own writer.

    python examples/measure_saving.py SRC [--gigabytes 1] [--rounds 5] [--folder FOLDER]

Matrices of random values of SRC's largest tensor are encoded in memory by the codec alone, and
saved in turns by `StoreWriter` and by `torch.distributed.checkpoint.FileSystemWriter` to a new
folder in FOLDER, without flushing to the disk. For `async_save`, the time is that for which
training waits. Each line has the median of GB/s, or of milliseconds, with minimum and maximum.
"""

import argparse
import logging
import os
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable

import bf16codecs

try:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    from bf16codecs.torch.checkpoint import StoreWriter
except ImportError as error:
    sys.exit(f"measure_saving.py: {error}: pip install 'bf16codecs[torch]'")

SHAPE = 4096, 4096
CHUNK = 16 << 20


def made_state(source: str, nbytes: int) -> dict[str, torch.Tensor]:
    """Return matrices with the values of a model's largest tensor."""
    with bf16codecs.open_model(source, framework="torch") as model:
        name = max(model.keys(), key=lambda name: model[name].nbytes)
        values = model.get_tensor(name).reshape(-1)
    size = SHAPE[0] * SHAPE[1]
    generator = torch.Generator().manual_seed(0)
    state = {}
    while nbytes > 0:
        picked = torch.randint(len(values), (size,), generator=generator)
        state[f"layers.{len(state)}"] = values[picked].reshape(SHAPE)
        nbytes -= size * values.itemsize
    return state


def seconds(work: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def encode(state: dict[str, torch.Tensor]) -> None:
    """Encode everything in memory, in chunks like those of stores."""
    for tensor in state.values():
        raw = tensor.reshape(-1).view(torch.uint8).numpy()
        codec = bf16codecs.BF16Arithmetic(str(tensor.dtype).removeprefix("torch."))
        for start in range(0, raw.size, CHUNK):
            codec.encode(raw[start : start + CHUNK])


def measure(state: dict[str, torch.Tensor], folder: str, rounds: int) -> dict[str, list[float]]:
    """Save in turns; return the seconds of each way."""
    writers = {
        "StoreWriter": lambda: StoreWriter(f"{folder}/c.zarr", sync=False),
        "FileSystemWriter": lambda: dcp.FileSystemWriter(f"{folder}/c", sync_files=False),
    }
    times: dict[str, list[float]] = {}
    for _ in range(rounds + 1):
        taken = {"codec alone": seconds(lambda: encode(state))}
        for name, make in writers.items():
            taken[name] = seconds(lambda make=make: dcp.save(state, storage_writer=make()))
            shutil.rmtree(folder)
            os.mkdir(folder)
            start = time.perf_counter()
            saving = dcp.async_save(state, storage_writer=make())
            taken[f"async_save, {name}"] = time.perf_counter() - start
            saving.result()
            shutil.rmtree(folder)
            os.mkdir(folder)
        for name, value in taken.items():
            times.setdefault(name, []).append(value)
    return {name: values[1:] for name, values in times.items()}  # the first round warms up


def main() -> None:
    """Measure, and print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source")
    parser.add_argument("--gigabytes", type=float, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    try:
        state = made_state(args.source, int(args.gigabytes * 1e9))
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            init = f"file://{folder}-processes"
            dist.init_process_group("gloo", init_method=init, rank=0, world_size=1)
            times = measure(state, folder, args.rounds)
            dist.destroy_process_group()
    except (OSError, ValueError) as error:
        sys.exit(f"measure_saving.py: {error}")
    size = sum(tensor.nbytes for tensor in state.values()) / 1e9
    dtype = next(iter(state.values())).dtype
    print(f"{size:.2f} GB of {dtype}, {bf16codecs.get_num_threads()} threads")
    for name, taken in times.items():
        is_wait = name.startswith("async")
        shown = [1000 * t if is_wait else size / t for t in taken]
        unit = "ms" if is_wait else "GB/s"
        print(
            f"{name:30} {statistics.median(shown):8.2f} {unit:4}"
            f" ({min(shown):.2f}-{max(shown):.2f})"
        )


if __name__ == "__main__":
    main()
