"""What there is to tell of a model, a run or one of its steps: collected here, shown elsewhere."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bf16codecs._base.half import HalfLoss
from bf16codecs._base.messages import counted, named_errors
from bf16codecs._files.digests import Digests
from bf16codecs._files.reading import disk_size
from bf16codecs.store.addresses import kind_of_address, path_of
from bf16codecs.store.attributes import ROUNDED, BaseReference, StoredFile, array_loss, loss_entry
from bf16codecs.store.kinds import Kind, detect
from bf16codecs.store.objects import sizes_of_objects
from bf16codecs.store.reader import ModelReader, Storage
from bf16codecs.store.runs.layout import RunInfo
from bf16codecs.store.runs.reader import RunReader
from bf16codecs.store.whole import stored_arrays

__all__ = ["Contents", "Row", "contents_of", "dtypes_of", "ratio_of", "storage_of"]

# How rows are ordered: the largest first, those of one size as in the files.
_ORDERS: dict[str, Callable[[Row], Any]] = {
    "name": lambda row: row.name,
    "size": lambda row: -row.nbytes,
    "ratio": lambda row: -math.inf if row.ratio is None else -row.ratio,
}

_SHARED = Storage("shared", "")


def ratio_of(nbytes: int, stored_nbytes: int | None) -> float | None:
    """Return the original size over the stored one; None of what is not stored, or not known."""
    return nbytes / stored_nbytes if stored_nbytes else None


def dtypes_of(rows: Iterable[Row]) -> Counter[str]:
    """Return how many tensors have each dtype."""
    return Counter(row.dtype for row in rows)


@dataclass(frozen=True)
class Row:
    """A tensor; of a run, its bytes are those of all steps, and its shape that of one."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    storage: Storage
    #: What it takes in the store, if that is known.
    stored_nbytes: int | None
    #: Of a lossy store, what it lost, if it is not the rounding of another.
    loss: HalfLoss | None = None
    #: Whether the last step of a run has it.
    is_present: bool = True

    @property
    def ratio(self) -> float | None:
        """Original over stored size."""
        return ratio_of(self.nbytes, self.stored_nbytes)

    @property
    def codec(self) -> str:
        """Names of codec and level."""
        return f"{self.storage.codec} {self.storage.level}".rstrip()

    @property
    def way(self) -> str:
        """How it is there: ``"shared"``, ``"rounded"``, ``"difference"`` or ``"whole"``."""
        if self.storage.codec in ("shared", "rounded"):
            return self.storage.codec
        return "difference" if self.storage.codec.startswith("difference+") else "whole"

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "name": self.name,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "parameters": math.prod(self.shape),
            "nbytes": self.nbytes,
            "stored_nbytes": self.stored_nbytes,
            "ratio": self.ratio,
            "codec": self.storage.codec,
            "level": self.storage.level or None,
            "way": self.way,
            "lossy": None if self.loss is None else loss_entry(self.loss),
        }


@dataclass(frozen=True)
class Contents:
    """What there is, in what, and what it takes: sizes of the original files, and of the store.

    Objects of a checkpoint count as if they were in its file.
    """

    path: str
    kind: Kind
    zarr_format: int
    rows: list[Row]
    nbytes: int
    #: None if it is not known, nor that of the rows: to ask would be a request for each chunk.
    stored_nbytes: int | None
    #: Original files, the index last; a run has them step by step.
    files: list[StoredFile] = field(default_factory=list)
    base: BaseReference | None = None
    loss: HalfLoss | None = None
    run: RunInfo | None = None
    #: The number of the step, if it is one of a run.
    step: int | None = None
    #: What the disk keeps of the store, if that is known: runs in HDF5 files have holes.
    disk_nbytes: int | None = None
    #: Of a checkpoint of a training job, the sizes of what is no tensor, by name.
    objects: dict[str, int] | None = None

    @property
    def is_store(self) -> bool:
        """Whether it is stored otherwise than as the original files."""
        return self.kind is not Kind.SAFETENSORS

    @property
    def has_stored_sizes(self) -> bool:
        """Whether it is a store, and sizes in it are known."""
        return self.is_store and self.stored_nbytes is not None

    @property
    def title(self) -> str:
        """What it is, in words."""
        if not self.is_store:
            return self.kind.value
        what = "a model" if self.loss is None else "a lossy model"
        if self.objects is not None:
            what = "a checkpoint of a training job"
        elif self.run is not None:
            what = f"a run of {counted(len(self.run.steps), 'step')}"
        elif self.step is not None:
            what = f"step {self.step} of a run"
        return f"{what} in {self.kind.value}{f', format {f}' if (f := self.zarr_format) else ''}"

    @property
    def present(self) -> list[Row]:
        """All tensors; of a run, those of its last step."""
        return [row for row in self.rows if row.is_present]

    @property
    def parameters(self) -> int:
        """How many numbers the tensors have, of a run those of its last step."""
        return sum(math.prod(row.shape) for row in self.present)

    @property
    def codecs(self) -> Counter[str]:
        """How many tensors have each codec."""
        return Counter(row.codec for row in self.rows)

    @property
    def dtypes(self) -> Counter[str]:
        """How many tensors have each dtype."""
        return dtypes_of(self.rows)

    @property
    def of_tensors(self) -> tuple[int, int | None]:
        """Size, and stored size, of all tensors together."""
        nbytes = sum(row.nbytes for row in self.rows)
        if self.stored_nbytes is None:
            return nbytes, None
        return nbytes, sum(row.stored_nbytes or 0 for row in self.rows)

    @property
    def rest(self) -> tuple[int, int | None]:
        """Size, and stored size, of what is not the tensors': headers, index and metadata."""
        tensors, stored = self.of_tensors
        rest = max(0, self.nbytes - tensors)
        if self.stored_nbytes is None or stored is None:
            return rest, None
        return rest, max(0, self.stored_nbytes - stored)

    def sort(self, by: str) -> None:
        """Order the tensors: by one of `SORTS`."""
        if by != "file":
            self.rows.sort(key=_ORDERS[by])

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON has it: docs/cli.md explains the keys."""
        run = self.run
        return {
            "path": self.path,
            "kind": self.kind.name.lower(),
            "zarr_format": self.zarr_format or None,
            "parameters": self.parameters,
            "nbytes": self.nbytes,
            "stored_nbytes": self.stored_nbytes,
            "disk_nbytes": self.disk_nbytes,
            "ratio": ratio_of(self.nbytes, self.stored_nbytes),
            "lossless": self.loss is None,
            "lossy": None if self.loss is None else loss_entry(self.loss),
            "codecs": dict(self.codecs),
            "dtypes": dict(self.dtypes),
            "base": None if self.base is None else _base_json(self.base),
            "step": self.step,
            "group": None if run is None else run.group,
            "steps": None if run is None else _steps_json(run),
            "files": [_file_json(file) for file in self.files],
            "objects": None if self.objects is None else _objects_json(self.objects),
            "tensors": [row.to_json() for row in self.rows],
        }


def _base_json(base: BaseReference) -> dict[str, Any]:
    files = [{"name": f.name, "nbytes": f.size, **vars(f.digests)} for f in base.files]
    return {"path": base.path, "step": base.step, "files": files}


def _steps_json(run: RunInfo) -> list[dict[str, Any]]:
    numbers = run.numbers
    return [
        {
            "step": step.number,
            "parent": None if step.parent is None else numbers[step.parent],
            "nbytes": step.nbytes,
            "files": [_file_json(f) for f in (*step.files, step.index) if f is not None],
        }
        for step in run.steps
    ]


def _file_json(file: StoredFile) -> dict[str, Any]:
    restored = file.restored_digests or Digests()
    return {
        "name": file.name,
        "nbytes": file.size,
        **vars(file.digests),  # of safetensors, they would have to be computed
        **{f"restored_{kind}": digest for kind, digest in vars(restored).items()},
    }


def _objects_json(objects: dict[str, int]) -> list[dict[str, Any]]:
    return [{"name": name, "nbytes": nbytes} for name, nbytes in objects.items()]


def contents_of(
    reader: ModelReader,
    path: str | os.PathLike[str],
    ask_sizes: bool = False,
    with_sizes: bool = True,
) -> Contents:
    """Collect what a model that was opened at a path or an address holds.

    Parameters
    ----------
    reader, path
        The model, and what the caller calls it.
    ask_sizes
        Whether to find out the sizes in a store whose server does not list them: a request for
        each chunk. Otherwise they are left out.
    with_sizes
        Whether sizes in the store are wanted at all: a list is some requests, too.

    Raises
    ------
    StoreError
        If metadata or headers are damaged, or arrays missing.
    """
    where, step = reader.location
    local = path_of(where)
    kind = kind_of_address(where) if local is None else detect(local) or Kind.FOLDER
    is_sized = ask_sizes or (with_sizes and reader.knows_sizes)
    common: dict[str, Any] = {
        "path": os.fspath(path),
        "kind": kind,
        "zarr_format": reader.zarr_format,
        "stored_nbytes": reader.total_nbytes() if is_sized else None,
    }
    if isinstance(reader, RunReader):
        has_holes = kind is Kind.HDF5
        return Contents(
            **common,
            rows=_run_rows(reader, is_sized),
            nbytes=sum(own.nbytes for own in reader.run.steps),
            run=reader.run,
            disk_nbytes=disk_size(Path(local)) if has_holes and local else None,
        )
    info, rows = reader.info, _model_rows(reader, is_sized)
    files = [*info.files, *([info.index] if info.index else [])]
    objects = sizes_of_objects(reader)
    return Contents(
        **common,
        rows=rows,
        nbytes=sum(file.size for file in files) + sum((objects or {}).values()),
        files=files,
        base=info.base,
        loss=info.loss,
        step=step,
        objects=objects,
    )


def storage_of(reader: ModelReader, paths: Sequence[str]) -> tuple[Storage, int]:
    """Return how a tensor is stored, in one array or several, and what these take."""
    return reader.storage(paths[-1]), sum(_stored_nbytes(reader, path, False) for path in paths)


def _model_rows(reader: ModelReader, is_sized: bool) -> list[Row]:
    rows, seen, headers = [], set[str](), reader.headers
    tensors = [tensor for header in headers for tensor in header.tensors]
    for tensor, array in zip(tensors, stored_arrays(reader, headers), strict=True):
        path = array.path
        storage = _SHARED if path in seen else reader.storage(path)
        stored = _stored_nbytes(reader, path, path in seen) if is_sized else None
        seen.add(path)
        loss = None if reader.info.loss is None else _loss_of(reader, path)
        own = tensor.name, tensor.dtype, tensor.shape, tensor.nbytes
        rows.append(Row(*own, storage, stored, loss))
    return rows


def _stored_nbytes(reader: ModelReader, path: str, is_seen: bool) -> int:
    """Return what an array takes that is not counted already, and not made of another."""
    return 0 if is_seen or path.endswith(ROUNDED) else reader.stored_nbytes(path)


def _loss_of(reader: ModelReader, path: str) -> HalfLoss | None:
    """Return what the tensors of an array lost, if they are not its roundings."""
    if path.endswith(ROUNDED):
        return None
    with named_errors(reader.label(path)):
        return array_loss(reader.attributes(path))


def _run_rows(run: RunReader, is_sized: bool) -> list[Row]:
    """Return the tensors of a run, each with what its steps take together."""
    rows, seen, newest = [], set[str](), run.run.numbers[-1]
    for name in run.names:
        own = run.describe(name)
        stored = None
        if is_sized:
            stored = sum(_stored_nbytes(run, path, path in seen) for path in own.paths)
        last = own.paths[-1]
        storage = _SHARED if last in seen else run.storage(last)
        seen.update(own.paths)
        is_present = run.steps_of(name)[-1] == newest
        form = own.dtype, own.shape, own.nbytes
        rows.append(Row(name, *form, storage, stored, is_present=is_present))
    return rows
