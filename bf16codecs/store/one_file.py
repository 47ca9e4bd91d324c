"""One of the original files in a store, as a model of its own."""

from __future__ import annotations

from dataclasses import replace

from bf16codecs.errors import StoreError
from bf16codecs.store.reader import ModelReader

__all__ = ["FileReader"]


class FileReader(ModelReader):
    """Reads the tensors of one file of a store; closing it closes the store.

    Raises StoreError if the store has no such file, and what reading its headers raises.
    """

    closes_base = False

    def __init__(self, store: ModelReader, name: str) -> None:
        files = {file.name: number for number, file in enumerate(store.info.files)}
        if name not in files:
            raise StoreError(f"{store.where}: has no file {name!r:.80}")
        number = files[name]
        names = store.headers[number].entries
        info = replace(
            store.info,
            files=(store.info.files[number],),
            index=None,
            paths={tensor: store.info.paths[tensor] for tensor in names},
        )
        super().__init__(store.stored, f"{store.where}: {name}", info)
        self.location, self.storage_options = store.location, store.storage_options
        self._store, self.open_base = store, self._base_of_store

    def _base_of_store(self, _: ModelReader) -> ModelReader:
        base = self._store.base
        assert base is not None
        return base

    def close(self) -> None:
        """Close the store."""
        self._forget()
        self._store.close()
