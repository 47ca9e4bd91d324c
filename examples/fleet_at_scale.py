"""Compute the cost of converting a hub of 1 PB, and simulate the 1,000 workers that do it.

    python examples/fleet_at_scale.py [MODELS]

The simulation, of 100,000 models by default, needs simpy (pip install simpy) and a minute.
docs/scale.md explains the numbers.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

# What was measured: see docs/scale.md. Sizes in bytes, times in seconds.
CHUNK = 16 << 20
THREAD_RATE = 0.42e9  # a worker's thread converts and verifies so many bytes of a model per second
STORED = 0.67  # of a model's bytes
SUBMIT, ASSIGN = 0.0022, 0.0031  # the client's and the scheduler's time for a job
WAITING = 8  # jobs at the scheduler, for each thread
# Published prices of S3 in us-east-1: of 1,000 requests, and of a GB for a month.
PUT, GET, STORAGE = 0.005 / 1000, 0.0004 / 1000, 0.021


@dataclass(frozen=True)
class Hub:
    """Models in a bucket: how many, and of what size, with how many tensors and groups of them."""

    models: int
    nbytes: int
    tensors: int
    groups: int

    @property
    def chunks(self) -> int:
        """Chunks of a model: at least one of each tensor."""
        return max(self.tensors, self.nbytes // CHUNK + self.tensors // 2)

    @property
    def puts(self) -> int:
        """Requests that write or list: chunks, documents, the root and its note, two lists."""
        return self.models * (self.chunks + self.tensors + self.groups + 6)

    @property
    def gets(self) -> int:
        """Requests that read: chunks of the source and of the store, samples, documents."""
        return self.models * (2 * self.chunks + self.tensors // 2 + 10)


@dataclass(frozen=True)
class Workers:
    """Workers of one thread each, which may be slow, or die and be replaced."""

    count: int
    slow: float = 0.01  # so many of them
    slowness: float = 5.0
    hours_to_death: float = 24.0
    seconds_to_replace: float = 120.0


def simulate(jobs: list[float], workers: Workers, seed: int = 0) -> tuple[float, int]:
    """Return how long a cluster takes for jobs, given in seconds of a thread, and lost jobs."""
    import simpy

    env, rng = simpy.Environment(), random.Random(seed)
    todo: Any = simpy.Store(env)
    scheduler: Any = simpy.Resource(env, 1)
    room: Any = simpy.Container(env, WAITING * workers.count, WAITING * workers.count)
    lost, finished = [0], simpy.Container(env, init=0)

    def client() -> Generator[Any, Any, None]:
        for job in jobs:
            yield room.get(1)
            yield env.timeout(SUBMIT)
            yield todo.put(job)

    def worker() -> Generator[Any, Any, None]:
        speed = 1 / workers.slowness if rng.random() < workers.slow else 1.0
        death = env.now + rng.expovariate(1 / (3600 * workers.hours_to_death))
        while True:
            job = yield todo.get()
            with scheduler.request() as turn:
                yield turn
                yield env.timeout(ASSIGN)
            seconds = job / speed * rng.lognormvariate(0, 0.2)
            if env.now + seconds > death:  # the job goes to another worker
                yield env.timeout(max(0.0, death - env.now))
                lost[0] += 1
                yield todo.put(job)
                yield env.timeout(workers.seconds_to_replace)
                death = env.now + rng.expovariate(1 / (3600 * workers.hours_to_death))
                continue
            yield env.timeout(seconds)
            yield room.put(1)
            yield finished.put(1)

    env.process(client())
    for _ in range(workers.count):
        env.process(worker())
    env.run(finished.get(len(jobs)))
    return env.now, lost[0]


def show_costs(hub: Hub) -> None:
    """Print the requests of a conversion, and what they and the bytes cost."""
    nbytes = hub.models * hub.nbytes
    saved = nbytes * (1 - STORED) / 1e12
    money = 1000 * saved * STORAGE
    print(f"{hub.models:,} models of {hub.nbytes / 1e9:.0f} GB, {hub.chunks:,} chunks each:")
    print(f"  requests that write or list {hub.puts / 1e6:6.1f} million  {hub.puts * PUT:7.0f} $")
    print(f"  requests that read          {hub.gets / 1e6:6.1f} million  {hub.gets * GET:7.0f} $")
    print(f"  storage that is saved       {saved:6.1f} TB       {money:7.0f} $ a month")
    print(f"  hours of a thread           {nbytes / THREAD_RATE / 3600:6.0f}")


def jobs_of(sizes: list[float], most: float) -> list[float]:
    """Return the jobs for models: one for each, and batches of those above a size, at the end."""
    whole = [size / THREAD_RATE for size in sizes if size <= most]
    batches = [job for size in sizes if size > most for job in batches_of(size, 1000)]
    return whole + batches


def batches_of(nbytes: float, workers: int) -> list[float]:
    """Return the jobs for one model on so many workers: see `batch_nbytes` in the package."""
    batch = max(16 << 20, min(1 << 30, max(workers << 21, int(nbytes / (16 * workers)))))
    return [batch / THREAD_RATE] * int(nbytes // batch + 1)


def show_run(what: str, jobs: list[float], workers: Workers) -> None:
    """Simulate jobs, and print how near the time is to that of perfect workers."""
    took, lost = simulate(jobs, workers)
    ideal = sum(jobs) / workers.count
    print(f"  {what:46} {took:6.0f} s, at best {ideal:5.0f} s: {ideal / took:.2f}; {lost:3} lost")


def main(models: int = 100_000) -> None:
    """Print all, with a simulation of so many models."""
    hub = Hub(models=100_000, nbytes=10_000_000_000, tensors=300, groups=400)
    show_costs(hub)
    rng, perfect = random.Random(1), Workers(1000, slow=0, hours_to_death=1e9)
    sizes = [hub.nbytes / 1.65 * rng.lognormvariate(0, 1) for _ in range(models)]
    fleet = jobs_of(sizes, 64 << 30)
    print(f"1,000 workers, {models:,} models:")
    show_run("perfect workers", fleet, perfect)
    show_run("one of 100 is slow, each dies once a day", fleet, Workers(1000))
    show_run("each dies once an hour", fleet, Workers(1000, hours_to_death=1))
    show_run("a job for each model, however large", jobs_of(sizes, 1e15), Workers(1000))
    print("one model of 1 TB, in batches:")
    for count in (1000, 100, 10):
        show_run(f"{count:,} workers", batches_of(1e12, count), Workers(count))


if __name__ == "__main__":
    if len(sys.argv) > 2 or not all(argument.isdecimal() for argument in sys.argv[1:]):
        sys.exit("usage: fleet_at_scale.py [MODELS]")
    main(*map(int, sys.argv[1:]))
