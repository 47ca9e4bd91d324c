"""Converts small models in forked children, in which one operation fails or ends the process.

Run as a script under the interposer of faults.c: reads a request in each line, as JSON, and answers
it. Forking a process that has imported everything takes a hundredth of the time of starting one.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from numcodecs import Zstd
from zarr.core.sync import cleanup_resources

import bf16codecs
from based_models import write_nearby
from bf16codecs import _replace, _sync
from bf16codecs.convert import (
    hdf5_to_safetensors,
    rebase_store,
    safetensors_to_hdf5,
    safetensors_to_zarr,
    verify_store,
    zarr_to_safetensors,
)
from bf16codecs.errors import LeftoverWarning
from folders import files_in
from models import write_model

FAIL, KILL = 1, 2

#: What a conversion may raise where an operation fails.
ALLOWED = (None, "OSError", "FileExistsError", "MemoryError", "StoreError")


def based(convert: Callable[..., Any]) -> Callable[..., Any]:
    """Return what makes a store of differences, to what lies beside the target's folder."""

    def make(source: Path, target: Path, **options: Any) -> None:
        convert(source, target, base=base_of(target), chunk_size=512, **options)

    return make


def rebased(convert: Callable[..., Any]) -> Callable[..., Any]:
    """Return what puts a store on a base: the old model, first whole, then as differences."""

    def make(source: Path, target: Path, overwrite: bool = False) -> None:
        if not overwrite:
            convert(source.parents[1] / "old" / source.name, target, chunk_size=512)
        if source.parent.name == "new":
            rebase_store(target, base_of(target))

    return make


def base_of(target: Path) -> Path:
    return target.parents[1] / "base.safetensors"


#: Name of a target: what makes it, of which source.
KINDS: dict[str, tuple[Callable[..., Any], str]] = {
    "m.zarr": (partial(safetensors_to_zarr, chunk_size=512), "model"),
    "m.zip": (partial(safetensors_to_zarr, chunk_size=512), "model"),
    "m.h5": (partial(safetensors_to_hdf5, chunk_size=512), "model"),
    "file": (zarr_to_safetensors, "store"),
    "shards": (hdf5_to_safetensors, "shards.h5"),
    "based.zarr": (based(safetensors_to_zarr), "model"),
    "based.h5": (based(safetensors_to_hdf5), "model"),
    "rebased.zarr": (rebased(safetensors_to_zarr), "model"),
    "rebased.h5": (rebased(safetensors_to_hdf5), "model"),
}


def pause_within(faults: ctypes.CDLL, method: str) -> None:
    """Let no allocation fail in a method of numcodecs' Zstd: it uses what it did not get."""
    original = getattr(Zstd, method)

    def paused(*args: Any, **options: Any) -> Any:
        faults.faults_pause_allocations(1)
        try:
            return original(*args, **options)
        finally:
            faults.faults_pause_allocations(0)

    setattr(Zstd, method, paused)


def kind_of(error: BaseException) -> str:
    """Return an error's name; of one that Python made of a MemoryError, that of the latter."""
    if isinstance(error, SystemError) and error.__cause__ is not None:
        return type(error.__cause__).__name__  # json of Python 3.12, in C
    return type(error).__name__


class Driver:
    """Conversions to new targets, or over old ones."""

    #: How OpenSSL and h5py say that there is no memory.
    without_memory: tuple[str, ...] = ("ValueError",)

    def __init__(self, base: Path) -> None:
        self.base, self.sources = base, base / "sources"
        self.root = base / "root"
        self.faults = ctypes.CDLL(None)
        self.faults.faults_stop.restype = ctypes.c_long
        self.faults.faults_start.argtypes = [
            *[ctypes.c_char_p, ctypes.c_size_t, ctypes.c_long],
            *[ctypes.c_int] * 5,
        ]
        bf16codecs.set_num_threads(1)
        _sync._CONCURRENT = 1  # the same order of operations in each child
        self.prepare()
        cleanup_resources()  # zarr's thread would be missing in the children

    def prepare(self) -> None:
        """Make sources, and what is expected of them."""
        for age in ("old", "new"):
            self._make_sources(self.sources / age, seed=len(age) + (age == "new"))
        write_nearby(self.sources / "old" / "model", self.base / "base.safetensors")
        self.expected = {}
        for kind in KINDS:
            for age in ("old", "new"):
                folder = self.base / "expected" / kind / age
                folder.mkdir(parents=True)
                shutil.copy(self.base / "base.safetensors", folder.parent)
                self._convert(kind, age, folder)
                self.expected[kind, age] = files_in(folder)

    def _make_sources(self, folder: Path, seed: int) -> None:
        (folder / "shards").mkdir(parents=True)
        tensors = [("a.w", "BF16", (64, 8)), ("b", "I32", (50,))]
        write_model(folder / "model", tensors, seed)
        for i, tensor in enumerate(tensors):
            write_model(folder / "shards" / f"{i}.safetensors", [tensor], seed + i)
        safetensors_to_zarr(folder / "model", folder / "store")
        safetensors_to_hdf5(folder / "shards", folder / "shards.h5")

    def _convert(self, kind: str, age: str, folder: Path, **options: Any) -> None:
        convert, source = KINDS[kind]
        # Restored shards have the same names: what is replaced is told apart by its content.
        convert(self.sources / age / source, folder / kind, **options)

    def before(self, request: dict[str, Any]) -> Path | None:
        """Return the folder with what is there before, if anything is."""
        return self.base / "expected" / request["kind"] / "old" if request["overwrite"] else None

    def change(self, request: dict[str, Any], folder: Path) -> None:
        """Do that of which an operation fails."""
        self._convert(request["kind"], "new", folder, overwrite=request["overwrite"])

    def _prepared(self, request: dict[str, Any]) -> Path:
        shutil.rmtree(self.root, ignore_errors=True)
        before = self.before(request)
        if before is None:
            self.root.mkdir()
        else:
            shutil.copytree(before, self.root)
        return self.root

    def run(self, request: dict[str, Any], n: int) -> dict[str, Any]:
        """Change it in a child; return its number of operations and its error, or its status."""
        folder = self._prepared(request)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            self._child(request, n, folder, writing)
        os.close(writing)
        with open(reading, "rb") as pipe:
            text = pipe.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == 0:
            return json.loads(text)
        return {"status": status}

    def _child(self, request: dict[str, Any], n: int, folder: Path, writing: int) -> None:
        done: dict[str, Any] = {"error": None, "said": ""}
        log = -1
        signal.alarm(60)  # ends what hangs
        if request.get("log"):
            log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        action = {"fail": FAIL, "full": FAIL, "kill": KILL}[request["action"]]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.faults.faults_start(
                os.fsencode(folder),
                request.get("allocation", 0),
                n,
                action,
                request.get("errno", 0),
                request["action"] == "full",
                request.get("exchange", True),
                log,
            )
            if request.get("allocation"):
                for method in ("encode", "decode"):
                    pause_within(self.faults, method)
            try:
                self.change(request, folder)
            except BaseException as e:
                done["error"], done["said"] = kind_of(e), str(e)
            done["count"] = self.faults.faults_stop()
        done["leftover"] = any(w.category is LeftoverWarning for w in caught)
        with open(writing, "w") as pipe:
            json.dump(done, pipe)
        os._exit(0)

    def problems(self, request: dict[str, Any], n: int) -> Iterator[str]:
        """Let the n-th operation fail, and say what is not as promised."""
        kind, age = request["kind"], "old" if request["overwrite"] else None
        done = self.run(request, n)
        allowed = [self.expected[kind, "new"]]
        if done.get("error") or "status" in done:
            allowed.append(self.expected[kind, age] if age else {})
        yield from self.bad_ends(request, done, str(self.root / kind))
        # What a process that lives leaves behind, it says, unless it lacks memory for that, too.
        says_so = done.get("leftover") or request.get("allocation")
        if "status" not in done and not says_so and files_in(self.root) not in allowed:
            yield f"left {sorted(files_in(self.root))} after {done['said']!r}"
        _replace.recover_missing(self.root / kind)
        if age and not os.path.lexists(self.root / kind):
            yield "nothing has the name"
        _replace.recover(self.root)
        if files_in(self.root) not in allowed and not self._is_other_hdf5(request):
            yield f"has {sorted(files_in(self.root))} after recovery"

    def bad_ends(self, request: dict[str, Any], done: dict[str, Any], name: str) -> Iterator[str]:
        """Say how a child should not have ended; errors of the system have the target's name."""
        error, said = done.get("error"), done.get("said", "")
        if "status" in done and (request["action"] != "kill" or done["status"] != -9):
            yield f"ended with status {done['status']}"
        if error not in (*ALLOWED, *(self.without_memory if request.get("allocation") else ())):
            yield f"{error}: {said}"
        if error == "OSError" and not (name in said or request.get("allocation")):
            yield f"does not name the target: {said}"

    def _is_other_hdf5(self, request: dict[str, Any]) -> bool:
        """Tell whether libhdf5 made another file of the same model, for lack of memory."""
        kind = request["kind"]
        if not kind.endswith(".h5") or not request.get("allocation"):
            return False
        age = "old" if kind.startswith("rebased") else "new"
        verify_store(self.root / kind, self.sources / age / "model")
        return [p.name for p in self.root.iterdir()] == [kind]

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Try each, or every `step`-th, operation; or log all of them."""
        done = self.run({**request, "action": "fail"}, 0)
        if "log" in request:
            return done
        tried = range(request["first"], done["count"] + 1, request["step"])
        found = [f"operation {n}: {text}" for n in tried for text in self.problems(request, n)]
        return {"count": done["count"], "tried": len(tried), "problems": found}


def serve(driver: Driver) -> None:
    """Answer requests until there are no more."""
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(driver.answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    serve(Driver(Path(sys.argv[1])))
