"""The driver of crashes.py: carries out operations in forked children, under faults.c.

Run as a script: reads a request in each line, as JSON, and answers it. Forking a process that has
imported everything takes a hundredth of the time of starting one.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import json
import math
import os
import random
import shutil
import signal
import sys
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from numcodecs import Zstd
from zarr.core.sync import cleanup_resources

import bf16codecs
from based_models import write_nearby
from bf16codecs import convert
from bf16codecs._files import publish as _replace
from bf16codecs._files import sync as _sync
from bf16codecs.convert import undo_append  # here, and not where memory fails
from bf16codecs.errors import LeftoverWarning, StoreError
from crashes import MOMENTS, OPERATIONS, Operation
from folders import Files, files_in, write_files
from models import write_model
from power_cut import Disk, read_log, states_during

Outcome = dict[str, Any]

ACTIONS = {"fail": 1, "full": 1, "kill": 2, "stop": 3}
#: Errors that an operation may raise when a system call fails.
ALLOWED = {None, "OSError", "FileExistsError", "MemoryError", "StoreError"}
#: How OpenSSL and h5py report that there is no memory, and how NumPy's all() does.
WITHOUT_MEMORY = {"ValueError", "SystemError"}
#: Errors beside another writer, which holds the lock or has added the step.
BESIDE = {"BlockingIOError", "FileExistsError", "FileNotFoundError", "StoreError", "ValueError"}
#: Errors while the store is replaced: where names cannot be exchanged, it briefly has none.
REPLACED = {"StoreError", "FileNotFoundError"}
JOURNAL_SUFFIX = ".bf16codecs-journal"
#: The next run's error where the killed one had finished.
DONE_BEFORE = {"FileExistsError", "ValueError"}
RENAMES = ("rename", "exchange", "link")


def pause_within(faults: ctypes.CDLL, method: str) -> None:
    """Let no allocation fail in a method of numcodecs' Zstd, which does not check them."""
    original = getattr(Zstd, method)

    def paused(*args: Any, **options: Any) -> Any:
        faults.faults_pause_allocations(1)
        try:
            return original(*args, **options)
        finally:
            faults.faults_pause_allocations(0)

    setattr(Zstd, method, paused)


def kind_of(error: BaseException) -> str:
    """Return an error's class name, or "MemoryError" if that caused it."""
    if isinstance(error, SystemError) and error.__cause__ is not None:
        return type(error.__cause__).__name__  # json of Python 3.12, in C
    return type(error).__name__


def digests(path: Path) -> list[str]:
    """Read a model tensor by tensor, and then at once; return the digest of each."""
    with bf16codecs.open_model(path) as model:
        one_by_one = {name: tensor[...] for name, tensor in model.items()}
        at_once = model.load()
    return [
        hashlib.sha256(repr([(n, a.tobytes()) for n, a in sorted(arrays.items())]).encode())
        .digest()
        .hex()
        for arrays in (one_by_one, at_once)
    ]


class Child:
    """Calls a function in forked children, in each of which a fault strikes one file operation.

    Parameters
    ----------
    folder
        Only operations below it count.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._faults = ctypes.CDLL(None)
        self._faults.faults_stop.restype = ctypes.c_long
        self._faults.faults_start.argtypes = [
            *[ctypes.c_char_p, ctypes.c_size_t, ctypes.c_long],
            *[ctypes.c_int] * 4,
        ]

    def run(
        self,
        call: Callable[[], Any],
        *,
        action: str = "fail",
        n: int = 0,
        meanwhile: Callable[[], None] = lambda: None,
        **options: Any,
    ) -> Outcome:
        """Return a call's outcome: its error and message, or the status of a dead child.

        Parameters
        ----------
        call
            What the child does.
        action, n
            What happens at the n-th operation; with 0, nothing.
        meanwhile
            Called while the child is stopped.
        options
            `allocation`: from which size on allocations count, instead of operations on files.
            `exchange`: whether names can be exchanged. `log`: where to note operations.
        """
        child, reading = self.start(call, action=action, n=n, **options)
        return self.finish(child, reading, meanwhile)

    def start(
        self, call: Callable[[], Any], action: str = "fail", n: int = 0, **options: Any
    ) -> tuple[int, int]:
        """Start a child as `run` does; return its process ID and the pipe with its outcome."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            self._in_child(call, action, n, writing, **options)
        os.close(writing)
        return child, reading

    def finish(
        self, child: int, reading: int, meanwhile: Callable[[], None] = lambda: None
    ) -> Outcome:
        """Wait for a child, and return its outcome."""
        status = os.waitpid(child, os.WUNTRACED)[1]
        while os.WIFSTOPPED(status):
            meanwhile()
            os.kill(child, signal.SIGCONT)
            status = os.waitpid(child, os.WUNTRACED)[1]
        with open(reading, "rb") as pipe:
            text = pipe.read()
        code = os.waitstatus_to_exitcode(status)
        return json.loads(text) if code == 0 else {"status": code}

    def _in_child(
        self,
        call: Callable[[], Any],
        action: str,
        n: int,
        writing: int,
        allocation: int = 0,
        exchange: bool = True,
        log: Path | None = None,
    ) -> None:
        done: Outcome = {"error": None, "said": ""}
        gc.disable()
        signal.alarm(300)  # ends what hangs
        time.sleep = lambda seconds: None  # who is waited for may be stopped
        file = -1 if log is None else os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        is_full = action == "full"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self._faults.faults_start(
                os.fsencode(self._folder), allocation, n, ACTIONS[action], is_full, exchange, file
            )
            if allocation:
                for method in ("encode", "decode"):
                    pause_within(self._faults, method)
            try:
                done["result"] = call()
            except BaseException as e:
                done["error"], done["said"] = kind_of(e), str(e)
            done["count"] = self._faults.faults_stop()
        done["leftover"] = any(w.category is LeftoverWarning for w in caught)
        with open(writing, "w") as pipe:
            json.dump(done, pipe)
        os._exit(0)


class Subject(ABC):
    """An operation, the files before it, and the files that it may leave."""

    def __init__(self, driver: Driver, operation: Operation) -> None:
        self.driver, self.root = driver, driver.root
        self.target = operation.target
        self.path = self.root / self.target
        self.is_hdf5 = self.target.endswith(".h5") or self.target == "shards"

    @abstractmethod
    def before(self) -> Files:
        """Return the files before the operation."""

    @abstractmethod
    def change(self) -> Any:
        """Carry out the operation."""

    @abstractmethod
    def beside(self) -> Any:
        """Carry out a concurrent writer's operation."""

    @abstractmethod
    def read(self) -> Any:
        """Read the store or run, as another process would."""

    @abstractmethod
    def left(self, done: Outcome, moment: str) -> Iterator[str]:
        """Yield violations of the contract, before and after the next run."""

    @abstractmethod
    def left_beside(self, done: Outcome, other: Outcome) -> Iterator[str]:
        """Yield violations of the contract after a concurrent write."""

    @abstractmethod
    def bad_reading(self, read: Outcome, exchange: bool) -> Iterator[str]:
        """Yield outcomes that a concurrent reader must not have."""

    @abstractmethod
    def cut(self, state: Files, has_ended: bool, folder: Path) -> Iterator[str]:
        """Yield violations of the contract after a loss of power."""

    def bad_end(self, done: Outcome, moment: str) -> Iterator[str]:
        """Yield the child's outcome if it is not allowed; system errors must name the target."""
        error, said = done.get("error"), done.get("said", "")
        if "status" in done and not (moment.startswith("killed") and done["status"] == -9):
            yield f"ended with status {done['status']}"
        more = {"no memory": WITHOUT_MEMORY, "another writer": BESIDE, "replaced": REPLACED}
        if error not in ALLOWED | more.get(moment, set()):
            yield f"{error}: {said}"
        if moment != "no memory" and error not in (None, "MemoryError") and self.target not in said:
            yield f"does not name the target: {error}: {said}"

    def prepare(self) -> None:
        """Write the files before the operation."""
        shutil.rmtree(self.root, ignore_errors=True)
        write_files(self.before(), self.root)


class Conversion(Subject):
    """Makes or replaces a target. Sources and stores to compare with are made once."""

    def __init__(self, driver: Driver, operation: Operation) -> None:
        super().__init__(driver, operation)
        self.has_old = operation.before == "old"
        self.expected, self.digests = driver.conversions(self.target)

    def before(self) -> Files:
        return self.expected["old"] if self.has_old else {}

    def change(self) -> Any:
        self.driver.convert(self.target, "new", self.root, self.has_old)

    def beside(self) -> None:
        self.driver.convert(self.target, "old", self.root, self.has_old)

    def read(self) -> list[str]:
        return digests(self.path)

    def left(self, done: Outcome, moment: str) -> Iterator[str]:
        is_done = not (done.get("error") or "status" in done)
        allowed = [self.expected["new"]] if is_done else [self.expected["new"], self.before()]
        # A process that survives reports what it leaves behind, unless it lacks memory for that.
        says_so = done.get("leftover") or moment == "no memory"
        if "status" not in done and not says_so and files_in(self.root) not in allowed:
            yield f"left {sorted(files_in(self.root))} after {done['said']!r}"
        yield from self._recovered(allowed, moment)

    def _recovered(self, allowed: list[Files], moment: str) -> Iterator[str]:
        _replace.recover_missing(self.path)
        if self.has_old and not os.path.lexists(self.path):
            yield "nothing has the name"
        _replace.recover(self.root)
        found = files_in(self.root)
        if found not in allowed and not (moment == "no memory" and self._is_other_hdf5()):
            yield f"has {sorted(found)} after recovery"

    def _is_other_hdf5(self) -> bool:
        """Tell whether libhdf5 made another file of the same model, for lack of memory."""
        if not self.target.endswith(".h5"):
            return False
        return {p.name for p in self.root.iterdir()} == {self.target} and set(
            digests(self.path)
        ) <= {self.digests["new"]}

    def left_beside(self, done: Outcome, other: Outcome) -> Iterator[str]:
        won = [not (each.get("error") or "status" in each) for each in (done, other)]
        if self.has_old:
            if won != [True, True] and not self.target.startswith("rebased"):
                yield f"of two writers, {done['said'] or other['said']!r}"
            allowed = [self.expected["new"], self.expected["old"]]
        else:
            if won.count(True) != 1:
                yield f"without overwrite, {won.count(True)} of two writers succeeded"
            allowed = [self.expected["new" if won[0] else "old"]]
        if files_in(self.root) not in allowed:
            yield f"left {sorted(files_in(self.root))} beside another writer"

    def bad_reading(self, read: Outcome, exchange: bool) -> Iterator[str]:
        may_miss = not (self.has_old and exchange)
        if read["error"] == "FileNotFoundError" and may_miss:
            return
        if read["error"] or len(set(read["result"])) != 1:
            yield f"a reader gets {read['error'] or 'a mixture'}: {read['said']}"
        elif read["result"][0] not in self.digests.values():
            yield "a reader gets another model"

    def cut(self, state: Files, has_ended: bool, folder: Path) -> Iterator[str]:
        if any(name.startswith(".") for name in state):
            if all("/" not in name and content is None for name, content in state.items()):
                state = {}  # an empty working folder
            else:
                _replace.recover(write_files(state, folder))
                state = files_in(folder)
        if state not in (
            [self.expected["new"]] if has_ended else [self.before(), self.expected["new"]]
        ):
            yield f"leaves {sorted(state)}" + (" though it had ended" if has_ended else "")


class Append(Subject):
    """Adds a step to a run, in place."""

    #: How many steps more than `count` the run has before and after.
    former, then = 0, 1

    def __init__(self, driver: Driver, operation: Operation) -> None:
        super().__init__(driver, operation)
        self.count = int(operation.before) - self.former
        #: Files of the run by number of extra steps, and the digests of the one with two.
        self.expected, self.digests = driver.runs(self.target, self.count)
        #: States that were checked: failures leave the same ones again and again.
        self._seen: set[tuple[bool, bytes]] = set()

    def before(self) -> Files:
        return self.expected[self.former]

    def change(self) -> None:
        self.driver.append(self.target, self.root, self.count)

    def beside(self) -> None:
        self.change()

    def read(self) -> list[int]:
        with bf16codecs.open_run(self.path) as opened:
            steps = opened.steps
        convert.verify_store(self.path)
        return list(steps)

    def left(self, done: Outcome, moment: str) -> Iterator[str]:
        found = files_in(self.root)
        is_done = not (done.get("error") or "status" in done)
        # A disk that takes nothing more cannot be tidied up.
        if "status" not in done and (is_done or moment != "disk full"):
            # A lock that cannot be removed does no harm, and the next append removes it. So it
            # does with a journal, which it carries out before.
            locks = ("/step/.appending", "/step/.appending/lock")
            left = {n: c for n, c in found.items() if not n.endswith(locks)}
            left = {n: c for n, c in left.items() if is_done or JOURNAL_SUFFIX not in n}
            yield from self._differences(left, [self.then] if is_done else [0, 1])
        yield from self._look(found, is_done)

    def left_beside(self, done: Outcome, other: Outcome) -> Iterator[str]:
        won = [not (each.get("error") or "status" in each) for each in (done, other)]
        if won.count(True) != 1:
            yield f"{won.count(True)} of two did it: {done['said']} {other['said']}"
        yield from self._differences(files_in(self.root), [self.then])
        yield from self._look(files_in(self.root), is_done=True)

    def bad_reading(self, read: Outcome, exchange: bool) -> Iterator[str]:
        if self.is_hdf5 and read["error"] == "BlockingIOError":
            return  # the journal is being carried out
        if read["error"] or read["result"] not in (self._steps(0), self._steps(1)):
            yield f"a reader gets {read}"

    def cut(self, state: Files, has_ended: bool, folder: Path) -> Iterator[str]:
        shutil.rmtree(self.root)
        write_files(state, self.root)
        for text in self._look(state, has_ended):
            yield text + (", though it had ended" if has_ended else "")

    def _steps(self, more: int) -> list[int]:
        return list(range(self.count + more))

    def _differences(self, found: Files, more: Iterable[int]) -> Iterator[str]:
        """Yield how files differ from the run with any of these numbers of extra steps."""
        expected = [self.expected[number] for number in more]
        if self.is_hdf5:
            # The same run has other bytes where nothing is, or is elsewhere in the file.
            found = dict.fromkeys(found)
            expected = [dict.fromkeys(files) for files in expected]
        if found not in expected:
            all_names = found.keys() | expected[0].keys()
            names = [n for n in all_names if found.get(n, 0) != expected[0].get(n, 0)]
            yield f"is another run: {sorted(names)}"

    def _look(self, found: Files, is_done: bool) -> Iterator[str]:
        """Yield violations in the remaining run, now and after the next appends."""
        digest = hashlib.sha256(repr(sorted(found.items())).encode()).digest()
        if (is_done, digest) in self._seen:
            return
        self._seen.add((is_done, digest))
        try:
            steps = self.read()
            if steps not in [self._steps(self.then)] + [self._steps(self.former)] * (not is_done):
                yield f"has steps {steps}"
            for step in range(len(steps), self.count + 2):
                self.driver.append(self.target, self.root, step, sync=False)
            if self.read() != self._steps(2):
                yield "the next appends are missing"
            if self.driver.run_digests(self.path) != self.digests:
                yield "the next appends make another run"
        except Exception as e:
            yield f"{type(e).__name__}: {e}"
            return
        yield from self._differences(files_in(self.root), [2])


class Undo(Append):
    """Removes the last step of a run, in place."""

    former, then = 1, 0

    def change(self) -> None:
        undo_append(self.path, self.count)


class Reading(Conversion):
    """Reads a model that another process replaces meanwhile."""

    def change(self) -> list[str]:
        return digests(self.path)

    def beside(self) -> None:
        self.driver.convert(self.target, "new", self.root, True)

    def left_beside(self, done: Outcome, other: Outcome) -> Iterator[str]:
        if other["error"]:
            yield f"cannot be replaced beside a reader: {other['said']}"
        if done["error"] == "StoreError" and "replaced or removed" not in done["said"]:
            yield f"raises {done['said']!r}"
        if not done["error"] and (
            len(set(done["result"])) != 1 or done["result"][0] not in self.digests.values()
        ):
            yield "reads a mixture"
        if files_in(self.root) != self.expected["new"]:
            yield f"left {sorted(files_in(self.root))}"


class Driver:
    """Answers requests: lets a moment strike at operations, and reports violations."""

    VERBS: dict[str, type[Subject]] = {
        "convert": Conversion,
        "append": Append,
        "undo": Undo,
        "read": Reading,
    }

    def __init__(self, base: Path) -> None:
        self.base, self.root = base, base / "root"
        self.child = Child(self.root)
        bf16codecs.set_num_threads(1)
        _sync._CONCURRENT = 1  # the same order of operations in each child
        self._make_sources()
        self._subjects: dict[str, Subject] = {}

    def _make_sources(self) -> None:
        self._sources = self.base / "sources"
        tensors = [("a.w", "BF16", (64, 8)), ("b", "I32", (50,))]
        for seed, age in enumerate(("old", "new"), start=3):
            folder = self._sources / age
            (folder / "shards").mkdir(parents=True)
            write_model(folder / "model", tensors, seed)
            for i, tensor in enumerate(tensors):
                write_model(folder / "shards" / f"{i}.safetensors", [tensor], seed + i)
            convert.safetensors_to_zarr(folder / "model", folder / "store")
            convert.safetensors_to_hdf5(folder / "shards", folder / "shards.h5")
        self._base_model = self.base / "base.safetensors"
        write_nearby(self._sources / "old" / "model", self._base_model)
        first = [("a.w", "BF16", (64, 8)), ("b", "I32", (50,))]
        goes, new = [("goes", "BF16", (40,))], [("a.new.v", "F32", (9,))]
        last = [("x.y.z", "F16", (3, 3))]
        steps = [first + goes, first + goes, first + new, first[:1] + new + goes]
        steps += [first[1:] + last, first + last]
        self._steps = [
            write_model(self._sources / f"step{i}.safetensors", tensors, i)
            for i, tensors in enumerate(steps)
        ]

    def convert(self, target: str, age: str, folder: Path, overwrite: bool = False) -> None:
        """Make a target of the old sources or the new ones."""
        name, source = folder / target, self._sources / age
        base = folder.parent / self._base_model.name  # stores say where it is from their place
        to_store = (
            convert.safetensors_to_hdf5 if target.endswith(".h5") else convert.safetensors_to_zarr
        )
        if target == "file":
            convert.zarr_to_safetensors(source / "store", name, overwrite=overwrite)
        elif target == "shards":
            convert.hdf5_to_safetensors(source / "shards.h5", name, overwrite=overwrite)
        elif target.startswith("rebased"):
            # The old model, first whole, then as differences.
            if not overwrite:
                to_store(self._sources / "old" / "model", name, chunk_size=512)
            if overwrite or age == "new":
                convert.rebase_store(name, base)
        else:
            based = {"base": base} if target.startswith("based") else {}
            to_store(source / "model", name, chunk_size=512, overwrite=overwrite, **based)

    def conversions(self, target: str) -> tuple[dict[str, Files], dict[str, str]]:
        """Return the files of a target, old and new, and the digests of their models."""
        files, models = {}, {}
        for age in ("old", "new"):
            folder = self.base / "expected" / target / age
            if not folder.exists():
                folder.mkdir(parents=True)
                shutil.copy(self._base_model, folder.parent)
                self.convert(target, age, folder)
            files[age], models[age] = files_in(folder), digests(folder / target)[0]
        cleanup_resources()  # zarr's thread would be missing in the children
        return files, models

    def append(self, target: str, folder: Path, step: int, sync: bool = True) -> None:
        """Append a step to a run."""
        options = {"as_hdf5": True} if target.endswith(".h5") else {}
        if target == "run2.zarr":
            options = {"zarr_format": 2}
        convert.append_to_run(
            self._steps[step],
            folder / target,
            sync=sync,
            chunk_size=512,
            keyframe_every=3,
            **options,
        )

    def runs(self, target: str, count: int) -> tuple[list[Files], list[str]]:
        """Return the files of the run with a number of steps, with one more, and with two more.

        And the digests of the steps of the last of them.
        """
        folder = self.base / "runs" / f"{target}-{count}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        found = []
        for step in range(count + 2):
            found.append(files_in(folder))
            self.append(target, folder, step, sync=False)
        return [*found[count:], files_in(folder)], self.run_digests(folder / target)

    @staticmethod
    def run_digests(path: Path) -> list[str]:
        """Return the digest of each step of a run, by its tensors."""
        with bf16codecs.open_run(path) as run:
            return [
                hashlib.sha256(
                    repr([(n, a.tobytes()) for n, a in sorted(run[step].load().items())]).encode()
                ).hexdigest()
                for step in run.steps
            ]

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Let a moment strike at some operations."""
        name, moment = request["operation"], request.get("moment", "")
        subject, exchange = self._subject(name), request["exchange"]
        if "rounds" in request:
            return {"problems": list(self.race(name, exchange, request["rounds"]))}
        options: dict[str, Any] = {"exchange": exchange}
        if moment == "no memory":
            # Below 1 kB, libhdf5 itself crashes.
            options["allocation"] = 1024 if subject.is_hdf5 else 64
        log = self.base / "log"
        subject.prepare()
        done = self.child.run(subject.change, log=log, **options)
        rng = random.Random(request["seed"])
        problems = [] if done["error"] is None else [f"{done['error']}: {done['said']}"]
        if moment == "power cut":
            states = self._cut_states(subject, rng, request)
            problems += self._power_cuts(subject, states)
            return {"count": len(states), "problems": problems}
        deciding = {r.count + more for r in read_log(log) if r.name in RENAMES for more in (0, 1)}
        for n in self._numbers(sorted(deciding), done["count"], rng, request):
            found = self._try(subject, moment, n, rng, options)
            problems += [f"operation {n} of {done['count']}: {text}" for text in found]
        return {"count": done["count"], "problems": problems}

    def race(self, name: str, exchange: bool, rounds: int) -> Iterator[str]:
        """Let two processes replace a target again and again, and two read it, all at once."""
        subject = self._subject(name)
        assert isinstance(subject, Conversion)
        subject.prepare()

        def write() -> None:
            for _ in range(rounds):
                subject.beside()
                subject.change()

        def read() -> list[list[str]]:
            found: list[list[str]] = []
            tries = 0
            while len(found) < rounds and tries < 50 * rounds:
                tries += 1
                with suppress(*([StoreError] if exchange else [StoreError, FileNotFoundError])):
                    found.append(subject.read())
            return found

        started = [self.child.start(call, exchange=exchange) for call in (write, write, read, read)]
        outcomes = [self.child.finish(*each) for each in started]
        for done in outcomes:
            if done.get("error") or "status" in done:
                yield f"{done}"
        for done in outcomes[2:]:
            if not done.get("result"):
                yield "a reader never gets a model"
        models = [{digest} for digest in subject.digests.values()]
        for found in (each for done in outcomes for each in done.get("result") or []):
            if set(found) not in models:
                yield "a reader gets a mixture"
        if files_in(self.root) not in subject.expected.values():
            yield f"left {sorted(files_in(self.root))}"

    def _subject(self, name: str) -> Subject:
        if name not in self._subjects:
            operation = OPERATIONS[name]
            self._subjects[name] = self.VERBS[operation.verb](self, operation)
            # A child that collects would copy all pages that have objects.
            gc.freeze()
        return self._subjects[name]

    def _numbers(
        self, deciding: list[int], count: int, rng: random.Random, request: dict[str, Any]
    ) -> list[int]:
        """Choose operations: as many deciding ones as others."""
        least, every = request["tries"], request["every"]
        chosen = rng.sample(deciding, min(len(deciding), least))
        others = max(least, math.ceil(count / every) if every else 0)
        return sorted({*chosen, *rng.sample(range(1, count + 1), min(count, others))})

    def _try(
        self, subject: Subject, moment: str, n: int, rng: random.Random, options: dict[str, Any]
    ) -> Iterator[str]:
        """Let a moment strike at the n-th operation, and return violations of the contract."""
        subject.prepare()
        action = MOMENTS[moment].action
        others: list[Outcome] = []
        own = {"exchange": options["exchange"]}

        def meanwhile() -> None:
            call = subject.read if moment == "a reader" else subject.beside
            others.append(self.child.run(call, **own))

        done = self.child.run(subject.change, action=action, n=n, meanwhile=meanwhile, **options)
        if moment == "killed again and again":
            for _ in range(3):
                if sum(name.startswith(".") for name in os.listdir(self.root)) > 1:
                    yield "keeps what an earlier dead process has left"
                done = self.child.run(
                    subject.change, action=action, n=rng.randint(1, 2 * n), **options
                )
                if done.get("error") in DONE_BEFORE:
                    done["error"] = None
                yield from subject.bad_end(done, moment)
            done["leftover"] = True
        yield from subject.bad_end(done, moment)
        if not others:
            if action == "stop":
                yield "did not stop"
            yield from subject.left(done, moment)
        elif moment == "a reader":
            yield from subject.bad_reading(others[0], options["exchange"])
            yield from subject.left(done, moment)
            if done["error"]:
                yield "fails beside a reader"
        else:
            yield from subject.bad_end(others[0], moment)
            yield from subject.left_beside(done, others[0])

    def _cut_states(
        self, subject: Subject, rng: random.Random, request: dict[str, Any]
    ) -> list[tuple[bool, Files]]:
        """Return possible states of a disk after a power loss, and whether the operation had ended.

        What names are given to, and what was synced before, decides; all else is much the same.
        """
        records = read_log(self.base / "log")
        disk = Disk(self.root, subject.before())
        # What is written in place decides in HDF5: it has no renames.
        is_in_place = isinstance(subject, Append) and subject.is_hdf5
        every = 2 if request["every"] else 4 if is_in_place else 40
        states = states_during(disk, records, RENAMES, every, first=rng.randrange(every))
        if isinstance(subject, Append):
            # All of them take as long as everything else here.
            most = 150 if request["every"] else request["tries"] * (2 if is_in_place else 1)
            states = rng.sample(states, min(len(states), most))
        return [(False, state) for state in states] + [
            (True, state) for state in disk.states(again=True)
        ]

    def _power_cuts(self, subject: Subject, states: list[tuple[bool, Files]]) -> Iterator[str]:
        cut = self.base / "cut"
        for has_ended, state in states:
            shutil.rmtree(cut, ignore_errors=True)
            yield from subject.cut(state, has_ended, cut)


if __name__ == "__main__":
    driver = Driver(Path(sys.argv[1]))
    for line in sys.stdin:
        print(json.dumps(driver.answer(json.loads(line))), flush=True)
