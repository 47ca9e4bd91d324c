"""Models in files of `torch.save`: one, those of an index, or one that is in a folder."""

from __future__ import annotations

from pathlib import Path

from bf16codecs._base.messages import few, named_errors
from bf16codecs.convert.regions import Names, outlined_file
from bf16codecs.convert.sources.pytorch.containers import read_contents
from bf16codecs.convert.sources.pytorch.detection import INDEX_SUFFIX, models_in
from bf16codecs.convert.sources.pytorch.naming import find_tensors
from bf16codecs.errors import SafetensorsError
from bf16codecs.safetensors import SourceFile, read_index, shard_names
from bf16codecs.store.files import open_files
from bf16codecs.store.reader import ModelReader

__all__ = ["open_saved"]

KIND = "pytorch"

_USUAL_NAME = "pytorch_model.bin"
# Of names in a message.
_SHOWN = 3


def open_saved(path: str) -> ModelReader:
    """Open a model; raise SafetensorsError if it is damaged, or a file of it is missing."""
    found = Path(path)
    found, others = _model_in(found) if found.is_dir() else (found, ())
    if not found.name.endswith(INDEX_SUFFIX):
        return open_files(path, [_read(found, Names())], paths=[found], left_out=others)
    raw, names = read_index(found), Names()
    files = [_read(found.parent / name, names) for name in sorted(shard_names(raw, found))]
    paths = [*(file.path for file in files), found]
    used = {used.name for used in paths}
    left_out = tuple(name for name in others if name not in used)
    index = (found.name, raw)
    return open_files(path, files, index=index, paths=paths, left_out=left_out)


def _model_in(folder: Path) -> tuple[Path, tuple[str, ...]]:
    """Return the index or the file of a folder's model, and the names of all others there."""
    models = models_in(folder)
    # transformers puts training_args.bin and others beside it.
    name = _USUAL_NAME if _USUAL_NAME in models else models[0]
    if len(models) > 1 and name != _USUAL_NAME:
        raise SafetensorsError(
            f"several files of PyTorch, {few(models, _SHOWN)}: name one instead of the folder"
        )
    others = (entry for entry in folder.iterdir() if entry.name != name)
    left_out = sorted(entry.name + "/" * entry.is_dir() for entry in others)
    return folder / name, tuple(left_out)


def _read(path: Path, names: Names) -> SourceFile:
    """Read all of a file but its tensors, whose names are among those of the whole model."""
    with named_errors(str(path), SafetensorsError):
        contents = read_contents(path)
        layout = find_tensors(contents.value, contents.storages, contents.is_little_endian, names)
        return outlined_file(path, KIND, contents.size, layout, names)
