"""Names of packages whose modules are imported on first use (PEP 562).

A package lists its names in `__all__`, and by module in what it gives to `lazy_names`. Type
checkers follow ``from module import *`` below ``if TYPE_CHECKING``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

TYPE_CHECKING = False  # instead of `typing`'s: see bf16codecs/__init__.py
if TYPE_CHECKING:
    from typing import Any

__all__ = ["lazy_names"]


def lazy_names(
    package: str,
    modules: Mapping[str, str],
    submodules: Sequence[str] = (),
    unlisted: Sequence[str] = (),
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a package.

    Parameters
    ----------
    package
        Its name.
    modules
        By a module, the names that the package has from there, with blanks between them.
    submodules
        Modules that are names of the package themselves.
    unlisted
        Modules that need packages that may be missing: getting all listed names raises no error.
    """
    module_of = {name: module for module, names in modules.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in module_of and name not in (*submodules, *unlisted):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(module_of.get(name, f"{package}.{name}"))
        value = getattr(module, name) if name in module_of else module
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_of, *submodules})

    return get, list_names
