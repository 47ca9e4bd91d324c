"""Faults that the store fuzzer's watch has to notice, instead of its child's work."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from store_fuzz_bench import Plan
from store_fuzz_drive import Verdict


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _wait() -> None:
    time.sleep(600)


def _loop() -> None:
    while True:
        pass


def _hoard() -> None:
    hoard = []
    for _ in range(100):  # step by step, so that the watch sees it grow, and in little time
        hoard.append(b"x" * (10 << 20))
        time.sleep(0.005)
    time.sleep(600)
    del hoard


#: By the group of findings that each ends in.
TRAPS: dict[str, Callable[[], None]] = {
    "died with -9": _die,
    "hangs": _wait,
    "time": _loop,
    "memory beyond all bounds": _hoard,
}


def work(pipe: Any, plan: Plan, start: int) -> None:
    """Walk into one trap after the other, with a sound case between them."""
    with open(plan.trace, "w") as trace:
        faulthandler.register(signal.SIGUSR1, trace)
        for number, (name, trap) in enumerate(TRAPS.items()):
            if number >= start:
                pipe.send(("case", number, f"{name}/trap/0", "", plan.workspace))
                trap()
        pipe.send(("case", len(TRAPS), "sound/trap/0", "", plan.workspace))
        pipe.send(("verdict", Verdict()))
        pipe.send(("end", {}))
