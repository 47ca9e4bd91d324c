"""Register this package's codecs and data types with zarr and numcodecs, once they are imported.

Importing them here would take longer than most commands take. Entry points are not enough:
before 3.4.2, zarr does not look at those of data types, and where the package is not installed, but
on a path, there are none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

from bf16codecs._base.names import FRAME_CODECS, PREFIX, RUN_LENGTH_ID

TYPE_CHECKING = False  # instead of `typing`'s: see bf16codecs/__init__.py
if TYPE_CHECKING:
    from typing import Any

__all__ = ["register_when_imported"]

_CLASSES = {
    **{f"{PREFIX}{name}": f"BF16{name.capitalize()}" for name in FRAME_CODECS},
    RUN_LENGTH_ID: "RunLength",
}


def _register_numcodecs() -> None:
    """Add our entry points, so that numcodecs imports a codec's class when it is asked for."""
    from importlib.metadata import EntryPoint

    entries: dict[str, Any] = import_module("numcodecs.registry").entries
    for name, codec in _CLASSES.items():
        entry = EntryPoint(name, f"bf16codecs.codecs:{codec}", "numcodecs.codecs")
        entries.setdefault(name, entry)


def _register_zarr() -> None:
    # Not while another thread imports it and waits for zarr: that import registers at its end.
    if "bf16codecs.zarr" not in sys.modules:
        import_module("bf16codecs.zarr")


# How to register with the libraries in which this package is not registered yet.
_REGISTER: dict[str, Callable[[], None]] = {
    "numcodecs": _register_numcodecs,
    "zarr": _register_zarr,
}


def _register(name: str) -> None:
    """Register this package with a library, once."""
    register = _REGISTER.pop(name, None)
    if register is not None:
        register()


class _Loader:
    """Loads a library with its original loader, and registers this package with it."""

    def __init__(self, name: str, loader: Any) -> None:
        self._name, self._loader = name, loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # for callers that only look where a library is

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Run the module as its original loader does, and register with it."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _register(self._name)


class _Finder:
    """Finds libraries through the finders after it.

    Python calls it while it holds the lock of all imports. So it imports nothing: it would wait for
    a module that another thread imports, and that thread for this lock.

    It stays in `sys.meta_path` when nothing is left to find: removing it while another thread goes
    through that list makes that thread skip a finder, and not find its module.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module as it would be found without this."""
        if fullname not in _REGISTER or self not in sys.meta_path:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(fullname, path, target) if find else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(fullname, spec.loader)  # type: ignore[assignment]
                return spec
        return None


def register_when_imported() -> None:
    """Register with libraries that are imported, and with the others when they are."""
    for name in list(_REGISTER):
        if name in sys.modules:
            _register(name)
    if _REGISTER:
        sys.meta_path.insert(0, _Finder())
