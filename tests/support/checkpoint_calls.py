"""Checkpoints of one process: saved, loaded, and what goes wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from bf16codecs.torch.checkpoint import StoreReader, StoreWriter


def numbers(shape: tuple[int, ...] = (64, 300), seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) / 30


def save(state: dict[str, Any], path: Path, **options: Any) -> None:
    dcp.save(state, storage_writer=StoreWriter(path, **options))


def load(state: dict[str, Any], path: Path, **options: Any) -> None:
    dcp.load(state, storage_reader=StoreReader(path, **options))


def failure(action: Any, *arguments: Any, **options: Any) -> BaseException:
    """Return the error of one process, which torch packs."""
    with pytest.raises(CheckpointException) as caught:
        action(*arguments, **options)
    error, _ = caught.value.failures[0]
    return error
