"""Reads run stores: all steps of a tensor as one array, and one step as a model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from bf16codecs._arrays.array import ArrayReader, RangeReader, UnitArray
from bf16codecs._arrays.grid import fill_value
from bf16codecs._arrays.views import StepsArray, StepView, step_nbytes
from bf16codecs._base.messages import named_errors
from bf16codecs.errors import StoreError
from bf16codecs.store.attributes import ROUNDED
from bf16codecs.store.layout import StoreInfo
from bf16codecs.store.paths import RESERVED_ROOT
from bf16codecs.store.reader import Against, ModelReader, StoredTensor, check_attributes
from bf16codecs.store.runs.layout import Placement, RunInfo

if TYPE_CHECKING:
    import zarr

__all__ = ["RunReader", "StepReader", "TensorOverTime"]


class TensorOverTime(NamedTuple):
    """A tensor of a run: safetensors dtype and shape, bytes of all steps, paths of its arrays."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    paths: list[str]


class _OnRun(ModelReader):
    """Base of the models on a run's arrays: all of it over time, and its steps."""

    def __init__(self, store: ModelReader, where: str, info: StoreInfo) -> None:
        self.store, self.storage_options = store, store.storage_options
        super().__init__(store.stored, where, info)

    @property
    def run(self) -> RunInfo:
        """The attributes of the run."""
        assert self.store.info.run is not None
        return self.store.info.run

    def close(self) -> None:
        """Close files and connections."""
        self._forget()
        self.store.close()


class StepReader(_OnRun):
    """Reads one step of a run, by its index in the run, like a model store.

    Closing the step closes the run if `closes_store`.
    """

    is_stepped = True

    def __init__(self, store: ModelReader, index: int, closes_store: bool = True) -> None:
        assert store.info.run is not None
        step = store.info.run.steps[index]
        info = StoreInfo(step.files, step.index, store.info.run.paths_at(index))
        super().__init__(store, f"{store.where}@{step.number}", info)
        self._index, self._closes_store = index, closes_store
        self.location = store.location[0], step.number

    @property
    def key(self) -> str:
        """A name that tells the step from others of its number, if anything does."""
        return self.stored.step_key(self._index)

    @property
    def knows_sizes(self) -> bool:
        """Whether the store is near: only chunks themselves have the size of a step in them."""
        return self.stored.is_near

    def stored_nbytes(self, path: str) -> int:
        """Return the bytes that the step takes in an array's chunks."""
        array = self.store.array(path)
        if path.startswith(f"{RESERVED_ROOT}/"):
            return self.stored.stored_nbytes(path)
        return step_nbytes(array, self._index) if 0 not in array.shape else 0

    def total_nbytes(self) -> int:
        """Return the bytes that the step takes in all chunks."""
        paths = {path for path in self.info.paths.values() if not path.endswith(ROUNDED)}
        return sum(map(self.stored_nbytes, paths))

    def against(self, name: str, have: ModelReader, values: RangeReader) -> Against:
        """Return a tensor's array, decoded against the values that it has at another step."""
        own, path = self.tensor(name).array, self.info.paths[name]
        if (
            isinstance(have, StepReader)
            and have.stored is self.stored
            and have.info.paths.get(name) == path
            and isinstance(own, StepView)
        ):
            between = self.stored.between(path, have._index, self._index)
            view = (
                own.against(have._index, values) if between is None else between.against(0, values)
            )
            if view is not None:
                return Against(view, view.base_jobs, view.logging if view.can_log else None)
        return Against(own)

    def close(self) -> None:
        """Close files and connections."""
        if self._closes_store:
            super().close()

    def _open(self, path: str) -> UnitArray:
        array = self.store.array(path)
        if path.startswith(f"{RESERVED_ROOT}/"):
            return array
        if not array.shape or array.shape[0] <= self._index:
            raise StoreError(f"{self.label(path)}: shape {array.shape}, without the step")
        return StepView(array, self._index)


class RunReader(_OnRun):
    """Reads the tensors of a run, with the step as first axis."""

    def __init__(self, store: ModelReader) -> None:
        assert store.info.run is not None
        # `info` has one path for tensors with several placements; `tensor` reads all of them.
        tensors = store.info.run.tensors.items()
        paths = {name: placements[-1].path for name, placements in tensors if placements}
        super().__init__(store, store.where, StoreInfo((), None, paths, run=store.info.run))
        #: Steps whose headers were read, by index.
        self._steps: dict[int, StepReader] = {}

    @property
    def names(self) -> list[str]:
        """The tensors; one that changes its shape or dtype has a name for each: see `tensor`."""
        found = []
        for name in self.run.tensors:
            # Nearly all have one placement, and runs are to open as quickly as models.
            variants = [name] if len(self.run.tensors[name]) == 1 else self.variant_names(name)
            found += variants if len(variants) > 1 else [name]
        return found

    def step(self, number: int) -> StepReader:
        """Return the reader of a step, which does not close the run; raise StepNotFoundError."""
        return StepReader(self.store, self.run.index_of(number, self.where), closes_store=False)

    def tensor(self, name: str) -> StoredTensor:
        """Return all steps of a tensor as one array, with fill values where steps lack it.

        The name of a tensor that changes its shape or dtype may be followed by ``@`` and the first
        step of the variant that is wanted. StoreError is raised if an array is missing, or if the
        tensor changes and its name has no step.
        """
        if name not in self._tensors:
            variant = self._variant(name)
            stored = [self._stored(name, placement) for placement in variant]
            self._tensors[name] = StoredTensor(self._joined(variant, stored), stored[0].dtype)
        return self._tensors[name]

    def first_array(self, name: str) -> UnitArray:
        """Return the first step of a tensor; its name is that for `tensor`."""
        placement = min(self._variant(name), key=lambda placement: _first_index([placement]))
        return StepView(self.array(placement.path), _first_index([placement]))

    def describe(self, name: str) -> TensorOverTime:
        """Describe a tensor without reading headers; its name is that for `tensor`."""
        array, dtype = self.tensor(name)
        paths = [placement.path for placement in self._variant(name)]
        shape = self._attributes_of(paths[0]).get("shape", array.shape[1:])
        nbytes = math.prod(array.shape[1:]) * array.dtype.itemsize * len(self.steps_of(name))
        return TensorOverTime(dtype or array.dtype.name, tuple(shape), nbytes, paths)

    def zarr_array(self, name: str) -> zarr.Array:
        """Open a tensor's array with zarr.

        Raises ValueError if it has none, or one that holds another tensor at some steps.
        """
        placement, *others = self._variant(name)
        if placement.path.endswith(ROUNDED) or others:
            what = "in several, or rounded from one"
            raise ValueError(f"{self.where}: tensor {name!r:.300}: has no Zarr array: it is {what}")
        owner = self.stored.attributes(placement.path).get("tensor")
        if not placement.is_always and owner != self._split(name)[0]:
            raise ValueError(
                f"{self.where}: tensor {name!r:.300}: has no Zarr array: at some steps, it is that"
                f" of {owner!r:.300}"
            )
        return self.stored.open_zarr(placement.path, self.check_size)

    def variants(self, name: str) -> list[list[Placement]]:
        """Return the placements of a tensor, grouped by dtype and shape, by first step."""
        placements = self.run.tensors[name]
        if len(placements) == 1:
            return [list(placements)]
        found: dict[Any, list[Placement]] = {}
        for placement in placements:
            stored = self._stored(name, placement)
            key = stored.array.dtype, stored.array.shape[1:], stored.dtype
            found.setdefault(key, []).append(placement)
        return sorted(found.values(), key=_first_index)

    def variant_names(self, name: str) -> list[str]:
        """Return the names by which `tensor` reads the variants of a tensor, by first step."""
        return [f"{name}@{number}" for number, _ in self._by_step(self.variants(name))]

    def steps_of(self, name: str) -> list[int]:
        """Return the numbers of the steps that have a tensor; its name is that for `tensor`."""
        numbers = self.run.numbers
        found = (placement.indices(len(numbers)) for placement in self._variant(name))
        return [numbers[index] for index in sorted(chain.from_iterable(found))]

    def _variant(self, name: str) -> list[Placement]:
        """Return the placements of a variant by its name for `tensor`."""
        tensor, number = self._split(name)
        variants = self.variants(tensor)
        if number is not None:
            return dict(self._by_step(variants))[number]
        if len(variants) > 1:
            raise StoreError(self._changes(name, variants))
        return variants[0]

    def _split(self, name: str) -> tuple[str, int | None]:
        """Split a name for `tensor` into the tensor's own name and the first step."""
        if name in self.run.tensors:
            return name, None
        tensor, _, number = name.rpartition("@")
        return tensor, int(number)

    def _by_step(self, variants: list[list[Placement]]) -> Iterator[tuple[int, list[Placement]]]:
        numbers = self.run.numbers
        return ((numbers[_first_index(variant)], variant) for variant in variants)

    def check_header(self, name: str) -> None:
        """Raise StoreError if a tensor contradicts a header; its name is that for `tensor`.

        The header is that of the first step that has the tensor.
        """
        index, (tensor, _) = _first_index(self._variant(name)), self._split(name)
        if index not in self._steps:
            self._steps[index] = StepReader(self.store, index, closes_store=False)
        self._steps[index].tensor(tensor)
        self._steps[index].check_header(tensor)

    def _stored(self, name: str, placement: Placement) -> StoredTensor:
        array, last = self.array(placement.path), placement.last(len(self.run.steps))
        if not array.shape or array.shape[0] <= last:
            raise StoreError(
                f"{self.label(placement.path)}: shape {array.shape}, without all steps"
            )
        # An array that several tensors share names one of them.
        attributes = {**self._attributes_of(placement.path), "tensor": name}
        with named_errors(self.label(placement.path)):
            check_attributes(name, StepView(array, last), attributes, is_stepped=True)
        return StoredTensor(array, attributes.get("dtype"))

    def _joined(self, placements: Sequence[Placement], stored: list[StoredTensor]) -> ArrayReader:
        n, first = len(self.run.steps), stored[0].array
        sources: list[ArrayReader | None] = [None] * n
        for placement, (array, _) in zip(placements, stored, strict=True):
            for index in placement.indices(n):
                sources[index] = array
        # An array with more steps than the root has: an append is in progress, or was killed.
        if first.shape[0] == n and all(source is first for source in sources):
            return first
        return StepsArray(sources, fill_value(first.dtype))

    def _changes(self, name: str, variants: list[list[Placement]]) -> str:
        """Return a message with a tensor's dtypes and shapes, and the steps of each."""
        parts = []
        for number, variant in self._by_step(variants):
            array, dtype = self._stored(name, variant[0])
            parts.append(f"from step {number} on {dtype} of shape {array.shape[1:]}")
        names = " or ".join(repr(variant) for variant in self.variant_names(name))
        return f"{self.where}: tensor {name!r:.300} is {', '.join(parts)}: read it as {names:.300}"

    def _open(self, path: str) -> UnitArray:
        return self.store.array(path)


def _first_index(placements: Sequence[Placement]) -> int:
    return min(first for placement in placements for first, _ in placement.at)
