"""Whole tensors of a model, read in parallel: into new arrays, or into given memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bf16codecs._base.messages import counted
from bf16codecs._base.threads import run_all
from bf16codecs.model.tensor import LazyTensor
from bf16codecs.store.bases import work_with_bases

__all__ = ["check_together", "read_all", "read_into"]


def read_all(tensors: Iterable[LazyTensor]) -> dict[str, NDArray[Any]]:
    """Read whole tensors of one model into new arrays, all of them in parallel."""
    tensors = list(tensors)
    arrays: dict[str, NDArray[Any]] = {}

    def new_arrays() -> Iterator[NDArray[Any]]:
        for tensor in tensors:
            arrays[tensor.name] = np.empty(tensor.shape, tensor.dtype)
            yield arrays[tensor.name]

    check_together(tensors)
    read_into(tensors, new_arrays())
    return arrays


def read_into(tensors: Sequence[LazyTensor], places: Iterable[NDArray[Any]]) -> None:
    """Read whole tensors of one model, all of them in parallel, after `check_together`.

    Parameters
    ----------
    tensors
        The tensors.
    places
        For each an array of its shape and dtype, which chunks are decoded straight into. They are
        taken one by one, as there is room for more work.
    """
    # At least 1: here no lock of HDF5's is held, and one tensor that only HDF5 reads must not keep
    # the others to one thread.
    concurrency = max(1, min((tensor._array.concurrency for tensor in tensors), default=1))
    largest = max((t._array.scratch_nbytes for t in tensors if t.size), default=0)
    pairs = zip(tensors, places, strict=True)
    run_all((job for tensor, out in pairs for job in tensor._jobs(out)), concurrency, largest)


def check_together(tensors: Sequence[LazyTensor]) -> None:
    """Check all that can be told of whole tensors of one model before they are read.

    Raises
    ------
    StoreError
        If they are more than a call may decode, or one is not what its header says.
    """
    if not tensors:
        return
    nbytes = sum(tensor.nbytes for tensor in tensors)
    opened = tensors[0]._home.opened
    work = sum(work_with_bases(opened, t.name, t._array.whole_work) for t in tensors)
    opened.check_size(nbytes, counted(len(tensors), "tensor"), work)
    for tensor in tensors:
        opened.check_header(tensor.name)
