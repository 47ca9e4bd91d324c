"""The documentation does what it says: README examples, docstring examples, links."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import bf16codecs
from checkout import ROOT, package_environment

README = (ROOT / "README.md").read_text("utf-8")
OPTIONAL = {"distributed", "matplotlib", "torch"}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def run_command(arguments: list[str], folder: Path) -> str:
    """Run a console command of the package, which need not be on PATH, in a folder."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]
    module, function = scripts[arguments[0]].split(":")
    code = f"import sys; from {module} import {function}; sys.exit({function}())"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments[1:]],
        cwd=folder,
        env=package_environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{arguments}: {done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def reader_folder(tmp_path_factory, demo_model) -> Path:
    """Return a folder in which the README's first commands have run."""
    folder = tmp_path_factory.mktemp("readme")
    for name in ("model", "base", "fine", "ckpt/step00600", "ckpt/step00700"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(demo_model, folder / f"{name}.safetensors")
    run_command(["st2zarr", "base.safetensors", "base.zarr"], folder)
    runs = next(block for block in blocks("sh") if "--series" in block)
    first, *others = runs.replace("ckpt/*", "ckpt/step00600").splitlines()
    for line in [*blocks("sh")[0].splitlines(), first, *others]:
        run_command(shlex.split(line), folder)
    return folder


def test_first_commands_give_the_model_back(reader_folder: Path) -> None:
    original = (reader_folder / "model.safetensors").read_bytes()
    assert (reader_folder / "again.safetensors").read_bytes() == original


def test_python_examples(reader_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the examples in order, each seeing the names of those before it, as a reader would."""
    monkeypatch.chdir(reader_folder)
    names: dict[str, object] = {"__name__": "__readme__"}
    examples = blocks("python")
    assert len(examples) >= 4
    for example in examples:
        exec(compile(example, "README.md", "exec"), names)


@pytest.mark.slow
def test_demo_prints_a_table(tmp_path: Path) -> None:
    output = run_command(["bf16codecs", "demo"], tmp_path)
    assert "huffman" in output.lower()
    assert not list(tmp_path.iterdir()), "the demo leaves nothing behind"


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


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if not re.match(r"[a-z]+:", target) and not target.startswith("#"):
            assert (page.parent / target.split("#")[0]).exists(), f"{page.name} links {target}"


def test_index_lists_every_page() -> None:
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    pages = {p.name for p in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert not {page for page in pages if f"({page})" not in index}
