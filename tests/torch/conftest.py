"""Fixtures of tests with PyTorch: optional libraries, and transformers models."""

from __future__ import annotations

import socket

import pytest

import tiers
from lazy_imports import lazily
from tiny_llama import packed, saved

torch = lazily("torch")


@pytest.fixture(autouse=True, scope="session")
def needs_torch():
    pytest.importorskip("torch", reason="needs torch")


@pytest.fixture(autouse=True)
def seed(needs_torch):
    """Seed PyTorch's random numbers with the run's seed."""
    torch.manual_seed(tiers.SEED)


@pytest.fixture(scope="session")
def needs_transformers():
    pytest.importorskip("transformers", reason="needs transformers")


@pytest.fixture(scope="session")
def needs_accelerate():
    pytest.importorskip("accelerate", reason="needs accelerate")


@pytest.fixture
def no_network(monkeypatch):
    """Let requests to the hub fail at once."""

    def refuse(*args):
        raise AssertionError(f"the network was asked for {args}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture(scope="session")
def native(needs_transformers, tmp_path_factory):
    """Return a folder as transformers saves a model."""
    return saved(tmp_path_factory.mktemp("hf") / "native")


@pytest.fixture(scope="session")
def folder(native, tmp_path_factory):
    """Return the same folder, packed."""
    return packed(native, tmp_path_factory.mktemp("hf") / "packed")
