"""Fuzzes the readers of model stores.

    python tests/support/store_fuzz.py --minutes 5 --seed 1 --kind zarr

Small stores of every kind (`store_fuzz_seeds`) are damaged at every byte and every JSON value
(`store_fuzz_mutations`), and read in every way (`store_fuzz_drive`), in a child process whose time
and memory are measured. When it dies or has to be ended, another continues after that case.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from store_fuzz_bench import Plan, keep, work
from store_fuzz_drive import place_of
from store_fuzz_seeds import SEEDS, make_seeds

_SPAWN = multiprocessing.get_context("spawn")
# How many cases of a group of findings are shown.
_SHOWN = 3
# A child that exceeds its limits by this factor is ended before it harms others.
_TOO_MUCH_MEMORY = 4
_TOO_LONG = 3  # without using the processor: it is blocked
_POLL_SECONDS = 0.05


@dataclass
class Report:
    """The results of a run."""

    cases: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: By group: each case, its change, and details.
    findings: dict[str, list[tuple[str, str, str]]] = field(default_factory=dict)
    #: How often reading an HDF5 file's structures did not end well within h5py.
    foreign: Counter[str] = field(default_factory=Counter)
    #: How many cases there are, by seed and family.
    sizes: dict[str, dict[str, int]] = field(default_factory=dict)

    def find(self, group: str, case: str, label: str, detail: str) -> None:
        """Note a finding."""
        self.findings.setdefault(group, []).append((case, label, detail))

    def show(self, seconds: float) -> None:
        """Print counts, and some cases of each group of findings."""
        total = sum(self.cases.values())
        print(f"{total} stores in {seconds:.0f} s, {60 * total / max(seconds, 1e-9):.0f} a minute")
        for name, families in self.sizes.items():
            counts = ", ".join(f"{count} {family}" for family, count in families.items())
            print(f"  {name}: {self.cases[name]} (there are {counts})")
        probes: dict[str, Counter[str]] = {}
        for (probe, outcome), count in self.outcomes.items():
            probes.setdefault(probe, Counter())[outcome] += count
        for probe, outcomes in probes.items():
            listed = ", ".join(f"{n} {outcome}" for outcome, n in outcomes.most_common())
            print(f"{probe}: {listed}")
        for group, count in self.foreign.items():
            print(f"libhdf5 {group}: {count} files with damaged structures")
        print(f"{len(self.findings)} groups of findings")
        for group, cases in sorted(self.findings.items(), key=lambda item: -len(item[1])):
            print(f"- {len(cases)} x {group}")
            for case, label, detail in cases[:_SHOWN]:
                last = detail.strip().rpartition("\n")[2]
                print(f"    {case}  {label}\n      {last:.300}")


class Watch:
    """A child process, and its limits of time and memory.

    Parameters
    ----------
    plan, start
        The child's plan, and the number of the case that it begins with.
    report
        Records every case.
    work
        The function that the child runs.
    """

    def __init__(
        self, plan: Plan, start: int, report: Report, work: Callable[..., None] = work
    ) -> None:
        self._plan, self._report = plan, report
        self._pipe, theirs = _SPAWN.Pipe(duplex=False)
        self._process = _SPAWN.Process(target=work, args=(theirs, plan, start), daemon=True)
        self._process.start()
        theirs.close()
        #: The case that is running: its number, name, change, and the store's path.
        self._case: tuple[int, str, str, Path] | None = None
        self._since, self._spent, self._held = time.monotonic(), 0.0, 0

    def run(self) -> int | None:
        """Wait for the child; return the case to continue with if it did not end by itself."""
        while True:
            try:
                message = self._pipe.recv() if self._pipe.poll(_POLL_SECONDS) else ("nothing",)
            except EOFError:
                self._process.join()
                code = self._process.exitcode
                if self._case is None or code == 1:
                    raise RuntimeError(f"the fuzzer itself failed, at case {self._case}") from None
                return self._lose(f"died with {code}")
            match message:
                case "case", *case:
                    self._case = tuple(case)
                    self._since = time.monotonic()
                    self._spent, self._held, _ = self._figures()
                case "verdict", verdict:
                    assert self._case is not None
                    _, name, label, _ = self._case
                    self._case = None
                    self._report.cases[name.split("/")[0]] += 1
                    self._report.outcomes.update(verdict.outcomes)
                    for group, detail in verdict.findings:
                        self._report.find(group, name, label, detail)
                case "end", sizes:
                    self._report.sizes = sizes
                    self._process.join()
                    return None
                case _ if self._case is not None and (excess := self._excess()):
                    return self._lose(excess)

    def _excess(self) -> str:
        """Return the limit that the child exceeds, if it does."""
        spent, held, is_waiting = self._figures()
        if held - self._held > _TOO_MUCH_MEMORY * 1e6 * self._plan.megabytes:
            return "memory beyond all bounds"
        if spent - self._spent > self._plan.seconds:
            return "time"
        # On a busy machine, one that would run has to wait for the processor.
        is_late = time.monotonic() - self._since > _TOO_LONG * self._plan.seconds
        return "hangs" if is_late and is_waiting else ""

    def _figures(self) -> tuple[float, int, bool]:
        """Return seconds of processor time, bytes of memory, and whether the child is idle.

        The first two are 0 where the system has none of them.
        """
        try:
            text = Path(f"/proc/{self._process.pid}/stat").read_text()
        except OSError:
            return 0.0, 0, True
        fields = text.rpartition(")")[2].split()
        seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return seconds, int(fields[21]) * os.sysconf("SC_PAGE_SIZE"), fields[0] != "R"

    def _lose(self, group: str) -> int:
        """End the child and record its case as a finding; return the next case."""
        assert self._case is not None
        if hasattr(signal, "SIGUSR1") and self._process.is_alive():
            os.kill(self._process.pid or 0, signal.SIGUSR1)  # writes its stacks
            self._process.join(0.5)
        self._process.kill()
        self._process.join()
        number, name, label, path = self._case
        trace = self._plan.trace.read_text(errors="replace")[-20_000:]
        # The main thread is the last there, and its innermost frame comes first.
        frames = trace.rpartition("most recent call first")[2].splitlines()
        place = place_of("\n".join(reversed(frames)))
        self._report.cases[name.split("/")[0]] += 1
        if name.split("/")[1] in ("bytes", "journals") and "/h5py/" in "".join(frames[1:2]):
            # docs/trust.md, "What is not promised": the limits of libhdf5 are its own.
            self._report.foreign[group] += 1
            return number + 1
        self._report.find(f"{group}: {name.split('/')[1]} at {place}", name, label, trace)
        keep(path, self._plan, name)
        return number + 1


def _make_seeds(plan: Plan) -> None:
    warnings.simplefilter("ignore")
    make_seeds(plan.workspace, list(plan.names))


def run(plan: Plan) -> Report:
    """Run all cases of a plan."""
    # Not here: this process has no threads that it might hand on.
    maker = _SPAWN.Process(target=_make_seeds, args=(plan,))
    maker.start()
    maker.join()
    report, start = Report(), 0
    while start is not None:
        start = Watch(plan, start, report).run()
    return report


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1, help="how long to run")
    parser.add_argument("--cases", type=int, default=0, help="how many cases to run at most")
    parser.add_argument("--seed", type=int, default=0, help="chooses the sample")
    parser.add_argument("--kind", default="", help="regular expression of names of stores")
    parser.add_argument("--family", default="", help="regular expression of kinds of damage")
    parser.add_argument("--case", default="", help="run this case alone: STORE/FAMILY/NUMBER")
    parser.add_argument("--seconds", type=float, default=Plan.seconds, help="time of a case")
    parser.add_argument("--megabytes", type=float, default=Plan.megabytes, help="memory of a case")
    parser.add_argument("--keep", type=Path, help="folder for the damaged stores of findings")
    given = parser.parse_args()
    names = tuple(name for name in SEEDS if re.search(given.kind, name))
    if given.case:
        names = (given.case.split("/")[0],)
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        started = time.time()
        plan = Plan(
            Path(folder),
            names,
            given.family,
            given.seed,
            given.cases,
            started + 60 * given.minutes,
            given.seconds,
            given.megabytes,
            given.case,
        )
        report = run(plan)
        report.show(time.time() - started)
        if given.case:
            print(*(d for cases in report.findings.values() for _, _, d in cases), sep="\n")
        if given.keep is not None and (plan.workspace / "cases").exists():
            shutil.copytree(plan.workspace / "cases", given.keep, dirs_exist_ok=True)
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
