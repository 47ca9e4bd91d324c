"""Conversions on a dask cluster: many processes or machines read, encode and decode.

The workers must see the source and the target under the same paths as the client, or in an object
store, and have the same version of this package. Results are byte for byte what one process would
make. When a worker dies, dask runs its tasks elsewhere; a target still appears only when it is
complete and verified.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

from bf16codecs._base import interrupt as _interrupt
from bf16codecs._base.arguments import for_caller
from bf16codecs._base.cluster import Killed, on_cluster
from bf16codecs._base.messages import counted, from_extra
from bf16codecs._base.paths import given_path
from bf16codecs._base.threads import MAX_THREADS
from bf16codecs._base.version import __version__
from bf16codecs.convert import safetensors_to_zarr as _safetensors_to_zarr
from bf16codecs.convert.summary import Summary

with from_extra("dask", for_caller("bf16codecs.dask", "--dask")):
    from distributed import Client, Future, KilledWorker, as_completed
    from distributed.comm import CommClosedError

__all__ = ["cluster", "safetensors_to_zarr"]

Result = TypeVar("Result")

# Jobs that wait at the scheduler, for each thread of the cluster: more take its memory alone.
_WAITING = 8


@contextmanager
def cluster(client: Client | str, threads: int = 1) -> Iterator[None]:
    """Let the conversions inside the block run on a cluster.

    These are all functions of `bf16codecs.convert`, except those that make HDF5 files or ZIP files,
    and `bf16codecs.analysis.analyze`. Each thread has a block of its own.

    Parameters
    ----------
    client
        A client, or the address of a scheduler; then the connection is closed at the end.
    threads
        How many threads the codecs use in each task. A worker runs one task for each of its
        threads.

    Raises
    ------
    ConnectionError
        If no scheduler answers, no worker has joined it, or a worker has no or another version of
        this package; inside the block, if the cluster fails.

    Examples
    --------
    >>> from bf16codecs.convert import safetensors_to_zarr, verify_store
    >>> with cluster("tcp://host:8786"):  # doctest: +SKIP
    ...     safetensors_to_zarr("s3://models/llama", "s3://stores/llama.zarr")
    ...     verify_store("s3://stores/llama.zarr")
    """
    if not 1 <= threads <= MAX_THREADS:
        raise ValueError(f"threads must be 1 to {MAX_THREADS}, not {threads}")
    if not isinstance(client, str):
        with on_cluster(_checked(client, threads)):
            yield
        return
    if not re.fullmatch(r"(\w+://)?.+:\d+/?", client):
        raise ValueError(
            f"{client!r} is not the address of a dask scheduler, such as tcp://host:8786"
        )
    try:
        connected = Client(client, set_as_default=False)
    except (OSError, ValueError) as e:
        raise ConnectionError(f"{client}: no dask scheduler answers: {_one_line(e)}") from e
    with connected, on_cluster(_checked(connected, threads)):
        yield


def safetensors_to_zarr(
    src: str | os.PathLike[str],
    store: str | os.PathLike[str],
    client: Client | str,
    **options: Any,
) -> Summary:
    """Convert safetensors files to a model store on a dask cluster.

    Parameters
    ----------
    src, store
        As for `bf16codecs.convert.safetensors_to_zarr`, on a file system that all workers see, or
        at addresses. The target is a folder, or one in an object store.
    client
        A client, or the address of a scheduler.
    options
        Other arguments of `bf16codecs.convert.safetensors_to_zarr`. `threads` is the number for
        each task, by default one.

    Returns
    -------
    Summary

    Raises
    ------
    ConnectionError
        As `cluster` does.
    """
    given_path(src, "source")
    given_path(store, "target")
    with cluster(client, options.pop("threads", None) or 1):
        return _safetensors_to_zarr(src, store, **options)


class _DaskCluster:
    """Runs jobs on the workers of a client's cluster."""

    def __init__(self, client: Client, threads: int) -> None:
        self._client, self.threads = client, threads

    def run(
        self, jobs: Iterable[Callable[[], Result]], killed: Killed[Result] | None = None
    ) -> Generator[tuple[int, Result], None, None]:
        """Run jobs, and yield their numbers and results as they come: see `Cluster`."""
        client, numbered = self._client, enumerate(jobs)
        waiting = as_completed(loop=client.loop, with_results=True, raise_errors=False)
        pending: dict[str, tuple[int, Future]] = {}

        def submit() -> None:
            for number, job in numbered:
                future = client.submit(_run, job, __version__, pure=False)
                pending[future.key] = number, future
                waiting.add(future)
                return

        try:
            for _ in range(_WAITING * max(1, sum(client.nthreads().values()))):
                submit()
            for future, result in waiting:
                _interrupt.check()
                number, _ = pending.pop(future.key)
                submit()
                if future.status == "finished":
                    yield number, result
                elif killed is not None and isinstance(result[1], KilledWorker):
                    yield number, killed(number, _reason(result[1]))
                else:
                    _raise(result)
        except (CancelledError, CommClosedError) as e:
            raise ConnectionError(f"the dask cluster failed: {_reason(e)}") from e
        finally:
            if pending:
                client.cancel([future for _, future in pending.values()])


def _raise(result: Any) -> NoReturn:
    """Raise the error of a task: its type, itself and its traceback, or that it was cancelled."""
    error = result[1] if isinstance(result, tuple) else result
    if isinstance(error, BaseException) and not isinstance(error, (KilledWorker, CancelledError)):
        raise error.with_traceback(result[2] if isinstance(result, tuple) else None)
    reason = _reason(error) if isinstance(error, KilledWorker) else "the scheduler is gone"
    raise ConnectionError(f"the dask cluster failed: {reason}")


def _run(job: Callable[[], Result], version: str) -> Result:
    """Run a job on a worker, which may have joined after the others were checked."""
    if version != __version__:
        raise ConnectionError(
            f"a dask worker has bf16codecs {__version__}, and the client {version}: install the"
            " same version"
        )
    return job()


def _checked(client: Client, threads: int) -> _DaskCluster:
    """Return the cluster of a client; raise ConnectionError if its workers cannot do the jobs."""
    try:
        # Functions of Python's own: a worker may have no `bf16codecs`.
        found = client.run(eval, "__import__('bf16codecs').__version__", on_error="return")
    except (OSError, CancelledError) as e:
        raise ConnectionError(f"the dask cluster failed: {_reason(e)}") from e
    if not found:
        raise ConnectionError("the dask cluster has no workers")
    for address, version in found.items():
        if version != __version__:
            has = f"bf16codecs {version}"
            if isinstance(version, Exception):
                is_missing = isinstance(version, ModuleNotFoundError)
                has = "no bf16codecs" if is_missing else f"a fault: {_one_line(version)}"
            raise ConnectionError(
                f"the dask worker {address} has {has}, and the client {__version__}: install the"
                " same version"
            )
    return _DaskCluster(client, threads)


def _reason(error: BaseException) -> str:
    if isinstance(error, KilledWorker):
        times = counted(error.allowed_failures + 1, "worker")
        return f"{times} died while they ran one task: they may have too little memory"
    return _one_line(error)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
