"""Fixtures for models of transformers."""

from __future__ import annotations

import socket

import pytest


@pytest.fixture
def no_network(monkeypatch):
    """Give whoever asks the hub an error at once."""

    def refuse(*args):
        raise AssertionError(f"the network was asked for {args}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture(scope="session")
def native(tmp_path_factory):
    """Return a folder as transformers saves a model."""
    from tiny_llama import saved

    return saved(tmp_path_factory.mktemp("hf") / "native")


@pytest.fixture(scope="session")
def folder(native, tmp_path_factory):
    """Return the same folder, packed."""
    from tiny_llama import packed

    return packed(native, tmp_path_factory.mktemp("hf") / "packed")
