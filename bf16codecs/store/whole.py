"""All tensors of a store, for those who read them in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bf16codecs._arrays.grid import ArrayPlan
from bf16codecs._base.messages import named_errors
from bf16codecs.errors import StoreError
from bf16codecs.safetensors import Header
from bf16codecs.store.checks import check_form
from bf16codecs.store.reader import ModelReader

__all__ = ["stored_arrays"]


def stored_arrays(reader: ModelReader, headers: Sequence[Header]) -> list[ArrayPlan]:
    """Return the arrays of all tensors, in the order in which their bytes lie in the files.

    Raises
    ------
    StoreError
        If an array is missing, or is not what its tensor is stored as.
    """
    arrays = []
    for number, header in enumerate(headers):
        for tensor in header.tensors:
            path = reader.info.paths.get(tensor.name)
            if path is None:
                raise StoreError(f"{reader.where}: no array for tensor {tensor.name!r}")
            plan = reader.plan(path)
            with named_errors(reader.where):
                check_form(path, plan, tensor, reader.is_stepped)
            arrays.append(replace(plan, file=number, offset=header.data_start + tensor.start))
    return arrays
