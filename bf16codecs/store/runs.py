"""Reads run stores: all steps of a tensor as one array, and one step as a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import zarr

from bf16codecs._chunks.array import ArrayReader
from bf16codecs._chunks.grid import fill_value
from bf16codecs._chunks.steps import StepsArray, StepView
from bf16codecs.errors import StoreError
from bf16codecs.store.backend import StoredTensor, StoreReader
from bf16codecs.store.layout import StoreInfo
from bf16codecs.store.paths import RESERVED_ROOT
from bf16codecs.store.run_layout import Form, RunInfo, listed

__all__ = ["RunReader", "StepReader"]


class _PartReader(StoreReader):
    """What reads a part of a run."""

    def __init__(self, store: StoreReader, where: str, info: StoreInfo) -> None:
        self.store = store
        self.has_near_headers, self.zarr_format = store.has_near_headers, store.zarr_format
        super().__init__(where, info, store.limits)

    @property
    def run(self) -> RunInfo:
        """What the store says of its run."""
        assert self.store.info.run is not None
        return self.store.info.run

    def attributes(self, path: str) -> Mapping[str, Any]:
        """Return the attributes of an array under `bf16codecs`."""
        return self.store.attributes(path)

    def open_zarr(self, path: str) -> zarr.Array:
        """Open an array with zarr: all steps of it."""
        return self.store.open_zarr(path)

    def stored_nbytes(self, path: str) -> int:
        """Return the bytes that an array takes in the store, for all steps."""
        return self.store.stored_nbytes(path)

    def total_nbytes(self) -> int:
        """Return the size of the whole store."""
        return self.store.total_nbytes()

    def codec_name(self, path: str) -> str:
        """Return the name of an array's codec."""
        return self.store.codec_name(path)

    def codec_level(self, path: str) -> str:
        """Return the level of an array's arithmetic codec; of other codecs ``""``."""
        return self.store.codec_level(path)

    def close(self) -> None:
        """Release what is open."""
        super().close()
        self.store.close()


class StepReader(_PartReader):
    """Reads one step of a run like a model store.

    Parameters
    ----------
    store
        The run.
    place
        Where the step is in its list of steps.
    closes_store
        Whether closing the step closes the run.
    """

    def __init__(self, store: StoreReader, place: int, closes_store: bool = True) -> None:
        assert store.info.run is not None
        step = store.info.run.steps[place]
        info = StoreInfo(step.files, step.index, store.info.run.paths_at(place))
        super().__init__(store, f"{store.where}@{step.number}", info)
        self._place, self._closes_store = place, closes_store
        self.location = store.where, step.number

    def close(self) -> None:
        """Release what is open."""
        if self._closes_store:
            super().close()

    def _open(self, path: str, label: str) -> ArrayReader:
        array = self.store.array(path)
        if path.startswith(f"{RESERVED_ROOT}/"):
            return array
        if not array.shape or array.shape[0] <= self._place:
            raise StoreError(f"{label}: shape {array.shape}, without the step")
        return StepView(array, self._place)


class RunReader(_PartReader):
    """Reads the tensors of a run, with the step as first axis.

    Parameters
    ----------
    store
        The run.
    """

    def __init__(self, store: StoreReader) -> None:
        assert store.info.run is not None
        # Of a tensor with several forms, the path of one: `tensor` reads all.
        paths = {name: forms[-1].path for name, forms in store.info.run.tensors.items() if forms}
        super().__init__(store, store.where, StoreInfo((), None, paths))

    def step(self, number: int) -> StepReader:
        """Return the reader of a step, which does not close the run.

        Raises
        ------
        StepNotFoundError
            If there is no such step.
        """
        return StepReader(self.store, self.run.place(number, self.where), closes_store=False)

    def tensor(self, name: str) -> StoredTensor:
        """Return all steps of a tensor as one array, with fill values where it is not there.

        Raises
        ------
        StoreError
            If an array is missing, or the tensor has several shapes or dtypes.
        """
        if name not in self._tensors:
            forms = self.run.tensors[name]
            stored = [self._form(name, form) for form in forms]
            if len({(s.array.dtype, s.array.shape[1:], s.dtype) for s in stored}) > 1:
                raise StoreError(self._changes(name, forms, stored))
            self._tensors[name] = StoredTensor(self._joined(forms, stored), stored[0].dtype)
        return self._tensors[name]

    def check_header(self, name: str) -> None:
        """Do nothing: each step has a header of its own, with which its reader compares."""

    def _form(self, name: str, form: Form) -> StoredTensor:
        array = self.array(form.path)
        places = [p for p in range(len(self.run.steps)) if p in form]
        if not array.shape or (places and array.shape[0] <= places[-1]):
            raise StoreError(f"{self.label(form.path)}: shape {array.shape}, without all steps")
        attributes = self._attributes_of(form.path)
        return StoredTensor(array, attributes.get("dtype"))

    def _joined(self, forms: tuple[Form, ...], stored: list[StoredTensor]) -> ArrayReader:
        n, first = len(self.run.steps), stored[0].array
        sources = [
            next((s.array for form, s in zip(forms, stored, strict=True) if place in form), None)
            for place in range(n)
        ]
        # More steps than the root says: an append is under way, or was killed.
        if first.shape[0] == n and all(source is first for source in sources):
            return first
        return StepsArray(sources, fill_value(first.dtype))

    def _changes(self, name: str, forms: tuple[Form, ...], stored: list[StoredTensor]) -> str:
        """Say what a tensor is at which steps."""
        numbers = self.run.numbers
        parts = []
        for form, (array, dtype) in zip(forms, stored, strict=True):
            steps = [number for place, number in enumerate(numbers) if place in form]
            parts.append(f"{dtype} of shape {array.shape[1:]} at steps {listed(steps)}")
        return (
            f"{self.where}: tensor {name!r:.300} is {', and '.join(parts)}: read it from"
            f" a step, such as run[{numbers[-1]}][{name!r:.80}]"
        )

    def _open(self, path: str, label: str) -> ArrayReader:
        return self.store.array(path)
