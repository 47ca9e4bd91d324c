"""Models in files of `torch.save`: one, those of an index, or one that is in a folder."""

from __future__ import annotations

from functools import partial

from bf16codecs._base.messages import few, named_errors
from bf16codecs.convert.places import Place
from bf16codecs.convert.regions import Names, outline_of
from bf16codecs.convert.sources.pytorch.containers import Contents, read_contents
from bf16codecs.convert.sources.pytorch.detection import models_in
from bf16codecs.convert.sources.pytorch.naming import find_tensors
from bf16codecs.errors import SafetensorsError
from bf16codecs.safetensors import Header, shard_names
from bf16codecs.store.kinds import PYTORCH_INDEX_SUFFIX
from bf16codecs.store.reader import ModelReader

__all__ = ["open_saved"]

KIND = "pytorch"

_USUAL_NAME = "pytorch_model.bin"
# Of names in a message.
_SHOWN = 3


def open_saved(place: Place) -> ModelReader:
    """Open a model; raise SafetensorsError if it is damaged, or a file of it is missing."""
    main, names = place.name or _model_in(place), Names()
    shards, index = [main], None
    if main.endswith(PYTORCH_INDEX_SUFFIX):
        raw = place.index(main)
        shards, index = sorted(shard_names(raw, place.label(main))), (main, raw)
    contents = place.each(partial(_contents, place), shards)
    headers = [
        (name, _outline(place, name, found, names))
        for name, found in zip(shards, contents, strict=True)
    ]
    used = {main, *shards}
    others = [] if place.name else [name for name in place.names() if name not in used]
    return place.reader(headers, index, others)


def _model_in(place: Place) -> str:
    """Return the name of the index or the file of a folder's model."""
    models = models_in(place)
    # transformers puts training_args.bin and others beside it.
    name = _USUAL_NAME if _USUAL_NAME in models else models[0]
    if len(models) > 1 and name != _USUAL_NAME:
        raise SafetensorsError(
            f"several files of PyTorch, {few(models, _SHOWN)}: name one instead of the folder"
        )
    return name


def _contents(place: Place, name: str) -> Contents:
    """Read all of a file but its storages."""
    where = place.label(name)
    with named_errors(where, SafetensorsError, OSError), place.open(name) as file:
        return read_contents(file, where)


def _outline(place: Place, name: str, contents: Contents, names: Names) -> Header:
    """Return the outline of a file, whose tensors have names among those of the whole model."""
    with named_errors(place.label(name), SafetensorsError, OSError), place.open(name) as file:
        layout = find_tensors(contents.value, contents.storages, contents.is_little_endian, names)
        return outline_of(file, KIND, layout, names)
