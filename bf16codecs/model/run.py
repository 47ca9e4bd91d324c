"""Runs: tensors over time, and each step as a model."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bf16codecs._base.messages import counted, other_tensors
from bf16codecs.errors import StepNotFoundError, TensorNotFoundError
from bf16codecs.model.info import Info, info_of
from bf16codecs.model.model import Model, TensorMapping
from bf16codecs.model.notebook import model_html, tensor_html
from bf16codecs.model.tensor import LazyTensor, ModelHandle, RunHandle
from bf16codecs.store.opening import open_either
from bf16codecs.store.reader import ModelReader
from bf16codecs.store.runs.layout import listed
from bf16codecs.store.runs.reader import RunReader

if TYPE_CHECKING:
    import xarray

__all__ = ["Run", "RunTensor", "open_model_or_run", "open_run"]

_HISTOGRAM_NOTE = "The histogram is of the last step that has a tensor."


def open_run(
    path: Any,
    storage_options: Mapping[str, Any] | None = None,
    max_bytes: int | None = None,
) -> Run:
    """Open the checkpoints of a run, and read only their metadata.

    Parameters
    ----------
    path : str, path or zarr.abc.store.Store
        A run store, which ``st2zarr --series`` and ``st2zarr --append`` make: a folder, a ZIP file,
        an HDF5 file, or an address.
    storage_options : dict, optional
        Options of the address's file system: credentials, endpoints, timeouts.
    max_bytes : int, optional
        The most bytes that a call may decode: see `open_model`.

    Returns
    -------
    Run
        A context manager; close it when done.

    Raises
    ------
    FileNotFoundError
        If the path does not exist.
    bf16codecs.store.StoreError
        If it is not a run store, or is damaged.
    """
    return Run(RunHandle(path, storage_options, max_bytes))


def open_model_or_run(
    path: Any,
    storage_options: Mapping[str, Any] | None = None,
    max_bytes: int | None = None,
) -> Model | Run:
    """Open a run, a step of one, or a model.

    Parameters and errors are those of `open_model`.
    """
    handle = _EitherHandle(path, storage_options, max_bytes)
    opened = handle.opened
    if isinstance(opened, RunReader):
        return Run(RunHandle(*handle.arguments, opened=opened))
    return Model._of(ModelHandle(*handle.arguments, opened=opened))


class _EitherHandle(ModelHandle[ModelReader]):
    _open = staticmethod(open_either)


class Run(TensorMapping["RunTensor"]):
    """The checkpoints of a run; `open_run` makes it.

    ``run[600]`` is the model at step 600, ``run["name"]`` a tensor with the step as first axis:
    its index *i* is step ``run.steps[i]``. A run is a mapping from names to tensors. A tensor that
    changes its shape or dtype has several names, such as ``name@0`` and ``name@500``, each for its
    variant from that step on. A run does not have steps that are appended after it was opened.
    """

    _handle: RunHandle

    def __init__(self, handle: RunHandle) -> None:
        self._handle = handle
        self._where = self._reader.where
        self._names = dict.fromkeys(self._reader.names)
        self._count = len(self.steps)

    @property
    def steps(self) -> list[int]:
        """The numbers of the steps, ascending."""
        return self._reader.run.numbers

    def get(self, key: Any, default: Any = None) -> Any:
        """Return `run[key]`, or `default` if the run lacks it."""
        is_known = key in self
        return self[key] if is_known else default

    def __contains__(self, key: object) -> bool:
        return key in self._names or key in self.steps

    def __getitem__(self, key: Any) -> Any:
        """Return a step as a `Model`, by its number, or a tensor over time, by its name.

        A tensor that changes its shape or dtype has only names such as ``"w@500"``: its variant
        from step 500 on.

        Raises
        ------
        StepNotFoundError, TensorNotFoundError
            If the run has no such step or tensor.
        """
        if isinstance(key, str):
            return self._tensor(key)
        try:
            number = operator.index(key)
        except TypeError:
            kind = type(key).__name__
            raise TypeError(
                f"a run has steps and names of tensors, not {key!r:.80} ({kind}): run.steps and"
                " run.keys() list them"
            ) from None
        if number < 0 and self.steps:  # as an index of a list
            raise StepNotFoundError(
                f"{self._where}: no step {number}; there are {listed(self.steps)}: the last one is"
                " run[run.steps[-1]]"
            )
        return Model._of(self._handle.at_step(number))

    def xarray(self) -> xarray.Dataset:
        """Return all tensors as a lazy dataset with the coordinate ``step``.

        A tensor that has the name of the coordinate gets ``@`` and its first step behind it.

        Returns
        -------
        xarray.Dataset
        """
        try:
            from bf16codecs.model._xarray import STEP, as_dataset
        except ImportError as e:
            raise ImportError(f"run.xarray() needs xarray: pip install xarray ({e})") from e

        tensors = dict(self.items())
        if STEP in tensors:
            (name,) = self._reader.variant_names(STEP)
            tensors[name] = tensors.pop(STEP)
        return as_dataset(tensors, self.steps)

    def info(self, sort: str = "file", sizes: bool = False, grids: bool = False) -> Info:
        """Describe the run: its steps, its size, and its tensors.

        Parameters, result and errors are those of `Model.info`.
        """
        return info_of(self._reader, self._where, sort, sizes, grids)

    def _repr_html_(self) -> str:
        return model_html(
            self._where, self.keys(), lambda: self._reader, self._tensor, _HISTOGRAM_NOTE
        )

    def __repr__(self) -> str:
        what = f"{counted(self._count, 'step')}, {counted(len(self), 'tensor')}"
        return f"<Run {self._where}: {what}{'' if self._handle.is_open else ', closed'}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Run, (self._handle,)

    @property
    def _reader(self) -> RunReader:
        return self._handle.opened

    def _tensor(self, name: str) -> RunTensor:
        tensor, _, _ = name.rpartition("@")
        known = self._reader.run.tensors
        if name not in known and (
            tensor not in known or name not in self._reader.variant_names(tensor)
        ):
            hint = other_tensors(name, self._names)
            if name.isdecimal():
                hint += f"; steps are integers: there are {listed(self.steps)}"
            raise TensorNotFoundError(f"{self._where}: no step has a tensor {name!r:.300}{hint}")
        return RunTensor(self._handle, name)


class RunTensor(LazyTensor):
    """A tensor over time: a `LazyTensor` whose first axis is the step."""

    _handle: RunHandle

    @property
    def steps(self) -> list[int]:
        """The steps that have the tensor; at others, it is NaN, or 0 if its dtype has no NaN."""
        return self._handle.opened.steps_of(self.name)

    def _sampled(self) -> tuple[int, int]:
        # Values of the last step that has the tensor: other steps may be filled.
        each = self.size // max(1, len(self))
        at = self._handle.opened.run.numbers.index(self.steps[-1]) * each
        return at, at + each

    def _paths(self) -> list[str]:
        return self._handle.opened.describe(self.name).paths

    def _repr_html_(self) -> str:
        return tensor_html(self, lambda: self._handle.opened, self._paths, _HISTOGRAM_NOTE)
