"""Measure how fast a model is loaded into a torch module, beside safetensors.

    python examples/measure_loading.py SRC [--gigabytes 2] [--rounds 5] [--folder FOLDER]

The model consists of large matrices, tiled with SRC's matrices in random orders of rows and
columns, so that no two are equal. It is written to a new folder in FOLDER. Then it is loaded in
turns from a store and from a safetensors file, into a module that has memory and into one on the
device "meta". The files are in the page cache as they were "written"; or the cache is "cold", so
that the disk counts; or "warm" from loading. If the system cannot drop files from the cache, only
"written" is measured. A module counts as loaded when a byte of each of its pages has been read,
since safetensors only maps the file for a module on "meta". Each line has the median of seconds,
with minimum and maximum, and the median of ratios to `safetensors.torch.load_file` in the same
round.
"""

import argparse
import inspect
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import bf16codecs
from bf16codecs.convert import safetensors_to_zarr

try:
    import safetensors.torch
    import torch
    from torch import nn

    import bf16codecs.torch
except ImportError as error:
    sys.exit(f"measure_loading.py: {error}: pip install 'bf16codecs[torch]' safetensors")

SHAPE = 4096, 2048
PAGE = 4096
REFERENCE = "safetensors"
CACHES = ["written", "cold", "warm"] if hasattr(os, "posix_fadvise") else ["written"]


def enlarged(source: str, nbytes: int) -> Iterator[torch.Tensor]:
    """Yield large matrices of a model's values until they take `nbytes`."""
    with bf16codecs.open_model(source, framework="torch") as model:
        matrices = [model.get_tensor(t.name) for t in model.values() if t.ndim == 2 and t.size]
    if not matrices:
        raise ValueError(f"{source}: no matrices")
    generator = torch.Generator().manual_seed(0)
    number = 0
    while nbytes > 0:
        matrix = matrices[number % len(matrices)]
        across, along = (max(1, n // size) for n, size in zip(SHAPE, matrix.shape, strict=True))

        def part(matrix: torch.Tensor = matrix) -> torch.Tensor:
            rows, columns = (torch.randperm(n, generator=generator) for n in matrix.shape)
            return matrix[rows][:, columns]

        yield torch.cat([torch.cat([part() for _ in range(along)], 1) for _ in range(across)])
        nbytes -= across * along * matrix.nbytes
        number += 1


def drop_from_cache(folder: Path) -> None:
    """Drop a folder's files from the page cache."""
    for path in (p for p in folder.rglob("*") if p.is_file()):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def ways(file: Path, store: Path) -> dict[str, Callable[[nn.Module, bool], None]]:
    """Return the functions that load into a module, by name."""

    def by_safetensors(module: nn.Module, is_meta: bool, **options) -> None:
        state = safetensors.torch.load_file(file, **options)
        module.load_state_dict(state, assign=is_meta)

    def by_pread(module: nn.Module, is_meta: bool) -> None:
        by_safetensors(module, is_meta, backend="pread")

    def by_load_into(module: nn.Module, is_meta: bool) -> None:
        bf16codecs.torch.load_into(module, store)

    functions = {REFERENCE: by_safetensors, "load_into": by_load_into}
    if "backend" in inspect.signature(safetensors.torch.load_file).parameters:
        functions["safetensors, pread"] = by_pread
    return functions


def module_for(file: Path, device: str) -> nn.Module:
    """Make a module for the file's tensors, in allocated memory or on "meta"."""
    tensors = {n: t.to("meta") for n, t in safetensors.torch.load_file(file).items()}
    return nn.ParameterDict({n: torch.ones_like(t, device=device) for n, t in tensors.items()})


def seconds(load: Callable[[nn.Module, bool], None], module: nn.Module, is_meta: bool) -> float:
    """Return the seconds until a module's tensors are in memory."""
    start = time.perf_counter()
    load(module, is_meta)
    for parameter in module.parameters():
        parameter.detach().view(torch.uint8).reshape(-1)[::PAGE].sum()
    return time.perf_counter() - start


def has_values_of(file: Path, module: nn.Module) -> bool:
    """Tell whether a module has the values of a file."""
    state = safetensors.torch.load_file(file)
    return all(tensor.equal(state[name]) for name, tensor in module.state_dict().items())


def measure(folder: Path, device: str, is_cold: bool, rounds: int) -> dict[str, list[float]]:
    """Load in turns; return the seconds of each way."""
    file, store = folder / "model.safetensors", folder / "model.zarr"
    memory = module_for(file, "cpu") if device == "cpu" else None
    times = {name: [] for name in ways(file, store)}
    for number in range(rounds + 1):
        for name, load in ways(file, store).items():
            module = memory or module_for(file, device)
            if is_cold:
                drop_from_cache(folder)
            taken = seconds(load, module, device == "meta")
            if number:  # the first round warms up
                times[name].append(taken)
            elif not has_values_of(file, module):
                raise ValueError(f"{name}: loaded other values")
            del module  # mapped files stay in the page cache
    return times


def show(label: str, times: dict[str, list[float]]) -> None:
    """Print the seconds of each way."""
    for way, taken in times.items():
        ratio = statistics.median(a / b for a, b in zip(taken, times[REFERENCE], strict=True))
        spread = f"{statistics.median(taken):.2f} ({min(taken):.2f}-{max(taken):.2f})"
        print(f"{label} {way:>18} {spread} ratio {ratio:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("--gigabytes", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--only", action="append", choices=CACHES)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        tensors = enumerate(enlarged(options.source, int(options.gigabytes * 1e9)))
        file = folder / "model.safetensors"
        safetensors.torch.save_file({str(i): t for i, t in tensors}, file)
        safetensors_to_zarr(file, folder / "model.zarr", verify=False)
        os.sync()  # unwritten pages cannot be dropped from the cache
        print(f"{file.stat().st_size / 1e9:.2f} GB, {bf16codecs.get_num_threads()} threads")
        for cache in (c for c in CACHES if c in (options.only or CACHES)):
            if cache != "written":
                drop_from_cache(folder)
            for device in ("cpu", "meta"):
                times = measure(folder, device, cache == "cold", options.rounds)
                show(f"{cache:>7} {device:>4}", times)


if __name__ == "__main__":
    try:
        main()
    except (bf16codecs.errors.BF16CodecsError, OSError, ValueError) as error:
        sys.exit(f"measure_loading.py: {error}")
