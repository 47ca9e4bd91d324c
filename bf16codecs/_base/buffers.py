"""Buffers and data types on their way in and out of the native core.

The core takes one-dimensional buffers of bytes. ml_dtypes arrays refuse the buffer protocol
(``cannot include dtype 'E' in a buffer``), so everything is viewed as ``uint8`` here. Nothing
is copied: an array in Fortran order is taken as its memory lies.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import ml_dtypes  # noqa: F401  (makes "bfloat16" and the float8 names known to numpy.dtype)
import numpy as np
from numpy.typing import NDArray

from bf16codecs import _core
from bf16codecs._base.arguments import one_of

__all__ = [
    "AUTO",
    "CHUNK_MEMORY",
    "Bytes",
    "LentMemory",
    "ThreadBuffer",
    "aligned",
    "as_array",
    "byte_view",
    "check_same_dtype",
    "dtype_name",
    "is_shifted",
    "layout_for",
    "own_layout",
    "row_length",
    "row_of",
    "writable_byte_view",
]

Bytes = NDArray[np.uint8]

#: Instead of an element layout: take the array's.
AUTO = "auto"

#: Shorter rows have too few items for a scale of their own.
_SHORT_ROW = 64

_LAYOUT_BY_SIZE = {1: "float8_e4m3fn", 4: "float32", 8: "float64", 16: "float64"}


def aligned(n: int, alignment: int) -> int:
    """Return `n` rounded up to a multiple of `alignment`."""
    return -(-n // alignment) * alignment


def as_array(value: Any) -> Any:
    """Return a PyTorch tensor or a CuPy array as a NumPy array, and anything else unchanged.

    It has a tensor's bfloat16 and float8, and shares its memory if that is the CPU's, and not
    conjugated or negated when it is read. TypeError is raised for a tensor that is sparse, has no
    data, or has numbers that NumPy lacks; ValueError for a class that computes its numbers from
    other data.
    """
    # If the value is an array or a tensor, its package is imported.
    cupy: Any = sys.modules.get("cupy")
    if cupy is not None and isinstance(value, cupy.ndarray):
        return cupy.asnumpy(value, order="A")  # as its memory lies
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return value
    name = str(value.dtype).removeprefix("torch.")
    if str(value.layout) != "torch.strided" or value.device.type == "meta":
        raise TypeError(f"a tensor in layout {value.layout} on {value.device} has no array")
    from bf16codecs._base.torch_tensors import plain_tensor

    tensor = plain_tensor(value).detach().cpu().resolve_conj().resolve_neg()
    try:
        if np.dtype(name).isbuiltin == 1:
            return tensor.numpy()
        bits = getattr(torch, f"int{8 * tensor.element_size()}")
        return tensor.view(bits).numpy().view(name)
    except TypeError as error:
        raise TypeError(f"NumPy has no {value.dtype}: {error}") from error


def byte_view(buf: Any, name: str = "") -> Bytes:
    """View any contiguous buffer, in C or Fortran order, as one dimension of bytes.

    TypeError is raised for Python objects and for other values than buffers, ValueError if the
    memory is not contiguous. Messages call the buffer `name`, if given.
    """
    # The usual case, first: encoding a kilobyte takes 5 us in all, and numcodecs' check 2.
    if type(buf) is np.ndarray and buf.flags.c_contiguous and not buf.dtype.hasobject:
        return buf.reshape(-1).view(np.uint8)
    if type(buf) is bytes:
        return np.frombuffer(buf, np.uint8)
    # Imported where it is needed: numcodecs takes as long as all of this package to read a store.
    from numcodecs.compat import ensure_contiguous_ndarray

    try:
        return ensure_contiguous_ndarray(as_array(buf)).reshape(-1).view(np.uint8)
    except TypeError as error:
        what, kind = name or "buf", type(buf).__name__
        raise TypeError(f"{what} must be a buffer or a NumPy array, not {kind}: {error}") from error
    except ValueError as error:
        if not name:
            raise
        raise ValueError(f"{name}: {error}; numpy.ascontiguousarray() makes it so") from error


def writable_byte_view(out: Any) -> Bytes:
    """View a buffer as `byte_view` does.

    ValueError is also raised if it is read-only, or not the CPU's memory.
    """
    view = byte_view(out, "out")
    if not view.flags.writeable:
        raise ValueError("out is read-only")
    if hasattr(out, "data_ptr"):
        if out.data_ptr() != view.ctypes.data:
            raise ValueError("out is a tensor whose memory is not the CPU's")
    elif hasattr(out, "__cuda_array_interface__"):
        raise ValueError("out is an array whose memory is not the CPU's")
    return view


def dtype_name(dtype: Any) -> str:
    """Check an element layout given by name or as a NumPy data type, and return its name."""
    name = np.dtype(dtype).name if isinstance(dtype, (np.dtype, type)) else dtype
    return one_of("dtype", name, (*_core.DTYPES, AUTO))


@lru_cache
def own_layout(dtype: np.dtype[Any]) -> str | None:
    """Return the element layout that is named as a data type is, if there is one."""
    name = dtype.name  # which NumPy takes a microsecond and a half to make
    return name if name in _core.DTYPES else None


def layout_for(dtype: np.dtype[Any] | None) -> str:
    """Return the element layout for arrays of `dtype`: its own, or one of the same item size.

    Bytes without a data type, and items without a fixed size, get bfloat16's.
    """
    if dtype is None or dtype.kind in "OT":
        return "bfloat16"
    layout = own_layout(dtype)
    if layout is not None:
        return layout
    if dtype.kind == "c":
        return "float32" if dtype.itemsize == 8 else "float64"
    return _LAYOUT_BY_SIZE.get(dtype.itemsize, "bfloat16")


def row_length(buf: Any, layout: str, steps: int = 1) -> int:
    """Return the items between neighbours in a column, in memory order; 0 if that is unknown.

    It is known for arrays of at least two dimensions whose item size is that of `layout`.
    """
    if (
        not isinstance(buf, np.ndarray)
        or buf.ndim < 2
        or buf.dtype.itemsize != _core.ITEM_SIZES[layout]
    ):
        return 0
    return row_of(buf.shape if buf.flags.c_contiguous else buf.shape[::-1], steps)


def row_of(shape: Sequence[int], steps: int = 1) -> int:
    """Return the items of a row in memory order, or 0 if each of several steps has one row alone.

    A row is the last axis. Where that is short, as in a convolution's kernels, it is joined with
    those before it, but for the first.
    """
    row, items = int(shape[-1]), math.prod(shape)
    for length in reversed(shape[1:-1]):
        if row >= _SHORT_ROW or row * length * steps >= items:
            break
        row *= int(length)
    return row if steps == 1 or row * steps < items else 0


def check_same_dtype(buf: Any, base: Any) -> None:
    """Raise ValueError where both are arrays of floating-point numbers, but of different types."""
    names = [array.dtype.name for array in (buf, base) if isinstance(array, np.ndarray)]
    if all(name in _core.DTYPES for name in names) and len(set(names)) > 1:
        raise ValueError(f"the base has the data type {names[1]}, and what is encoded {names[0]}")
    orders = {array.dtype.isnative for array in (buf, base) if isinstance(array, np.ndarray)}
    if len(orders) > 1:
        raise ValueError("the base and what is encoded have different byte orders")


def is_shifted(base: Bytes, out: Bytes) -> bool:
    """Tell whether two buffers share memory, but not each byte at the same offset."""
    if base.size == 0 or base.ctypes.data == out.ctypes.data:
        return False
    return np.may_share_memory(base, out)


class ThreadBuffer(threading.local):
    """Memory of each thread, used again and again: fresh pages cost more than decoding into them.

    Examples
    --------
    >>> buffer = ThreadBuffer()
    >>> buffer.get(1000).size
    1000
    """

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def __reduce__(self) -> tuple[Any, ...]:
        return ThreadBuffer, ()  # in another process, it has other threads

    def get(self, size: int) -> Bytes:
        """Return memory of undefined content, this thread's until its next call."""
        if self._memory.size < size:
            self._memory = np.empty(size, np.uint8)
        return self._memory[:size]


# The allocator itself keeps smaller memory.
_LEAST_LENT = 1 << 17


class LentMemory:
    """Memory of arrays that are gone, lent to others of the same size.

    Zarr drops a decoded chunk as soon as it has copied it, and the allocator gives the memory back
    to the system: the pages of the next one took three times as long as decoding into them.

    Parameters
    ----------
    most : int
        How many bytes to keep for the next arrays.

    Examples
    --------
    >>> memory = LentMemory(most=1 << 20)
    >>> memory.array(200_000).size
    200000
    """

    def __init__(self, most: int) -> None:
        self._most = most
        # Without a lock: an array may go while the same thread is about to lend another.
        self._free: list[Bytes] = []

    @property
    def is_empty(self) -> bool:
        """Whether it keeps no memory."""
        return not self._free

    def array(self, size: int) -> Bytes:
        """Return a new array of undefined content; its views keep the memory as well."""
        if size < _LEAST_LENT:
            return np.empty(size, np.uint8)
        try:
            memory = self._free.pop()
        except IndexError:
            memory = np.empty(size, np.uint8)
        if memory.size != size:  # of chunks of another array, which may be read no more
            memory = np.empty(size, np.uint8)
        return np.asarray(_Lent(self, memory))

    def take_back(self, memory: Bytes) -> None:
        """Keep memory that no array has any more, up to the most bytes to keep."""
        if sum(kept.size for kept in self._free.copy()) + memory.size <= self._most:
            self._free.append(memory)


class _Lent:
    """Owner of lent memory, released with the last array that refers to it."""

    def __init__(self, lender: LentMemory, memory: Bytes) -> None:
        self._lender, self._memory = lender, memory
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        self._lender.take_back(self._memory)


#: For decoded chunks that zarr will copy: by default, it holds ten of them at a time.
CHUNK_MEMORY = LentMemory(most=1 << 26)
