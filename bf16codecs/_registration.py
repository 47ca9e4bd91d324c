"""Tells zarr and numcodecs of this package's codecs and data types, once they are imported.

To import them here would take longer than most commands do their work. Entry points are not enough:
before 3.4.2, zarr does not look at those of data types, and where the package is not installed, but
on a path, there are none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

from bf16codecs._names import FRAME_CODECS, PREFIX, RUN_LENGTH_ID

TYPE_CHECKING = False  # of `typing`, which bf16codecs/__init__.py tells of
if TYPE_CHECKING:
    from typing import Any

__all__ = ["register_when_imported"]

_CLASSES = {
    **{f"{PREFIX}{name}": f"BF16{name.capitalize()}" for name in FRAME_CODECS},
    RUN_LENGTH_ID: "RunLength",
}


def _tell_numcodecs() -> None:
    """Add what our entry points say: numcodecs imports a codec's class when it is asked for."""
    from importlib.metadata import EntryPoint

    entries: dict[str, Any] = import_module("numcodecs.registry").entries
    for name, own in _CLASSES.items():
        place = EntryPoint(name, f"bf16codecs.codecs:{own}", "numcodecs.codecs")
        entries.setdefault(name, place)


def _tell_zarr() -> None:
    # Not if another thread is at it, and waits for zarr: it registers at its end.
    if "bf16codecs.zarr" not in sys.modules:
        import_module("bf16codecs.zarr")


_TELL: dict[str, Callable[[], None]] = {"numcodecs": _tell_numcodecs, "zarr": _tell_zarr}


class _Loader:
    """Loads a library as its own loader does, and lets it be told of us."""

    def __init__(self, name: str, loader: Any) -> None:
        self._name, self._loader = name, loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Run it, as the module of its own loader."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _TELL[self._name]()


class _Finder:
    """Finds one library, where others find it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module as it would be found without this."""
        if fullname != self._name or self not in sys.meta_path:
            return None
        from importlib.util import find_spec

        sys.meta_path.remove(self)  # once is enough, and others are asked without it
        spec = find_spec(fullname)
        if spec is None or spec.loader is None:
            sys.meta_path.insert(0, self)  # it may be there later
            return None
        spec.loader = _Loader(fullname, spec.loader)  # type: ignore[assignment]
        return spec


def register_when_imported() -> None:
    """Register with what is imported, and with the rest when it is."""
    for name, tell in _TELL.items():
        if name in sys.modules:
            tell()
        else:
            sys.meta_path.insert(0, _Finder(name))
