"""Save and load checkpoints in one process, and unpack their errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lazy_imports import lazily

torch = lazily("torch")
dcp = lazily("torch.distributed.checkpoint")
checkpoint = lazily("bf16codecs.torch.checkpoint")


def numbers(shape: tuple[int, ...] = (64, 300), seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) / 30


def save(state: dict[str, Any], path: Path, **options: Any) -> None:
    dcp.save(state, storage_writer=checkpoint.StoreWriter(path, **options))


def load(state: dict[str, Any], path: Path, **options: Any) -> None:
    dcp.load(state, storage_reader=checkpoint.StoreReader(path, **options))


def failure(action: Any, *arguments: Any, **options: Any) -> BaseException:
    """Return the one process's error from the exception that torch wraps it in."""
    with pytest.raises(dcp.api.CheckpointException) as caught:
        action(*arguments, **options)
    error, _ = caught.value.failures[0]
    return error
