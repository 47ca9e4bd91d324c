"""The walks of docs/design.md name functions that are called, in files where they are."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import bf16codecs
from bf16codecs import open_model
from checkout import ROOT
from invoked import done

PACKAGE = Path(bf16codecs.__file__).parent
_NAMED = re.compile(r"`(\w+(?:\.\w+)?)` \(`([\w/.]+)`\)")


def steps(title: str) -> list[list[tuple[str, str]]]:
    """Return the functions, each with its file, that the steps of a walk name."""
    page = (ROOT / "docs/design.md").read_text("utf-8")
    section = page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return [_NAMED.findall(step) for step in re.split(r"\n\d+\. ", section)[1:]]


def called(work: Callable[[], Any]) -> set[tuple[str, str]]:
    """Return the functions of the package that some work calls, in any thread."""
    found = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            found.add((frame.f_code.co_qualname, frame.f_code.co_filename))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    own = [(name, Path(file)) for name, file in found]
    return {(n, p.relative_to(PACKAGE).as_posix()) for n, p in own if p.is_relative_to(PACKAGE)}


def assert_true(title: str, functions: set[tuple[str, str]]) -> None:
    walk = steps(title)
    assert len(walk) == 10
    for number, named in enumerate(walk, 1):
        assert named, f"step {number} names no function"
        for name, place in named:
            is_called = any(
                (function == name or function.startswith(f"{name}.")) and file.startswith(place)
                for function, file in functions
            )
            assert is_called, f"step {number}: {name} in {place}"


def test_both_walks(demo_model: Path, tmp_path: Path) -> None:
    store = tmp_path / "m.zarr"
    functions = called(lambda: done("st2zarr", demo_model, store, "--threads", 1))
    assert_true("From a file to a written chunk", functions)

    def read() -> None:
        with open_model(store) as model:
            largest = max(model.keys(), key=lambda name: model[name].nbytes)
            model[largest][10:20]

    assert_true("Open a model, read a slice", called(read))
