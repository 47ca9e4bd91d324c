"""Publish weights after each step of a training, to two followers that stay equal to the trainer.

    python publish_weights.py RUN [--steps 100] [--width 1024] [--layers 4]

A policy in bfloat16 learns with weights in float32, whose steps are small, as in reinforcement
learning: about 1 % of the bfloat16 values change each time. Two other processes follow RUN, a
folder, and keep the policy in their memory. One of them is killed after 40 % of the steps, and
returns after 60 %. At the end, digests of all weights at all steps are compared.
"""

import argparse
import hashlib
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch.nn import Linear, ReLU, Sequential

from bf16codecs.torch import follow, load_into, publish


def policy(width: int, layers: int) -> Sequential:
    """Return a policy in bfloat16."""
    torch.manual_seed(0)
    parts = [part for _ in range(layers) for part in (Linear(width, width), ReLU())]
    return Sequential(*parts).bfloat16()


def digest(model: Sequential) -> str:
    """Return a digest of all weights."""
    found = hashlib.blake2b(digest_size=8)
    for tensor in model.state_dict().values():
        found.update(tensor.view(torch.int16).numpy().tobytes())
    return found.hexdigest()


def serve(run: str, width: int, layers: int, last: int) -> None:
    """Follow a run until its last step, and print step, digest and seconds of each update."""
    model, before = policy(width, layers), None
    for weights in follow(run, timeout=60):
        start = time.perf_counter()
        load_into(model, weights, have=before)
        seconds = time.perf_counter() - start
        before = weights
        print(weights.step, digest(model), seconds, flush=True)
        if weights.step == last:
            break


class Trainer:
    """Trains a policy with weights in float32."""

    def __init__(self, width: int, layers: int) -> None:
        self.model = policy(width, layers)
        self._width = width
        self._wide = policy(width, layers).float()
        self._optimizer = torch.optim.AdamW(self._wide.parameters(), lr=1e-6, weight_decay=0)
        self._target = torch.randn(width, width, generator=torch.manual_seed(1)) / width**0.5

    def train(self) -> float:
        """Make one step; return the share of bfloat16 values that it has changed."""
        batch = torch.randn(16, self._width)
        self._optimizer.zero_grad()
        (self._wide(batch) - batch @ self._target).square().mean().backward()
        self._optimizer.step()
        changed = total = 0
        with torch.no_grad():
            for own, wide in zip(self.model.parameters(), self._wide.parameters(), strict=True):
                new = wide.bfloat16()
                changed += int((new != own).sum())
                total += new.numel()
                own.copy_(new)
        return changed / total


class Follower:
    """A process that follows a run, and what it prints in a file."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        self.log, self._arguments = log, arguments
        log.write_text("")  # one of an earlier run
        self.start()

    def start(self) -> None:
        """Begin, again after a kill, and wait for a first step: importing PyTorch takes seconds."""
        with self.log.open("a") as log:
            size = log.tell()
            command = [sys.executable, __file__, *self._arguments, "--follow"]
            self.process = subprocess.Popen(command, stdout=log)
        while self.log.stat().st_size == size and self.process.poll() is None:
            time.sleep(0.05)

    def lines(self) -> dict[int, tuple[str, float]]:
        """Return digest and seconds of each step that it has seen."""
        rows = (line.split() for line in self.log.read_text().splitlines())
        return {int(step): (digest, float(seconds)) for step, digest, seconds in rows}


def main() -> None:
    """Train, publish, and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", help="a folder that does not exist yet")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--follow", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.steps < 2:
        parser.error("--steps must be at least 2")
    torch.set_num_threads(1)
    if args.follow:
        serve(args.run, args.width, args.layers, args.steps - 1)
        return
    if Path(args.run).exists():
        sys.exit(f"{args.run}: exists: name another folder")
    sizes = ["--steps", str(args.steps), "--width", str(args.width), "--layers", str(args.layers)]
    logs = [Path(f"{args.run}.follower-{number}.txt") for number in (1, 2)]
    trainer, digests, shares, nbytes, seconds = Trainer(args.width, args.layers), [], [], [], []
    publish(args.run, trainer.model.state_dict(), 0, keep_last=16)
    digests.append(digest(trainer.model))
    followers = [Follower([args.run, *sizes], log) for log in logs]
    for step in range(1, args.steps):
        shares.append(trainer.train())
        start = time.perf_counter()
        done = publish(args.run, trainer.model.state_dict(), step, keep_last=16)
        seconds.append(time.perf_counter() - start)
        nbytes.append(done.change_nbytes)
        digests.append(digest(trainer.model))
        if step == args.steps * 2 // 5:
            followers[1].process.kill()
            followers[1].process.wait()
        if step == args.steps * 3 // 5:
            followers[1].start()
    for number, follower in enumerate(followers, 1):
        if follower.process.wait():
            sys.exit(f"follower {number} failed: see {follower.log}")

    values = sum(parameter.numel() for parameter in trainer.model.parameters())
    size = statistics.mean(nbytes)
    print(f"{values:,} values, {2 * values / 1e6:.1f} MB; {args.steps} steps")
    print(f"values that a step changes: {statistics.mean(shares):.2%}")
    print(f"bytes of a step: {size:,.0f}, {8 * size / values:.3f} bits per value")
    print(f"seconds to publish: {statistics.median(seconds):.3f}")
    for number, follower in enumerate(followers, 1):
        seen = follower.lines()
        equal = sum(digests[step] == found for step, (found, _) in seen.items())
        median = statistics.median(time for _, time in seen.values())
        print(
            f"follower {number}: {len(seen)} steps, {equal} of them equal to the trainer's;"
            f" seconds to apply: {median:.3f}"
        )
        if equal < len(seen) or args.steps - 1 not in seen:
            sys.exit("a follower has other weights than the trainer")


if __name__ == "__main__":
    main()
