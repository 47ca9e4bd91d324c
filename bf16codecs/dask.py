"""Conversions on a dask cluster: many processes or machines read, encode and decode.

The workers must see the source and the target under the same paths as the client, or in an object
store, and have the same version of this package. Results are byte for byte what one process would
make. When a worker dies, dask runs its tasks elsewhere; a target still appears only when it is
complete and verified.
"""

from __future__ import annotations

import os
import pickle
import re
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, NoReturn, TypeVar

from bf16codecs._base import interrupt as _interrupt
from bf16codecs._base.arguments import as_integer, for_caller
from bf16codecs._base.cluster import ClusterError, Killed, on_cluster
from bf16codecs._base.messages import counted, from_extra
from bf16codecs._base.paths import given_path
from bf16codecs._base.threads import MAX_THREADS
from bf16codecs._base.version import __version__
from bf16codecs.convert import safetensors_to_zarr as _safetensors_to_zarr
from bf16codecs.convert.summary import Summary

with from_extra("dask", for_caller("bf16codecs.dask", "--dask")):
    import cloudpickle
    from distributed import Client, Future, KilledWorker, as_completed
    from distributed.comm import CommClosedError

__all__ = ["cluster", "safetensors_to_zarr"]

Result = TypeVar("Result")

# How often to ask for results, and for workers; and how long a cluster may be without any.
_POLL_SECONDS, _LOOK_SECONDS = 0.01, 2
_PATIENCE_SECONDS = 60


@contextmanager
def cluster(client: Client | str, threads: int = 1) -> Iterator[None]:
    """Let the conversions inside the block run on a cluster.

    These are the functions of `bf16codecs.convert`, and `bf16codecs.analysis.analyze`. HDF5 files,
    ZIP files and lossy stores are written by this process alone. The block holds for the thread
    that enters it; the argument `threads` of the functions is for this process.

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
    threads = as_integer("threads", threads, range(1, MAX_THREADS + 1))
    if not isinstance(client, str):
        if client.asynchronous:
            raise ValueError("the client is asynchronous: conversions wait for it")
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
        raise ClusterError(f"{client}: no dask scheduler answers: {_one_line(e)}") from e
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
    threads = options.pop("threads", None)
    with cluster(client, 1 if threads is None else threads):
        return _safetensors_to_zarr(src, store, **options)


class _DaskCluster:
    """Runs jobs on the workers of a client's cluster."""

    def __init__(self, client: Client, threads: int) -> None:
        self._client, self.threads = client, threads

    @property
    def slots(self) -> int:
        """How many jobs run at a time, for now."""
        return sum(self._client.nthreads().values())

    def run(
        self,
        jobs: Iterable[Callable[[], Result]],
        killed: Killed[Result] | None = None,
        ahead: int = 8,
    ) -> Generator[tuple[int, Result], None, None]:
        """Run jobs, and yield their numbers and results as they come: see `Cluster`."""
        client, numbered, threads = self._client, enumerate(jobs), _Threads(self)
        waiting = as_completed(loop=client.loop, with_results=True, raise_errors=False)
        pending: dict[str, tuple[int, Future]] = {}

        def submit() -> None:
            """Submit some jobs at once: one by one, each takes the client ten times as long."""
            more = dict(islice(numbered, max(0, ahead * threads.count - len(pending))))
            calls = [cloudpickle.dumps(_Call(job)) for job in more.values()]
            futures = client.map(pickle.loads, calls, pure=False)
            pending.update((f.key, (n, f)) for n, f in zip(more, futures, strict=True))
            waiting.update(futures)

        try:
            submit()
            while pending:
                _interrupt.check()
                threads.look()
                done = waiting.next_batch(block=False)
                if not done:
                    time.sleep(_POLL_SECONDS)
                submit()
                for future, result in done:
                    number, _ = pending.pop(future.key)
                    # By now, the result of a finished one may be lost to others.
                    error = result[1] if future.status == "error" else result
                    if not (future.status == "error" or isinstance(error, CancelledError)):
                        yield number, result
                    elif killed is not None and isinstance(error, KilledWorker):
                        yield number, killed(number, _reason(error))
                    else:
                        _raise(error)
        except (CancelledError, CommClosedError) as e:
            raise ClusterError(f"the dask cluster failed: {_reason(e)}") from e
        finally:
            if pending:
                with suppress(CommClosedError):
                    client.cancel([future for _, future in pending.values()])

    def everywhere(self, call: Callable[[], object]) -> None:
        """Call a function in each worker, as far as they answer."""
        with suppress(OSError, CancelledError):
            self._client.run(call, on_error="ignore")


class _Threads:
    """How many threads a cluster has, which may grow; it must not be without any for long."""

    def __init__(self, cluster: _DaskCluster) -> None:
        self._cluster = cluster
        self._seen_at = self._looked_at = time.monotonic()
        self.count = max(1, cluster.slots)

    def look(self) -> None:
        """Count them again if that was a while ago; raise ClusterError if all are gone."""
        now = time.monotonic()
        if now - self._looked_at < _LOOK_SECONDS:
            return
        self._looked_at = now
        count = self._cluster.slots
        if count:
            self.count, self._seen_at = count, now
        elif now - self._seen_at > _PATIENCE_SECONDS:
            raise ClusterError(
                f"the dask cluster failed: it has had no workers for {_PATIENCE_SECONDS} s"
            )


def _raise(error: BaseException) -> NoReturn:
    """Raise the error of a task, or that its workers died, or that it was cancelled."""
    if isinstance(error, KilledWorker):
        raise ClusterError(f"the dask cluster failed: {_reason(error)}")
    if isinstance(error, CancelledError):
        raise ClusterError("the dask cluster failed: the scheduler is gone")
    raise error


class _Call:
    """A job whose result is what unpickling it returns.

    The scheduler unpickles what it gets from the client, but not this: it may have neither this
    package nor credentials.
    """

    def __init__(self, job: Callable[[], Any]) -> None:
        self._job = job

    def __reduce__(self) -> tuple[Any, ...]:
        return _run, (self._job, __version__)


def _run(job: Callable[[], Result], version: str) -> Result:
    """Run a job on a worker, which may have joined after the others were checked."""
    if version != __version__:
        raise ClusterError(
            f"a dask worker has bf16codecs {__version__}, and the client {version}: install the"
            " same version"
        )
    return job()


def _checked(client: Client, threads: int) -> _DaskCluster:
    """Return the cluster of a client; raise ConnectionError if its workers cannot do the jobs."""
    try:
        # Functions of Python's own: a worker may have no `bf16codecs`, or not what jobs need of it.
        look = "(__import__('bf16codecs').__version__, __import__('bf16codecs.dask'))[0]"
        found = client.run(eval, look, on_error="return")
    except (OSError, CancelledError) as e:
        raise ClusterError(f"the dask cluster failed: {_reason(e)}") from e
    if not found:
        raise ClusterError("the dask cluster has no workers")
    for address, version in found.items():
        if version != __version__:
            has = f"bf16codecs {version}"
            if isinstance(version, Exception):
                has = f"a fault: {_one_line(version)}"
                if isinstance(version, ModuleNotFoundError) and version.name == "bf16codecs":
                    has = "no bf16codecs"
            raise ClusterError(
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
