"""The table of other libraries: every cell names an existing test, or is marked untested."""

from __future__ import annotations

import re

from checkout import ROOT


def page() -> str:
    return (ROOT / "docs" / "languages.md").read_text("utf-8")


def named_tests() -> dict[str, str]:
    """Return the path of each test that the page names."""
    pattern = r"^- \*(\w+)\*: `((?:tests|examples)/[\w/.]+)`$"
    return dict(re.findall(pattern, page(), re.MULTILINE))


def test_every_cell_is_held_by_a_test_or_marked() -> None:
    lines = [line for line in page().splitlines() if line.startswith("|")]
    head, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert len(rows) > 10
    used = set()
    for name, *cells in rows:
        assert len(cells) == len(head) - 1, name
        for cell in cells:
            if cell not in ("untested", "-"):
                held = re.fullmatch(r"(?:yes|no|by Python|by hand) \*(\w+)\*", cell)
                assert held, f"{name}: {cell}"
                used.add(held[1])
    assert used == named_tests().keys()


def test_the_tests_are_there() -> None:
    for path in named_tests().values():
        text = (ROOT / path).read_text("utf-8")
        assert re.search(r"^ *(?:def test_|test\()", text, re.MULTILINE), path
