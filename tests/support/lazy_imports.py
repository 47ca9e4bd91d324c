"""Imports modules when a test first uses them, to keep collection fast."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class _Module:
    """Stands for a module until one of its names is wanted."""

    def __init__(self, name: str) -> None:
        self.__dict__["_name"] = name

    def __getattr__(self, name: str) -> Any:
        # pytest looks at every member of a test module for fixtures and mocks.
        if name.startswith("__") or name == "_mock_name":
            raise AttributeError(name)
        return getattr(import_module(self._name), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(import_module(self._name), name, value)


def lazily(name: str) -> Any:
    """Return a stand-in for a module, which is imported on the first use.

    For monkeypatch, name the module: ``monkeypatch.setattr("torch.save", ...)``.
    """
    return _Module(name)
