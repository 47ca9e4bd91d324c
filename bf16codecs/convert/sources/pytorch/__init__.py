"""Models that PyTorch saved: files of `torch.save`, and folders of `torch.distributed.checkpoint`.

Nothing in them is run: see `pickles`. They are restored byte for byte, whatever they have beside
tensors.
"""

from __future__ import annotations

from bf16codecs.convert.places import Place
from bf16codecs.convert.sources.pytorch.detection import (
    is_checkpoint,
    is_pytorch_file,
    models_in,
)
from bf16codecs.store.kinds import PYTORCH_INDEX_SUFFIX, PYTORCH_SUFFIXES
from bf16codecs.store.reader import ModelReader

__all__ = ["SUFFIXES", "is_source", "open_source"]

SUFFIXES = PYTORCH_SUFFIXES


def is_source(place: Place) -> bool:
    """Return whether PyTorch saved what is at a place: a file, an index or a folder."""
    if place.name:
        return place.name.endswith(PYTORCH_INDEX_SUFFIX) or is_pytorch_file(place, place.name)
    return is_checkpoint(place) or bool(models_in(place))


def open_source(place: Place) -> ModelReader:
    """Open a model; raise SafetensorsError if it is damaged, or a file of it is missing."""
    # Imported here: conversions of safetensors look for other sources, and need no pickles.
    if is_checkpoint(place):
        from bf16codecs.convert.sources.pytorch.checkpoints import open_checkpoint

        return open_checkpoint(place)
    from bf16codecs.convert.sources.pytorch.files import open_saved

    return open_saved(place)
