"""The cluster of processes or machines that the caller has chosen for conversions, if any.

`bf16codecs.dask.cluster` chooses one of dask.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Protocol, TypeVar

__all__ = [
    "Cluster",
    "ClusterError",
    "Killed",
    "NotSeenError",
    "batch_nbytes",
    "batches",
    "current_cluster",
    "on_cluster",
    "run_batches",
]

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Returns the result of a job that cannot be done, given its number and the reason.
Killed = Callable[[int, str], Result]

# A job takes the scheduler and the client 5 ms, in which a thread encodes 2 MiB: with less for each
# thread, threads wait for the scheduler. 16 jobs for each keep all busy to the end.
_LEAST_BYTES, _MOST_BYTES = 1 << 24, 1 << 30
_LEAST_OF_EACH, _JOBS_OF_EACH = 1 << 21, 16


class ClusterError(ConnectionError):
    """A cluster has failed, or cannot do the jobs."""


class NotSeenError(FileNotFoundError):
    """A worker does not see a path that the client sees."""

    @classmethod
    def at(cls, path: str) -> NotSeenError:
        """Return the error of this worker."""
        text = (
            f"not found by the worker on {socket.gethostname()}: workers need a disk that all"
            " machines share, or an object store"
        )
        return cls(errno.ENOENT, text, path)


class Cluster(Protocol):
    """Workers that run jobs, each in a process of its own.

    Attributes
    ----------
    threads
        How many threads the codecs use in each job.
    """

    threads: int

    @property
    def slots(self) -> int:
        """How many jobs run at a time, for now."""

    def run(
        self,
        jobs: Iterable[Callable[[], Result]],
        killed: Killed[Result] | None = None,
        ahead: int = 8,
    ) -> Generator[tuple[int, Result], None, None]:
        """Run jobs, and yield their numbers and results as they come.

        Jobs and results travel between processes. A job may run twice, after a worker was lost, and
        may still run after this has ended. The first error cancels the rest; but `killed`, if
        given, returns the result of a job, by its number, whose workers died one after the other.
        For each thread, `ahead` jobs wait, or their results do.
        """

    def everywhere(self, call: Callable[[], object]) -> None:
        """Call a function in each worker, as far as they answer."""


_chosen: ContextVar[Cluster | None] = ContextVar("bf16codecs cluster", default=None)


def current_cluster() -> Cluster | None:
    """Return the cluster that the calling thread's conversions run on; None for this process."""
    return _chosen.get()


@contextmanager
def on_cluster(cluster: Cluster | None) -> Iterator[None]:
    """Let conversions inside the block run on a cluster, or in this process."""
    token = _chosen.set(cluster)
    try:
        yield
    finally:
        _chosen.reset(token)


def batch_nbytes(cluster: Cluster, total: int) -> int:
    """Return the size of batches that is best for a cluster and so many bytes in all."""
    slots = max(1, cluster.slots)
    wanted = max(slots * _LEAST_OF_EACH, total // (slots * _JOBS_OF_EACH))
    return max(_LEAST_BYTES, min(_MOST_BYTES, wanted))


def batches(
    items: Iterable[Item], size: Callable[[Item], int], nbytes: int, most: int = 1 << 30
) -> Iterator[list[Item]]:
    """Group items into batches of at most so many bytes, or of one item, and so many items."""
    batch: list[Item] = []
    total = 0
    for item in items:
        if batch and (total + size(item) > nbytes or len(batch) == most):
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += size(item)
    if batch:
        yield batch


def run_batches(
    cluster: Cluster,
    job: Callable[[Sequence[Item]], int],
    items: Iterable[Item],
    size: Callable[[Item], int],
    progress: Callable[[int, int], None] | None,
    total: int,
) -> None:
    """Run a job on batches of items; it returns their size, of a total that is known."""
    done = 0
    todo = batches(items, size, batch_nbytes(cluster, total))
    with closing(cluster.run(partial(job, batch) for batch in todo)) as results:
        for _, nbytes in results:
            done += nbytes
            if progress is not None:
                progress(done, total)
