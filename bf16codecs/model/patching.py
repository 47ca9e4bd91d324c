"""Lets safetensors open stores that lie where its files were."""

from __future__ import annotations

import functools
import multiprocessing.spawn
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from bf16codecs._base.forks import make_lock
from bf16codecs._base.messages import from_extra
from bf16codecs.errors import BF16CodecsError, StoreError
from bf16codecs.model import as_safetensors
from bf16codecs.model.frameworks import checked_framework
from bf16codecs.model.tensor import ModelHandle
from bf16codecs.store.kinds import STORE_SUFFIXES, Kind, detect
from bf16codecs.store.one_file import FileReader
from bf16codecs.store.opening import Opening, model_attributes, open_any
from bf16codecs.store.reader import ModelReader

__all__ = ["patch_safetensors", "unpatch_safetensors"]

_SUFFIX = ".safetensors"

_STORES = Kind.FOLDER, Kind.ZIP, Kind.HDF5

_lock = make_lock()


class _State:
    """Whether safetensors is patched, and what it had before."""

    is_patched = False
    #: The class of safetensors, for good: functions of others may call ours after `unpatch`.
    original: Any = None
    #: What opens files: that class, or what another library had put in its place.
    opener: Any = None
    #: The class of its errors.
    error: type[Exception] | None = None
    #: The function of multiprocessing that ours is around.
    prepare: Callable[..., dict[str, Any]] | None = None


def patch_safetensors() -> None:
    """Let safetensors open a store where a file was, in this process and those that it starts.

    Afterwards `safetensors.safe_open`, and with it `load_file` and `load_model`, also take

    - a store at the path of the file: a folder, a ZIP file or an HDF5 file named
      ``model.safetensors``;
    - a path where no file is, if there is a store beside it: ``model.zarr``, ``model.zarr.zip`` or
      ``model.h5`` instead of ``model.safetensors``;
    - a path where no file is, if a store in the same folder has a file of that name, such as
      ``model-00001-of-00002.safetensors`` in ``model.zarr``. Then only its tensors are seen.

    Files are opened as before. Errors of stores are also of `safetensors.SafetensorError`, except
    those of the system. This reaches names in modules that were imported earlier, all
    threads, and processes of `multiprocessing`, however they are started; programs that are started
    as commands call it themselves. Calling it again changes nothing; `unpatch_safetensors` undoes
    it.

    Raises
    ------
    ImportError
        If safetensors is missing.

    Examples
    --------
    >>> import bf16codecs.torch  # doctest: +SKIP
    >>> bf16codecs.torch.patch_safetensors()  # doctest: +SKIP
    >>> safetensors.torch.load_file("packed/model.safetensors")  # doctest: +SKIP
    """
    with from_extra("torch", "stores in place of safetensors files"):
        import safetensors
        import safetensors._safetensors_rust as native
    with _lock:
        if _State.is_patched:
            return
        current = safetensors.safe_open
        if _State.original is None:
            _State.original = native.safe_open
            _State.opener, _State.error = current, safetensors.SafetensorError
        # What another library has put there since the first time calls ours.
        for old in {id(each): each for each in (_State.original, _State.opener)}.values():
            _replace(old, safe_open)
        _State.is_patched = True
        _State.prepare = multiprocessing.spawn.get_preparation_data
        multiprocessing.spawn.get_preparation_data = functools.wraps(_State.prepare)(_prepared)


def unpatch_safetensors() -> None:
    """Undo `patch_safetensors`, if it was called; what is open stays open."""
    with _lock:
        if not _State.is_patched:
            return
        _State.is_patched = False
        _replace(safe_open, _State.opener)
        current = multiprocessing.spawn.get_preparation_data
        if getattr(current, "__wrapped__", None) is _State.prepare and _State.prepare is not None:
            multiprocessing.spawn.get_preparation_data = _State.prepare


def _replace(old: Any, new: Any) -> None:
    """Let all names of modules that refer to a class refer to another, except in this package."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "bf16codecs" or not isinstance(module, ModuleType):
            continue
        names = vars(module)
        for key in [key for key, value in list(names.items()) if value is old]:
            names[key] = new


# --- processes ------------------------------------------------------------------------------------

# What a new process runs before its own modules are imported. It has no other path yet.
_IN_CHILD = """
import sys
sys.path[:] = path
try:
    from bf16codecs.model.patching import patch_safetensors
    patch_safetensors()
except Exception:  # without it, the process does what it did before
    pass
"""


class _Patched:
    """Patches safetensors in the process in which it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (_IN_CHILD, {"path": list(sys.path)})


def _prepared(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """Return what a new process gets from this one."""
    assert _State.prepare is not None
    # Entries that Python does not know are unpickled, and not used.
    more = {"bf16codecs": _Patched()} if _State.is_patched else {}
    return {**_State.prepare(*args, **kwargs), **more}


# --- opening --------------------------------------------------------------------------------------


class _Either(type):
    """Lets handles of files and of stores count as instances of `safe_open`."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, (as_safetensors.safe_open, _State.original))


class safe_open(metaclass=_Either):
    """Opens a safetensors file, or the store that lies where it was: see `patch_safetensors`."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Return a handle."""
        filename = args[0] if args else kwargs.get("filename")
        found = None
        if _State.is_patched and isinstance(filename, (str, os.PathLike)):
            found = _store_for(Path(os.fsdecode(filename)))
        if found is None:
            return _State.opener(*args, **kwargs)
        kwargs.pop("filename", None)
        return _StoredFile(found, *args[1:], **kwargs)


class _Wanted(NamedTuple):
    """The path of a store, and the name of the file in it that is wanted; None for all."""

    store: Path
    file: str | None


def _store_for(path: Path) -> _Wanted | None:
    """Find the store to open for a path; None if safetensors has to open what is there."""
    try:
        if path.exists():
            return _Wanted(path, None) if detect(path) in _STORES else None
        names = os.listdir(path.parent)
    except (OSError, ValueError, BF16CodecsError, ImportError):
        return None
    stem = path.name.removesuffix(_SUFFIX)
    for suffix in STORE_SUFFIXES:
        beside = path.with_name(stem + suffix)
        # Others also make files of these names.
        if beside.name in names and _files_of(beside):
            return _Wanted(beside, None)
    stores = sorted(name for name in names if name.endswith(STORE_SUFFIXES))
    found = [name for name in stores if path.name in _files_of(path.with_name(name))]
    if len(found) > 1:
        raise StoreError(
            f"{path}: not there, and {found[0]} and {found[1]} both have a file of this name: open"
            " one of them"
        )
    return _Wanted(path.with_name(found[0]), path.name) if found else None


def _files_of(store: Path) -> list[str]:
    """Return the names of the original files in a store; none if it cannot be read."""
    with suppress(OSError, ValueError, BF16CodecsError, AttributeError, TypeError, ImportError):
        return [file.get("name") for file in model_attributes(store).get("files", [])]
    return []


class _FileHandle(ModelHandle[ModelReader]):
    """A handle of one of the original files in a store."""

    def __init__(self, wanted: _Wanted) -> None:
        self.wanted = wanted
        super().__init__(str(wanted.store), None, None)

    def _open(self, source: Any, opening: Opening) -> ModelReader:  # type: ignore[override]
        reader = open_any(source, opening)
        if self.wanted.file is None:
            return reader
        try:
            return FileReader(reader, self.wanted.file)
        except BaseException:
            reader.close()
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        return _FileHandle, (self.wanted,)


@contextmanager
def _safetensors_errors() -> Iterator[None]:
    """Let errors also be of the class that programs catch, `safetensors.SafetensorError`."""
    try:
        yield
    except (BF16CodecsError, ValueError) as e:
        if isinstance(e, OSError) or _State.error is None or isinstance(e, _State.error):
            raise
        kind = type(type(e).__name__, (type(e), _State.error), {"__module__": type(e).__module__})
        error = kind.__new__(kind, *e.args)
        error.args = e.args
        error.__dict__.update(e.__dict__)
        raise error from e


class _StoredFile(as_safetensors.safe_open):
    """A file in a store, with the interface of `safetensors.safe_open`."""

    def __init__(
        self, wanted: _Wanted, framework: str = "pt", device: Any = "cpu", *, backend: str = "mmap"
    ) -> None:
        self._wanted_file = wanted
        with _safetensors_errors():
            as_safetensors.check_backend(backend)
            self._bind(_FileHandle(wanted), *checked_framework(framework, device))

    def keys(self) -> list[str]:
        """Return the tensors' names in alphabetical order."""
        with _safetensors_errors():
            return super().keys()

    def metadata(self) -> dict[str, str] | None:
        """Return the ``__metadata__``."""
        with _safetensors_errors():
            return super().metadata()

    def get_slice(self, name: str, framework: str | None = None, device: Any = None) -> Any:
        """Return a tensor that is read when it is indexed."""
        with _safetensors_errors():
            return super().get_slice(name, framework, device)

    def load(
        self,
        framework: str | None = None,
        names: Iterable[str] | None = None,
        device: Any = None,
    ) -> dict[str, Any]:
        """Read tensors; so do `get_tensor` and `get_tensors`."""
        with _safetensors_errors():
            return super().load(framework, names, device)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._wanted_file, self._framework, self._device)
