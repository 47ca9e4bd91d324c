"""The safetensors files in a store, among the paths of files that transformers loads."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import torch

from bf16codecs.convert.checks import read_index
from bf16codecs.model.model import Model, open_model
from bf16codecs.safetensors import Header
from bf16codecs.torch.tied import TORCH_DTYPES

__all__ = ["FileInStore", "files_in"]


class FileInStore(str):
    """Stands for a safetensors file in a store.

    Its text is no path, and does not end as the name of a file: transformers opens by itself what
    ends in ``.safetensors``.

    Attributes
    ----------
    model : Model
        The store, which is open until the last of its files, and of their tensors, is gone.
    names : list of str
        The file's tensors, as `safetensors.safe_open` lists them: the first floating dtype in this
        order is the model's if nothing else tells it.
    metadata : mapping
        Its ``__metadata__``.
    """

    model: Model
    names: list[str]
    metadata: Mapping[str, str]

    def __new__(cls, model: Model, name: str, header: Header) -> FileInStore:
        """Stand for the file of a name and a header."""
        made = super().__new__(cls, f"<{model.where}/{name}>")
        made.model, made.names = model, sorted(tensor.name for tensor in header.tensors)
        made.metadata = header.metadata if header.has_metadata else {}
        return made

    def slices(self) -> dict[str, Any]:
        """Return what reads each tensor when its turn has come."""
        return {name: self.model.get_slice(name) for name in self.names}

    def load(self, device: Any) -> dict[str, torch.Tensor]:
        """Read all tensors to a device; to "meta", their forms."""
        if str(device) != "meta":
            return self.model.load(names=self.names, device=device)
        tensors = {name: self.model[name] for name in self.names}
        return {
            name: torch.empty(tensor.shape, dtype=TORCH_DTYPES[tensor.get_dtype()], device="meta")
            for name, tensor in tensors.items()
        }


def files_in(
    place: str, opening: Mapping[str, Any]
) -> tuple[list[FileInStore], dict[str, Any] | None]:
    """Return the files in a store, and what transformers makes of their index.

    Parameters
    ----------
    place, opening
        The store, and how it is opened, as `open_model` takes them.

    Returns
    -------
    files : list of FileInStore
        In the order of their names.
    metadata : dict or None
        The index's metadata, its tensors, and the file of each; None without an index.
    """
    model = open_model(place, framework="torch", **opening)
    try:
        reader = model._home.opened
        stored = zip(reader.info.files, reader.headers, strict=True)
        headers = sorted(((file.name, header) for file, header in stored), key=lambda pair: pair[0])
        files = [FileInStore(model, name, header) for name, header in headers]
        if reader.info.index is None:
            return files, None
        index = json.loads(read_index(reader))
    except BaseException:
        model.close()
        raise
    own = {name: os.path.basename(file) for file in files for name in file.names}
    metadata = index.get("metadata") or {}
    return files, {**metadata, "all_checkpoint_keys": list(index["weight_map"]), "weight_map": own}
