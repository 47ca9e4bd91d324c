"""Models that PyTorch saved: files of `torch.save`, and folders of `torch.distributed.checkpoint`.

Nothing in them is run: see `pickles`. They are restored byte for byte, whatever they have beside
tensors.
"""

from __future__ import annotations

from pathlib import Path

from bf16codecs.convert.sources.pytorch.detection import (
    INDEX_SUFFIX,
    is_checkpoint,
    is_pytorch_file,
    models_in,
)
from bf16codecs.store.kinds import path_of
from bf16codecs.store.reader import ModelReader

__all__ = ["is_source", "open_source"]


def is_source(path: str) -> bool:
    """Return whether PyTorch saved what is at a path: a file, an index or a folder."""
    if path_of(path) is None:
        return False
    if path.endswith(INDEX_SUFFIX):
        return True
    found = Path(path)
    if not found.is_dir():
        return is_pytorch_file(found)
    return is_checkpoint(found) or bool(models_in(found))


def open_source(path: str) -> ModelReader:
    """Open a model; raise SafetensorsError if it is damaged, or a file of it is missing."""
    # Imported here: conversions of safetensors look for other sources, and need no pickles.
    if is_checkpoint(Path(path)):
        from bf16codecs.convert.sources.pytorch.checkpoints import open_checkpoint

        return open_checkpoint(path)
    from bf16codecs.convert.sources.pytorch.files import open_saved

    return open_saved(path)
