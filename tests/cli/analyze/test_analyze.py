"""`bf16codecs analyze`: its output and its files."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from based_models import write_steps
from bf16codecs import analysis
from bf16codecs.convert import safetensors_to_hdf5, safetensors_to_zarr
from commands import command_line, ended, start
from invoked import done, refused, row_cells
from lazy_models import weights, write_safetensors
from servers import serving
from tiers import by_tier

POSIX = pytest.mark.skipif(os.name != "posix", reason="terminals, signals and rights of POSIX")
ANALYZE = ("bf16codecs", "analyze")


def json_of(*args: Any) -> dict[str, Any]:
    document = json.loads(done(*ANALYZE, *args, "--json", "-"))
    assert isinstance(document, dict)
    return document


def test_the_tables_have_the_figures(demo_model: Path) -> None:
    text = done(*ANALYZE, demo_model)
    found = analysis.analyze(demo_model)
    assert text.startswith(f"{demo_model}: 39 tensors, 492,384 values looked at\n\n")
    own = found.model
    entropies = own.statistics.entropies
    figures = [
        *(entropies.bytes[0], entropies.bytes[-1], entropies.exponent),
        entropies.sign_and_mantissa,
        *(own.bits[name] for name in ("huffman", "arithmetic", "arithmetic best")),
    ]
    expected = ["any kind", "BF16", "39", "492384", *(f"{figure:.3f}" for figure in figures)]
    assert row_cells(text, "any kind") == expected
    assert [line for line in text.splitlines() if line.startswith(("mlp ", "norm "))]
    assert text.endswith("".join(f"{line}\n" for line in analysis.reasons(own)))
    assert "compared" not in text
    assert "Each checkpoint" not in text


@POSIX
@pytest.mark.parametrize("columns", [pytest.param(80, marks=pytest.mark.slow), 40])
def test_on_terminals_the_figures_stay(demo_model: Path, columns: int) -> None:
    import pty

    leader, follower = pty.openpty()
    command = command_line(*ANALYZE, demo_model)
    environment = {**os.environ, "COLUMNS": str(columns), "NO_COLOR": "1"}
    process = subprocess.Popen(
        command, stdout=follower, stderr=subprocess.PIPE, text=True, env=environment
    )
    os.close(follower)
    text = b""
    while True:
        try:
            part = os.read(leader, 1 << 16)
        except OSError:  # Linux's error once no writer is left
            break
        if not part:
            break
        text += part
    os.close(leader)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    lines = re.sub(r"\x1b\[\d*m", "", text.decode()).split("\r\n")
    paths = [line for line in lines if str(demo_model)[:20] in line]
    assert max(len(line) for line in lines if line not in paths) <= columns
    piped = done(*ANALYZE, demo_model)
    for name in ("mlp", "any kind"):
        row = row_cells("\n".join(lines), name)
        assert row[-3:] == row_cells(piped, name)[-3:]
    assert "Too wide for this terminal" in "\n".join(lines)


def test_json(model: Path) -> None:
    expected = json.loads(json.dumps(analysis.analyze(model).to_json()))
    assert json_of(model) == expected
    assert "2 tensors" in done(*ANALYZE, model, "--json", "a.json")
    assert json.loads(Path("a.json").read_text()) == expected
    assert done(*ANALYZE, model, "--json", "a.json", "--quiet") == ""
    assert expected["damage"] == expected["steps"] == []
    assert len(expected["model"]["statistics"]["byte_counts"][0]) == 256
    assert "byte_counts" not in expected["tensors"][0]["statistics"]
    assert Path("a.json").read_text().endswith("]\n}\n")


@pytest.mark.slow
def test_a_folder_of_all(
    model: Path, draw_few: Callable[[], None], draw_less: Callable[[], None]
) -> None:
    by_tier(draw_few, lambda: None)()
    text = done(*ANALYZE, model, "--out", "new")
    assert done(*ANALYZE, model) == text
    names = {path.name for path in Path("new").iterdir()}
    assert {"analysis.json", "report.html", "tensors.csv", "exponents.png"} < names
    assert "exponents-dark.png" in names
    assert not any(name.startswith(".") for name in names)
    assert json.loads(Path("new/analysis.json").read_text()) == json_of(model)
    with open("new/tensors.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["layers.0.mlp.weight", "layers.0.attn.weight"]
    assert rows[0]["shape"] == "80x80"
    draw_less()
    Path("empty").mkdir()
    done(*ANALYZE, model, "--out", "empty")
    empty = {path.name for path in Path("empty").iterdir()}
    assert {"analysis.json", "report.html", "tensors.csv", "exponents.png"} < empty <= names


def test_pages_replace_pages_alone(model: Path, draw_less: Callable[[], None]) -> None:
    draw_less()
    Path("text.txt").write_text("mine")
    Path("old.html").write_text("<html>")
    done(*ANALYZE, model, "--html", "old.html")
    assert Path("old.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert "its name is not that of a report" in refused(*ANALYZE, model, "--html", "text.txt")
    assert "this command already reads or writes it" in refused(*ANALYZE, model, "--html", model)
    assert "No such folder" in refused(*ANALYZE, model, "--html", "no/where.html")
    both = ("--json", "-", "--html", "-")
    assert "standard output takes one report" in refused(*ANALYZE, model, *both)
    assert Path("text.txt").read_text() == "mine"
    page = done(*ANALYZE, model, "--html", "-", "--quiet")
    assert page == Path("old.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("quickly_drawn")
def test_a_page_asks_for_nothing(demo_model: Path) -> None:
    page = done(*ANALYZE, demo_model, "--html", "-", "--quiet")
    assert set(re.findall(r"\w+://[^\"' <]*", page)) == {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert not re.search(r"(src|href|action)=\"(?!#)|@import|fetch\(|XMLHttp", page)


def test_other_kinds(model: Path) -> None:
    text = done(*ANALYZE, model, "--kind", "first=^layers\\.0\\.mlp")
    assert row_cells(text, "first")[:3] == ["first", "BF16", "1"]
    assert row_cells(text, "attention")[:3] == ["attention", "BF16", "1"]


def test_a_sample(demo_model: Path) -> None:
    text = done(*ANALYZE, demo_model, "--sample", "300K")
    assert re.search(r"^looked at: \d\d\.\d % of the bytes$", text, re.MULTILINE)


def test_a_base(tmp_path: Path, demo_model: Path) -> None:
    steps = write_steps(tmp_path, demo_model)
    text = done(*ANALYZE, steps[400], "--base", steps[399])
    assert f"compared with: {steps[399]}\n" in text
    found = analysis.analyze(steps[400], steps[399]).model
    change = found.statistics.change
    assert change is not None
    codecs = ("huffman", "arithmetic", "arithmetic best")
    bits = [found.bits[f"difference, {name}"] for name in codecs]
    rows = text[text.index("Changes, and sizes") :]
    assert row_cells(rows, "any kind") == [
        "any kind",
        f"{100 * change.changed:.2f} %",
        *(f"{number:.3f}" for number in (change.xor, change.difference, *bits)),
    ]


def test_a_base_that_is_not_alike(model: Path) -> None:
    arrays = {"layers.0.mlp.weight": weights((80, 80)), "other": weights((5,))}
    some = write_safetensors(Path("some.safetensors"), arrays)
    text = done(*ANALYZE, model, "--base", some)
    assert "some.safetensors (1 of 2 tensors: the others are not there, or not alike)" in text
    assert "Changes, and sizes" in text
    for shape, dtype in (((40, 80), "bfloat16"), ((80, 80), "float16")):
        other = {"layers.0.mlp.weight": weights(shape, dtype)}
        write_safetensors(Path("other.safetensors"), other)
        line = refused(*ANALYZE, model, "--base", "other.safetensors")
        assert "other.safetensors: has no tensor with the name, dtype and shape of one of" in line


@pytest.mark.parametrize("kind", ["files", "run.zarr", "run.h5"])
def test_a_series(tmp_path: Path, demo_model: Path, kind: str) -> None:
    steps = list(write_steps(tmp_path, demo_model).values())
    sources: list[Any] = steps
    if kind != "files":
        done("st2h5" if kind == "run.h5" else "st2zarr", "--series", *steps, kind)
        sources = [kind]
    text = done(*ANALYZE, *sources)
    assert "the last of 3 checkpoints, each compared with the one before it" in text
    rows = text[text.index("Each checkpoint") :].splitlines()[2:5]
    found = analysis.analyze([*steps]).steps
    for row, step in zip(rows, found, strict=True):
        bits = [step.model.bits[name] for name in ("huffman", "arithmetic", "arithmetic best")]
        assert row.split()[0] == step.step
        assert row.split()[2:5] == [f"{number:.3f}" for number in bits]
    assert [len(row.split()) for row in rows] == [5, 10, 10], "the first has nothing before it"


def strange_models() -> dict[str, dict[str, Any]]:
    return {
        "integers": {"a": np.arange(1000), "b": np.arange(5, dtype="u1")},
        "one tensor": {"w": weights((90, 90))},
        "an empty one": {"w": weights((0, 5)), "x": weights((9, 9))},
        "a number": {"w": np.array(1.5, "float32")},
        "NaN": {"w": np.full((300, 300), np.nan, "float32")},
        "bytes": {"v": weights((300, 300), "float8_e5m2")},
        "bool": {"w": np.ones((30, 30), bool)},
        "markup": {"<script>x</script>": weights((9, 9)), "b\n\x1b[31m": weights((9, 9))},
    }


@pytest.mark.slow
@pytest.mark.usefixtures("quickly_drawn")
def test_strange_models(monkeypatch: pytest.MonkeyPatch) -> None:
    styles = {"light": analysis.plots.STYLES["light"]}
    monkeypatch.setattr(analysis.plots, "STYLES", styles)
    for name, arrays in strange_models().items():
        path = write_safetensors(Path("a folder.safetensors"), arrays)
        text = done(*ANALYZE, path, "--html", "page.html", "--json", "a.json")
        assert "\x1b" not in text, name
        values = sum(array.size for array in arrays.values())
        assert f"{values:,} value" in text, name
        assert f"{values:,} values" in text or values == 1, name
        assert "nan" not in text, name
        assert ("numbers have no exponent" in text) == (name in ("integers", "bool")), name
        assert "it helps" not in text or name == "integers", name
        page = Path("page.html").read_text(encoding="utf-8")
        assert "<script>x" not in page, name
        assert len(json.loads(Path("a.json").read_text())["tensors"]) == len(arrays), name


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["", "nonsense"])
def test_no_display_is_needed(model: Path, backend: str) -> None:
    """A twin in test_bench_all.py draws less."""
    environment = {"MPLBACKEND": backend, "DISPLAY": "", "WAYLAND_DISPLAY": ""}
    _, err = ended(start(*ANALYZE, model, "--html", "page.html", **environment))
    assert err == ""
    assert "<svg" in Path("page.html").read_text(encoding="utf-8")


def test_stores_have_the_figures_of_their_source(model: Path, demo_model: Path) -> None:
    Path("a folder").mkdir()
    source = by_tier(model, demo_model)
    figures = done(*ANALYZE, source).splitlines()[1:]
    for name in ("m.zarr", "m.zip", "m.h5", "a folder/m.zarr", "fine.zarr"):
        if name == "m.h5":
            safetensors_to_hdf5(source, name)
        else:
            safetensors_to_zarr(source, name, base=source if "fine" in name else None)
        assert done(*ANALYZE, name).splitlines()[1:] == figures, name


def test_addresses(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    safetensors_to_zarr(model, tmp_path / "m.zarr")
    expected = json_of(model)
    with serving(tmp_path) as server:
        for name in ("m.zarr", "m.safetensors"):
            address = f"{server.url}/{name}"
            assert json_of(address) == {**expected, "path": address}
        assert "gone.zarr" in refused(*ANALYZE, f"{server.url}/gone.zarr")
