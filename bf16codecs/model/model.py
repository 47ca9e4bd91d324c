"""Models whose tensors are read when they are indexed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Generic, Self, TypeVar

from bf16codecs._base.cached import cached_property
from bf16codecs._base.half import HalfLoss
from bf16codecs._base.messages import counted, other_tensors
from bf16codecs.errors import TensorNotFoundError
from bf16codecs.model.frameworks import (
    Slice,
    as_jax,
    checked_framework,
    load_torch,
    read_jax,
    read_torch,
)
from bf16codecs.model.info import Info, info_of
from bf16codecs.model.notebook import model_html
from bf16codecs.model.tensor import LazyTensor, ModelHandle, read_all
from bf16codecs.store.objects import read_checkpoint, read_object, sizes_of_objects

__all__ = ["LazyTensor", "Model", "TensorMapping", "TensorNotFoundError", "open_model"]

Tensor = TypeVar("Tensor", bound=LazyTensor)


def open_model(
    path: Any,
    storage_options: Mapping[str, Any] | None = None,
    max_bytes: int | None = None,
    base: Any = None,
    framework: str = "numpy",
    device: Any = None,
) -> Model:
    """Open a model and read only its metadata.

    Parameters
    ----------
    path : str, path or zarr.abc.store.Store
        A Zarr store (a folder or a ZIP file), an HDF5 file, or the address of a store:
        ``s3://``, ``http://``, ``memory://`` or any other that fsspec or obstore supports, or
        ``hf://owner/name[@revision][/path]`` on a hub of Hugging Face. Also safetensors: a file, a
        folder of shards, or a ``*.safetensors.index.json``.
    storage_options : dict, optional
        Options of the address's file system: credentials, endpoints, timeouts.
    max_bytes : int, optional
        The most bytes that a call may decode, for stores that are not trusted. By default 1 GiB, or
        256 times the store's size if that is more, which no real model exceeds.
    base : str, path, zarr.abc.store.Store or Model, optional
        The model that the store has differences to, if it has moved. A `Model`
        stays open when this one is closed.
    framework : {"numpy", "torch", "jax"}
        The default framework of `get_tensor`, `get_tensors`, `get_slice` and `load`.
        ``"np"``, ``"pt"`` and ``"flax"`` mean the same.
    device : optional
        The default device of PyTorch's tensors; the CPU if it is not given.

    Returns
    -------
    Model
        A context manager; close it when done.

    Raises
    ------
    FileNotFoundError
        If the path does not exist.
    bf16codecs.store.StoreError
        If it is not a model store, is damaged, or its base is missing. Reading raises it for data
        that are larger than `max_bytes`.
    bf16codecs.errors.BaseMismatchError
        If its base does not match. Reading raises it where the base has other bytes.
    TypeError
        If an argument has a wrong type.
    ValueError
        If `path` is empty, `storage_options` are given for a local path, or the framework or the
        device is unknown.
    ImportError
        If the framework, or for an address on a hub huggingface_hub, is not installed.
    RuntimeError
        If `device` is one of CUDA's, and PyTorch was built without CUDA.
    bf16codecs.errors.UnsupportedVersionError
        If its layout is newer than this release.

    Examples
    --------
    >>> import bf16codecs, importlib.resources
    >>> path = importlib.resources.files("bf16codecs") / "data" / "demo.safetensors"
    >>> with bf16codecs.open_model(path) as model:
    ...     model["model.norm.weight"][:3]
    array([1.125, 1.14062, 1.13281], dtype=bfloat16)
    """
    return Model(path, storage_options, max_bytes, base, framework, device)


class TensorMapping(ABC, Generic[Tensor]):
    """The part of models and runs that maps names to tensors, and holds what is open."""

    _handle: ModelHandle[Any]
    _where: str
    _names: dict[str, None]

    @property
    def where(self) -> str:
        """The path or address; for a step of a run, with ``@`` and the step behind it."""
        return self._where

    def keys(self) -> list[str]:
        """Return the names of the tensors.

        In a model, they are in the order of the tensors' data. In a run, they are those that any
        step has, with ``@`` and the first step where a tensor changes its shape or dtype.
        """
        return list(self._names)

    def values(self) -> Iterator[Tensor]:
        """Yield the tensors."""
        return (self[name] for name in self.keys())

    def items(self) -> Iterator[tuple[str, Tensor]]:
        """Yield names and tensors."""
        return ((name, self[name]) for name in self.keys())

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self._names)

    @abstractmethod
    def __getitem__(self, key: Any) -> Any: ...

    def close(self) -> None:
        """Close all files; tensors can no longer be read."""
        self._handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Model(TensorMapping[LazyTensor]):
    """A model whose tensors are read when they are indexed; `open_model` makes it.

    It has the methods of `safetensors.safe_open`, and is a mapping from names to tensors.
    """

    def __init__(
        self,
        path: Any,
        storage_options: Mapping[str, Any] | None = None,
        max_bytes: int | None = None,
        base: Any = None,
        framework: str = "numpy",
        device: Any = None,
    ) -> None:
        opened = base._handle if isinstance(base, Model) else base
        wanted = checked_framework(framework, device)
        self._bind(ModelHandle(path, storage_options, max_bytes, opened), *wanted)

    @classmethod
    def _of(cls, handle: ModelHandle[Any], framework: str = "numpy", device: Any = None) -> Model:
        """Return the model of an open handle."""
        model = cls.__new__(cls)
        model._bind(handle, framework, device)
        return model

    def _bind(self, handle: ModelHandle[Any], framework: str, device: Any) -> None:
        self._handle, self._framework, self._device = handle, framework, device
        # The reader of a step is kept when it is closed: it tells which step this was.
        self._of_step = handle.opened if handle.opened.location[1] is not None else None
        self._where = self._handle.opened.where
        self._names = dict.fromkeys(self._handle.opened.names)

    @property
    def step(self) -> int | None:
        """The number of the step of a run that it is; None if it is another model."""
        return None if self._of_step is None else self._of_step.location[1]

    def offset_keys(self) -> list[str]:
        """Return the tensors' names, as `keys` does."""
        return self.keys()

    def get(self, name: str, default: Any = None) -> Any:
        """Return `model[name]`, or `default` if the model lacks the tensor."""
        return self[name] if name in self._names else default

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __getitem__(self, name: str) -> LazyTensor:
        if _checked_key(name) not in self._names:
            hint = other_tensors(name, self._names)
            raise TensorNotFoundError(f"{self._where}: no tensor {name!r:.300}{hint}")
        return LazyTensor(self._handle, name)

    def metadata(self) -> dict[str, str] | None:
        """Return the ``__metadata__`` of all safetensors files, merged, or None if none has any."""
        headers = [header for header in self._handle.opened.headers if header.has_metadata]
        merged: dict[str, str] = {}
        for header in headers:
            merged.update(header.metadata)
        return merged if headers else None

    @property
    def loss(self) -> HalfLoss | None:
        """The loss of a lossy store's FP32 tensors; None for a lossless store."""
        return self._handle.opened.info.loss

    def get_slice(
        self, name: str, framework: str | None = None, device: Any = None
    ) -> LazyTensor | Slice:
        """Return a tensor that is read when it is indexed, as `safetensors.safe_open` does.

        Parameters are those of `get_tensor`.

        Returns
        -------
        LazyTensor or Slice
            A `LazyTensor` returns arrays of NumPy, a `Slice` those of JAX or tensors of PyTorch.
        """
        framework, device = self._wanted(framework, device)
        tensor = self[_checked_name(name)]
        if framework == "numpy":
            return tensor
        return Slice(tensor, read_jax if framework == "jax" else partial(read_torch, device))

    def get_tensor(self, name: str, framework: str | None = None, device: Any = None) -> Any:
        """Read a whole tensor.

        Parameters
        ----------
        name
            Its name.
        framework
            ``"numpy"``, ``"torch"`` or ``"jax"``; by default that of `open_model`.
        device
            The device of a PyTorch tensor; by default that of `open_model`, or the CPU.

        Returns
        -------
        numpy.ndarray, torch.Tensor or jax.Array

        Raises
        ------
        TypeError
            If `name` is not a string.
        KeyError
            If the model lacks the tensor.
        """
        return self.load(framework, [_checked_name(name)], device)[name]

    def get_tensors(self) -> dict[str, Any]:
        """Read all tensors, as `load` does."""
        return self.load()

    def load(
        self,
        framework: str | None = None,
        names: Iterable[str] | None = None,
        device: Any = None,
    ) -> dict[str, Any]:
        """Read many tensors, decoded in parallel into the arrays that are returned.

        Parameters
        ----------
        framework
            ``"numpy"``, ``"torch"`` or ``"jax"``; by default that of `open_model`.
        names
            The tensors to read; by default all.
        device
            The device of PyTorch tensors; by default that of `open_model`, or the CPU.

        Returns
        -------
        dict
            Arrays or tensors by name, in the order of `names`. Tensors of PyTorch that were tied
            when `bf16codecs.torch.save_file` saved them are one tensor again.

        Raises
        ------
        TypeError
            If `names` are not strings.
        KeyError
            If the model lacks one of the names.
        bf16codecs.store.StoreError, bf16codecs.errors.CodecError
            If the store is damaged.
        """
        framework, device = self._wanted(framework, device)
        if isinstance(names, str):
            raise TypeError(f"names must be a list of names, not one string, {names!r:.80}")
        if names is None and not self._names:
            # Without tensors, whose reading checks the headers, check them here.
            _ = self._handle.opened.headers
        wanted = self.keys() if names is None else map(_checked_name, names)
        tensors = [self[name] for name in wanted]
        if framework != "torch":
            arrays = read_all(tensors)
            if framework == "jax":
                return {name: as_jax(array) for name, array in arrays.items()}
            return arrays
        return load_torch(tensors, device, self.metadata() or {})

    def update(
        self, tensors: Mapping[str, Any], have: Any = None, trust_base: bool = False
    ) -> None:
        """Overwrite arrays with this model's values, given those of a model that it comes from.

        A model that is stored as differences, a step of a run or a store with a base, is decoded
        against the arrays: only the differences are read.

        Parameters
        ----------
        tensors
            Arrays of NumPy, or tensors of PyTorch on the CPU or a GPU that can decode them (extra
            ``cuda``), by the names of this model's tensors, of the same dtypes and shapes, and
            contiguous in C order. They need not be all.
        have : int, str, path or Model, optional
            The model whose values `tensors` have: the number of an earlier step of the same run; or
            the base of this store, or the base of that, and so on, as `open_model` takes it. If
            this model does not come from that one, or the run no longer has the step, all is read.
        trust_base
            Do not compare all of `tensors` with what the differences are to, before anything is
            overwritten. Blocks are compared anyway as they are decoded; on a GPU, only then.

        Raises
        ------
        bf16codecs.errors.BaseMismatchError
            If the tensors do not have the values of `have`. All are as before.
        bf16codecs.errors.UpdateError
            If reading fails when some tensors are new: it has their names. Each of the others is as
            before. Without any new tensor, the error is that of reading.
        KeyError
            If the model lacks a tensor.
        TypeError, ValueError
            If an array has another dtype or shape, is not contiguous, or overlaps another; if
            `have` is a number, and this is not a step of a run.
        """
        from bf16codecs.model.update_parts import note_changes, parts_for
        from bf16codecs.model.updating import update

        pairs = [(self[name], value) for name, value in tensors.items()]
        try:
            update(parts_for(pairs, self._have(have)), trust_base)
        finally:
            note_changes(list(tensors.values()))

    def _have(self, have: Any) -> Any:
        """Return the reader of `have`; None unless this model comes from it."""
        from bf16codecs.model.updating import have_of

        if isinstance(have, Model):  # of a step, number and key are enough
            have = have._of_step or have._handle.opened
        return have_of(self._handle.opened, have, self._handle.arguments[1])

    def _wanted(self, framework: str | None, device: Any) -> tuple[str, Any]:
        """Return the framework and the device, by default those of the model."""
        framework = self._framework if framework is None else framework
        if device is None and checked_framework(framework, None)[0] == self._framework:
            device = self._device
        return checked_framework(framework, device)

    def info(self, sort: str = "file", sizes: bool = False, grids: bool = False) -> Info:
        """Describe the model: its kind, its size, and its tensors.

        Parameters
        ----------
        sort : {"file", "name", "size", "ratio"}
            Order of the tensors: as in the files, by name, or with the largest size or ratio first.
        sizes
            Ask a server that lists no sizes for the size of each chunk, one request each.
        grids
            Ask a server for the head of each tensor's first chunk, to tell what weights that were
            quantised once were. Heads of chunks on a disk are always read.

        Returns
        -------
        Info
            Its text is the output of ``bf16codecs info``.

        Raises
        ------
        ValueError
            If the order is unknown, or the model is closed.
        bf16codecs.store.StoreError
            If metadata or headers are damaged.
        """
        return info_of(self._handle.opened, self._where, sort, sizes, grids)

    @cached_property
    def _objects(self) -> Mapping[str, tuple[int, int]]:
        checkpoint = read_checkpoint(self._handle.opened)
        return {} if checkpoint is None else checkpoint.objects

    def objects(self) -> dict[str, int]:
        """Return the objects of a training job's checkpoint, with their sizes in bytes."""
        return sizes_of_objects(self._handle.opened) or {}

    def object_bytes(self, name: str) -> bytes:
        """Read an object's stored bytes, without unpickling them.

        Raises
        ------
        KeyError
            If the model has no object of that name.
        bf16codecs.errors.CodecError, bf16codecs.store.StoreError
            If it is damaged, or larger than `max_bytes`.
        """
        if name not in self._objects:
            raise KeyError(f"{self._where} has no object {name!r:.300}: objects() lists all")
        return read_object(self._handle.opened, self._objects[name])

    def _repr_html_(self) -> str:
        return model_html(self._where, self.keys(), lambda: self._handle.opened, self.__getitem__)

    def __repr__(self) -> str:
        state = "" if self._handle.is_open else ", closed"
        return f"<Model {self._where}: {counted(len(self), 'tensor')}{state}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (type(self), self._framework, self._device, *self._handle.arguments)


def _reopened(cls: type[Model], framework: str, device: Any, *arguments: Any) -> Model:
    return cls._of(ModelHandle(*arguments), framework, device)


def _checked_name(name: Any) -> str:
    if not isinstance(name, str):
        raise _wrong_name(name, TypeError)
    return name


def _checked_key(name: Any) -> str:
    """Check a name as a dictionary does: what can be a key is missing, all else cannot be one."""
    if not isinstance(name, str):
        raise _wrong_name(name, TensorNotFoundError if isinstance(name, Hashable) else TypeError)
    return name


def _wrong_name(name: Any, error: type[Exception]) -> Exception:
    # A number may be a step number.
    advice = "; bf16codecs.open_run gives steps by number" if isinstance(name, int) else ""
    return error(
        f"a tensor's name must be a string, not {name!r:.80} ({type(name).__name__}): keys() lists"
        f" the names{advice}"
    )
