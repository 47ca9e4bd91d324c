"""Tells zarr of this package's codecs and data types, once zarr is imported.

To import zarr here would take longer than most commands do their work. Entry points are not enough:
before 3.4.2, zarr does not look at those of data types. Those of codecs are, for numcodecs too.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["register_with_zarr"]


class _AfterImport:
    """A finder that finds zarr where others find it, and lets `bf16codecs.zarr` follow."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module as it would be found without this."""
        if fullname != "zarr":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                import_module("bf16codecs.zarr")

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def register_with_zarr() -> None:
    """Register now if zarr is imported, and otherwise when it is."""
    if "zarr" in sys.modules:
        import_module("bf16codecs.zarr")
    else:
        sys.meta_path.insert(0, _AfterImport())
