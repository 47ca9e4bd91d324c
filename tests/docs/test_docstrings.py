"""The examples in docstrings run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import bf16codecs

OPTIONAL = {"distributed", "matplotlib", "torch"}


def modules() -> list[str]:
    names = [m.name for m in pkgutil.iter_modules(bf16codecs.__path__) if m.name != "_core"]
    return [f"bf16codecs.{name}" for name in names]


@pytest.mark.parametrize("name", modules())
def test_docstring_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in OPTIONAL:
            raise
        pytest.skip(f"{error.name} is not installed")
    assert doctest.testmod(module).failed == 0
