"""Comments of the source cite sections of pages that exist."""

from __future__ import annotations

import re

from checkout import ROOT

_SUFFIXES = {".cpp", ".cuh", ".h", ".js", ".py", ".rs"}
_LINE_START = re.compile(r"\n\s*(?://|#|\*)?\s*")
_CITATION = re.compile(r'docs/((?:\w+/)?\w+\.md), ((?:"[^"]{2,60}"(?:,? and |, )?)+)')
_HEADING = re.compile(r"^(?:#+ (?P<heading>.+)|\*\*(?P<run_in>.+?)[.:]?\*\*.*)$", re.MULTILINE)


def headings(page: str) -> set[str]:
    """Return the headings of a page and the bold beginnings of its paragraphs, without marks."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    found = (match["heading"] or match["run_in"] for match in _HEADING.finditer(text))
    return {re.sub(r"[`*]", "", heading) for heading in found}


def test_cited_sections_exist() -> None:
    cited = missing = 0
    for folder in ("bf16codecs", "tests", "examples"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in _SUFFIXES or "node_modules" in path.parts:
                continue
            text = _LINE_START.sub(" ", path.read_text("utf-8"))
            for page, sections in _CITATION.findall(text):
                for section in re.findall(r'"([^"]+)"', sections):
                    cited += 1
                    if section not in headings(page):
                        missing += 1
                        print(f"{path.relative_to(ROOT)}: docs/{page} has no {section!r}")
    assert cited > 100
    assert not missing
