"""Models whose tensors are read when they are indexed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bf16codecs._half import HalfLoss
from bf16codecs._messages import counted
from bf16codecs.errors import TensorNotFoundError
from bf16codecs.model.tensor import Home, LazyTensor, read_all

__all__ = ["LazyTensor", "Model", "TensorNotFoundError", "open_model"]

_FRAMEWORKS = {"numpy": "numpy", "np": "numpy", "torch": "torch", "pt": "torch"}


def open_model(
    path: Any,
    storage_options: Mapping[str, Any] | None = None,
    max_bytes: int | None = None,
    base: Any = None,
) -> Model:
    """Open a model and read only its metadata.

    Parameters
    ----------
    path : str, path or zarr.abc.store.Store
        A Zarr store (a folder or a ZIP file), an HDF5 file, or the address of a store:
        ``s3://``, ``http://``, ``memory://`` and whatever else fsspec or obstore know. Also
        safetensors: a file, a folder of shards, or a ``*.safetensors.index.json``.
    storage_options : dict, optional
        Options of the address's file system: credentials, endpoints, timeouts.
    max_bytes : int, optional
        The most bytes that a call may decode, for stores from strangers. By default 1 GiB, or 256
        times the store's size if that is more, which no real model meets.
    base : str, path, zarr.abc.store.Store or Model, optional
        The model that the store has differences to, if it is not where the store says. A `Model`
        stays open when this one is closed.

    Returns
    -------
    Model
        A context manager; close it when done.

    Raises
    ------
    FileNotFoundError
        If nothing is at that path.
    bf16codecs.store.StoreError
        If it is not a model store, or a damaged one, or its base is missing. Reading raises it for
        what is larger than `max_bytes`.
    bf16codecs.errors.BaseMismatchError
        If its base is another model. Reading raises it where the base was altered.
    ValueError
        If `path` is empty, or a path and not an address has `storage_options`.
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
    return Model(path, storage_options, max_bytes, base)


class Model:
    """A model whose tensors are read when they are indexed; `open_model` makes it.

    It has the methods of `safetensors.safe_open`, and is a mapping from names to tensors.
    """

    def __init__(
        self,
        path: Any,
        storage_options: Mapping[str, Any] | None = None,
        max_bytes: int | None = None,
        base: Any = None,
    ) -> None:
        opened = base._home if isinstance(base, Model) else base
        self._settle(Home(path, storage_options, max_bytes, opened))

    @classmethod
    def _at(cls, home: Home) -> Model:
        """Make a model of what is open."""
        model = cls.__new__(cls)
        model._settle(home)
        return model

    def _settle(self, home: Home) -> None:
        self._home = home
        self._where = self._home.opened.where
        self._names = dict.fromkeys(self._home.opened.names)

    def keys(self) -> list[str]:
        """Return the tensors' names, in the order of their data."""
        return list(self._names)

    def values(self) -> Iterator[LazyTensor]:
        """Yield the tensors."""
        return (self[name] for name in self.keys())

    def items(self) -> Iterator[tuple[str, LazyTensor]]:
        """Yield names and tensors."""
        return ((name, self[name]) for name in self.keys())

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __getitem__(self, name: str) -> LazyTensor:
        if name not in self._names:
            raise TensorNotFoundError(f"{self._where}: no tensor {name!r}{self._hint(name)}")
        return LazyTensor(self._home, name)

    def metadata(self) -> dict[str, str] | None:
        """Return the ``__metadata__`` of all safetensors files, merged, or None."""
        merged: dict[str, str] = {}
        for header in self._home.opened.headers:
            merged.update(header.metadata)
        return merged or None

    @property
    def loss(self) -> HalfLoss | None:
        """What the FP32 tensors of a lossy store lost, None if all is as it was."""
        return self._home.opened.info.loss

    def get_slice(self, name: str) -> LazyTensor:
        """Return `model[name]`, as `safetensors.safe_open` does."""
        return self[name]

    def get_tensor(self, name: str, framework: str = "numpy", device: Any = None) -> Any:
        """Read a whole tensor.

        Parameters
        ----------
        name
            Its name.
        framework
            ``"numpy"`` or ``"torch"``.
        device
            Of a PyTorch tensor; by default the CPU.

        Returns
        -------
        numpy.ndarray or torch.Tensor
        """
        return self.load(framework, [name], device)[name]

    def load(
        self, framework: str = "numpy", names: Iterable[str] | None = None, device: Any = None
    ) -> dict[str, Any]:
        """Read many tensors, decoded in parallel into the arrays that are returned.

        Parameters
        ----------
        framework
            ``"numpy"`` or ``"torch"``.
        names
            The tensors to read; by default all.
        device
            Of PyTorch tensors; by default the CPU.

        Returns
        -------
        dict
            Arrays or tensors by name, in the order of `names`.

        Raises
        ------
        KeyError
            If the model lacks one of the names.
        bf16codecs.store.StoreError, bf16codecs.errors.CodecError
            If the store is damaged.
        """
        if framework not in _FRAMEWORKS:
            raise ValueError(f"framework must be numpy or torch, not {framework!r}")
        if names is None and not self._names:
            # Tensors are compared with the headers when they are read: here there are none.
            _ = self._home.opened.headers
        tensors = [self[name] for name in (self.keys() if names is None else names)]
        if _FRAMEWORKS[framework] == "torch":
            return _load_torch(tensors, device)
        if device is not None and str(device) != "cpu":
            raise ValueError(f"NumPy arrays are on the CPU, not on {device!r}")
        return read_all(tensors)

    def close(self) -> None:
        """Close the model; its tensors can no longer be read."""
        self._home.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Model {self._where}: {counted(len(self), 'tensor')}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, self._home.arguments

    def _hint(self, name: object) -> str:
        near = difflib.get_close_matches(str(name), self._names, n=3)
        return f"; there is {' and '.join(map(repr, near))}" if near else ""


def _reopened(*arguments: Any) -> Model:
    return Model._at(Home(*arguments))


def _load_torch(tensors: list[LazyTensor], device: Any) -> dict[str, Any]:
    if device is None or str(device) == "cpu":
        from bf16codecs._torch_tensors import as_tensor

        arrays = read_all(tensors)
        return {t.name: as_tensor(arrays.pop(t.name), t.get_dtype()) for t in tensors}
    # One by one: the model may fit on the device (or several) and not into host memory.
    return {t.name: t.torch(device) for t in tensors}
