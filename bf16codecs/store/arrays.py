"""The interface of a store's arrays, which each container implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from bf16codecs._arrays.array import RangeReader, UnitArray
from bf16codecs._arrays.views import StepView
from bf16codecs._base.limits import Limits
from bf16codecs.errors import BF16CodecsError, StoreError
from bf16codecs.store.attributes import Difference
from bf16codecs.store.layout import StoreInfo

if TYPE_CHECKING:
    import zarr

__all__ = ["CheckSize", "Fault", "StoredArrays", "faults"]

#: The name of a tensor, or the path of an array or a group, and its error.
Fault = tuple[str, BF16CodecsError]
#: Raises LimitError if a number of decoded bytes is too large; the text names the data.
CheckSize = Callable[[int, str], None]


class StoredArrays(ABC):
    """The arrays of a store, by path; several threads may read.

    A `ModelReader` reads a model from them; a run and all of its steps share their arrays. `info`
    has the attributes of the store, whose path or address is `where`.
    """

    #: Whether reading a small part, such as a header, is cheap, without a request to a server.
    is_near = True
    #: How many reads at a time pay off.
    concurrency = 1
    #: Whether arrays repeat their shape in the names of their dimensions. If not, opening a tensor
    #: reads its header.
    names_dimensions = True
    #: 3 or 2 for stores in Zarr, and 0 for others.
    zarr_format = 0
    #: Whether it is a run that a training job publishes, to which nothing else appends.
    is_published = False

    def __init__(self, where: str, info: StoreInfo, limits: Limits) -> None:
        if info.loss is not None and not self.zarr_format:
            raise StoreError(f"{where}: it is lossy, as no store but those in Zarr is")
        self.where, self.info, self.limits = where, info, limits

    def label(self, path: str) -> str:
        """Return a description of an array, with its store, for messages."""
        return f"{self.where}: {self.info.labels.get(path, path[:300])}"

    @abstractmethod
    def open(self, path: str, check_size: CheckSize) -> UnitArray:
        """Open an array; raise StoreError if it is missing, or its metadata are invalid.

        `check_size`, which knows the size of the base as well, is called before a library opens it.
        """

    def open_difference(
        self, path: str, difference: Difference, find_base: Callable[[], RangeReader]
    ) -> UnitArray:
        """Open an array that is stored as a difference to the result of `find_base`."""
        raise StoreError(f"{self.label(path)}: it is a difference, which only Zarr and HDF5 have")

    def read_up_to(self, index: int) -> None:  # noqa: B027
        """Read of a run only steps up to an index; later ones may take requests."""

    def step_key(self, index: int) -> str:
        """Return what tells a step of a run from others of this number; "" if nothing does."""
        return ""

    def between(self, path: str, known: int, wanted: int) -> StepView | None:
        """Return an array of a run at a step, decoded against its values at an earlier one.

        Steps are given by their indices; `known` is the one whose values `StepView.against` takes,
        as step 0. The result is None unless the run has the differences of all steps between.
        """
        return None

    @abstractmethod
    def attributes(self, path: str) -> Mapping[str, Any]:
        """Return the attributes of an array under `bf16codecs`."""

    @abstractmethod
    def open_zarr(self, path: str, check_size: CheckSize) -> zarr.Array:
        """Open an array with zarr; raise ValueError if the store is not in Zarr."""

    def needs_header(self, path: str) -> bool:
        """Return whether to compare an array with the header of its tensor."""
        return self.is_near

    @property
    def knows_sizes(self) -> bool:
        """Whether stored sizes are known without a request to a server for each chunk."""
        return True

    @abstractmethod
    def stored_nbytes(self, path: str) -> int:
        """Return the bytes that an array takes in the store."""

    @abstractmethod
    def total_nbytes(self) -> int:
        """Return the size of the whole store."""

    def size_of_at_least(self, enough: int) -> int:
        """Return the store's size, or a lower bound of at least `enough` if that is cheaper."""
        return self.total_nbytes()

    @abstractmethod
    def codec_name(self, path: str) -> str:
        """Return the name of an array's codec, as `bf16codecs info` shows it."""

    def codec_level(self, path: str) -> str:
        """Return the level of an array's arithmetic codec, or ``""`` for other codecs."""
        return ""

    def growing_steps(self, path: str) -> int | None:
        """Return for how many steps an array has growing frames; None if metadata lack that."""
        return None

    def node_attributes(self) -> Iterator[tuple[str, Collection[str]]]:
        """Yield groups and arrays, as far as they are known, with the names of their attributes."""
        return iter(())

    def document_faults(self) -> Iterator[Fault]:
        """Yield faults in metadata that this package ignores, but other readers use or refuse."""
        return iter(())

    @abstractmethod
    def close(self) -> None:
        """Close files and connections."""


def faults(names: Iterable[str], check: Callable[[str], object]) -> Iterator[Fault]:
    """Yield the names for which a check fails, with the errors."""
    for name in names:
        try:
            check(name)
        except BF16CodecsError as e:
            yield name, e
