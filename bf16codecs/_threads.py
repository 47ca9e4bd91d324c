"""Runs numbered jobs on a few threads, with what must happen in order done in order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from bf16codecs import _core

__all__ = ["Turns", "codec_threads", "run_jobs", "worker_count"]

Job = TypeVar("Job")

# Reading, hashing and writing overlap with coding. The codecs share out one chunk over all their
# threads, so more chunks in flight cost memory and gain nothing (2, 3 and 4 measured the same).
_MAX_WORKERS = 3
_POLL_SECONDS = 0.1


def worker_count() -> int:
    """Return how many chunks to have in flight."""
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


class _Stopped(Exception):
    """Raised in a worker that waits for its turn when another one has failed."""


class Turns:
    """Lets jobs pass one at a time, in the order of their numbers."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._next = 0
        self._stopped = False

    @contextmanager
    def turn(self, number: int) -> Iterator[None]:
        """Wait for the turn of job `number`; leaving the block begins the next one's."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._next == number)
            if self._stopped:
                raise _Stopped
        yield
        with self._changed:
            self._next += 1
            self._changed.notify_all()

    def stop(self) -> None:
        """Wake all that wait, with an exception."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()


class _Run(Generic[Job]):
    def __init__(self, jobs: Iterable[Job], turns: Turns) -> None:
        self.jobs = enumerate(jobs)
        self.turns = turns
        self.lock = threading.Lock()
        self.done = 0
        self.active = 0  # workers that have not ended
        self.ended = threading.Event()
        self.error: BaseException | None = None
        self.stopped = False

    def claim(self) -> tuple[int, Job] | None:
        with self.lock:
            return None if self.stopped else next(self.jobs, None)

    def finish(self, amount: int) -> None:
        with self.lock:
            self.done += amount

    def start(self, thread: threading.Thread) -> None:
        with self.lock:
            self.active += 1
        try:
            thread.start()
        except BaseException:
            if thread.ident is None:
                self.end()
            raise

    def end(self) -> None:
        with self.lock:
            self.active -= 1
        self.ended.set()

    def stop(self, error: BaseException | None = None) -> None:
        with self.lock:
            self.stopped = True
            if self.error is None and not isinstance(error, _Stopped):
                self.error = error
        self.turns.stop()


def run_jobs(
    jobs: Iterable[Job],
    make_worker: Callable[[], Callable[[int, Job], int]],
    turns: Turns,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Run all jobs; the first exception stops the rest and is raised here.

    Parameters
    ----------
    jobs
        Begun in this order, and taken one by one: a damaged store may promise any number.
    make_worker
        Called once in each thread; what it returns is called with each job and its number, and
        returns how much progress that was.
    turns
        What the workers pass; it is stopped with them.
    progress
        Called now and then with the progress so far, in the calling thread.
    """
    run = _Run(jobs, turns)

    def work() -> None:
        try:
            worker = make_worker()
            while (job := run.claim()) is not None:
                run.finish(worker(*job))
        except BaseException as e:
            run.stop(e)
        finally:
            run.end()

    try:
        for _ in range(worker_count()):
            run.start(threading.Thread(target=work, daemon=True))
        while run.active > 0:
            # A wait without limit could not be interrupted on Windows.
            run.ended.wait(_POLL_SECONDS)
            run.ended.clear()
            if progress is not None:
                progress(run.done)
    finally:
        # After Ctrl-C as well no worker may be left: what it writes is about to be removed. A
        # thread's own word is not enough: Ctrl-C in join() marks a running one as ended, up to
        # Python 3.12.
        run.stop()
        while run.active > 0:
            time.sleep(_POLL_SECONDS / 10)
    if run.error is not None:
        raise run.error
