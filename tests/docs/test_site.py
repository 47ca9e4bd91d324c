"""The built site: without warnings, and without anything from other hosts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import bf16codecs
from bf16codecs import cli
from checkout import ROOT, package_environment


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the site, built with warnings as errors."""
    for module in ("material", "mkdocstrings_handlers"):
        pytest.importorskip(module, reason="mkdocs is not installed: pip install '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", folder],
        cwd=ROOT,
        env=package_environment(NO_MKDOCS_2_WARNING="1"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_the_navigation_names_every_page() -> None:
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    named = re.findall(r"^ +- (?:[^:]+: )?(\S+\.md)$", text.partition("\nnav:")[2], re.MULTILINE)
    pages = (path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md"))
    assert sorted(named) == sorted(page.as_posix() for page in pages)


def test_the_sources_name_what_the_site_shows() -> None:
    """The site has every public name, and every command where the page has a mark for them."""
    text = (ROOT / "docs" / "api.md").read_text("utf-8")
    named = set(re.findall(r"^::: bf16codecs\.(\w+)$", text, re.MULTILINE))
    assert set(bf16codecs.__all__) - {"__version__", "errors"} <= named
    assert "<!-- the commands -->" in (ROOT / "docs" / "cli_options.md").read_text("utf-8")


def html_of(site: Path, page: str = "") -> str:
    return (site / page / "index.html").read_text("utf-8")


@pytest.mark.slow
def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    """Links may lead anywhere; files that a browser loads by itself have to be in the site."""
    loads = re.compile(
        r"""<(?:script|img|link|iframe|source)\b[^>]*?(?:src|href)=["']?([^"' >]+)"""
    )
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        loaded = loads.findall(page.read_text("utf-8"))
        assert loaded
        assert not [target for target in loaded if re.match(r"(\w+:)?//", target)], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(\w+:)?//", sheet.read_text("utf-8")), sheet


@pytest.mark.slow
def test_figures_name_the_command_that_makes_them(site: Path) -> None:
    figures = re.findall(r"<figure.*?</figure>", html_of(site, "how_it_works"), re.DOTALL)
    assert len(figures) >= 4
    for figure in figures:
        light, dark = re.findall(r'src="\.\./(figures/[\w-]+\.png)#only-\w+"', figure)
        assert dark == light.replace(".png", "-dark.png")
        assert (site / light).read_bytes()[1:4] == (site / dark).read_bytes()[1:4] == b"PNG"
        caption = figure.partition("<figcaption>")[2]
        assert "bf16codecs analyze model.safetensors --out figures" in caption
        assert Path(light).name in caption


@pytest.mark.slow
def test_every_command_and_option_is_listed(site: Path) -> None:
    page = html_of(site, "cli_options")
    commands = [cli.st2zarr, cli.zarr2st, cli.st2h5, cli.h52st, *cli.main.commands.values()]
    for command in commands:
        assert f'id="{command.name}"' in page or f'id="bf16codecs-{command.name}"' in page
        for parameter in command.params:
            assert all(o in page for o in parameter.opts if o.startswith("--")), parameter.opts


@pytest.mark.slow
def test_every_public_name_is_listed(site: Path) -> None:
    page = html_of(site, "api")
    names = set(bf16codecs.__all__) - {"__version__", "errors"}
    assert not {name for name in names if f'id="bf16codecs.{name}"' not in page}
