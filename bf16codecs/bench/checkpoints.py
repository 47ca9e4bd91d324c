"""Benchmark of a run of checkpoints: its size, the bytes that appending writes, and reading times.

For comparison, each checkpoint is converted to stores of its own, whole and as differences to each
earlier one; the smallest is the best choice by hand. Everything is verified, or compared with its
digest when it is restored.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bf16codecs._base import interrupt as _interrupt
from bf16codecs._base.dtypes import DTYPE_BITS
from bf16codecs._base.paths import given_path, require_folder_of
from bf16codecs._files.reading import disk_size
from bf16codecs.convert import (
    append_to_run,
    hdf5_to_safetensors,
    safetensors_to_hdf5,
    safetensors_to_zarr,
    zarr_to_safetensors,
)
from bf16codecs.convert.plan import NoCommonTensorError
from bf16codecs.convert.runs.members import check_series
from bf16codecs.convert.runs.step_numbers import ordered_steps, step_of
from bf16codecs.convert.sources import opened_source
from bf16codecs.model import open_model, open_run
from bf16codecs.store.opening import open_run_store

__all__ = ["RunResult", "StepResult", "measure_run"]

# Opening takes only a millisecond, so many repeats are cheap.
_OPENINGS = 30


@dataclass(frozen=True)
class StepResult:
    """Results of one step; sizes in bytes, times in seconds.

    Attributes
    ----------
    number, parent : int, int or None
        The step, and its parent in the run.
    items : int
        Number of its items.
    whole, smallest : int
        Size of its whole store, and of its smallest store, whole or with an earlier step as base.
    base : int or None
        Base of the smallest store.
    in_run, grown : int
        Size of its versions in the run's chunks, and growth of the run.
    written : int or None
        Bytes that the process wrote to append it; None if the system does not count them.
    whole_seconds, step_seconds : float
        Medians of the time to restore it from its whole store, and from the run.
    """

    number: int
    parent: int | None
    items: int
    whole: int
    smallest: int
    base: int | None
    in_run: int
    grown: int
    written: int | None
    whole_seconds: float
    step_seconds: float


@dataclass(frozen=True)
class RunResult:
    """Results of all steps; size of the run; median seconds to open the run, and a model."""

    steps: list[StepResult]
    nbytes: int
    open_seconds: float
    open_model_seconds: float


def measure_run(
    sources: Sequence[str | os.PathLike[str]],
    *,
    as_hdf5: bool = False,
    repeats: int = 5,
    threads: int = 1,
    folder: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] | None = None,
    done: Callable[[StepResult], None] | None = None,
    **options: Any,
) -> RunResult:
    """Append checkpoints to a run one by one, and compare the run with one store a checkpoint.

    Parameters
    ----------
    sources : sequence of paths
        Safetensors models with step numbers in their names or metadata.
    as_hdf5 : bool
        Write HDF5 files instead of Zarr folders.
    repeats : int
        How often to restore each.
    threads : int
        Threads of conversions.
    folder : path, optional
        Folder with room for all stores, which are removed; by default the system's for temporary
        files.
    progress : callable, optional
        Called with a label before each step.
    done : callable, optional
        Called with each step's result.
    **options
        `codec`, `level` and `keyframe_every`, as `safetensors_to_run` takes them.

    Returns
    -------
    RunResult

    Raises
    ------
    SafetensorsError
        If a source is damaged, or has no step number.
    StoreError
        If a source has no tensor in common with earlier ones.
    FileNotFoundError
        If `folder` does not exist.
    ValueError
        If `folder` is an empty string.
    """
    parent = None if folder is None else given_path(folder, "folder of the stores")
    if parent is not None:
        require_folder_of(Path(parent) / "stores")
    paths = {step_of(opened_source(path), path).value: path for path in sources}
    checkpoints = ordered_steps(sources)
    check_series(checkpoints, allow_changed_tensors=True)
    numbers = [number for number, _ in checkpoints]
    with _interrupt.temporary(), tempfile.TemporaryDirectory(dir=parent) as temporary:
        stores = _Stores(Path(temporary), as_hdf5, threads, options)
        steps = []
        for i, number in enumerate(numbers):
            if progress is not None:
                progress(f"step {number}")
            steps.append(_measure_step(stores, paths, numbers[: i + 1], repeats))
            if done is not None:
                done(steps[-1])
        run, whole = stores.run, stores.path(numbers[-1], None)
        return RunResult(
            steps,
            disk_size(run),
            _median(lambda: open_run(run).close()),
            _median(lambda: open_model(whole).close()),
        )


class _Stores:
    """All stores of the benchmark, in one folder and one container format."""

    def __init__(self, folder: Path, as_hdf5: bool, threads: int, options: dict[str, Any]) -> None:
        self._folder, self._as_hdf5, self._threads = folder, as_hdf5, threads
        self._run_options = options
        self._options = {k: v for k, v in options.items() if k != "keyframe_every"}
        self.run = folder / f"run{self._suffix}"

    @property
    def _suffix(self) -> str:
        return ".h5" if self._as_hdf5 else ".zarr"

    def path(self, number: int, base: int | None) -> Path:
        """Return the path of a step's store, whole or with another step as base."""
        name = str(number) if base is None else f"{number}-on-{base}"
        return self._folder / f"{name}{self._suffix}"

    def convert(self, source: str | os.PathLike[str], number: int, base: int | None) -> int | None:
        """Make the store of a step; return its size, or None if the base shares no tensor."""
        convert = safetensors_to_hdf5 if self._as_hdf5 else safetensors_to_zarr
        store = self.path(number, base)
        base_store = None if base is None else self.path(base, None)
        try:
            convert(
                source, store, base=base_store, threads=self._threads, sync=False, **self._options
            )
        except NoCommonTensorError:
            return None  # both steps have tensors in common with other steps
        return disk_size(store)

    def append(self, source: str | os.PathLike[str], number: int) -> int | None:
        """Append a step to the run; return how many bytes this process wrote."""
        before = _written_nbytes()
        append_to_run(
            source,
            self.run,
            number,
            as_hdf5=self._as_hdf5,
            threads=self._threads,
            verify=False,
            allow_changed_tensors=True,
            **self._run_options,
        )
        after = _written_nbytes()
        return None if before is None or after is None else after - before

    def restore(self, store: str) -> float:
        """Restore a step's files; return the seconds taken."""
        restore = hdf5_to_safetensors if self._as_hdf5 else zarr_to_safetensors
        target = self._folder / "restored"
        start = time.perf_counter()
        restore(
            store,
            target,
            threads=self._threads,
            overwrite=True,
            sync=False,
            max_bytes=sys.maxsize,  # trusted: it was just made
        )
        return time.perf_counter() - start


def _measure_step(
    stores: _Stores,
    paths: Mapping[int, str | os.PathLike[str]],
    numbers: Sequence[int],
    repeats: int,
) -> StepResult:
    """Measure the last of the given steps; the stores of earlier ones exist."""
    number, source = numbers[-1], paths[numbers[-1]]
    stored = {base: stores.convert(source, number, base) for base in (None, *numbers[:-1])}
    sizes = {base: size for base, size in stored.items() if size is not None}
    smallest = min(sizes, key=sizes.__getitem__)
    before = disk_size(stores.run)
    written = stores.append(source, number)
    with closing(open_run_store(stores.run)) as run:
        parent = run.run.steps[-1].parent
        in_run = run.step(number).total_nbytes()
    # With a warm cache, and in turns, since machines drift.
    wholes, steps = [], []
    for _ in range(repeats):
        wholes.append(stores.restore(str(stores.path(number, None))))
        steps.append(stores.restore(f"{stores.run}@{number}"))
    tensors = [t for header in opened_source(source).headers for t in header.tensors]
    return StepResult(
        number,
        None if parent is None else numbers[parent],
        sum(8 * tensor.nbytes // DTYPE_BITS[tensor.dtype] for tensor in tensors),
        sizes[None],
        sizes[smallest],
        smallest,
        in_run,
        disk_size(stores.run) - before,
        written,
        statistics.median(wholes),
        statistics.median(steps),
    )


def _median(call: Callable[[], None]) -> float:
    """Return the median seconds of `_OPENINGS` calls, without a first one."""
    call()
    seconds = []
    for _ in range(_OPENINGS):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _written_nbytes() -> int | None:
    """Return the bytes that this process has written; None except on Linux."""
    try:
        lines = Path("/proc/self/io").read_text("utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("wchar:")), None)
