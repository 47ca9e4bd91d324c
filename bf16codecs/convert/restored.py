"""The files that a model restores, before anything of their tensors is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bf16codecs._files.digests import Digests
from bf16codecs.convert.checks import stored_index
from bf16codecs.safetensors import SAFETENSORS, Header, make_header
from bf16codecs.store.reader import ModelReader

__all__ = ["RestoredFiles", "restored_files"]


@dataclass(frozen=True)
class RestoredFiles:
    """The files that a model restores: the original ones, or a safetensors file."""

    reader: ModelReader
    headers: Sequence[Header]
    #: Of the files, the index last; of a single file that gets the target's name, that one.
    names: Sequence[str]
    index: bytes | None
    #: The digests that the files have, or nothing.
    expected: Sequence[Digests]

    @property
    def as_folder(self) -> bool:
        """Whether the target is a folder."""
        return self.index is not None or len(self.names) > 1

    @property
    def kind(self) -> str:
        """The kind of the files."""
        return self.headers[0].kind if self.headers else SAFETENSORS


def restored_files(reader: ModelReader, to: str | None) -> RestoredFiles:
    """Return the files that a model restores.

    `to` is ``"safetensors"`` for a safetensors file of a model that was another kind of file.
    Raises ValueError if they cannot be made.
    """
    if to not in (None, SAFETENSORS):
        raise ValueError(f"to={to!r:.80}: only 'safetensors', or nothing, is possible")
    files = [file.name for file in reader.info.files]
    if to is not None and any(header.kind != SAFETENSORS for header in reader.headers):
        return RestoredFiles(reader, [_safetensors_header(reader)], files[:1], None, [])
    index = stored_index(reader)  # raises if there is one that the attributes do not name
    names = files if reader.info.index is None else [*files, reader.info.index.name]
    expected = [file.restored.preferred() for file in reader.info.files]
    has_index = reader.info.index is not None
    return RestoredFiles(reader, reader.headers, names, index if has_index else None, expected)


def _safetensors_header(reader: ModelReader) -> Header:
    tensors = {
        name: (tensor.dtype, tensor.shape)
        for header in reader.headers
        for name, tensor in header.entries.items()
        if name not in header.parts
    }
    return make_header(tensors, {"format": "pt"}, reader.where)
