"""Measure how fast rows and whole models are read from a local store, beside decoding alone.

    python examples/measure_reading.py STORE [TENSOR]

TENSOR is a matrix, by default the largest. Run it twice, so that the store is in the page cache.
Whole models are measured in processor time, which other programs hardly affect.
"""

import os
import sys
import time

import numpy as np

import bf16codecs


def row_times(store: str, name: str, count: int) -> tuple[float, np.ndarray]:
    """Return the seconds for opening and a first row, and those for each random row after it."""
    start = time.perf_counter()
    with bf16codecs.open_model(store) as model:
        tensor = model[name]
        tensor[0]
        opening = time.perf_counter() - start
        times = np.empty(count)
        rows = np.random.default_rng(0).integers(0, len(tensor), count).tolist()
        for i, row in enumerate(rows):
            start = time.perf_counter()
            tensor[row]
            times[i] = time.perf_counter() - start
    return opening, times


def best_processor_time(function) -> float:
    """Return the minimum processor time of five calls."""
    times = []
    for _ in range(5):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)


def frames_of(tensor: bf16codecs.LazyTensor) -> list[bytes]:
    """Return the tensor's stored chunks, each of which is a frame."""
    array = tensor.zarr
    grid = [-(-size // chunk) for size, chunk in zip(array.shape, array.chunks, strict=True)]
    keys = (array.metadata.encode_chunk_key(index) for index in np.ndindex(*grid))
    root = array.store_path.store._store.root / array.path
    return [(root / key).read_bytes() for key in keys]


def main(store: str, name: str = "") -> None:
    if not os.path.isdir(store):
        raise ValueError(f"{store}: not a folder: give a Zarr store, whose frames are read")
    with bf16codecs.open_model(store) as model:
        matrices = [t for t in model.values() if t.ndim == 2]
        name = name or max(matrices, key=lambda t: t.nbytes).name
        tensor = model[name]
        print(f"{name}: {tensor.dtype} {tensor.shape}, {tensor.nbytes / 1e6:.0f} MB")
        opening, rows = row_times(store, name, 1000)
        print(f"opening the store and one row: {opening * 1e3:.2f} ms")
        low, high = np.percentile(rows * 1e3, [50, 99])
        print(f"1000 random rows: median {low:.3f} ms, 99 % below {high:.3f} ms")

        frames = frames_of(tensor)
        buffer = np.empty(bf16codecs.inspect(frames[0])["raw_size"], np.uint8)

        def decode_into_one_buffer() -> None:
            for frame in frames:
                bf16codecs.decode(frame, out=buffer)

        def decode_into_new_arrays() -> None:
            arrays = [np.empty_like(buffer) for _ in frames]
            for frame, array in zip(frames, arrays, strict=True):
                bf16codecs.decode(frame, out=array)

        print(f"{bf16codecs.get_num_threads()} threads, GB for each second of processor time:")
        for label, function in [
            ("decoding alone, into one buffer", decode_into_one_buffer),
            ("decoding alone, into new arrays", decode_into_new_arrays),
            ("load", lambda: model.load(names=[name])),
        ]:
            print(f"  {label}: {tensor.nbytes / 1e9 / best_processor_time(function):.2f}")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: measure_reading.py STORE [TENSOR]")
    try:
        main(*sys.argv[1:])
    except (bf16codecs.errors.BF16CodecsError, OSError, ValueError) as error:
        sys.exit(f"measure_reading.py: {error}")
