"""Runs the examples that the documentation shows."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from typing import Any

import pytest

from checkout import ROOT


@pytest.fixture
def run_example(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Return a function that runs an example with arguments, and returns its output."""

    def run(name: str, *arguments: Any) -> str:
        monkeypatch.setattr("sys.argv", [name, *map(str, arguments)])
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
        return capsys.readouterr().out

    return run
