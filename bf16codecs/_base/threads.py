"""Bounded parallel work: jobs run ahead on a few threads, results come in order."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from bf16codecs import _core
from bf16codecs._base import interrupt as _interrupt
from bf16codecs._base.arguments import as_integer
from bf16codecs._base.forks import make_lock
from bf16codecs._base.limits import IN_FLIGHT_BYTES

__all__ = [
    "MAX_THREADS",
    "codec_threads",
    "configured_threads",
    "run_ahead",
    "run_all",
    "set_num_threads",
    "worker_count",
]

Result = TypeVar("Result")

#: The native core refuses more.
MAX_THREADS = 1024

# Reading, hashing and writing overlap with coding. The codecs split one chunk among all their
# threads, so more chunks in flight cost memory and gain nothing: with two processors, 2, 3 and 4
# measured the same. Where many code, copying to and from files takes longer: half as many copy.
_FEW_WORKERS, _MAX_WORKERS = 3, 6
_POLL_SECONDS = 0.1


def worker_count() -> int:
    """Return how many chunks to work on at a time."""
    threads = _core.get_num_threads()
    return min(threads, max(_FEW_WORKERS, min(_MAX_WORKERS, threads // 2)))


def set_num_threads(n: int) -> None:
    """Let the codecs use `n` threads, from now on and in all of this process.

    Parameters
    ----------
    n : int
        1 to 1024.

    Raises
    ------
    TypeError
        If it is no integer.
    ValueError
        If it is less than 1, or more than 1024.
    """
    _set(n, "the number of threads")


def _set(threads: int, name: str) -> None:
    threads = as_integer(name, threads)
    if not 1 <= threads <= MAX_THREADS:
        raise ValueError(f"{name} must be 1 to {MAX_THREADS}, not {threads}")
    _core.set_num_threads(threads)


# The uses of `codec_threads` that have not ended, the last one last: several threads may have one.
_uses: list[list[int]] = []
_uses_lock = make_lock()
_configured = 1


@contextmanager
def codec_threads(threads: int | None) -> Iterator[None]:
    """Let the codecs use `threads` threads inside the block; None changes nothing.

    Raises
    ------
    TypeError
        If `threads` is no integer.
    ValueError
        If it is less than 1, or more than `MAX_THREADS`.
    """
    global _configured
    if threads is None:
        yield
        return
    use = [threads]
    with _uses_lock:
        if not _uses:
            _configured = _core.get_num_threads()
        _set(threads, "threads")
        _uses.append(use)
    try:
        yield
    finally:
        with _uses_lock:
            # By identity: uses by several threads end in any order.
            _uses[:] = [other for other in _uses if other is not use]
            _core.set_num_threads(_uses[-1][0] if _uses else _configured)


def configured_threads() -> int:
    """Return how many threads the codecs use outside of all `codec_threads`."""
    with _uses_lock:
        return _configured if _uses else _core.get_num_threads()


class _Task(Generic[Result]):
    """A job that a worker runs, unless the pool has been stopped by then."""

    def __init__(self, job: Callable[[], Result]) -> None:
        # The first to take it decides: a worker runs it, `_WorkerPool.stop` leaves it. Taking it is
        # one operation, with the GIL and without.
        self._job = [job]
        self._value: Result
        self._error: BaseException | None = None
        self.is_done = False

    def take(self) -> Callable[[], Result] | None:
        """Return the job the first time, None from then on."""
        try:
            return self._job.pop()
        except IndexError:
            return None

    def run(self) -> None:
        job = self.take()
        if job is None:
            return
        try:
            self._value = job()
        except BaseException as e:
            self._error = e
        del job  # frees what it holds before the result is taken
        self.is_done = True

    def result(self) -> Result:
        if self._error is not None:
            error, self._error = self._error, None
            try:
                raise error
            finally:
                del error  # its traceback leads back here: memory would wait for the collector
        return self._value


class _WorkerPool(Generic[Result]):
    """Threads that work through a queue of tasks; `pending` has those whose results are not taken.

    The calling thread and the workers share only simple queues: Ctrl-C can leave a future's lock
    held, but not theirs.
    """

    def __init__(self, workers: int) -> None:
        self._todo: SimpleQueue[_Task[Result] | None] = SimpleQueue()
        self._done: SimpleQueue[None] = SimpleQueue()
        self._most, self._workers = workers, 0
        self.pending: deque[_Task[Result]] = deque()

    def add(self, job: Callable[[], Result]) -> None:
        """Queue a job, and start a further worker as long as these are few."""
        task = _Task(job)
        self.pending.append(task)
        if self._workers < self._most:
            self._start()
        if self._workers:
            self._todo.put(task)

    def _start(self) -> None:
        self._workers += 1  # before Ctrl-C can arrive
        try:
            threading.Thread(target=self._work, daemon=True).start()
        except RuntimeError:
            # The system has no room for it: the earlier workers do all, or the calling thread.
            self._workers -= 1
            self._most = self._workers

    def _work(self) -> None:
        while (task := self._todo.get()) is not None:
            task.run()
            self._done.put(None)
            del task  # not kept while waiting for the next: a result may be large

    def next_result(self) -> Result:
        """Wait for the task that was added first; let a signal end the wait."""
        if not self._workers:
            self.pending[0].run()  # here
        while not self.pending[0].is_done:
            _interrupt.check()
            # A wait without limit could not be interrupted on Windows.
            with suppress(Empty):
                self._done.get(timeout=_POLL_SECONDS)
        return self.pending.popleft().result()

    def stop(self) -> None:
        """Let the threads end; return when no task is running any more."""
        running = [task for task in self.pending if task.take() is None]
        for _ in range(self._workers):
            self._todo.put(None)
        # Threads are not joined, because Ctrl-C in join() marks a running one as ended, up to
        # Python 3.12.
        while not all(task.is_done for task in running):
            time.sleep(_POLL_SECONDS / 10)


def run_ahead(
    jobs: Iterable[Callable[[], Result]], workers: int, waiting: int = 1
) -> Generator[Result, None, None]:
    """Run jobs on threads, and yield their results in the order of the jobs.

    Jobs are taken one by one, and results yielded, in the calling thread: calls that may only
    happen there, such as to HDF5 while its lock is held, belong into the making of jobs. The first
    error stops the rest. When this ends, in whatever way, no job is running any more: the caller
    may be about to remove the files that jobs write.

    Parameters
    ----------
    jobs
        Taken as there is room for them: a damaged store may promise any number.
    workers
        How many jobs run at a time. A single worker is the calling thread itself.
    waiting
        How many more, done or not begun, may wait for an earlier one's result to be taken.
    """
    jobs = iter(jobs)
    first = list(itertools.islice(jobs, 2))
    if workers <= 1 or len(first) < 2:
        for job in itertools.chain(first, jobs):
            _interrupt.check()
            yield job()
        return
    pool: _WorkerPool[Result] = _WorkerPool(workers)
    try:
        for job in itertools.chain(first, jobs):
            pool.add(job)
            if len(pool.pending) >= workers + waiting:
                yield pool.next_result()
        while pool.pending:
            yield pool.next_result()
    finally:
        with _interrupt.shielded():
            pool.stop()


def run_all(jobs: Iterable[Callable[[], None]], concurrency: int, job_nbytes: int = 0) -> None:
    """Run all jobs; the first exception stops the rest and is raised here.

    Parameters
    ----------
    jobs
        Each reads and decodes a part of something.
    concurrency
        How many reads at a time pay off; 0 if jobs have to run in the calling thread. One chunk is
        decoded by all codec threads; others in flight overlap reading with that.
    job_nbytes
        How much memory a job may take: fewer run at a time if that is much.
    """
    threads = _core.get_num_threads()
    overlapping = min(threads + 1, _FEW_WORKERS) if threads > 1 else 1
    workers = max(concurrency, overlapping) if concurrency else 1
    workers = min(workers, max(1, IN_FLIGHT_BYTES // max(1, job_nbytes)))
    # A slow request must not keep the others waiting; local data are in memory by then.
    waiting = 4 * workers if concurrency > 1 else 1
    with closing(run_ahead(jobs, workers, waiting)) as results:
        for _ in results:
            pass
