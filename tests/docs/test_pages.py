"""Every code block of the documentation runs as described, and links have targets."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path

import click
import pytest

from checkout import ROOT
from doc_pages import LANGUAGES, PAGES, Block, blocks_of, check_unrun, matches, run_page
from looping import for_each

#: The pages that the full tier alone runs: each takes about a second or more.
SLOW = {
    *(f"docs/{name}.md" for name in ("benchmarks", "checkpoints", "how_it_works", "hugging_face")),
    *(f"docs/{name}.md" for name in ("index", "orbax", "tutorial", "upstream", "which_codec")),
    *(f"docs/howto/{name}.md" for name in ("analysis", "cluster", "hdf5", "programs", "remote")),
    *(f"docs/howto/{name}.md" for name in ("netcdf", "torch", "training", "zarr")),
    "docs/languages.md",
}
#: Reasons for which blocks are not run, and their counts: a new one has to be added here.
NOT_RUN = {
    "installs packages": 16,
    "takes minutes": 15,
    "takes a minute": 2,  # run by tests/test_examples.py, in less
    "builds C++": 15,
    "builds Rust": 1,
    "builds netCDF-C": 1,
    "needs a GPU": 5,  # tests/cuda test its functions
    "needs netCDF-C with plugins": 3,  # run by tests/netcdf/test_page.py
    "serves a page": 1,
    "needs vLLM": 6,  # tests/torch/test_vllm.py
    "needs SGLang": 2,  # tests/torch/publishing/test_taking.py has a double
    "mounts a store": 3,  # tests/mount does
    "needs diffusers": 2,  # run by tests/torch/test_pipelines.py
    "reads from the hub": 4,  # test_hub.py, test_hub_sources.py and test_on_hub.py have their own
}
#: Files that pages write into their working folder.
WRITTEN = {"docs/howto/analysis.md": ["report.html", "figures", "exponents.png", "predictions.svg"]}
#: Requirements of blocks that the tests do not install, at least not on every platform.
NEEDS = {"accelerate", "gguf", "h5dump", "h5repack", "jax", "netCDF4", "torch", "transformers"}


needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def all_blocks() -> list[Block]:
    return [block for page in PAGES for block in blocks_of(page)]


@needs_bash
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if page_name(page) in SLOW else [])
        for page in PAGES
    ],
    ids=page_name,
)
def test_page_runs(page: Path, tmp_path: Path, demo_model: Path) -> None:
    missing = run_page(page, tmp_path, demo_model)
    for name in WRITTEN.get(page_name(page), ()):
        assert (tmp_path / "work" / name).exists(), name
    if missing:
        pytest.skip(f"all but what needs {' and '.join(sorted(set(missing)))} was run")


def test_blocks_say_what_they_are() -> None:
    for block in all_blocks():
        assert block.language in LANGUAGES, block
        assert set(block.needs) <= NEEDS, block
        if block.language == "json":
            json.loads(block.code)


@needs_bash
def test_all_code_is_checked_without_running_it() -> None:
    """Syntax, and the options of our commands: the quick tier does not run all pages."""
    for block in all_blocks():
        check_unrun(block)


@needs_bash
@for_each(
    "language, code",
    [("python", "x ="), ("sh", "if"), ("sh", "st2zarr --no-such a b"), ("sh", "zarr2st a")],
)
def test_blocks_that_are_not_run_are_checked(language: str, code: str) -> None:
    block = Block(ROOT / "README.md", 1, language, code, not_run="takes minutes")
    with pytest.raises((AssertionError, SyntaxError, click.UsageError)):
        check_unrun(block)


def test_few_blocks_are_not_run_and_for_known_reasons() -> None:
    assert Counter(block.not_run for block in all_blocks() if block.not_run) == NOT_RUN


@for_each("page", PAGES)
def test_marks_belong_to_blocks(page: Path) -> None:
    """A comment that is misspelt, or stands elsewhere, would do nothing."""
    text = page.read_text("utf-8")
    marks = re.findall(r"<!-- *(?:given|needs?|not run|skip)\b.*", text)
    used = sum(bool(b.given) + bool(b.needs) + bool(b.not_run) for b in blocks_of(page))
    assert len(marks) == used


def anchors(page: Path) -> set[str]:
    """Return the names of a page's headings, as mkdocs makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    plain = [re.sub(r"[^\w\s-]", "", title).strip().lower() for title in titles]
    return {re.sub(r"[-\s]+", "-", title) for title in plain}


@for_each("page", PAGES)
def test_links_lead_somewhere(page: Path) -> None:
    """Links work in the sources, which people read on hubs; figures are made with the site."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if not re.match(r"[a-z]+:|(\.\./)*figures/", target):
            path, _, anchor = target.partition("#")
            named = page.parent / path if path else page
            assert named.exists(), target
            # The reference of the interface has its anchors from docstrings.
            if anchor and named.suffix == ".md" and named.stem not in ("api", "cli_options"):
                assert anchor in anchors(named), target


@for_each(
    "wanted, shown, same",
    [
        ("a  1 s\n", "a 2.5 s\n", True),
        ("a in 0.2 s (4.94 MB/s)\n", "a in 900 ms (952.62 kB/s)\n", True),
        ("a 1 MB\n", "a 2 MB\n", False),
        ("a\n...\nd\n", "a\nb\nc\nd\n", True),
        ("a\n...\nd\n", "a\nb\n", False),
        ("a\n", "a\nb\n", False),
    ],
)
def test_output_is_compared(wanted: str, shown: str, same: bool) -> None:
    assert matches(wanted, shown) is same
