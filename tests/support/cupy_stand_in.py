"""A stand-in for CuPy where there is no GPU: arrays in the memory of the driver's stand-in.

It has what zarr's buffers and this package use, and refuses what CuPy refuses: to be taken for an
array of NumPy's, and data types that it does not have. What is copied to an array is there once its
stream has come that far, as the driver's stand-in does it: late.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import numpy as np

from bf16codecs.cuda.device import Device
from bf16codecs.cuda.streams import Stream


class _Pages:
    """Memory of the stand-in's device, which is the host's, as NumPy sees it."""

    def __init__(self, nbytes: int) -> None:
        self.memory = Device.of(0).allocate(nbytes)
        self.__array_interface__ = {
            "data": (self.memory.address, False),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }


class _Data:
    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


class _Device(nullcontext):  # type: ignore[type-arg]
    id = 0


class _Streams:
    """Which stream is each thread's: the default stream, or one of its own."""

    def __init__(self) -> None:
        self.are_per_thread = False
        self._own: dict[int, Stream] = {}

    def current(self) -> Stream:
        if not self.are_per_thread:
            return Device.of(0).stream_of(0)
        thread = threading.get_ident()
        if thread not in self._own:
            self._own[thread] = Device.of(0).stream()
        return self._own[thread]


class ndarray:
    """An array on the device: `view` shows its memory, once the stream has come that far."""

    streams = _Streams()

    def __init__(self, view: np.ndarray) -> None:
        _check(view.dtype)
        self.view_ = view
        self.dtype, self.shape, self.ndim = view.dtype, view.shape, view.ndim
        self.size, self.nbytes, self.itemsize = view.size, view.nbytes, view.itemsize
        self.flags, self.strides, self.device = view.flags, view.strides, _Device()
        self.data = _Data(view.ctypes.data if view.size else 0)
        self.__cuda_array_interface__ = {
            "data": (self.data.ptr, False),
            "shape": self.shape,
            "typestr": view.dtype.str,
            "version": 3,
        }

    def host(self) -> np.ndarray:
        """Wait for the calling thread's stream, and no other."""
        self.streams.current().synchronize()
        return self.view_

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        result = function(*map(_bare, args), **{k: _bare(v) for k, v in kwargs.items()})
        if isinstance(result, (tuple, list)):
            return tuple(map(asarray, result))
        return asarray(result) if isinstance(result, np.ndarray) else result

    def __len__(self) -> int:
        return len(self.view_)

    def __getitem__(self, key: Any) -> ndarray:
        found = np.asarray(self.host()[_bare(key)])
        is_view = np.shares_memory(found, self.view_)
        return ndarray(found) if is_view or not found.size else asarray(found)

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, np.ndarray) and value.ndim:
            raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
        self.host()[_bare(key)] = _bare(value)

    def __eq__(self, other: object) -> Any:
        return asarray(self.host() == _bare(other))

    __hash__ = None  # type: ignore[assignment]

    def view(self, dtype: Any) -> ndarray:
        return ndarray(self.view_.view(dtype))

    def reshape(self, *shape: Any, order: str = "C") -> ndarray:
        changed = self.host().reshape(*shape, order=order)
        return ndarray(changed) if np.shares_memory(changed, self.view_) else asarray(changed)

    def ravel(self) -> ndarray:
        return self.reshape(-1)

    def transpose(self, axes: Any = None) -> ndarray:
        return ndarray(self.view_.transpose(axes))

    def astype(self, dtype: Any, order: str = "K", copy: bool = True) -> ndarray:
        changed = self.host().astype(dtype, order=order, copy=copy)
        return self if changed is self.view_ else asarray(changed)

    def copy(self) -> ndarray:
        return asarray(self.host())

    def fill(self, value: Any) -> None:
        self.host()[...] = value

    def all(self) -> ndarray:
        return asarray(self.host().all())

    def __bool__(self) -> bool:
        return bool(self.host())

    def tobytes(self, order: str = "C") -> bytes:
        return self.host().tobytes(order)


def _check(dtype: np.dtype) -> None:
    if dtype.byteorder == ">" or not (dtype.kind in "biufc" or dtype.name == "bfloat16"):
        raise ValueError(f"Unsupported dtype {dtype}")


def _bare(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_bare, value))
    return value.host() if isinstance(value, ndarray) else value


def empty(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    dtype = np.dtype(dtype)
    _check(dtype)
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    nbytes = int(np.prod(shape, dtype=int)) * dtype.itemsize
    memory = np.asarray(_Pages(nbytes)) if nbytes else np.empty(0, np.uint8)
    return ndarray(memory.view(dtype).reshape(shape, order=order))  # type: ignore[call-overload]


def asarray(value: Any, dtype: Any = None) -> ndarray:
    if isinstance(value, ndarray):
        return value
    array = np.asarray(value, dtype)
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    array = np.asarray(array, order=order)  # type: ignore[call-overload]
    made = empty(array.shape, array.dtype, order)
    if array.size:
        ndarray.streams.current().copy(made.data.ptr, array.ctypes.data, array.nbytes)
    return made


def asnumpy(value: Any, order: str = "C") -> np.ndarray:
    if not isinstance(value, ndarray):
        return np.asarray(value)
    return np.array(value.host(), order=order)  # type: ignore[call-overload]


def frombuffer(buffer: Any, dtype: Any) -> ndarray:
    return asarray(np.frombuffer(buffer, dtype))


def concatenate(arrays: Any) -> ndarray:
    return asarray(np.concatenate([array.host() for array in arrays]))


class _Current:
    """A stream as CuPy has it."""

    def __init__(self) -> None:
        self.ptr = ndarray.streams.current().handle


def module() -> Any:
    """Return the stand-in module, with each thread on the default stream."""
    ndarray.streams = _Streams()
    made: Any = ModuleType("cupy")
    made.ndarray, made.empty, made.frombuffer = ndarray, empty, frombuffer
    made.array = made.asarray = made.asanyarray = asarray
    made.asnumpy, made.concatenate = asnumpy, concatenate
    made.cuda = ModuleType("cupy.cuda")
    made.cuda.get_current_stream = _Current
    return made
