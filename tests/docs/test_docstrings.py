"""The examples in docstrings run."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import bf16codecs
import tiers

OPTIONAL = {"cuda", "cuda.core", "distributed", "matplotlib", "torch", "transformers", "vllm"}


def modules() -> dict[str, str]:
    """Return the source of all modules, found as files: walking through packages imports them."""
    root = Path(bf16codecs.__file__).parent
    found = {}
    for path in sorted(root.rglob("*.py")):
        name = ".".join(path.relative_to(root.parent).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path.read_text("utf-8")
    del found["bf16codecs.__main__"]
    return found


def test_docstring_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The full tier imports the modules without examples as well."""
    sources = modules()
    assert {"bf16codecs", "bf16codecs.codecs", "bf16codecs.analysis.analyzing"} <= sources.keys()
    missing, attempted = set(), 0
    for name, source in sources.items():
        if ">>> " not in source and not tiers.IS_FULL:
            continue
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in OPTIONAL:
                raise
            missing.add(error.name)
            continue
        done = doctest.testmod(module)
        assert done.failed == 0, name
        attempted += done.attempted
    assert attempted
    if missing:
        pytest.skip(f"all but what needs {' and '.join(sorted(missing))} was run")
