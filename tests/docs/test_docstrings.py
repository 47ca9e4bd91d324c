"""The examples in docstrings run."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import bf16codecs

OPTIONAL = {"cuda", "cuda.core", "distributed", "matplotlib", "torch", "transformers"}


def modules() -> list[str]:
    """Return all modules, found as files: to walk through packages would import them."""
    root = Path(bf16codecs.__file__).parent
    files = (path.relative_to(root.parent).with_suffix("") for path in root.rglob("*.py"))
    names = {".".join(file.parts).removesuffix(".__init__") for file in files}
    return sorted(names - {"bf16codecs.__main__"})


def test_modules_of_subpackages_are_there() -> None:
    assert {"bf16codecs", "bf16codecs.codecs", "bf16codecs.analysis.analyzing"} <= set(modules())


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
