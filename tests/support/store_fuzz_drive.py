"""Calls everything that reads a store, and judges each outcome.

A store is read correctly, or refused with a documented error in one line. All else is a finding.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize

import bf16codecs
from bf16codecs import hdf5
from bf16codecs._arrays.array import ChunkedArray
from bf16codecs._arrays.formats import RawFormat
from bf16codecs.cli import main
from bf16codecs.convert import (
    hdf5_to_safetensors,
    safetensors_to_zarr,
    verify_store,
    zarr_to_safetensors,
)
from bf16codecs.errors import BF16CodecsError, TensorNotFoundError
from folders import names_in
from lazy_models import in_memory
from store_fuzz_mutations import EVERYTHING
from store_fuzz_truth import HEADER, Seed, Truth, filters_of

_LONGEST_MESSAGE = 4000
_LARGEST_COMPARED = 1 << 26
# For a dataset that is read by itself; otherwise, the caller chooses.
_MOST_ITEMS = 1 << 20
_FRAME = re.compile(r'File "[^"]*?(bf16codecs/[^"]*)", line (\d+),? in ([\w<>]+)')


class Wrong(Exception):
    """The content that was read differs from the store's source."""


@dataclass
class Verdict:
    """The outcomes of all probes of one store."""

    #: How often each outcome of each probe was seen.
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: The text to group findings by, and the details.
    findings: list[tuple[str, str]] = field(default_factory=list)


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def place_of(trace: str) -> str:
    """Return the last line of this package in a traceback."""
    frames = _FRAME.findall(trace)
    return "{}:{} {}".format(*frames[-1]) if frames else "outside of the package"


def origin(error: BaseException) -> str:
    """Return the last line of this package in the traceback of an error's first cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    return place_of("".join(traceback.format_exception(error, chain=False)))


class Driver:
    """Drives readers of one store.

    Parameters
    ----------
    seed
        The store before it was damaged.
    path
        The store; the other files of its folder are checked as well.
    """

    def __init__(self, seed: Seed, path: Path) -> None:
        self._seed, self._path, self._truth = seed, path, seed.truth
        self._verdict, self._unknowable, self._turn = Verdict(), frozenset[str](), 0
        self._names = names_in(path.parent)

    def drive(self, unknowable: frozenset[str], turn: int) -> Verdict:
        """Read the store in every way.

        Parameters
        ----------
        unknowable
            As of `Mutant`.
        turn
            The slow probes run in every fourth case.
        """
        self._verdict, self._unknowable, self._turn = Verdict(), unknowable, turn
        if self._seed.is_in_memory:
            # Like a remote store's: the header, which tells, would be one request more.
            self._unknowable |= {"names", "dtype"}
        self._names, before = names_in(self._path.parent), self._content()
        is_safetensors = not self._seed.store.endswith((".zarr", ".zip", ".h5"))
        if is_safetensors:
            self._truth = _reference_truth(self._path)
        self._try("open_model", self._open, self._read)
        if self._seed.is_in_memory:
            return self._verdict
        if is_safetensors:
            self._try("st2zarr", self._convert, self._compare_files)
        else:
            restore = hdf5_to_safetensors if self._seed.is_hdf5 else zarr_to_safetensors
            place = self._seed.model(self._path)
            self._try("restore", lambda: self._restored(place, restore), self._compare_files)
            if self._seed.is_run:
                self._try("open_run", partial(bf16codecs.open_run, self._path), self._read_run)
            if turn % 4 == 0:
                self._try("verify", lambda: verify_store(self._path))
            elif turn % 4 == 1:
                self._try("verify", lambda: verify_store(place, self._seed.original))
            elif turn % 4 == 2:
                self._try("info", self._info)
            elif self._seed.is_hdf5:
                self._read_datasets()
        if self._content() != before and not self._is_changed("the file"):
            self._find("the file was changed", "")
        extra = names_in(self._path.parent) - self._names
        if extra:
            self._find("files were left", f"{sorted(extra)}")
            for name in extra:
                _remove(self._path.parent / name)
        return self._verdict

    def _content(self) -> bytes | None:
        """Return the content of an HDF5 file, which reading must not change."""
        path = self._path
        if not self._seed.is_hdf5 or not path.is_file() or path.stat().st_size > _LARGEST_COMPARED:
            return None
        return path.read_bytes()

    # --- judging ----------------------------------------------------------------------------------

    def _find(self, group: str, detail: str) -> None:
        self._verdict.findings.append((group, detail))

    def _try(
        self, probe: str, act: Callable[[], Any], check: Callable[[Any], None] = lambda found: None
    ) -> None:
        """Call a function, and check its result or its error."""
        try:
            found = act()
        except Exception as error:
            self._judge(probe, error)
            return
        try:
            check(found)
        except Wrong as wrong:
            self._find(f"{probe}: {wrong.args[0]}", "; ".join(map(str, wrong.args[1:])))
            return
        self._verdict.outcomes[probe, "exact"] += 1

    def _judge(self, probe: str, error: Exception) -> None:
        name, message = type(error).__name__, str(error)
        is_documented = isinstance(error, (BF16CodecsError, OSError))
        if probe == "read_tensor":  # of any type that HDF5 has
            is_documented = is_documented or isinstance(error, TypeError)
        if not is_documented or isinstance(error, (TensorNotFoundError, FileExistsError)):
            self._find(f"{probe}: {name} at {origin(error)}", _trace(error))
        elif "\n" in message or len(message) > _LONGEST_MESSAGE:
            self._find(f"{probe}: message of many lines, or too long", _trace(error))
        else:
            self._verdict.outcomes[probe, name] += 1

    # --- reading ----------------------------------------------------------------------------------

    def _open(self) -> Any:
        path = self._path
        place = in_memory(path) if self._seed.is_in_memory else self._seed.model(path)
        return bf16codecs.open_model(place)

    def _read_run(self, run: bf16codecs.Run) -> None:
        """Read tensors over time."""
        with run:
            self._try("run list", lambda: (run.keys(), run.steps, repr(run)))
            for name in run.keys():  # noqa: SIM118  (as a user lists them)
                read = partial(self._read_trajectory, run)
                self._try("trajectory", partial(run.__getitem__, name), read)

    def _read_trajectory(self, run: bf16codecs.Run, tensor: bf16codecs.LazyTensor) -> None:
        """Read all steps of a tensor, which are the ones of a checkpoint."""

        def compare(found: NDArray[Any]) -> None:
            for place, number in enumerate(run.steps):
                is_there = number in tensor.steps and not self._is_changed(tensor.name)
                if is_there and not self._truth.is_elsewhere(found[place], ...):
                    raise Wrong("other data", tensor.name, number)

        self._try("steps", partial(tensor.__getitem__, ...), compare)

    def _read(self, model: bf16codecs.Model) -> None:
        with model:
            self._try("list", model.keys)
            self._try("metadata", model.metadata, self._compare_metadata)
            for name in model.keys():  # noqa: SIM118  (as a user lists them)
                read = partial(self._read_tensor, model)
                self._try("tensor", partial(model.__getitem__, name), read)
            self._try("load", model.load, partial(self._compare_load, model))
            self._try("objects", partial(_objects, model), _compare_objects)

    def _read_tensor(self, model: bf16codecs.Model, tensor: bf16codecs.LazyTensor) -> None:
        """Read parts of a tensor; its form has to be right as well as its data."""
        repr(tensor)
        dtype = tensor.get_dtype()
        parts: list[Any] = [...] if not tensor.shape else [..., np.s_[::-3], np.s_[..., -1:]]
        selections = {"slice": parts[(self._turn + len(tensor.name)) % len(parts)]}
        if tensor.shape and tensor.size:
            selections["points"] = (np.array([0, -1, 0]),) * tensor.ndim

        def compare(found: NDArray[Any], selection: Any) -> None:
            name = tensor.name
            if self._is_changed("names") and name not in self._truth.tensors:
                return
            if name not in self._truth.tensors:
                raise Wrong("data of a tensor that the original lacks", name)
            expected = self._truth.array(name)
            if expected.size + tensor.size and tensor.shape != expected.shape:
                raise Wrong("data of another shape", name, tensor.shape)
            is_same = (dtype, tensor.dtype) == (self._truth.tensors[name][0], expected.dtype)
            # An empty array that NumPy cannot have is one of bytes.
            if tensor.size + expected.size and not is_same and not self._is_changed("dtype"):
                raise Wrong("data of another dtype", name, dtype, tensor.dtype)
            if self._is_changed(name) or found.tobytes() == expected[selection].tobytes():
                return
            if self._truth.is_elsewhere(found, selection):
                return
            if not self._reads_ranges(tensor) and not self._is_refiltered(model, name):
                raise Wrong("other data", name, selection)

        for probe, selection in selections.items():
            read = partial(tensor.__getitem__, selection)
            self._try(probe, read, partial(compare, selection=selection))

    def _reads_ranges(self, tensor: bf16codecs.LazyTensor) -> bool:
        """Return whether only parts of chunks are requested, as from remote stores.

        The length of chunks is not known then. A change that cuts an array into other chunks, or
        drops its codecs, goes unnoticed (docs/trust.md, "What is not promised").
        """
        if not self._seed.is_in_memory or not isinstance(tensor._array, ChunkedArray):
            return False
        return isinstance(tensor._array._find((0,) * tensor.ndim).form, RawFormat)

    def _is_refiltered(self, model: bf16codecs.Model, name: str) -> bool:
        """Return whether a tensor has other filters than it was written with.

        An array's filters are not verified (docs/trust.md, "What is not promised").
        """
        filters = self._seed.filters
        return name in filters and filters_of(model, name) != filters[name]

    def _is_changed(self, what: str) -> bool:
        """Return whether something may differ from the original without an error."""
        return bool(self._unknowable & {what, *EVERYTHING})

    def _compare_metadata(self, metadata: dict[str, str] | None) -> None:
        if not self._is_changed(HEADER) and (metadata or {}) != self._truth.metadata:
            raise Wrong("other metadata", metadata)

    def _compare_load(self, model: bf16codecs.Model, arrays: Mapping[str, NDArray[Any]]) -> None:
        for name in arrays.keys() ^ self._truth.tensors.keys():
            if not self._is_changed("names"):
                raise Wrong("other tensors", name)
        for name, array in arrays.items():
            if self._is_changed(name) or array.tobytes() == self._truth.tensors[name][2]:
                continue
            if self._truth.is_elsewhere(array, ...):
                continue
            if not self._is_refiltered(model, name):
                raise Wrong("other data", name)

    def _read_datasets(self) -> None:
        """Read the datasets of a file as of any other HDF5 file."""
        with contextlib.suppress(Exception), h5py.File(self._path) as file:  # h5py's own errors
            datasets: list[h5py.Dataset] = []
            file.visititems(lambda _, item: datasets.append(item))
            for dataset in datasets:
                if isinstance(dataset, h5py.Dataset) and dataset.size <= _MOST_ITEMS:
                    compare = partial(_compare_shape, dataset)
                    self._try("read_tensor", partial(hdf5.read_tensor, dataset), compare)

    # --- conversions ------------------------------------------------------------------------------

    def _restored(self, store: Path | str, restore: Callable[..., Any]) -> dict[str, bytes]:
        target = self._path.with_name("restored")
        try:
            restore(store, target)
            if not target.is_dir():
                return {"": target.read_bytes()}
            return {p.name: p.read_bytes() for p in target.iterdir()}
        finally:
            _remove(target)

    def _convert(self) -> dict[str, bytes]:
        store = self._path.with_name("converted.zarr")
        try:
            safetensors_to_zarr(self._path, store, codec="huffman", chunk_size=1 << 16)
            return self._restored(store, zarr_to_safetensors)
        finally:
            _remove(store)

    def _compare_files(self, files: dict[str, bytes]) -> None:
        if self._unknowable and not self._seed.has_digests:
            return
        if sorted(files.values()) != sorted(self._truth.files.values()):
            raise Wrong("other files", {name: len(raw) for name, raw in files.items()})
        # The index has the names of the others; its own is nowhere else.
        for name in files.keys() ^ self._truth.files.keys():
            if name.endswith(".safetensors"):
                raise Wrong("files of other names", sorted(files))

    def _info(self) -> None:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main(["info", str(self._path)], standalone_mode=False)
            except SystemExit as end:
                lines = err.getvalue().splitlines()
                if len(lines) != 1:
                    raise Wrong("not one line", *lines) from None
                raise BF16CodecsError(f"exit status {end.code}") from None


def _compare_shape(dataset: h5py.Dataset, found: NDArray[Any]) -> None:
    if found.shape != dataset.shape:
        raise Wrong("an array of another shape", dataset.name, found.shape)


def _objects(model: bf16codecs.Model) -> dict[str, tuple[int, bytes]]:
    """Read the objects of a checkpoint that are not tensors."""
    sizes = model.objects().items()
    return {name: (nbytes, model.object_bytes(name)) for name, nbytes in sizes}


def _compare_objects(found: dict[str, tuple[int, bytes]]) -> None:
    """Compare sizes only: metadata name an object's bytes in the store, and are not verified."""
    for name, (nbytes, content) in found.items():
        if len(content) != nbytes:
            raise Wrong("an object of another size", name)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _reference_truth(path: Path) -> Truth:
    """Return the content that the safetensors library reads: changed files may be valid."""
    paths = sorted(path.iterdir()) if path.is_dir() else [path]
    truth = Truth({}, {}, {})
    try:
        for each in paths:
            if each.is_dir():  # is no file of the model, in spite of its name
                continue
            if not each.is_file() or each.stat().st_size > 1 << 26:
                return Truth({}, {}, {})
            raw = truth.files[each.name if path.is_dir() else ""] = each.read_bytes()
            if each.name.endswith(".json"):
                continue
            for tensor, info in deserialize(raw):
                truth.tensors[tensor] = info["dtype"], list(info["shape"]), bytes(info["data"])
            header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
            truth.metadata.update(header.get("__metadata__") or {})
    except (SafetensorError, ValueError, RecursionError, OSError):
        return Truth({}, {}, {})
    return truth
