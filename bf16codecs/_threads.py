"""Bounded parallel work: jobs run ahead on a few threads, results come in order."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TypeVar

from bf16codecs import _core

__all__ = ["codec_threads", "run_ahead", "run_all", "worker_count"]

Result = TypeVar("Result")

# Reading, hashing and writing overlap with coding. The codecs share out one chunk over all their
# threads, so more chunks in flight cost memory and gain nothing (2, 3 and 4 measured the same).
_MAX_WORKERS = 3
_POLL_SECONDS = 0.1


def worker_count() -> int:
    """Return how many chunks to work on at a time."""
    return min(_core.get_num_threads(), _MAX_WORKERS)


@contextmanager
def codec_threads(threads: int | None) -> Iterator[None]:
    """Let the codecs use this many threads for a while; None leaves them as they are."""
    if threads is None:
        yield
        return
    if threads < 1:
        raise ValueError(f"threads must be at least 1, not {threads}")
    before = _core.get_num_threads()
    _core.set_num_threads(threads)
    try:
        yield
    finally:
        _core.set_num_threads(before)


def run_ahead(
    jobs: Iterable[Callable[[], Result]], workers: int, waiting: int = 1
) -> Generator[Result, None, None]:
    """Run jobs on threads, and yield their results in the order of the jobs.

    Jobs are taken one by one, and results yielded, in the calling thread: what may only happen
    there, such as calling HDF5 while its lock is held, belongs into the making of jobs. The first
    error stops the rest, and is raised once no job is running any more.

    Parameters
    ----------
    jobs
        Taken as there is room for them: a damaged store may promise any number.
    workers
        How many run at a time. A single one is the calling thread itself.
    waiting
        How many more, done or not begun, may wait for an earlier one's result to be taken.
    """
    jobs = iter(jobs)
    first = list(itertools.islice(jobs, 2))
    if workers <= 1 or len(first) < 2:
        for job in itertools.chain(first, jobs):
            yield job()
        return
    queue: SimpleQueue[tuple[Future[Result], Callable[[], Result]] | None] = SimpleQueue()
    pending: deque[Future[Result]] = deque()
    try:
        for _ in range(workers):
            threading.Thread(target=_work, args=(queue,), daemon=True).start()
        for job in itertools.chain(first, jobs):
            future: Future[Result] = Future()
            pending.append(future)
            queue.put((future, job))
            if len(pending) >= workers + waiting:
                yield _result(pending)
        while pending:
            yield _result(pending)
    finally:
        running = [future for future in pending if not future.cancel()]
        for _ in range(workers):
            queue.put(None)
        # No job may go on after an interruption: what it writes is about to be removed. Threads
        # are not joined, because Ctrl-C in join() marks a running one as ended, up to Python 3.12.
        while not all(future.done() for future in running):
            time.sleep(_POLL_SECONDS / 10)


def run_all(jobs: Iterable[Callable[[], None]], concurrency: int) -> None:
    """Run all jobs; the first exception stops the rest and is raised here.

    Parameters
    ----------
    jobs
        Each reads and decodes a part of something.
    concurrency
        How many reads at a time pay off; 0 if jobs have to run in the calling thread. One chunk is
        decoded by all codec threads; others in flight overlap reading with that.
    """
    threads = _core.get_num_threads()
    overlapping = min(threads + 1, _MAX_WORKERS) if threads > 1 else 1
    workers = max(concurrency, overlapping) if concurrency else 1
    # A slow request must not keep the others waiting.
    for _ in run_ahead(jobs, workers, waiting=4 * workers):
        pass


def _work(queue: SimpleQueue[tuple[Future[Result], Callable[[], Result]] | None]) -> None:
    while (item := queue.get()) is not None:
        future, job = item
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(job())
            except BaseException as e:
                future.set_exception(e)
        # Not kept while waiting for the next: a result may be large.
        del item, future, job


def _result(pending: deque[Future[Result]]) -> Result:
    while True:
        # A wait without limit could not be interrupted on Windows.
        wait([pending[0]], _POLL_SECONDS)
        if pending[0].done():
            return pending.popleft().result()
