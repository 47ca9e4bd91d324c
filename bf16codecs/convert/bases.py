"""The base of a conversion: the model that a store's differences refer to."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bf16codecs._arrays.grid import ArrayPlan
from bf16codecs._base.arguments import argument
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.messages import counted, few, one_line
from bf16codecs._base.paths import given_path, require_path, resolved
from bf16codecs.codecs import encode_delta
from bf16codecs.convert.target import absolute_target
from bf16codecs.errors import BaseMismatchError, BF16CodecsError, StoreError
from bf16codecs.store.attributes import BaseReference
from bf16codecs.store.bases import files_of, identity, is_nameable, path_to
from bf16codecs.store.choice import CodecChoice
from bf16codecs.store.kinds import Kind, detect, path_of
from bf16codecs.store.opening import Opening, open_any, open_either
from bf16codecs.store.plan import plan_arrays
from bf16codecs.store.reader import ModelReader
from bf16codecs.store.runs.reader import RunReader

__all__ = [
    "AUTO",
    "Base",
    "Sample",
    "check_not_base",
    "coded_nbytes",
    "local_chain",
    "opened_base",
    "take_samples",
]

#: Prefix of a folder from which the best base is taken.
AUTO = "auto:"
# Least saving of differences, by the sample, that justifies depending on another model.
_LEAST_GAIN = 0.02
# Models in a message, of those that were tried.
_SHOWN = 5


@dataclass(frozen=True)
class Base:
    """A base, and how the store will name it."""

    model: ModelReader
    reference: BaseReference
    state: Any
    #: Why it was picked from a folder; empty if the caller named it.
    reason: str = ""

    def check_unchanged(self) -> None:
        """Raise BaseMismatchError if the base has changed since it was opened."""
        try:
            is_same = self.model.state() == self.state
        except OSError as e:
            raise BaseMismatchError(f"{self.model.where}: {one_line(e)}") from e
        if not is_same:
            raise BaseMismatchError(f"{self.model.where}: changed while it was read as a base")


def check_not_base(
    base: str | os.PathLike[str] | None, target: Path | str, options: Mapping[str, Any] | None
) -> None:
    """Raise ValueError, before any advice to overwrite, if `target` is in the chain of the base."""
    if base is None or (isinstance(target, Path) and not os.path.lexists(target)):
        return
    location = given_path(base, "base")
    if location.startswith(AUTO):  # which leaves out the target
        return
    try:
        model = open_any(location, Opening(options, chain=("",)))
    except (BF16CodecsError, OSError):
        return  # `opened_base` raises it
    with closing(model):
        _check_target(model, target)


def _check_target(model: ModelReader, target: Path | str) -> None:
    if isinstance(target, str):
        below: ModelReader | None = model
        while below is not None:
            where, _ = below.location
            if identity(where) == identity(target):
                raise ValueError(f"{target}: would replace the base, {model.where}, or its base")
            below = below.base
        return
    local = path_of(model.location[0])
    absolute_target(target, [] if local is None else [Path(local)], "base")
    absolute_target(target, local_chain(model.base), f"base that {model.where} needs")


@contextmanager
def opened_base(
    base: str | os.PathLike[str] | None,
    source: ModelReader | None,
    target: Path | str,
    choice: CodecChoice,
    kinds: Sequence[str],
    options: Mapping[str, Any] | None = None,
) -> Iterator[Base | str]:
    """Open the base of a conversion, and close it at the end; yield the reason if there is none.

    `base` is a path or an address, or None; ``"auto:"`` and a folder choose the best of the models
    there, including the last steps of runs. If `source` is None, no base can be chosen from a
    folder. `choice` codes the differences. `kinds` are digests that later identify a safetensors
    base. `options` are those of the file system of a base at an address.

    Raises ValueError if the target would replace a model in the base's chain, the codec cannot
    store differences, or `options` come without such an address; StoreError if the base is not a
    model, its folder has none, or stores cannot name it.
    """
    if base is None:
        if options:
            name = argument("storage_options")
            raise ValueError(f"{name} are for addresses: neither the source nor a base is at one")
        yield ""
        return
    codec, location = choice.for_difference("bfloat16"), given_path(base, "base")
    reason = ""
    if location.startswith(AUTO):
        if isinstance(target, str):
            raise ValueError(
                f"{location}: a store in an object store cannot have a local base: upload the base,"
                " and name its address"
            )
        if options:
            raise ValueError(
                f"{location}: {argument('storage_options')} are for a base at an address, and only"
                " local folders are searched for one"
            )
        picked, reason = _pick(location.removeprefix(AUTO), source, target, choice)
        if picked is None:
            yield reason
            return
        location = str(picked)
    # The new store is the first of the chain.
    with closing(open_any(location, Opening(options, chain=("",)))) as model:
        where, step = model.location
        _check_target(model, target)
        state = model.state()
        path = path_to(where, target)
        if not path.isprintable():  # readers would refuse it
            odd = next(c for c in path if not c.isprintable())
            raise StoreError(f"{where}: stores cannot name it as their base: rename {odd!a} in it")
        if "://" in path and not is_nameable(path):
            raise StoreError(
                f"{where}: stores cannot name it as their base: its address has another scheme than"
                " http, https, s3, gs and az"
            )
        reference = BaseReference(path, step, files_of(model, kinds), codec)
        yield Base(model, reference, state, reason)


def local_chain(model: ModelReader | None) -> Iterator[Path]:
    """Yield the local paths of a model and of its chain of bases; addresses are left out."""
    while model is not None:
        where, _ = model.location
        path = path_of(where)
        if path is not None:
            yield Path(path)
        model = model.base


def _pick(
    folder: str, source: ModelReader | None, target: Path, choice: CodecChoice
) -> tuple[Path | None, str]:
    """Return the best base in a folder, None if it saves too little, and a line that says why."""
    if "://" in folder:
        raise ValueError(f"{AUTO}{folder}: only local folders are searched for a base")
    require_path(given_path(folder, "folder of bases"))
    paths = sorted(Path(folder).iterdir())
    samples = [] if source is None else take_samples(source)
    excluded = {resolved(path) for path in (target, *([] if source is None else source.paths))}
    # A folder of shards is the source as well.
    excluded |= {parent for path in excluded for parent in path.parents}
    sizes: list[tuple[int | None, Path]] = []
    depending: list[str] = []
    unread: dict[str, str] = {}
    for path in paths:
        try:
            if path.name[0] != "." and resolved(path) not in excluded and detect(path) is not None:
                found = _sample_nbytes(path, samples, target, choice)
                if found is None:
                    depending.append(path.name)
                else:
                    sizes.append(found)
        except (BF16CodecsError, OSError) as e:
            unread[path.name] = one_line(e)
    if not sizes and not depending:
        reason = f": {next(iter(unread.values()))}" if unread else ""
        raise StoreError(f"{AUTO}{folder}: no model in this folder can be the base{reason}")
    fitting = sorted((size, path) for size, path in sizes if size is not None)
    best, text = _best(fitting, samples, coded_nbytes(samples, choice) or 0)
    if not fitting:
        strangers = f"none of {counted(len(sizes), 'model')} in {folder} has a tensor in common"
        text = f"no base: {strangers if sizes else f'no other model is in {folder}'}"
    if depending:
        text += f"; left out, since their base is {target.name}: {few(depending, _SHOWN)}"
    if unread:
        why = next(iter(unread.values()))
        text += f"; could not be read: {few(list(unread), _SHOWN)} ({why})"
    return best, text


def _best(
    found: list[tuple[int, Path]], samples: list[Sample], alone: int
) -> tuple[Path | None, str]:
    """Return the first of bases, ordered by size, if it saves enough, and a line about them."""
    values = sum(sample.data.size // np.dtype(sample.dtype).itemsize for sample in samples)
    bits = 8 / max(1, values)
    listed = ", ".join(f"{path.name} {size * bits:.2f}" for size, path in found[:_SHOWN])
    text = f"by a sample: {alone * bits:.2f} bits per value alone, as a difference to {listed}"
    if not found or found[0][0] > (1 - _LEAST_GAIN) * alone:
        return None, f"no base is worth it, {text}"
    return found[0][1], text


def _sample_nbytes(
    path: Path, samples: list[Sample], target: Path, choice: CodecChoice
) -> tuple[int | None, Path] | None:
    """Return the size of samples as differences to a model or the last step of a run, and its path.

    The size is None if it has none of their tensors; the result is None if it depends on `target`.
    """
    is_file = detect(path) is Kind.SAFETENSORS
    with closing(open_any(path) if is_file else open_either(path)) as reader:
        model = reader
        if isinstance(reader, RunReader):
            model = reader.step(reader.run.numbers[-1])
        step = model.location[1]
        if resolved(target) in {resolved(base) for base in local_chain(model)}:
            return None
        named = path if step is None else path.with_name(f"{path.name}@{step}")
        return coded_nbytes(samples, choice, model), named


# Size and largest number of the parts of a sample: coding 2 MiB takes some milliseconds.
_PART_BYTES = 1 << 16
_PARTS = 32


class Sample(NamedTuple):
    """A part of a tensor: bytes [start, stop) of it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int
    data: Bytes


def take_samples(source: ModelReader) -> list[Sample]:
    """Read at most 2 MiB of a model's tensors, in parts that are spread evenly."""
    _, arrays = plan_arrays(source.headers, _PART_BYTES)
    names = [tensor.name for header in source.headers for tensor in header.tensors]
    return [
        _read(source, name, array, start)
        for name, array, start in _spread(names, arrays)
        if array.nbytes
    ]


def _spread(
    names: Sequence[str], arrays: Sequence[ArrayPlan]
) -> Iterator[tuple[str, ArrayPlan, int]]:
    """Yield offsets in arrays, in bytes, that are spread evenly over all of them."""
    total = sum(array.nbytes for array in arrays)
    stride = max(1, total // _PARTS)
    before, next_at = 0, stride // 2
    for name, array in zip(names, arrays, strict=True):
        while next_at < before + array.nbytes:
            start = min(next_at - before, max(0, array.nbytes - _PART_BYTES))
            yield name, array, start - start % array.item_size
            next_at += max(stride, array.nbytes if array.nbytes <= _PART_BYTES else stride)
        before += array.nbytes


def _read(source: ModelReader, name: str, array: ArrayPlan, start: int) -> Sample:
    data = np.empty(min(_PART_BYTES, array.nbytes - start), np.uint8)
    source.read_range(array.file, array.offset + start, data)
    return Sample(name, array.dtype, array.shape, start, start + data.size, data)


def coded_nbytes(
    samples: Sequence[Sample], choice: CodecChoice, model: ModelReader | None = None
) -> int | None:
    """Return the bytes of samples coded alone, or as differences to the same parts of a model.

    Tensors that `model` lacks are coded alone; the result is None if it has none of them.
    """
    size, common = 0, 0
    for sample in samples:
        codec = choice.for_difference(sample.dtype)
        array = None
        if model is not None and sample.shape:
            array = model.counterpart(sample.name, sample.dtype, sample.shape)
        if array is None:
            size += len(codec.encode(sample.data))
            continue
        base = np.empty_like(sample.data)
        array.read_range(sample.start, sample.stop, base)
        size += len(encode_delta(codec, sample.data, base))
        common += 1
    return size if common or model is None else None
