"""Measure how fast zarr-python writes and reads an array, without a codec and with several.

    python examples/measure_zarr.py [FOLDER] [--chunk BYTES] [--format 2|3] [--shard]

The array has 268 MB of normal bfloat16 numbers, in FOLDER or in memory. Zarr is configured by the
environment: for example, ZARR_ASYNC__CONCURRENCY=2. Codecs take turns; each line has medians, with
minimum and maximum, of GB/s for the whole array and of milliseconds for one row.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import zarr
from zarr.storage import LocalStore, MemoryStore

import bf16codecs
from bf16codecs.zarr import BF16BlocksCodec

COLUMNS = 4096


def codecs_for(zarr_format: int) -> dict[str, dict]:
    """Return the arguments of create_array for each contender."""
    codec = bf16codecs.BF16Arithmetic()
    arguments = {"none": {"compressors": None}, "BF16Arithmetic": {"compressors": codec}}
    if zarr_format == 3:  # in format 2, the default does not support bfloat16
        arguments["default"] = {}
        arguments["blocks"] = {"serializer": BF16BlocksCodec(codec), "compressors": None}
    return arguments


def measure(array: zarr.Array, data: np.ndarray) -> dict[str, float]:
    """Time writing and reading an array, and reading some of its rows."""
    rows = np.random.default_rng(0).integers(0, len(data), 32).tolist()
    times = [time.perf_counter()]
    array[:] = data
    times.append(time.perf_counter())
    whole = array[:]
    times.append(time.perf_counter())
    for row in rows:
        array[row]
    times.append(time.perf_counter())
    assert whole.tobytes() == data.tobytes()
    write, read, read_rows = np.diff(times)
    gigabytes, row_ms = data.nbytes / 1e9, read_rows / len(rows) * 1e3
    return {"write": gigabytes / write, "read": gigabytes / read, "row ms": row_ms}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--chunk", type=int, default=1 << 23)
    parser.add_argument("--format", type=int, choices=(2, 3), default=3)
    parser.add_argument("--shard", action="store_true", help="eight chunks a shard")
    parser.add_argument("--rows", type=int, default=1 << 15, help="of 4096 numbers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write-empty", action="store_true", help="write_empty_chunks=True")
    parser.add_argument("--only", action="append", help="a name from the first column")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    data = (rng.standard_normal((options.rows, COLUMNS), dtype="f4") * 0.02).astype("bfloat16")
    chunks = (max(1, options.chunk // (2 * COLUMNS)), COLUMNS)
    shards = (8 * chunks[0], COLUMNS) if options.shard else None
    arrays = {}
    for name, codec in codecs_for(options.format).items():
        if options.only and name not in options.only:
            continue
        store = LocalStore(options.folder / name) if options.folder else MemoryStore()
        arrays[name] = zarr.create_array(
            store,
            shape=data.shape,
            dtype="bfloat16",
            chunks=chunks,
            shards=shards,
            zarr_format=options.format,
            fill_value=float("nan"),
            overwrite=True,
            config={"write_empty_chunks": options.write_empty},
            **codec,
        )
    results = {name: [] for name in arrays}
    for _ in range(options.rounds + 1):
        for name, array in arrays.items():
            results[name].append(measure(array, data))
    for name, rounds in results.items():
        text = ""
        for label in rounds[0]:
            rates = [r[label] for r in rounds[1:]]  # the first round warms up
            text += f"  {label} {statistics.median(rates):.2f} ({min(rates):.2f}-{max(rates):.2f})"
        print(f"{name:>15}{text}")


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError) as error:
        sys.exit(f"measure_zarr.py: {error}")
