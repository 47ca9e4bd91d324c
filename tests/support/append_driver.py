"""Appends to small runs in forked children, in which one operation fails or ends the process.

A script like fault_driver.py, for appends: these change a run in place.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import bf16codecs
from bf16codecs._journal import JOURNAL_SUFFIX
from bf16codecs.convert import append_to_run, verify_store
from fault_driver import Driver, serve
from folders import Files, files_in
from models import write_model

GROUP = 3
LOCKS = ("/step/.appending", "/step/.appending/lock")
_HDF5 = {"as_hdf5": True}
#: A run's name, options, and how many steps it has before: the next is in a group, or begins one.
KINDS: dict[str, tuple[str, dict[str, Any], int]] = {
    "in a group": ("run.zarr", {}, 2),
    "new group": ("run.zarr", {}, 3),
    "format 2": ("run.zarr", {"zarr_format": 2}, 4),
    "HDF5": ("run.h5", _HDF5, 2),
    "HDF5, new group": ("run.h5", _HDF5, 3),
}

TENSORS = [
    [("a.w", "BF16", (64, 8)), ("b", "I32", (50,)), ("goes", "BF16", (40,))],
    [("a.w", "BF16", (64, 8)), ("b", "I32", (50,)), ("goes", "BF16", (40,))],
    [("a.w", "BF16", (64, 8)), ("a.new.v", "F32", (9,)), ("b", "I32", (50,))],
    [("a.w", "BF16", (64, 8)), ("a.new.v", "F32", (9,)), ("goes", "BF16", (40,))],
    [("b", "I32", (50,)), ("x.y.z", "F16", (3, 3))],
    [("a.w", "BF16", (64, 8)), ("b", "I32", (50,)), ("x.y.z", "F16", (3, 3))],
]


class AppendDriver(Driver):
    """Appends to runs of a few steps."""

    #: And NumPy's all() fails without saying how.
    without_memory = (*Driver.without_memory, "SystemError")

    def prepare(self) -> None:
        """Make checkpoints, and the runs that have up to so many of them."""
        self.sources.mkdir()
        self.steps = [
            write_model(self.sources / f"step{i}.safetensors", tensors, i)
            for i, tensors in enumerate(TENSORS)
        ]
        for kind, (_, _, count) in KINDS.items():
            for steps in range(count, count + 3):
                folder = self.base / "runs" / kind / str(steps)
                folder.mkdir(parents=True)
                for i in range(steps):
                    self.append(kind, folder, i, sync=False)
        #: What was looked at: failures leave much the same again and again.
        self.seen: set[tuple[str, bool, bytes]] = set()

    def append(self, kind: str, folder: Path, step: int, sync: bool = True) -> None:
        """Append a step."""
        name, options, _ = KINDS[kind]
        options = {"chunk_size": 512, "keyframe_every": GROUP, **options}
        append_to_run(self.steps[step], folder / name, sync=sync, **options)

    def before(self, request: dict[str, Any]) -> Path:
        """Return the folder with the run as it is before."""
        return self.folder_of(request["kind"], 0)

    def change(self, request: dict[str, Any], folder: Path) -> None:
        """Append the next step."""
        self.append(request["kind"], folder, KINDS[request["kind"]][2])

    def folder_of(self, kind: str, more: int) -> Path:
        """Return the folder with the run that has so many steps more."""
        return self.base / "runs" / kind / str(KINDS[kind][2] + more)

    def problems(self, request: dict[str, Any], n: int) -> Iterator[str]:
        """Let the n-th operation fail, and say what is not as promised."""
        kind, done = request["kind"], self.run(request, n)
        yield from self.bad_ends(request, done, KINDS[kind][0])
        found = files_in(self.root)
        if "status" not in done:
            is_done = not done["error"]
            # A disk that takes nothing more cannot be tidied up.
            if is_done or request["action"] == "fail":
                # A lock that cannot be removed does no harm, and the next append removes it. So it
                # does with a journal, which it carries out before.
                left = {n: c for n, c in found.items() if not n.endswith(LOCKS)}
                left = {n: c for n, c in left.items() if is_done or JOURNAL_SUFFIX not in n}
                yield from self.differences(kind, left, [1] if is_done else [0, 1])
        yield from self.look(kind, found)

    def differences(self, kind: str, found: Files, more: Iterable[int]) -> Iterator[str]:
        """Say how files differ from those of the run with so many steps more, any of them."""
        expected = [files_in(self.folder_of(kind, number)) for number in more]
        if kind.startswith("HDF5"):
            # The same run has other bytes where nothing is, or is elsewhere in the file.
            found = dict.fromkeys(found)
            expected = [dict.fromkeys(files) for files in expected]
        if found not in expected:
            all_names = found.keys() | expected[0].keys()
            names = [n for n in all_names if found.get(n, 0) != expected[0].get(n, 0)]
            yield f"is another run: {sorted(names)}"

    def look(self, kind: str, found: Files, has_step: bool = False) -> Iterator[str]:
        """Say what is not as promised of the run that is left, now and after the next appends."""
        digest = hashlib.sha256(repr(sorted(found.items())).encode()).digest()
        if (kind, has_step, digest) in self.seen:
            return
        self.seen.add((kind, has_step, digest))
        name, _, count = KINDS[kind]
        try:
            with bf16codecs.open_run(self.root / name) as opened:
                steps = opened.steps
            verify_store(self.root / name)
            if steps != list(range(count + has_step)) and steps != list(range(count + 1)):
                yield f"has steps {steps}"
            for step in range(len(steps), count + 2):
                self.append(kind, self.root, step, sync=False)
            verify_store(self.root / name)
        except Exception as e:
            yield f"{type(e).__name__}: {e}"
            return
        yield from self.differences(kind, files_in(self.root), [2])

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer a request; one with `states` is about folders that a loss of power has left."""
        if "states" not in request:
            return super().answer(request)
        found = []
        for state in request["states"]:
            shutil.rmtree(self.root, ignore_errors=True)
            shutil.copytree(state, self.root)
            left = files_in(self.root)
            texts = self.look(request["kind"], left, request.get("has_step", False))
            found += [f"{state}: {text}" for text in texts]
        return {"problems": found}


if __name__ == "__main__":
    serve(AppendDriver(Path(sys.argv[1])))
