"""The examples on analyzing weights, and the notebook, run as described."""

from __future__ import annotations

import ast
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tiers
from based_models import write_nearby
from bf16codecs.convert import safetensors_to_run
from checkout import ROOT


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, demo_model: Path) -> Iterator[Path]:
    """Work in a folder with the demo's model, and models trained further from it."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    shutil.copy(demo_model, tmp_path / "model.safetensors")
    for i, name in enumerate(("fine", "step300", "step400")):
        write_nearby(demo_model, tmp_path / f"{name}.safetensors", seed=i)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    pyplot.close("all")


def test_analyze_model(run_example: Callable[..., str]) -> None:
    shown = run_example("analyze_model.py", "model.safetensors", "pictures")
    lines = {line.split()[0]: line.split()[1:] for line in shown.splitlines()}
    assert lines["all"] == ["39", "2.70", "7.97", "10.64", "10.47"]
    assert shown.endswith("3 plots in pictures\n")
    if tiers.IS_FULL:  # without arguments, it takes the demo's model and draws nothing
        assert run_example("analyze_model.py") + "3 plots in pictures\n" == shown
    assert len(list(Path("pictures").glob("*.png"))) == 3


@pytest.mark.slow
def test_training_over_time(run_example: Callable[..., str]) -> None:
    pytest.importorskip("safetensors")
    output = run_example("training_over_time.py", "--picture", "bits.png")
    rows = [line.split() for line in output.splitlines()[1:]]
    assert [row[0] for row in rows] == ["0", "100", "200", "300", "400", "500"]
    differences = [float(row[2]) for row in rows[1:]]
    assert differences == sorted(differences, reverse=True)
    assert Path("bits.png").stat().st_size
    steps = [Path("step300.safetensors"), Path("step400.safetensors")]
    shown = run_example("training_over_time.py", *steps)
    safetensors_to_run(steps, "run.zarr")
    assert run_example("training_over_time.py", "run.zarr") == shown


def test_the_notebook(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Each cell runs, and the value of its last line has a display."""
    text = (ROOT / "examples" / "look_at_a_model.ipynb").read_text("utf-8")
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells)
    monkeypatch.setenv("MODEL", "model.safetensors")
    names: dict[str, Any] = {}
    pictures = 0
    for cell in cells:
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "notebook", "exec"), names)
        if last is not None:
            found = eval(compile(ast.Expression(last.value), "notebook", "eval"), names)
            pictures += "<svg" in getattr(found, "_repr_html_", str)()
    assert pictures == 2, "of the model and of a tensor"
    assert (
        "Exponents: 24 of 256 occur, unevenly: they hold 2.70 bits of 8" in capsys.readouterr().out
    )
