"""Runs reading jobs on a few threads."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from bf16codecs import _core

__all__ = ["run_all"]

# One chunk is decoded by all codec threads; others in flight overlap reading with that.
_MAX_LOCAL = 3


def run_all(jobs: Iterable[Callable[[], None]], concurrency: int) -> None:
    """Run all jobs; the first exception stops the rest and is raised here.

    Parameters
    ----------
    jobs
        Taken one by one, as threads become free.
    concurrency
        How many at a time pay off, beside as many as overlap reading with decoding.
    """
    jobs = iter(jobs)
    first = list(itertools.islice(jobs, 2))
    threads = _core.get_num_threads()
    workers = max(concurrency, min(threads + 1, _MAX_LOCAL) if threads > 1 else 1)
    if len(first) < 2 or workers == 1:
        for job in itertools.chain(first, jobs):
            job()
        return
    with ThreadPoolExecutor(workers) as pool:
        running: set[Future[None]] = {pool.submit(job) for job in first}
        try:
            for job in jobs:
                if len(running) >= workers:
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        future.result()
                running.add(pool.submit(job))
            for future in running:
                future.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
