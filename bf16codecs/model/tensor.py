"""Tensors of a model that are read when they are indexed."""

from __future__ import annotations

import functools
import math
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import ml_dtypes  # noqa: F401  (registers its names with numpy.dtype)
import numpy as np
from numpy.typing import NDArray

from bf16codecs._arrays.array import ArrayReader, Job, RangeReader
from bf16codecs._arrays.indexing import Points, cut_range, parse_selection
from bf16codecs._base.arguments import as_options, for_caller
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.dtypes import ARRAY_DTYPES, DTYPE_NAMES
from bf16codecs._base.limits import Limits
from bf16codecs._base.messages import counted, from_extra
from bf16codecs._base.paths import absolute, given_path
from bf16codecs._base.threads import run_all
from bf16codecs.errors import LimitError
from bf16codecs.model.notebook import tensor_html
from bf16codecs.store.bases import work_with_bases
from bf16codecs.store.kinds import HUB_SCHEME, address_scheme
from bf16codecs.store.opening import Opening, open_any, open_run_store, split_step
from bf16codecs.store.reader import ModelReader
from bf16codecs.store.runs.reader import RunReader

if TYPE_CHECKING:
    import dask.array
    import torch
    import zarr

__all__ = [
    "LazyTensor",
    "ModelHandle",
    "RunHandle",
    "check_together",
    "read_all",
    "read_into",
]

_SAFETENSORS_NAMES = {item: name for name, item in ARRAY_DTYPES.items()}
# Dtypes of one byte that arrays store as uint8.
_BYTE_DTYPES = {name: item for name, item in DTYPE_NAMES.items() if name not in ARRAY_DTYPES}

# Bytes that may be decoded for each part of a sample: twice the chunks that are decoded whole.
_SAMPLE_WORK = 1 << 25


Opened = TypeVar("Opened", bound=ModelReader)


class ModelHandle(Generic[Opened]):
    """A handle of an open model, with the arguments to open it again in another process.

    `source`, `options`, `max_bytes` and `base` are arguments of `open_model`; the base may also be
    the handle of an open model. `step` is the step to open of a run. `opened` is the model, if it
    is already open.
    """

    #: Its name in messages.
    kind = "model"
    #: The handle of the run if this is a step, which is closed with the run.
    _run: ModelHandle[Any] | None = None

    def __init__(
        self,
        source: Any,
        options: Any,
        max_bytes: int | None,
        base: Any = None,
        step: int | None = None,
        opened: Opened | None = None,
    ) -> None:
        as_options(options)
        source, base = _fixed(source, "model"), _fixed(base, "base")
        #: The arguments to open it again, even in another process.
        self.arguments = source, options, max_bytes, base, step
        if opened is None:
            opened_base = base.opened if isinstance(base, ModelHandle) else base
            advice = for_caller(", or open all with bf16codecs.open_run", "")
            opening = Opening(options, Limits(max_bytes), opened_base, step, for_runs=advice)
            opened = self._open(source, opening)
            if isinstance(source, str) and address_scheme(source) == HUB_SCHEME:
                # Another process reads the same commit.
                where, step = opened.location
                self.arguments = where, options, max_bytes, base, step
        self._opened: Opened | None = opened

    @staticmethod
    def _open(source: Any, opening: Opening) -> Any:
        return open_any(source, opening)

    @property
    def is_open(self) -> bool:
        """Whether neither it nor its run is closed."""
        return self._opened is not None and (self._run is None or self._run.is_open)

    @property
    def opened(self) -> Opened:
        """The open model; raises ValueError after `close`."""
        if self._run is not None:
            _ = self._run.opened  # raises if the run, whose files a step reads, is closed
        if self._opened is None:
            raise ValueError(f"{self.arguments[0]}: the {self.kind} is closed: open it again")
        return self._opened

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.arguments

    def close(self) -> None:
        """Close files and connections."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None


class RunHandle(ModelHandle[RunReader]):
    """A handle of an open run, with the arguments to open it again in another process."""

    kind = "run"

    @staticmethod
    def _open(source: Any, opening: Opening) -> RunReader:
        return open_run_store(source, opening)

    def at_step(self, number: int) -> ModelHandle[ModelReader]:
        """Return the handle of a step, which shares the open files of the run.

        Raises StepNotFoundError if the run lacks the step.
        """
        step = self.opened.step(number)
        handle: ModelHandle[ModelReader] = ModelHandle(*self.arguments[:-1], number, opened=step)
        handle._run = self
        return handle


def _fixed(source: Any, what: str) -> Any:
    """Make a path absolute: another process may have another working directory."""
    if not isinstance(source, (str, os.PathLike)):
        return source
    text = given_path(source, what)
    return text if "://" in text else absolute(text)


class LazyTensor:
    """A tensor in a model store; indexing reads only the blocks that the selection touches.

    Index it as in NumPy: by integers, slices of any step, integer and boolean arrays, ``...`` and
    ``None``. The result is an ndarray. A pickled tensor refers to its store, without the data.

    `bf16codecs.open_model` returns models of these.

    Attributes
    ----------
    name : str
        The tensor's name.
    shape : tuple of int
        Its shape. Packed types (F4, F6) have the shape of their bytes.
    dtype : numpy.dtype
        Its data type: NumPy's or ml_dtypes'; ``uint8`` for packed types.
    """

    def __init__(self, handle: ModelHandle[Any], name: str) -> None:
        self._handle = handle
        self._array, self._kind = handle.opened.tensor(name)
        self.name = name
        self.shape = self._array.shape
        self.dtype = self._array.dtype
        if self.dtype == np.uint8 and self._kind in _BYTE_DTYPES:
            self.dtype = np.dtype(_BYTE_DTYPES[self._kind])

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size of the tensor in bytes, once read."""
        return self.size * self.dtype.itemsize

    @property
    def chunks(self) -> tuple[int, ...]:
        """Shape of the stored chunks."""
        return self._array.chunks

    def get_shape(self) -> list[int]:
        """Return the shape, as slices of safetensors do."""
        return list(self.shape)

    def get_dtype(self) -> str:
        """Return the dtype by its name in safetensors, as slices of safetensors do."""
        name = self.dtype.name
        return self._kind or _SAFETENSORS_NAMES.get(name, name.upper())

    def __getitem__(self, selection: Any) -> Any:
        parsed = parse_selection(selection, self.shape)
        if isinstance(parsed, Points):
            points = [i.reshape(-1) for i in parsed.indices]
            self._check_size(points[0].size, self._array.points_work(points))
            found = np.empty(points[0].size, self._array.dtype)
            self._reader().read_points(points, found)
            return found.reshape(parsed.indices[0].shape).view(self.dtype)
        shape = [len(axis) for axis in parsed.axes]
        work = self._array.box_work(parsed.axes)
        self._check_size(math.prod(shape), work.total)
        box = np.empty(shape, self._array.dtype)
        jobs = self._reader().box_jobs(parsed.axes, box)
        run_all(jobs, self._array.concurrency, work.each)
        return box.view(self.dtype)[parsed.then]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("copy=False is not possible: reading a LazyTensor makes a new array")
        array: NDArray[Any] = self[...]
        return array if dtype is None else array.astype(dtype, copy=False)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a tensor without dimensions")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def has_form_of(self, other: LazyTensor) -> bool:
        """Return whether another tensor has the same dtype and shape."""
        return (self.get_dtype(), self.shape) == (other.get_dtype(), other.shape)

    def is_copy_of(self, other: LazyTensor) -> bool:
        """Return whether another tensor of this model is stored in the same array."""
        return self.has_form_of(other) and self._array is other._array

    def ranges(self) -> RangeReader:
        """Return a reader of ranges of its bytes, little-endian and in C order."""
        return self._handle.opened.ranges(self._reader())

    def ranges_of(self, base: LazyTensor) -> RangeReader | None:
        """Return a reader of ranges of another model's tensor, in this one's dtype.

        Returns
        -------
        RangeReader or None
            It rounds FP32 if this tensor is BF16, and widens BF16 if this one is FP32. None if the
            other tensor has another shape, or any other dtype.
        """
        base._reader()
        name, dtype = base.name, self._array.dtype.name
        return base._handle.opened.counterpart(name, dtype, self.shape)

    def torch(self, device: Any = "cpu") -> torch.Tensor:
        """Read the whole tensor as a PyTorch tensor of the same dtype.

        A GPU decodes it if the packages of the extra ``cuda`` are installed.

        Parameters
        ----------
        device
            A device of PyTorch: a `torch.device`, or a name such as ``"cuda:1"``.

        Raises
        ------
        TypeError, ValueError, RuntimeError
            If it is not a device, or is one of CUDA and PyTorch was built without CUDA.
        """
        from bf16codecs._base.torch_tensors import as_tensor, checked_device
        from bf16codecs.model.gpu import gpu_of, torch_tensors

        target = checked_device(device)
        gpu = gpu_of(target)
        if gpu is not None:
            self._check_size(self.size, self._array.whole_work)
            return torch_tensors([self], target, gpu)[self.name]
        return as_tensor(self[...], self.get_dtype()).to(target)

    def dask(self, chunks: Any = None) -> dask.array.Array:
        """Return a dask array that reads this tensor.

        Parameters
        ----------
        chunks
            Chunks of the dask array; by default those of the store.
        """
        with from_extra("dask", "LazyTensor.dask()"):
            import dask.array

        self._reader()  # checks the tensor before making a graph of all of its chunks
        if chunks is None:
            chunks = self.chunks if self.size else -1
        return dask.array.from_array(self, chunks, asarray=False, inline_array=True)

    @property
    def zarr(self) -> zarr.Array:
        """The tensor's array, opened by zarr. Reading a missing chunk raises `StoreError`.

        For a step of a run, it is the array of all steps.
        """
        self._reader()
        return self._handle.opened.zarr_array(self.name)

    def sample(self, nbytes: int, parts: int) -> Bytes:
        """Read about `nbytes` bytes of values in evenly spread parts, or all if it has fewer.

        Returns
        -------
        ndarray of uint8
            Little-endian values.

        Raises
        ------
        LimitError
            If that takes decoding more than 32 MiB for each part.
        """
        first, last = self._sampled()
        size, count = self.dtype.itemsize, last - first
        each = min(count, nbytes // parts // size)
        if each * parts >= count:
            each, parts = count, 1
        out = np.empty((parts, each * size), np.uint8)
        starts = [first + (2 * i + 1) * count // (2 * parts) - each // 2 for i in range(parts)]
        boxes = (box for start in starts for box in cut_range(self.shape, start, start + each))
        work = sum(self._array.box_work(box).total for box in boxes)
        self._check_size(parts * each, work)
        if work_with_bases(self._handle.opened, self.name, work) > parts * _SAMPLE_WORK:
            raise LimitError(f"a part of it takes decoding {work >> 20} MiB")
        reader = self._reader()
        for start, part in zip(starts, out, strict=True):
            reader.read_range(start * size, (start + each) * size, part)
        return out.reshape(-1)

    def read_box(self, box: Sequence[range], out: NDArray[Any]) -> None:
        """Read consecutive indices along each axis into an array of their number and this dtype."""
        work = self._array.box_work(box)
        self._check_size(out.size, work.total)
        jobs = self._reader().box_jobs(box, out.view(self._array.dtype))
        run_all(jobs, self._array.concurrency, work.each)

    def _sampled(self) -> tuple[int, int]:
        """Return the range of values to sample: the first, and the one after the last."""
        return 0, self.size

    def _paths(self) -> list[str]:
        """Return the paths of the tensor's arrays."""
        return [self._handle.opened.info.paths[self.name]]

    def _repr_html_(self) -> str:
        return tensor_html(self, lambda: self._handle.opened, self._paths)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, shape={self.shape}, dtype={self.dtype})"

    def __reduce__(self) -> tuple[Callable[..., LazyTensor], tuple[Any, ...]]:
        return _reopened_tensor, (type(self), type(self._handle), self._handle.arguments, self.name)

    def __dask_tokenize__(self) -> Any:
        source, *_, step = self._handle.arguments
        return type(self).__name__, str(source), step, self.name, _version(source)

    def _reader(self) -> ArrayReader:
        # Not in the constructor, so that listing tensors does not read headers.
        self._handle.opened.check_header(self.name)
        return self._array

    def _check_size(self, items: int, work: int) -> None:
        """Refuse a selection if its items, or the chunks to decode for them, are too large."""
        nbytes = items * self._array.dtype.itemsize
        opened = self._handle.opened
        work = work_with_bases(opened, self.name, work)
        opened.check_size(nbytes, f"tensor {self.name!r:.80}", work)

    def _jobs(self, out: NDArray[Any]) -> Iterator[Job]:
        """Yield jobs that together read the whole tensor into an array of its shape and dtype."""
        whole = out.view(self._array.dtype)
        yield from self._reader().box_jobs([range(size) for size in self.shape], whole)


def _reopened_tensor(
    kind: type[LazyTensor], handle: type[ModelHandle[Any]], arguments: tuple[Any, ...], name: str
) -> LazyTensor:
    # A worker gets hundreds of tensors of one model one by one, so cache the open model.
    reference = pickle.dumps((handle, arguments, _version(arguments[0])))
    return kind(_reopened(reference), name)


@functools.lru_cache(maxsize=4)
def _reopened(reference: bytes) -> ModelHandle[Any]:
    handle, arguments, _ = pickle.loads(reference)
    found: ModelHandle[Any] = handle(*arguments)
    return found


def _version(source: Any) -> Any:
    """Return a token that changes when another store replaces a local one."""
    source, _ = split_step(source)
    if isinstance(source, str) and "://" not in source:
        for path in (source, os.path.join(source, "zarr.json"), os.path.join(source, ".zattrs")):
            if os.path.isfile(path):
                status = os.stat(path)
                return status.st_ino, status.st_mtime_ns
    return None


def read_all(tensors: Iterable[LazyTensor]) -> dict[str, NDArray[Any]]:
    """Read whole tensors of one model into new arrays, in parallel."""
    tensors = list(tensors)
    arrays: dict[str, NDArray[Any]] = {}

    def new_arrays() -> Iterator[NDArray[Any]]:
        for tensor in tensors:
            arrays[tensor.name] = np.empty(tensor.shape, tensor.dtype)
            yield arrays[tensor.name]

    check_together(tensors)
    read_into(tensors, new_arrays())
    return arrays


def read_into(tensors: Sequence[LazyTensor], arrays: Iterable[NDArray[Any]]) -> None:
    """Read whole tensors of one model in parallel, after `check_together`.

    `arrays` yields an array of the shape and dtype of each, into which its chunks are decoded. It
    is iterated as work proceeds.
    """
    # At least 1: this thread holds no lock of HDF5, and a single tensor that needs the HDF5 library
    # must not confine the others to one thread.
    concurrency = max(1, min((tensor._array.concurrency for tensor in tensors), default=1))
    largest = max((t._array.scratch_nbytes for t in tensors if t.size), default=0)
    pairs = zip(tensors, arrays, strict=True)
    run_all((job for tensor, out in pairs for job in tensor._jobs(out)), concurrency, largest)


def check_together(tensors: Sequence[LazyTensor]) -> None:
    """Check whole tensors of one model, as far as possible before reading them.

    Raises StoreError if they are more than a call may decode, or a tensor contradicts its header.
    """
    if not tensors:
        return
    nbytes = sum(tensor.nbytes for tensor in tensors)
    opened = tensors[0]._handle.opened
    work = sum(work_with_bases(opened, t.name, t._array.whole_work) for t in tensors)
    opened.check_size(nbytes, counted(len(tensors), "tensor"), work)
    for tensor in tensors:
        opened.check_header(tensor.name)
