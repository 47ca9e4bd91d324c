"""The table of what libraries read: every cell by a test that is there, or marked untested."""

from __future__ import annotations

import re

from checkout import ROOT

PAGE = (ROOT / "docs" / "languages.md").read_text("utf-8")
TESTS = dict(re.findall(r"^- \*(\w+)\*: `((?:tests|examples)/[\w/.]+)`$", PAGE, re.MULTILINE))
ROWS = [
    [cell.strip() for cell in line.split("|")[1:-1]]
    for line in PAGE.splitlines()
    if line.startswith("|")
]


def test_every_cell_is_held_by_a_test_or_marked() -> None:
    head, _, *rows = ROWS
    assert len(rows) > 10
    used = set()
    for name, *cells in rows:
        assert len(cells) == len(head) - 1, name
        for cell in cells:
            if cell not in ("untested", "-"):
                held = re.fullmatch(r"(?:yes|no|by Python|by hand) \*(\w+)\*", cell)
                assert held, f"{name}: {cell}"
                used.add(held[1])
    assert used == TESTS.keys()


def test_the_tests_are_there() -> None:
    for path in TESTS.values():
        text = (ROOT / path).read_text("utf-8")
        assert re.search(r"^ *(?:def test_|test\()", text, re.MULTILINE), path
