"""Plans the arrays of a published run, in the coordinator, from the plans of all processes."""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.distributed.checkpoint import SavePlan

from bf16codecs._arrays.grid import ArrayPlan, chunk_counts
from bf16codecs._base.messages import few
from bf16codecs._files.digests import Digests
from bf16codecs.convert.runs.series import choice_of_run, new_info
from bf16codecs.errors import StoreError
from bf16codecs.safetensors import Header, make_header
from bf16codecs.store.attributes import StoredFile
from bf16codecs.store.choice import DEFAULT_CHUNK_SIZE, DEFAULT_CODEC, CodecChoice
from bf16codecs.store.layout import ATTRIBUTES_KEY
from bf16codecs.store.paths import STEP_PATH, later_paths
from bf16codecs.store.plan import array_spec, header_path, tensor_attributes
from bf16codecs.store.published.layout import LAYOUT
from bf16codecs.store.published.roots import ROOT, Where
from bf16codecs.store.runs.layout import STEPS_CHUNK, RunInfo, RunStep
from bf16codecs.store.runs.reader import RunReader
from bf16codecs.store.runs.writer import RunArray
from bf16codecs.store.zarr.documents import ZarrDocuments, as_json
from bf16codecs.torch.checkpoint.planning import Bounds, bounds_of, chunk_grid
from bf16codecs.torch.tensors import header_spec, with_tied

__all__ = [
    "DEFAULT_KEYFRAMES",
    "RESTART",
    "RunPlan",
    "Wanted",
    "chunk_count",
    "new_plan",
    "plan_of_run",
]

#: Advice where a step cannot follow those before.
RESTART = "restart=True drops all earlier steps, and begins the run anew"
#: Steps from one that is published whole to the next.
DEFAULT_KEYFRAMES = 32
_SHOWN = 3
# Shards may begin at any items, and a chunk takes a hundred bytes beside its own.
_MOST_CHUNKS = 64


@dataclass(frozen=True)
class Wanted:
    """The tensors that a job wants to publish, their shards, and options.

    `tied` maps the name of a tensor to that of another one, whose memory it is.
    """

    specs: Mapping[str, tuple[str, tuple[int, ...]]]
    shards: Mapping[str, Sequence[Bounds]]
    tied: Mapping[str, str]
    codec: str | None
    level: str | None
    keyframe_every: int | None

    @classmethod
    def of(
        cls, plans: Sequence[SavePlan], tied: Sequence[Mapping[str, str]], **options: Any
    ) -> Wanted:
        """Return what all processes want, from their plans and the ties that each has found."""
        specs: dict[str, tuple[str, tuple[int, ...]]] = {}
        shards: dict[str, list[Bounds]] = {}
        for item in (item for plan in plans for item in plan.items):
            assert item.tensor_data is not None
            name, dtype = item.index.fqn, item.tensor_data.properties.dtype
            specs[name] = header_spec(dtype, tuple(item.tensor_data.size))
            shards.setdefault(name, []).append(bounds_of(item))
        if not specs:
            raise ValueError("state_dict has no tensors")
        return cls(specs, shards, _agreed(plans, tied, specs), **options)


def _agreed(
    plans: Sequence[SavePlan], tied: Sequence[Mapping[str, str]], specs: Mapping[str, Any]
) -> dict[str, str]:
    """Return the ties that all processes have found that write a part of the tensor.

    A process whose part is empty cannot know.
    """
    owners: dict[str, set[str | None]] = {}
    for plan, found in zip(plans, tied, strict=True):
        for item in plan.items:
            if all(bounds_of(item).sizes):
                name = item.index.fqn
                owners.setdefault(name, set()).add(found.get(name))
    agreed = {name: next(iter(found)) for name, found in owners.items() if len(found) == 1}
    return {
        name: owner
        for name, owner in agreed.items()
        if owner is not None and agreed.get(owner, "") is None and specs[name] == specs[owner]
    }


@dataclass(frozen=True)
class RunPlan:
    """The arrays of a published run by tensor, without those that are tied to another."""

    arrays: Mapping[str, ArrayPlan]
    choice: CodecChoice
    group: int
    #: The key and the content of a new run's plan.
    document: tuple[str, bytes] | None = None

    @property
    def numbers(self) -> dict[str, int]:
        """The number of each tensor's array."""
        paths = sorted(array.path for array in self.arrays.values())
        of_path = {path: number for number, path in enumerate(paths)}
        return {name: of_path[array.path] for name, array in self.arrays.items()}


def new_plan(wanted: Wanted, where: Where) -> RunPlan:
    """Plan the arrays of a new run."""
    choice = CodecChoice(wanted.codec or DEFAULT_CODEC, wanted.level)
    group = DEFAULT_KEYFRAMES if wanted.keyframe_every is None else wanted.keyframe_every
    header = make_header(wanted.specs, with_tied(wanted.tied, {"format": "pt"}), str(where))
    own = [tensor for tensor in header.tensors if tensor.name not in wanted.tied]
    paths, arrays = later_paths([tensor.name for tensor in own], (), "0"), {}
    for tensor in own:
        dtype, shape = array_spec(tensor, is_stepped=True)
        chunks = _grid(tensor.name, shape, np.dtype(dtype).itemsize, wanted.shards[tensor.name])
        arrays[tensor.name] = RunArray(
            paths[tensor.name],
            dtype,
            (1, *shape),
            (group, *chunks),
            tensor_attributes(tensor, shape),
            codec=choice.for_run(dtype, group),
        )
    document = _document(header, arrays, wanted.tied, new_info(choice, group), where)
    of_step = {name: _of_step(array) for name, array in arrays.items()}
    plan = RunPlan(of_step, choice, group, (f"plan/{secrets.token_hex(4)}", document))
    _check_shards(plan, wanted, where)
    return plan


def _grid(
    name: str, shape: tuple[int, ...], item_size: int, shards: Sequence[Bounds]
) -> tuple[int, ...]:
    """Return the shape of chunks, each of which lies in one of the shards.

    Raises ValueError if there would be too many.
    """
    chunks = chunk_grid(shape, item_size, shards, DEFAULT_CHUNK_SIZE)
    if all(map(_fits, shards, [chunks] * len(shards), [shape] * len(shards))):
        return chunks
    chunks = tuple(
        math.gcd(*(shard.offsets[axis] for shard in shards if all(shard.sizes))) or size
        for axis, size in enumerate(shape)
    )
    count = math.prod(chunk_counts(shape, chunks))
    if count > _MOST_CHUNKS * len(shards):
        raise ValueError(
            f"tensor {name!r}: its {len(shards)} shards can only be cut into {count} chunks that do"
            " not lie in two of them: shard it along another axis, or evenly"
        )
    return chunks


def _fits(shard: Bounds, chunks: Sequence[int], shape: Sequence[int]) -> bool:
    """Tell whether no chunk is in a shard and beside it."""
    ends = [offset + size for offset, size in zip(*shard, strict=True)]
    return not all(shard.sizes) or all(
        offset % chunk == 0 and (end % chunk == 0 or end == whole)
        for offset, end, chunk, whole in zip(shard.offsets, ends, chunks, shape, strict=True)
    )


def _document(
    header: Header,
    arrays: Mapping[str, RunArray],
    tied: Mapping[str, str],
    info: RunInfo,
    where: Where,
) -> bytes:
    """Return the plan of a new run: docs/published_runs.md, "Plan"."""
    documents = ZarrDocuments(3)
    for array in arrays.values():
        documents.add(array, array.codec)
    size = len(header.raw)
    documents.add(ArrayPlan(header_path(0), "uint8", (size,), (max(1, size),)), None)
    documents.add(RunArray(STEP_PATH, "int64", (1,), (STEPS_CHUNK,)), None)
    stem = os.path.basename(str(where)).removesuffix(".zarr") or "model"
    file = StoredFile(f"{stem}.safetensors", header.file_size, Digests(), header_path(0))
    paths = {name: arrays[tied.get(name, name)].path for name in header.entries}
    content = info.with_step(RunStep(0, (file,), None), paths).to_content()
    attributes = {ATTRIBUTES_KEY: {"layout": LAYOUT, **content}}
    root = dict(documents.keys(attributes))[ROOT]
    return as_json({"root": json.loads(root), "header": header.raw.decode()})


def _of_step(array: ArrayPlan) -> ArrayPlan:
    """Return one step of an array."""
    return ArrayPlan(array.path, array.dtype, array.shape[1:], array.chunks[1:])


def plan_of_run(run: RunReader, wanted: Wanted, where: Where) -> RunPlan:
    """Return the plan of a run that exists.

    Raises StoreError if the job has other tensors; ValueError if it has other options, or shards
    that no chunks of the run make up.
    """
    info = run.run
    try:
        choice = choice_of_run(str(where), info, wanted.codec, wanted.level, wanted.keyframe_every)
    except ValueError as e:
        raise ValueError(f"{e}: leave it out, or begin the run anew (restart=True)") from None
    last = run.step(info.numbers[-1])
    known = {
        name: (tensor.dtype, tensor.shape)
        for header in last.headers
        for name, tensor in header.entries.items()
    }
    _check_tensors(known, wanted.specs, where)
    paths = info.paths_at(len(info.steps) - 1)
    owners: dict[str, str] = {}
    for name, path in paths.items():
        if name not in wanted.tied:
            owners.setdefault(path, name)
    untied = sorted(set(paths) - set(wanted.tied) - set(owners.values()))
    tied = [n for n, owner in wanted.tied.items() if paths[n] != paths[owner]]
    if untied or tied:
        raise StoreError(
            f"{where}: the step has other ties than those before:"
            f" {'no longer' if untied else 'newly'} tied: {few(untied or tied, _SHOWN)}: {RESTART}"
        )
    arrays = {}
    for path, name in owners.items():
        array = run.array(path)
        arrays[name] = _of_step(ArrayPlan(path, array.dtype.name, array.shape, array.chunks))
    plan = RunPlan(arrays, choice, info.group)
    _check_shards(plan, wanted, where)
    return plan


def _check_tensors(
    known: Mapping[str, tuple[str, tuple[int, ...]]],
    given: Mapping[str, tuple[str, tuple[int, ...]]],
    where: Where,
) -> None:
    """Refuse a step whose tensors have other names, dtypes or shapes than those before."""
    others = [
        f"{name} ({_shown(given[name])}, before {_shown(spec)})"
        for name, spec in known.items()
        if name in given and (spec[0], tuple(spec[1])) != given[name]
    ]
    problems = [
        ("it lacks", sorted(known.keys() - given.keys())),
        ("it also has", sorted(given.keys() - known.keys())),
        ("these have another dtype or shape:", others),
    ]
    texts = [f"{what} {few(names, _SHOWN)}" for what, names in problems if names]
    if texts:
        raise StoreError(
            f"{where}: the step has other tensors than those before: {'; '.join(texts)}: {RESTART}"
        )


def _shown(spec: tuple[str, Sequence[int]]) -> str:
    return f"{spec[0]} {list(spec[1])}"


def _check_shards(plan: RunPlan, wanted: Wanted, where: Where) -> None:
    """Refuse shards that have a part of a chunk."""
    for name, array in plan.arrays.items():
        for shard in wanted.shards.get(name, ()):
            if not _fits(shard, array.chunks, array.shape):
                raise ValueError(
                    f"{where}: tensor {name!r}: a process's shard begins at {shard.offsets} and has"
                    f" shape {shard.sizes}, which the run's chunks of {array.chunks} do not make"
                    f" up: after the job has changed how it shards tensors, {RESTART}"
                )


def chunk_count(array: ArrayPlan) -> int:
    """Return how many chunks a step has in an array."""
    return math.prod(chunk_counts(array.shape, array.chunks))
