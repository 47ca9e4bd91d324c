"""Plan where the tensors of a checkpoint go in a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from bf16codecs._arrays.array import ArrayReader
from bf16codecs._arrays.grid import ArrayPlan, chunk_shape
from bf16codecs._base.arguments import argument, for_caller
from bf16codecs._base.messages import counted
from bf16codecs.convert.plan import find_repeated
from bf16codecs.convert.runs.members import check_member
from bf16codecs.errors import StoreError
from bf16codecs.safetensors import TensorInfo
from bf16codecs.store.attributes import ROUNDED
from bf16codecs.store.choice import CodecChoice
from bf16codecs.store.layout import ATTRIBUTES_KEY
from bf16codecs.store.paths import later_paths
from bf16codecs.store.plan import array_spec, tensor_attributes
from bf16codecs.store.reader import ModelReader
from bf16codecs.store.runs.layout import RunInfo
from bf16codecs.store.runs.reader import RunReader
from bf16codecs.store.runs.writer import RunArray

__all__ = ["StepPlan", "check_growing", "plan_step", "stored_array"]


@dataclass(frozen=True)
class StepPlan:
    """The arrays of a run for the tensors of a checkpoint.

    `paths` are as `RunInfo.paths_at` returns them. `pieces` has each tensor's array as it is read,
    in the order of the data. `arrays`, by path, are those to write to, and `new` those to create.
    """

    paths: dict[str, str]
    pieces: list[ArrayPlan]
    arrays: dict[str, RunArray]
    new: set[str]


def plan_step(
    source: ModelReader,
    run: RunReader | None,
    info: RunInfo,
    *,
    choice: CodecChoice,
    chunk_size: int,
    largest_chunk: int | None,
    allow_changed_tensors: bool,
) -> StepPlan:
    """Plan a step; `run` is None if the run has no steps yet, and `info` its attributes.

    In bytes, `chunk_size` limits one step in a chunk of a new array, and `largest_chunk` a chunk
    with all steps of a group; None for no limit. Raises ValueError if a chunk would exceed
    `largest_chunk`; StoreError if the checkpoint does not belong to the run, or an array cannot
    grow.
    """
    tensors = [tensor for header in source.headers for tensor in header.tensors]
    repeated = find_repeated(source)
    stored = {t.name: t for t in tensors if t.name not in {**repeated.copies, **repeated.roundings}}
    known = _known_paths(run, info, stored)
    if run is not None:
        check_member(run, tensors, known, source.file_path(0), allow_changed_tensors)
        for path in sorted(info.arrays):
            check_growing(run, path)
    variants = [variant for of_tensor in info.tensors.values() for variant in of_tensor]
    taken = {variant.path for variant in variants if not variant.path.endswith(ROUNDED)}
    index = len(info.steps)
    later = later_paths([name for name in stored if name not in known], taken, str(index))
    paths = known | later
    planned = [
        _plan(tensor, index, file, paths, run, info, choice, chunk_size)
        for file, header in enumerate(source.headers)
        for tensor in header.tensors
        if tensor.name in stored
    ]
    arrays = {array.path: array for array, _ in planned}
    for array in arrays.values():
        if largest_chunk is not None and array.chunk_nbytes > largest_chunk:
            raise ValueError(
                f"a chunk of {array.path!r:.300} would have {array.chunk_nbytes} bytes with the"
                f" {counted(info.group, 'step')} of a group, but HDF5 has {largest_chunk} at most:"
                f" lower {argument('keyframe_every')} or {argument('chunk_size')}"
            )
    pieces = {name: piece for name, (_, piece) in zip(stored, planned, strict=True)}
    for name, owner in repeated.copies.items():
        paths[name] = paths[owner]
    for name, owner in repeated.roundings.items():
        paths[name] = paths[owner] + ROUNDED
    for name, owner in {**repeated.copies, **repeated.roundings}.items():
        pieces[name] = replace(pieces[owner], is_written=False)
    ordered = []
    for file, header in enumerate(source.headers):
        for tensor in header.tensors:
            dtype, shape = array_spec(tensor, is_stepped=True)
            offset = header.data_start + tensor.start
            piece = replace(pieces[tensor.name], dtype=dtype, shape=shape, file=file, offset=offset)
            ordered.append(piece)
    in_order = {name: paths[name] for header in source.headers for name in header.entries}
    return StepPlan(in_order, ordered, arrays, arrays.keys() - taken)


def _known_paths(
    run: RunReader | None, info: RunInfo, tensors: Mapping[str, TensorInfo]
) -> dict[str, str]:
    """Return the paths of tensors that the run has with the same dtype and shape."""
    found: dict[str, str] = {}
    for name, tensor in tensors.items():
        for variant in info.tensors.get(name, ()):
            if run is None or variant.path.endswith(ROUNDED):
                continue
            array = run.array(variant.path)
            attributes = run.stored.attributes(variant.path)
            expected = array_spec(tensor, is_stepped=True)
            is_same = attributes.get("tensor") == name and attributes.get("dtype") == tensor.dtype
            if is_same and (array.dtype.name, array.shape[1:]) == expected:
                found[name] = variant.path
    return found


def check_growing(run: RunReader, path: str) -> None:
    """Refuse to change the steps of an array whose chunks are not frames of a whole group."""
    array, group = run.array(path), run.run.group
    chunks = ArrayPlan(path, array.dtype.name, array.shape[1:], array.chunks[1:])
    steps = run.growing_steps(path) if chunks.is_contiguous else 0
    if (array.chunks[0], steps) != (group, group):
        raise StoreError(
            f"{run.label(path)}: its chunks are not growing frames of {counted(group, 'step')}, as"
            " this package makes them: other software has written them; to change the run, restore"
            f" its steps ({for_caller('run_to_safetensors', '--all')}), and make it anew"
            f" ({for_caller('safetensors_to_run', '--series')})"
        )


def _plan(
    tensor: TensorInfo,
    index: int,
    file: int,
    paths: Mapping[str, str],
    run: RunReader | None,
    info: RunInfo,
    choice: CodecChoice,
    chunk_size: int,
) -> tuple[RunArray, ArrayPlan]:
    """Return the array of a tensor, and the plan of the pieces in which the tensor is read."""
    dtype, shape = array_spec(tensor, is_stepped=True)
    path = paths[tensor.name]
    old: ArrayReader | None = None
    if run is not None and any(f.path == path for f in info.tensors.get(tensor.name, ())):
        old = run.array(path)
    chunks = chunk_shape(shape, np.dtype(dtype).itemsize, chunk_size)
    chunks = chunks if old is None else old.chunks[1:]
    array = RunArray(
        path,
        dtype,
        (index + 1, *shape),
        (info.group, *chunks),
        tensor_attributes(tensor, shape),
        codec=choice.for_run(dtype, info.group),
    )
    return array, ArrayPlan(path, dtype, shape, chunks, file=file)


def stored_array(run: RunReader, path: str, choice: CodecChoice) -> RunArray:
    """Return the plan of an array that a run has."""
    array = run.array(path)
    dtype = np.dtype(array.dtype).name
    return RunArray(
        path,
        dtype,
        array.shape,
        array.chunks,
        {ATTRIBUTES_KEY: dict(run.stored.attributes(path))},
        codec=choice.for_run(dtype, run.run.group),
    )
