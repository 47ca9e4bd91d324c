"""The description of a model, a run or one of its steps, and its layout as text."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from bf16codecs._arrays.views import grid_job
from bf16codecs._base.arguments import for_caller
from bf16codecs._base.half import HalfLoss
from bf16codecs._base.messages import counted, named_errors, other_tensors, quantised_lines
from bf16codecs._base.tables import Column, format_size
from bf16codecs._base.threads import run_ahead
from bf16codecs._files.digests import Digests
from bf16codecs._files.reading import disk_size
from bf16codecs.errors import BF16CodecsError, LimitError, ServerError, TensorNotFoundError
from bf16codecs.store.attributes import ROUNDED, BaseReference, StoredFile, array_loss, loss_entry
from bf16codecs.store.kinds import Kind, detect, kind_of_address, path_of
from bf16codecs.store.objects import sizes_of_objects
from bf16codecs.store.reader import CodecLabel, ModelReader, stored_arrays
from bf16codecs.store.runs.layout import RunInfo, listed
from bf16codecs.store.runs.reader import RunReader

__all__ = [
    "Contents",
    "Row",
    "codec_and_size",
    "contents_of",
    "file_lines",
    "ratio_of",
    "summary_lines",
    "table_of",
    "table_of_steps",
    "with_grids",
]

T = TypeVar("T")

# Sort keys: the largest row first, and rows of equal size in the order of the files.
_ORDERS: dict[str, Callable[[Row], Any]] = {
    "name": lambda row: row.name,
    "size": lambda row: -row.nbytes,
    "ratio": lambda row: -math.inf if row.ratio is None else -row.ratio,
}

_DIFFERENCE = "difference+"
_SHARED = CodecLabel("shared", "")
# Codecs and data types of which frames may hold levels and scales.
_GRID_CODECS = {"arithmetic", "huffman", _SHARED.codec}
_GRID_DTYPES = {"BF16", "F16", "F32"}


def ratio_of(nbytes: int, stored_nbytes: int | None) -> float | None:
    """Return the original size over the stored one; None if the latter is zero or unknown."""
    return nbytes / stored_nbytes if stored_nbytes else None


def _dtypes_of(rows: Iterable[Row]) -> Counter[str]:
    """Return the number of tensors of each dtype."""
    return Counter(row.dtype for row in rows)


@dataclass(frozen=True)
class Row:
    """A tensor; in a run, with the bytes of all steps and the shape of one."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    codec_label: CodecLabel
    #: Its size in the store, if that is known.
    stored_nbytes: int | None
    #: The loss in a lossy store, if it is not the rounding of another.
    loss: HalfLoss | None = None
    #: Whether the last step of a run has it.
    is_present: bool = True
    #: What its values were quantised to, if that was looked for and found.
    grid: str | None = None

    @property
    def ratio(self) -> float | None:
        """Original over stored size."""
        return ratio_of(self.nbytes, self.stored_nbytes)

    @property
    def codec(self) -> str:
        """Names of codec and level."""
        return f"{self.codec_label.codec} {self.codec_label.level}".rstrip()

    @property
    def way(self) -> str:
        """The kind of storage: ``"shared"``, ``"rounded"``, ``"difference"`` or ``"whole"``."""
        if self.codec_label.codec in ("shared", "rounded"):
            return self.codec_label.codec
        return "difference" if self.codec_label.codec.startswith(_DIFFERENCE) else "whole"

    @property
    def may_have_grid(self) -> bool:
        """Whether frames of its codec and data type may hold levels and scales."""
        codec = self.codec_label.codec.removeprefix(_DIFFERENCE)
        return codec in _GRID_CODECS and self.dtype in _GRID_DTYPES

    def to_json(self) -> dict[str, Any]:
        """Return the row as a JSON object."""
        return {
            "name": self.name,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "parameters": math.prod(self.shape),
            "nbytes": self.nbytes,
            "stored_nbytes": self.stored_nbytes,
            "ratio": self.ratio,
            "codec": self.codec_label.codec,
            "level": self.codec_label.level or None,
            "way": self.way,
            "grid": self.grid,
            "lossy": None if self.loss is None else loss_entry(self.loss),
        }


@dataclass(frozen=True)
class Contents:
    """A description of a store: its tensors, and the sizes of the original files and of the store.

    Objects of a checkpoint count as if they were in its file.
    """

    path: str
    kind: Kind
    zarr_format: int
    rows: list[Row]
    nbytes: int
    #: None, as in the rows, if finding the size would take a request for each chunk.
    stored_nbytes: int | None
    #: Original files, the index last; those of a run, step by step.
    files: list[StoredFile] = field(default_factory=list)
    base: BaseReference | None = None
    loss: HalfLoss | None = None
    run: RunInfo | None = None
    #: The stored size of each step of a run, if requested, since it takes reading chunks.
    stored_steps: list[int] | None = None
    #: The number of the step, if it is one of a run.
    step: int | None = None
    #: The size on the disk, if it is known: runs in HDF5 files have holes.
    disk_nbytes: int | None = None
    #: Whether it has all tensors.
    is_whole: bool = True
    #: The sizes of objects of a training job's checkpoint, by name.
    objects: dict[str, int] | None = None
    #: Whether grids were looked for: see `with_grids`.
    has_grids: bool = False

    @property
    def is_store(self) -> bool:
        """Whether the model is in a store, and not in the original files."""
        return self.kind is not Kind.SAFETENSORS

    @property
    def has_stored_sizes(self) -> bool:
        """Whether it is a store, and sizes in it are known."""
        return self.is_store and self.stored_nbytes is not None

    @property
    def title(self) -> str:
        """The kind of store, in words."""
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
        """All tensors, or those of the last step of a run."""
        return [row for row in self.rows if row.is_present]

    @property
    def parameters(self) -> int:
        """The number of values of all tensors, in a run those of the last step."""
        return sum(math.prod(row.shape) for row in self.present)

    @property
    def codecs(self) -> Counter[str]:
        """The number of tensors with each codec."""
        return Counter(row.codec for row in self.rows)

    @property
    def grids(self) -> Counter[str]:
        """The number of tensors on each grid."""
        return Counter(row.grid for row in self.rows if row.grid is not None)

    @property
    def dtypes(self) -> Counter[str]:
        """The number of tensors of each dtype."""
        return _dtypes_of(self.rows)

    @property
    def of_tensors(self) -> tuple[int, int | None]:
        """The size and the stored size of all tensors together."""
        nbytes = sum(row.nbytes for row in self.rows)
        if self.stored_nbytes is None:
            return nbytes, None
        return nbytes, sum(row.stored_nbytes or 0 for row in self.rows)

    @property
    def rest(self) -> tuple[int, int | None]:
        """The size and the stored size of everything but tensors: headers, index and metadata."""
        tensors, stored = self.of_tensors
        rest = max(0, self.nbytes - tensors)
        if self.stored_nbytes is None or stored is None:
            return rest, None
        return rest, max(0, self.stored_nbytes - stored)

    def only(self, names: Sequence[str]) -> Contents:
        """Return these contents with only the rows of some tensors.

        Raises TensorNotFoundError if one of them is missing.
        """
        known = [row.name for row in self.rows]
        for name in names:
            if name not in known:
                hint = other_tensors(name, known)
                raise TensorNotFoundError(f"{self.path}: no tensor {name!r:.300}{hint}")
        return replace(self, rows=[r for r in self.rows if r.name in names], is_whole=False)

    def sort(self, by: str) -> None:
        """Sort the tensors by one of `SORTS`."""
        if by != "file":
            self.rows.sort(key=_ORDERS[by])

    def to_json(self) -> dict[str, Any]:
        """Return the contents as a JSON object, as described in docs/cli.md."""
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
            "grids": dict(self.grids) if self.has_grids else None,
            "base": None if self.base is None else _base_json(self.base),
            "step": self.step,
            "group": None if run is None else run.group,
            "steps": None if run is None else _steps_json(run, self.stored_steps),
            "files": [_file_json(file) for file in self.files],
            "objects": None if self.objects is None else _objects_json(self.objects),
            "tensors": [row.to_json() for row in self.rows],
        }


def _base_json(base: BaseReference) -> dict[str, Any]:
    files = [{"name": f.name, "nbytes": f.size, **vars(f.digests)} for f in base.files]
    return {"path": base.path, "step": base.step, "files": files}


def _steps_json(run: RunInfo, stored: list[int] | None) -> list[dict[str, Any]]:
    numbers = run.numbers
    return [
        {
            "step": step.number,
            "parent": None if step.parent is None else numbers[step.parent],
            "nbytes": step.nbytes,
            "stored_nbytes": None if stored is None else stored[index],
            "files": [_file_json(f) for f in (*step.files, step.index) if f is not None],
        }
        for index, step in enumerate(run.steps)
    ]


def _file_json(file: StoredFile) -> dict[str, Any]:
    restored = file.restored_digests or Digests()
    return {
        "name": file.name,
        "nbytes": file.size,
        **vars(file.digests),  # empty for safetensors, whose digests would have to be computed
        **{f"restored_{kind}": digest for kind, digest in vars(restored).items()},
    }


def _objects_json(objects: dict[str, int]) -> list[dict[str, Any]]:
    return [{"name": name, "nbytes": nbytes} for name, nbytes in objects.items()]


def _remote_kind(reader: ModelReader) -> Kind:
    """Return what is at an address: of Zarr stores, the name tells which kind."""
    where, _ = reader.location
    return kind_of_address(where) if reader.stored.zarr_format else Kind.SAFETENSORS


def contents_of(
    reader: ModelReader,
    path: str | os.PathLike[str],
    ask_sizes: bool = False,
    with_sizes: bool = True,
    with_steps: bool = False,
) -> Contents:
    """Collect the contents of an open model.

    `ask_sizes` finds out the sizes in a store whose server does not list them, which takes a
    request for each chunk; otherwise they are left out. Without `with_sizes`, not even a list is
    asked for. `with_steps` finds out what each step of a run takes, for which the head of each
    chunk is read. StoreError is raised if metadata or headers are damaged, or arrays missing.
    """
    where, step = reader.location
    local = path_of(where)
    kind = _remote_kind(reader) if local is None else detect(local) or Kind.FOLDER
    is_sized = ask_sizes or (with_sizes and reader.knows_sizes)
    common: dict[str, Any] = {
        "path": os.fspath(path),
        "kind": kind,
        "zarr_format": reader.stored.zarr_format,
        "stored_nbytes": reader.total_nbytes() if is_sized else None,
    }
    if isinstance(reader, RunReader):
        has_holes = kind is Kind.HDF5
        return Contents(
            **common,
            rows=_run_rows(reader, is_sized),
            nbytes=sum(step.nbytes for step in reader.run.steps),
            run=reader.run,
            stored_steps=_stored_steps(reader) if with_steps else None,
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


def with_grids(contents: Contents, reader: ModelReader, ask: bool = False) -> Contents:
    """Return contents with the grids of tensors, as the heads of their first frames tell them.

    Of a store at a server, which takes a request for each tensor, only if `ask` is true: OSError,
    ServerError and LimitError are then raised. What is damaged has no grid.
    """
    if not contents.is_store or not (reader.stored.is_near or ask):
        return contents
    names = [row.name for row in contents.rows if row.may_have_grid]
    jobs = (_grid_job(reader, name) for name in names)
    with closing(run_ahead(jobs, reader.stored.concurrency)) as found:
        grids = dict(zip(names, found, strict=True))
    rows = [replace(row, grid=grids.get(row.name)) for row in contents.rows]
    return replace(contents, rows=rows, has_grids=True)


def _grid_job(reader: ModelReader, name: str) -> Callable[[], str | None]:
    """Return a job that reads the grid of a tensor's first values."""
    job = _unless_damaged(reader, lambda: grid_job(reader.first_array(name)))
    return partial(_unless_damaged, reader, job or (lambda: None))


def _unless_damaged(reader: ModelReader, ask: Callable[[], T | None]) -> T | None:
    """Return an answer; None if something is damaged, or a store that is near cannot be read."""
    try:
        return ask()
    except (OSError, LimitError, ServerError):
        if not reader.stored.is_near:
            raise
    except BF16CodecsError:
        pass
    return None


def _stored_steps(run: RunReader) -> list[int]:
    return [run.step(number).total_nbytes() for number in run.run.numbers]


def codec_and_size(reader: ModelReader, paths: Sequence[str]) -> tuple[CodecLabel, int]:
    """Return the codec label of a tensor, in one array or several, and their stored size."""
    return reader.codec_label(paths[-1]), sum(_stored_nbytes(reader, path, False) for path in paths)


def _model_rows(reader: ModelReader, is_sized: bool) -> list[Row]:
    rows, seen, headers = [], set[str](), reader.headers
    tensors = [tensor for header in headers for tensor in header.tensors]
    for tensor, array in zip(tensors, stored_arrays(reader, headers), strict=True):
        path = array.path
        label = _SHARED if path in seen else reader.codec_label(path)
        stored = _stored_nbytes(reader, path, path in seen) if is_sized else None
        seen.add(path)
        loss = None if reader.info.loss is None else _loss_of(reader, path)
        rows.append(
            Row(tensor.name, tensor.dtype, tensor.shape, tensor.nbytes, label, stored, loss)
        )
    # Further names of tensors, which take nothing in the file either.
    stored = 0 if is_sized else None
    for header in headers:
        for name in header.aliases:
            tensor = header.entries[name]
            rows.append(Row(name, tensor.dtype, tensor.shape, 0, _SHARED, stored))
    return rows


def _stored_nbytes(reader: ModelReader, path: str, is_seen: bool) -> int:
    """Return an array's size; 0 if it was counted before, or is derived from another array."""
    return 0 if is_seen or path.endswith(ROUNDED) else reader.stored_nbytes(path)


def _loss_of(reader: ModelReader, path: str) -> HalfLoss | None:
    """Return the loss of an array's tensors, unless they are its roundings."""
    if path.endswith(ROUNDED):
        return None
    with named_errors(reader.label(path)):
        return array_loss(reader.stored.attributes(path))


def _run_rows(run: RunReader, is_sized: bool) -> list[Row]:
    """Return the tensors of a run, each with the size of all its steps."""
    rows, seen, newest = [], set[str](), run.run.numbers[-1]
    for name in run.names:
        dtype, shape, nbytes, paths = run.describe(name)
        stored = None
        if is_sized:
            stored = sum(_stored_nbytes(run, path, path in seen) for path in paths)
        label = _SHARED if paths[-1] in seen else run.codec_label(paths[-1])
        seen.update(paths)
        is_present = run.steps_of(name)[-1] == newest
        rows.append(Row(name, dtype, shape, nbytes, label, stored, is_present=is_present))
    return rows


Cells = tuple[str, ...]

_STEPS = [Column("step"), Column("against"), *(Column(c) for c in ("size", "stored", "ratio"))]

_NAME = Column("tensor")
_SHAPE = [Column("dtype", is_text=True, rank=5), Column("shape", is_text=True, rank=4)]
_SIZES = [Column("size"), Column("stored"), Column("ratio")]
_LOSSES = [Column("lossy: error", rank=2), Column("relative", rank=3)]
# The column that is left out first, since the summary has the codecs as well.
_CODEC = Column("codec", is_text=True, rank=7)
_GRID = Column("grid", is_text=True, rank=6)


def summary_lines(contents: Contents) -> Iterator[str]:
    """Yield lines about the whole model: its kind, its size, its storage."""
    yield f"{contents.path}: {contents.title}"
    has_gone = len(contents.present) < len(contents.rows)
    which = "parameters of the last step" if has_gone else "parameters"
    yield f"{which}: {contents.parameters} in {_tensors(contents.present)}"
    if has_gone:
        yield f"over all steps: {_tensors(contents.rows)}"
    if not contents.is_store:
        yield f"size: {format_size(contents.nbytes)}"
        return
    stored = "stored size not asked for"
    if contents.stored_nbytes is not None:
        ratio = f"ratio {_ratio(contents.nbytes, contents.stored_nbytes)}"
        stored = f"stored in {format_size(contents.stored_nbytes)} ({ratio})"
    lossless = "lossless" if contents.loss is None else "lossy"
    yield f"size: {format_size(contents.nbytes)}, {stored}, {lossless}"
    on_disk = contents.disk_nbytes
    if on_disk is not None and on_disk < (contents.stored_nbytes or 0):
        yield f"on the disk: {format_size(on_disk)}; the rest is room for steps to come"
    if contents.codecs:
        yield f"codecs: {_counts(contents.codecs, 'tensor')}"
    yield from quantised_lines((row.grid for row in contents.rows), len(contents.rows))
    yield from _ways(contents.rows)
    if contents.objects is not None:
        yield f"objects: {len(contents.objects)} ({format_size(sum(contents.objects.values()))})"
    if contents.loss is not None:
        yield contents.loss.described()
    if contents.base is not None:
        yield f"base: {contents.base.location}"
        for file in contents.base.files:
            name = f" {file.name}" if len(contents.base.files) > 1 else ""
            for label, digest in file.digests.labelled().items():
                yield f"base {label}: {digest}{name}"
    if contents.run is not None:
        yield from _steps(contents.run)


def _tensors(rows: list[Row]) -> str:
    dtypes = f": {_counts(_dtypes_of(rows))}" if rows else ""
    return f"{counted(len(rows), 'tensor')}{dtypes}"


def _ratio(nbytes: int, stored_nbytes: int | None) -> str:
    ratio = ratio_of(nbytes, stored_nbytes)
    return "" if ratio is None else f"{ratio:.3f}"


def _counts(counts: Counter[str], noun: str = "") -> str:
    if not noun and len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{k} ({counted(n, noun) if noun else n})" for k, n in counts.items())


def _ways(rows: list[Row]) -> Iterator[str]:
    """Yield a line with the numbers of tensors by kind of storage, if not all are whole."""
    count = Counter(row.way for row in rows)
    if set(count) <= {"whole"}:
        return

    def stored(way: str) -> str:
        sizes = [row.stored_nbytes for row in rows if row.way == way]
        known = [size for size in sizes if size is not None]
        return f" ({format_size(sum(known))})" if known else ""

    parts = {
        "whole": f"whole{stored('whole')}",
        "difference": f"as differences to the base{stored('difference')}",
        "shared": "equal to others (stored once)",
        "rounded": "rounded from others (not stored)",
    }
    found = [f"{count[way]} {text}" for way, text in parts.items() if count[way]]
    yield f"tensors: {', '.join(found)}"


def _digests(digests: Digests, prefix: str) -> Iterator[str]:
    for label, digest in digests.labelled().items():
        yield f"  {prefix}{label} {digest}"


def _steps(run: RunInfo) -> Iterator[str]:
    whole = sum(step.parent is None for step in run.steps)
    yield f"steps: {listed(run.numbers)}; groups of {run.group}"
    yield f"coded whole: {whole}; against an earlier step: {len(run.steps) - whole}"


def table_of_steps(contents: Contents) -> tuple[list[Column], list[Cells], list[Cells]]:
    """Return the columns of a table, a row for each step of a run, and none below."""
    assert contents.run is not None
    assert contents.stored_steps is not None
    numbers = contents.run.numbers
    rows: list[Cells] = []
    for step, stored in zip(contents.run.steps, contents.stored_steps, strict=True):
        against = "whole" if step.parent is None else str(numbers[step.parent])
        sizes = format_size(step.nbytes), format_size(stored), _ratio(step.nbytes, stored)
        rows.append((str(step.number), against, *sizes))
    return _STEPS, rows, []


def table_of(contents: Contents) -> tuple[list[Column], list[Cells], list[Cells]]:
    """Return the columns of a table, a row for each tensor, and rows below these.

    The latter count everything else in the store, so that sizes add up to that of the whole.
    """
    columns = [_NAME, *_SHAPE]
    if contents.is_store:
        columns.append(_CODEC)
    columns += _SIZES if contents.has_stored_sizes else _SIZES[:1]
    if contents.loss is not None:
        columns += _LOSSES
    rows = [
        _cells(
            contents,
            (row.name, row.dtype, "x".join(map(str, row.shape)) or "scalar", row.codec_label.codec),
            (row.nbytes, row.stored_nbytes),
            row.loss,
        )
        for row in contents.rows
    ]
    parts = {"headers": True, "metadata": contents.is_store, "objects": contents.objects}
    rest = ", ".join(part for part, is_there in parts.items() if is_there)
    sums = [
        _cells(
            contents,
            (counted(len(contents.rows), "tensor"), "", "", ""),
            contents.of_tensors,
            contents.loss,
        ),
        _cells(contents, (rest, "", "", ""), contents.rest),
        _cells(contents, ("total", "", "", ""), (contents.nbytes, contents.stored_nbytes)),
    ]
    if contents.grids:
        columns.append(_GRID)
        rows = [(*cells, row.grid or "") for cells, row in zip(rows, contents.rows, strict=True)]
        sums = [(*cells, "") for cells in sums]
    return columns, rows, sums if contents.is_whole else []


def _cells(
    contents: Contents,
    about: Cells,
    sizes: tuple[int, int | None],
    loss: HalfLoss | None = None,
) -> Cells:
    """Return name, dtype, shape, codec, sizes and errors, for the columns of the table."""
    nbytes, stored = sizes
    cells = (*(about if contents.is_store else about[:-1]), format_size(nbytes))
    if contents.has_stored_sizes:
        cells += ("" if stored is None else format_size(stored), _ratio(nbytes, stored))
    if contents.loss is None:
        return cells
    return (
        *cells,
        *(("", "") if loss is None else (f"{loss.absolute:.4g}", f"{loss.relative:.4g}")),
    )


def file_lines(contents: Contents) -> Iterator[str]:
    """Yield lines about the original files, and about what the server was not asked for."""
    for file in contents.files:
        yield f"{os.path.basename(file.name)}: {file.size} bytes"
        yield from _digests(file.restored, "")
        if file.restored_digests is not None:
            yield from _digests(file.digests, "of the original, which is not restored: ")
    if not contents.has_grids and any(row.may_have_grid for row in contents.rows):
        asked = for_caller("grids=True looks", "--grids looks")
        yield f"Quantised once? {asked} at the head of each tensor's first chunk."
    if contents.is_store and not contents.has_stored_sizes:
        asked = for_caller("sizes=True asks", "--sizes asks")
        yield f"Stored sizes: the server lists none; {asked} it for that of each chunk."
