"""The cluster of processes or machines that the caller has chosen for conversions, if any.

`bf16codecs.dask.cluster` chooses one of dask.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol, TypeVar

__all__ = ["Cluster", "Killed", "batches", "current_cluster", "on_cluster"]

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Returns the result of a job that cannot be done, given its number and the reason.
Killed = Callable[[int, str], Result]

# A task's overhead is about a millisecond; encoding this much takes a hundred.
_BATCH_BYTES = 1 << 27


class Cluster(Protocol):
    """Workers that run jobs, each in a process of its own.

    Attributes
    ----------
    threads
        How many threads the codecs use in each job.
    """

    threads: int

    def run(
        self, jobs: Iterable[Callable[[], Result]], killed: Killed[Result] | None = None
    ) -> Generator[tuple[int, Result], None, None]:
        """Run jobs, and yield their numbers and results as they come.

        Jobs and results travel between processes. A job may run twice, after a worker was lost, and
        may still run after this has ended. The first error cancels the rest; but `killed`, if
        given, returns the result of a job, by its number, whose workers died one after the other.
        """


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


def batches(items: Iterable[Item], size: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Group items into batches, each of which is worth a job."""
    batch: list[Item] = []
    total = 0
    for item in items:
        if batch and total + size(item) > _BATCH_BYTES:
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += size(item)
    if batch:
        yield batch
