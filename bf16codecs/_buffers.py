"""Buffers and data types on their way in and out of the native core.

The core takes one-dimensional buffers of bytes. ml_dtypes arrays refuse the buffer protocol
(``cannot include dtype 'E' in a buffer``), so everything is viewed as ``uint8`` here. Nothing
is copied: an array in Fortran order is taken as its memory lies.
"""

from __future__ import annotations

import threading
from typing import Any

import ml_dtypes  # noqa: F401  (makes "bfloat16" and the float8 names known to numpy.dtype)
import numpy as np
from numpy.typing import NDArray

from bf16codecs import _core

__all__ = [
    "Bytes",
    "ThreadBuffer",
    "byte_view",
    "check_same_dtype",
    "dtype_name",
    "is_shifted",
    "layout_for",
    "row_in_step",
    "row_length",
    "writable_byte_view",
]

Bytes = NDArray[np.uint8]

_LAYOUT_BY_SIZE = {1: "float8_e4m3fn", 4: "float32", 8: "float64", 16: "float64"}


def byte_view(buf: Any, name: str = "") -> Bytes:
    """View any contiguous buffer, in C or Fortran order, as one dimension of bytes.

    Errors say that it is called `name`, if that is given.

    Raises
    ------
    TypeError
        If `buf` is not a buffer, or holds Python objects.
    ValueError
        If its memory is not contiguous.
    """
    # Imported where it is needed: numcodecs takes as long as all of this package to read a store.
    from numcodecs.compat import ensure_contiguous_ndarray

    try:
        return ensure_contiguous_ndarray(buf).reshape(-1).view(np.uint8)
    except TypeError as error:
        if not name:
            raise
        kind = type(buf).__name__
        raise TypeError(f"{name} must be a buffer or a NumPy array, not {kind}: {error}") from error
    except ValueError as error:
        if not name:
            raise
        raise ValueError(f"{name}: {error}; numpy.ascontiguousarray() makes it so") from error


def writable_byte_view(out: Any) -> Bytes:
    """View a writable contiguous buffer as one dimension of bytes.

    Raises
    ------
    TypeError
        If `out` is not a buffer, or holds Python objects.
    ValueError
        If its memory is not contiguous, or read-only.
    """
    view = byte_view(out, "out")
    if not view.flags.writeable:
        raise ValueError("out is read-only")
    return view


def dtype_name(dtype: Any) -> str:
    """Check an element layout given by name or as a NumPy data type, and return its name."""
    if isinstance(dtype, (np.dtype, type)):
        dtype = np.dtype(dtype).name
    if not isinstance(dtype, str):
        raise TypeError(f"dtype must be a string, not {type(dtype).__name__}")
    if dtype not in _core.DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(_core.DTYPES)}, not {dtype!r}")
    return dtype


def layout_for(dtype: np.dtype[Any]) -> str:
    """Return the element layout for arrays of `dtype`: its own, or one of the same item size."""
    if dtype.name in _core.DTYPES:
        return dtype.name
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
    row = int(buf.shape[-1] if buf.flags.c_contiguous else buf.shape[0])
    return row_in_step(row, buf.size, steps)


def row_in_step(row: int, items: int, steps: int) -> int:
    """Return `row`, or 0 if it is all that there is of one of several steps."""
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
    """Tell whether two buffers share memory, but not the same bytes in the same place."""
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
