"""Which tests depend on the tier or the seed: all others do the same in both tiers."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

#: What looks at them: the module `tiers`, its function that is imported by name, and hypothesis,
#: whose examples are as many as the tier says.
_LOOKS = {"tiers", "by_tier", "given"}
_HERE = Path(__file__).parent


def depends_on_tier(path: Path, function: str) -> bool:
    """Tell whether a test function of a file, or anything that it names, looks at the tier.

    Fixtures that it takes count, and so do those of its folders that all tests take.
    """
    return not _dependent(path).isdisjoint({function, "autouse"})


@functools.cache
def _dependent(path: Path) -> frozenset[str]:
    """Return the functions, methods and constants that a file knows and that depend on the tier.

    ``autouse`` is among them if a fixture that all of its tests take does.
    """
    tree = ast.parse(path.read_text("utf-8"))
    words = {name: _words(node) for name, node in _definitions(tree)}
    found = set(_LOOKS)
    if path.parent != _HERE:
        found |= _of_helpers()
        outer = path.parent if path.name != "conftest.py" else path.parent.parent
        if outer.is_relative_to(_HERE.parent):
            found |= _of_fixtures(outer)
    while more := {name for name, used in words.items() if used & found} - found:
        found |= more
        found |= {"autouse"} & set().union(*(words[name] for name in more))
    return frozenset(found)


@functools.cache
def _of_fixtures(folder: Path) -> frozenset[str]:
    """Return what the fixtures of a folder, and those above it, offer that depends on the tier."""
    file = folder / "conftest.py"
    if file.exists():
        return _dependent(file)
    return _of_fixtures(folder.parent) if folder != _HERE.parent else frozenset()


@functools.cache
def _of_helpers() -> frozenset[str]:
    """Return what helpers offer that depends on the tier."""
    return frozenset().union(*(_dependent(file) for file in _HERE.glob("*.py")))


def _definitions(tree: ast.Module) -> list[tuple[str, ast.AST]]:
    """Return what a module defines, and the methods of its classes, with decorators."""
    found: list[tuple[str, ast.AST]] = []
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.append((node.name, node))
        elif isinstance(node, ast.ClassDef):
            found.append((node.name, ast.Tuple([*node.bases, *node.decorator_list], ast.Load())))
            found += _definitions(ast.Module(node.body, []))
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found += [(word, node) for target in targets for word in _words(target)]
    return found


def _words(node: ast.AST) -> set[str | None]:
    """Return the names in a piece of code; text and comments do not count."""
    fields = ("id", "attr", "arg")  # of names, attributes, and parameters, which name fixtures
    return {getattr(n, field) for n in ast.walk(node) for field in fields if hasattr(n, field)}
