"""Opens published runs whose root was read already."""

from __future__ import annotations

from bf16codecs._arrays.storage import KeyStorage
from bf16codecs._base.limits import DEFAULT_LIMITS, Limits
from bf16codecs.store.published.layout import PublishedInfo
from bf16codecs.store.published.roots import Where
from bf16codecs.store.published.storage import PackedStorage, refuse_zarr
from bf16codecs.store.published.watching import watched
from bf16codecs.store.reader import ModelReader
from bf16codecs.store.runs.reader import RunReader
from bf16codecs.store.zarr.reader import ZarrArrays

__all__ = ["open_last_step", "reader_of"]


def reader_of(where: str, packed: PackedStorage, limits: Limits) -> ModelReader:
    """Return a reader of the run store that a published run stands for."""
    return ModelReader(ZarrArrays(where, packed, refuse_zarr, limits))


def open_last_step(where: Where, info: PublishedInfo) -> RunReader:
    """Open a run, without early steps: it may have thousands."""
    storage: KeyStorage = watched(str(where), where.options).storage()
    try:
        packed = PackedStorage(str(where), storage, info.keeping(1))
        return RunReader(reader_of(str(where), packed, DEFAULT_LIMITS))
    except BaseException:
        storage.close()
        raise
