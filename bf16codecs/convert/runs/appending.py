"""Add a step to a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing

from bf16codecs._arrays.grid import ArrayPlan, chunk_counts, grid_indices
from bf16codecs._arrays.views import StepView
from bf16codecs._files.digests import Digests
from bf16codecs.codecs.growing import Version
from bf16codecs.convert.checks import (
    check_chunk_count,
    check_digests,
    check_unchanged,
    stored_index,
)
from bf16codecs.convert.runs.encoding import NewStep, Parent, encode_step, fill_values
from bf16codecs.convert.runs.plan import StepPlan, plan_step, stored_array
from bf16codecs.convert.samples import coded_nbytes, take_samples
from bf16codecs.store.attributes import StoredFile
from bf16codecs.store.choice import CodecChoice
from bf16codecs.store.layout import StoreInfo
from bf16codecs.store.plan import header_path, plan_bytes
from bf16codecs.store.runs.layout import RunInfo, RunStep
from bf16codecs.store.runs.reader import RunReader
from bf16codecs.store.runs.writer import RunWriter

__all__ = ["add_step", "candidates", "choose_parent", "max_depth"]


def add_step(
    writer: RunWriter, run: RunReader | None, info: RunInfo, step: NewStep
) -> tuple[RunInfo, int]:
    """Add a step to a run; return the new attributes, and the number of bytes written.

    `run` is None if it has no steps; `info` has its attributes. Errors leave the run as before.
    """
    try:
        return _add_step(writer, run, info, step)
    except BaseException:
        writer.abandon()
        raise


def _add_step(
    writer: RunWriter, run: RunReader | None, info: RunInfo, step: NewStep
) -> tuple[RunInfo, int]:
    source = step.source
    before = source.opened_state()
    plan = plan_step(
        source,
        run,
        info,
        choice=step.choice,
        chunk_size=step.options.chunk_size,
        largest_chunk=step.largest_chunk,
        allow_changed_tensors=step.options.allow_changed_tensors,
    )
    added = (piece for piece in plan.pieces if piece.path in plan.new)
    check_chunk_count(added, step.options.chunk_size)
    _prepare(writer, info, plan)
    parent = _choose(run, info, step)
    digests, nbytes = encode_step(writer, plan, info, step, parent)
    if run is not None:
        nbytes += _fill_up(writer, run, info.grown() - plan.arrays.keys(), step.choice)
    check_unchanged(source, before)
    check_digests(source, digests)
    files, index_file, header_nbytes = _write_files(writer, info, run, step, digests)
    parent_index = None if parent is None else parent.index
    info = info.with_step(RunStep(step.number, files, index_file, parent_index), plan.paths)
    nbytes += header_nbytes + writer.write_steps(info.numbers)
    nbytes += writer.finish(StoreInfo((), None, {}, run=info))
    return info, nbytes


def _prepare(writer: RunWriter, info: RunInfo, plan: StepPlan) -> None:
    """Create the new arrays, and extend the others by a step."""
    steps = len(info.steps) + 1
    for array in plan.arrays.values():
        if array.path in plan.new:
            writer.create(array)
    for path in info.arrays:
        writer.extend(path, steps)


def _choose(run: RunReader | None, info: RunInfo, step: NewStep) -> Parent | None:
    """Choose the step of the group that the new one is coded against; None to code it whole."""
    source, choice = step.source, step.choice
    index = len(info.steps)
    slot = index % info.group
    if run is None or slot == 0:
        return None
    samples = take_samples(source)
    group = range(index - slot, index)
    depths: dict[int, int] = {}
    for earlier in group:
        parent = info.steps[earlier].parent
        depths[earlier] = 0 if parent is None else depths.get(parent, 0) + 1
    sizes: dict[int, int] = {}
    for earlier in candidates(depths):
        with closing(run.step(info.steps[earlier].number)) as reader:
            size = coded_nbytes(samples, choice, reader)
        if size is not None:
            sizes[earlier] = size
    alone = coded_nbytes(samples, choice) or 0
    chosen = choose_parent(sizes, alone, depths, max_depth(info.group))
    if chosen is None:
        return None
    names = {path: name for name, path in info.paths_at(chosen).items() if path in info.arrays}
    arrays = {path: StepView(run.array(path), chosen) for path in names}
    reader = run.step(info.steps[chosen].number)
    return Parent(chosen, chosen - group.start, arrays, names, reader)


def _fill_up(writer: RunWriter, run: RunReader, paths: Iterable[str], choice: CodecChoice) -> int:
    """Add fill values to chunks of tensors that the step lacks; return the number of bytes written.

    Every chunk must have all steps of its group so far, since Zarr libraries read all of them.
    """
    group, slot = divmod(len(run.run.steps), run.run.group)
    nbytes = 0
    for path in sorted(paths):
        array = stored_array(run, path, choice)
        version = Version(
            fill_values(ArrayPlan(path, array.dtype, array.shape[1:], array.chunks[1:]))
        )
        for index in grid_indices(chunk_counts(array.shape[1:], array.chunks[1:])):
            nbytes += writer.append(array, (group, *index), slot, version, None).nbytes
    return nbytes


def _write_files(
    writer: RunWriter,
    info: RunInfo,
    run: RunReader | None,
    step: NewStep,
    digests: Sequence[Digests],
) -> tuple[tuple[StoredFile, ...], StoredFile | None, int]:
    """Write headers and index that the step before lacks; return entries, and the bytes written."""
    source = step.source
    known: dict[bytes, str] = {}
    if run is not None:
        with closing(run.step(info.numbers[-1])) as last:
            pairs = zip(last.headers, last.info.files, strict=True)
            known = {header.raw: file.path for header, file in pairs}
            if last.info.index is not None:
                known[stored_index(last)] = last.info.index.path
    earlier = [file for s in info.steps for file in (*s.files, s.index) if file is not None]
    count, nbytes = len({file.path for file in earlier}), 0

    def stored_path(raw: bytes) -> str:
        nonlocal count, nbytes
        if raw not in known:
            known[raw] = header_path(count)
            nbytes += writer.write_bytes(plan_bytes(known[raw], len(raw), len(raw)), raw)
            count += 1
        return known[raw]

    stored = tuple(
        StoredFile(file.name, file.size, file_digests, stored_path(header.raw), kind=header.kind)
        for file, header, file_digests in zip(
            source.info.files, source.headers, digests, strict=True
        )
    )
    index = source.info.index
    if index is None:
        return stored, None, nbytes
    raw = stored_index(source)
    index_digests = Digests.of(raw, step.digests)
    return stored, StoredFile(index.name, len(raw), index_digests, stored_path(raw)), nbytes


# Fraction of a version's size that one step less in its chain is worth.
_WORTH_OF_A_STEP = 0.001

# Number of last steps to try: all, in a group of the default size.
_LAST = 16


def max_depth(group: int) -> int:
    """Return the largest depth in a group: the number of binary digits of an index, 4 for 16 steps.

    Reading decodes at most one step more. A full chain begins anew near the group's first step.
    """
    return max(1, math.ceil(math.log2(group)))


def candidates(depths: Mapping[int, int]) -> list[int]:
    """Return the steps that are worth a try as a parent, ascending: about 28 of 4096 at most.

    These are the last ones, and the last one of each depth: weights drift, so of two steps of equal
    depth the later one is nearer. `depths` are those of the earlier steps, by index.
    """
    indices = sorted(depths)
    return sorted({*indices[-_LAST:], *{depths[index]: index for index in indices}.values()})


def choose_parent(
    sizes: Mapping[int, int], alone: int, depths: Mapping[int, int], limit: int
) -> int | None:
    """Choose the earlier step that a new step is coded against, or None to code it whole.

    It has the smallest difference, while the chain is short. Near the largest depth, it leaves room
    for steps that follow the new one, if these would be as small as the smallest difference now.

    `sizes` estimates differences to earlier steps, by index, and `alone` the step coded whole;
    `depths` has those of earlier steps, and `limit` is the largest depth of the new one.

    Examples
    --------
    A chain grows to the largest depth; then a new one begins at the first step:

    >>> choose_parent({0: 30, 1: 20, 2: 10}, 100, {0: 0, 1: 1, 2: 2}, limit=3)
    2
    >>> choose_parent({0: 24, 1: 20, 2: 18, 3: 10}, 100, {0: 0, 1: 1, 2: 2, 3: 3}, limit=3)
    0
    """
    if not sizes or min(sizes.values()) >= alone:
        return None
    smallest = min(sizes.values())

    def cost(index: int) -> float:
        room = limit - depths[index] - 1
        shared = (sizes[index] + room * smallest) / (1 + room)
        return shared * (1 + _WORTH_OF_A_STEP * depths[index])

    allowed = [index for index in sizes if depths[index] < limit and sizes[index] < alone]
    return min(allowed, key=cost, default=None)
