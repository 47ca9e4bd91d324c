"""The store fuzzer's child process: damages copies of stores, reads them, and mends them."""

from __future__ import annotations

import faulthandler
import math
import os
import random
import re
import shutil
import signal
import tarfile
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bf16codecs
from store_fuzz_bases import Bases
from store_fuzz_documents import documents, stored_headers, stored_texts
from store_fuzz_drive import Driver, Verdict
from store_fuzz_files import Files
from store_fuzz_hdf5 import Objects
from store_fuzz_journals import Journals
from store_fuzz_mutations import EVERYTHING, Bytes, Content, Json, Mutant
from store_fuzz_truth import Seed, load_seed
from store_fuzz_zip import ZipFields, ZipMembers

# Stores with larger files are not kept: these are hollow.
_LARGEST_KEPT = 1 << 26


@dataclass(frozen=True)
class Plan:
    """The cases to run, and the limits of each."""

    workspace: Path
    #: Of seeds.
    names: tuple[str, ...]
    #: Regular expression of families.
    families: str
    #: Chooses the sample.
    seed: int
    #: How many cases at most; 0 for no limit.
    cases: int
    #: When to end, as `time.time` counts.
    deadline: float
    #: Limits of one case: processor time, and growth of memory.
    seconds: float = 5
    megabytes: float = 300
    #: The one case to run, as STORE/FAMILY/NUMBER.
    only: str = ""

    @property
    def trace(self) -> Path:
        """Return the file to which the child's stacks are written."""
        return self.workspace / "trace"


def families(seed: Seed) -> dict[str, Sequence[Mutant]]:
    """Return all families of mutants of a seed."""
    found: dict[str, Sequence[Mutant]] = {
        "bytes": Bytes(seed),
        "json": Json(documents(seed)),
    }
    if headers := stored_headers(seed):
        found["header"] = Json(headers, EVERYTHING)
    if texts := stored_texts(seed):
        found["text"] = Json(texts)
    if seed.is_folder and not seed.is_in_memory:
        found["files"] = Files(seed)
    if seed.is_hdf5:
        found |= {"objects": Objects(seed), "journals": Journals(seed)}
    if seed.name.startswith("based"):
        found["bases"] = Bases(seed)
    if seed.is_zip:
        found |= {"zip-fields": ZipFields(seed), "zip-members": ZipMembers(seed)}
    return found


def schedule(
    plan: Plan, seeds: Mapping[str, Mapping[str, Sequence[Any]]]
) -> Iterator[tuple[str, str, int]]:
    """Yield the cases of a run: one of each family in turn, none twice, all in the end."""
    if plan.only:
        name, family, number = plan.only.split("/")
        yield name, family, int(number)
        return
    walks = []
    for name, found in seeds.items():
        for family, mutants in found.items():
            if re.search(plan.families, family):
                rng = random.Random(f"{plan.seed} {name} {family}")
                size = len(mutants)
                steps = iter(lambda size=size, rng=rng: rng.randrange(1, size + 1), None)
                step = next(step for step in steps if math.gcd(step, size) == 1)
                walks.append((name, family, size, rng.randrange(size), step))
    count = 0
    for turn in range(max(size for _, _, size, _, _ in walks)):
        for name, family, size, first, step in walks:
            if turn < size:
                yield name, family, (first + turn * step) % size
                count += 1
                if count == plan.cases:
                    return


class Bench:
    """A folder in which copies of seeds are damaged, read, and mended."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._root = plan, plan.workspace / "work"
        shutil.rmtree(self._root, ignore_errors=True)
        self._root.mkdir()
        self._seeds = {name: load_seed(plan.workspace, name) for name in plan.names}
        self.families = {name: families(seed) for name, seed in self._seeds.items()}
        self._drivers: dict[str, Driver] = {}

    def path(self, name: str) -> Path:
        """Return the store's path."""
        return self._root / name / self._seeds[name].store

    def run(self, name: str, family: str, number: int, mutant: Mutant) -> Verdict:
        """Read a damaged store."""
        seed, path = self._seeds[name], self.path(name)
        if name not in self._drivers:
            path.parent.mkdir()
            for key, content in seed.files.items():
                put(path, key, content)
            self._drivers[name] = Driver(seed, path)
        for key, content in mutant.changes.items():
            put(path, key, content)
        before, started = _memory(b"VmRSS"), time.process_time()
        _forget_peak()
        verdict = self._drivers[name].drive(mutant.unknowable, number)
        seconds, grown = time.process_time() - started, _memory(b"VmHWM") - before
        if seconds > self._plan.seconds:
            verdict.findings.append((f"time: {family}", f"{seconds:.1f} s"))
        if grown > self._plan.megabytes * 1e6:
            verdict.findings.append((f"memory: {family}", f"{grown / 1e6:.0f} MB"))
        if verdict.findings:
            keep(path, self._plan, f"{name}/{family}/{number}")
        for key in mutant.changes:
            mend(path, key, seed.files)
        return verdict


def put(path: Path, key: str, content: Content) -> None:
    """Replace a file of a store, or one beside it."""
    target = path.with_name(key[3:]) if key.startswith("../") else path / key if key else path
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    elif os.path.lexists(target):
        target.unlink()
    if isinstance(content, bytes):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    elif content is not None:
        content(target)


def mend(path: Path, key: str, files: Mapping[str, bytes]) -> None:
    """Undo `put`; the key may be a folder's."""
    put(path, key, files.get(key))
    for below, content in files.items():
        if below.startswith(f"{key}/"):
            put(path, below, content)


def keep(path: Path, plan: Plan, case: str) -> None:
    """Keep a damaged store."""
    folder = plan.workspace / "cases"
    folder.mkdir(exist_ok=True)
    with tarfile.open(folder / f"{case.replace('/', '-')}.tar", "w") as archive:
        archive.add(path, path.name, filter=lambda m: m if m.size < _LARGEST_KEPT else None)


def _memory(name: bytes) -> int:
    """Return a memory figure of this process in bytes; 0 where the system has none."""
    try:
        with open("/proc/self/status", "rb") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith(name))
    except OSError:
        return 0


def _forget_peak() -> None:
    try:
        with open("/proc/self/clear_refs", "wb") as file:
            file.write(b"5")
    except OSError:
        pass


def work(pipe: Any, plan: Plan, start: int) -> None:
    """Run cases from a number on, and report each before it starts."""
    warnings.simplefilter("ignore")
    trace = open(plan.trace, "w")  # noqa: SIM115  (as long as this process lives)
    faulthandler.enable(trace)
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, trace)
    outside = plan.workspace / "outside"
    outside.mkdir(exist_ok=True)
    tempfile.tempdir = str(outside)
    # With one thread, the same happens each time.
    bf16codecs.set_num_threads(1)
    bench = Bench(plan)
    for count, case in enumerate(schedule(plan, bench.families)):
        if count < start:
            continue
        if time.time() > plan.deadline:
            break
        seed, family, number = case
        mutant = bench.families[seed][family][number]
        pipe.send(("case", count, f"{seed}/{family}/{number}", mutant.label, bench.path(seed)))
        pipe.send(("verdict", bench.run(*case, mutant)))
    sizes = {n: {f: len(m) for f, m in found.items()} for n, found in bench.families.items()}
    pipe.send(("end", sizes))
