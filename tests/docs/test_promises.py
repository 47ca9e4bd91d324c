"""Each promise of the pages about trust is held by tests, which `promises.toml` names.

A statement is a sentence of a paragraph or of a bullet, or a row of a table. The table gives its
first words, enough to tell it from the others of its page, and what holds it: a list of tests that
fail where it is not true, or one of the words in NO_PROMISE.
"""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from collections.abc import Iterable, Iterator

from checkout import ROOT
from looping import for_each

PAGES = ["docs/trust.md", "SECURITY.md"]
#: Kinds of statements that no test can hold, or that need none.
NO_PROMISE = {
    "introduction",  # to what follows
    "explanation",  # of earlier statements
    "advice",  # to the reader
    "disclaimer",  # decided by others, or not detectable here
    "measurement",  # made once, or by hand
    "practice",  # tasks of maintainers
}
Table = dict[str, list[str] | str]


def statements(text: str) -> Iterator[str]:
    """Yield what a page says, in its order."""
    # Without headings, and the heads of tables.
    lines = re.sub(r"^(#.*|\|.*\n\|[-|]+\|)$", "", text.replace("**", ""), flags=re.MULTILINE)
    for block in re.split(r"\n(?=- |\||\n)", lines):
        joined = " ".join(block.split())
        if joined.startswith("|"):
            yield joined.strip("| ")
        elif joined:
            yield from re.split(r"(?<=[.!?])\s+(?=[A-Z`])", joined.removeprefix("- "))


def table_of(page: str) -> Table:
    with open(ROOT / "tests" / "docs" / "promises.toml", "rb") as file:
        return tomllib.load(file)[page]


def begun_with(start: str, said: Iterable[str]) -> list[str]:
    return [statement for statement in said if statement.startswith(start)]


@functools.cache
def functions(path: str) -> set[str]:
    """Return the names of a file's functions and methods."""
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@for_each("page", PAGES)
def test_each_statement_has_one_entry(page: str) -> None:
    said, table = list(statements((ROOT / page).read_text("utf-8"))), table_of(page)
    assert len(said) > 25
    for start in table:
        assert len(begun_with(start, said)) == 1, f"{page} has not one statement: {start!r}"
    for statement in said:
        found = [start for start in table if statement.startswith(start)]
        assert len(found) == 1, f"{page}: {statement!r} has the entries {found}"


@for_each("page", PAGES)
def test_entries_name_tests_that_are_there(page: str) -> None:
    for start, tests in table_of(page).items():
        if isinstance(tests, str):
            assert tests in NO_PROMISE, start
            continue
        assert tests, start
        for test in tests:
            path, _, name = test.partition("::")
            assert name.startswith("test_"), test
            assert name in functions(path), test


def test_named_files_are_there() -> None:
    named = re.findall(r"`(tests/[^`]*)`", (ROOT / "docs/trust.md").read_text("utf-8"))
    assert len(named) > 5
    for path in named:
        assert (ROOT / path).exists(), path


PAGE = """# Title

An introduction: `a.b` and "c"
go on. **All of it.** Is
it? `code` begins one.

| head | of it |
|---|---|
| one. Two | **three** |

- A bullet. It goes on
  here.
- Another.
"""


def test_what_statements_are() -> None:
    assert list(statements(PAGE)) == [
        'An introduction: `a.b` and "c" go on.',
        "All of it.",
        "Is it?",
        "`code` begins one.",
        "one. Two | three",
        "A bullet.",
        "It goes on here.",
        "Another.",
    ]
