"""What lets transformers find and read stores.

It is led to them at two places. Where it looks for a model's files, it finds the store. Where it
loads one of them, it gets what reads each tensor when its turn has come, as it does from
safetensors files. All else is its own: configuration, dtypes, devices, ties, what is missing.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from bf16codecs._messages import from_extra, install_extra
from bf16codecs.errors import StoreError
from bf16codecs.model.model import Model, open_model
from bf16codecs.store.kinds import STORE_SUFFIXES
from bf16codecs.torch.tied import TORCH_DTYPES

__all__ = [
    "Chosen",
    "patch_transformers",
    "supported_transformers",
    "transformers_loads",
    "unpatch_transformers",
]

#: What is replaced in `transformers.modeling_utils`, and the parameters that ours relies on.
_REPLACED = {
    "_get_resolved_checkpoint_files": {
        "pretrained_model_name_or_path",
        "variant",
        "gguf_file",
        "use_safetensors",
        "transformers_explicit_filename",
        "download_kwargs",
    },
    "load_state_dict": {"checkpoint_file", "map_location"},
}


class _StorePath(str):
    """The path of a store among those of files that transformers loads."""

    #: As `open_model` takes them.
    opening: Mapping[str, Any]

    def __new__(cls, path: str, opening: Mapping[str, Any] | None = None) -> _StorePath:
        """Make the path of a store that is opened with some options."""
        made = super().__new__(cls, path)
        made.opening = opening or {}
        return made

    def open(self) -> Model:
        """Open the store."""
        return open_model(str(self), framework="torch", **self.opening)


@dataclass(frozen=True)
class Chosen:
    """What is to be loaded where transformers is given a certain folder.

    Attributes
    ----------
    given
        The folder that transformers is given.
    folder, store
        A folder that has to have a store, or the path or address of a store: one of the two.
    opening
        Options as `bf16codecs.open_model` takes them.
    """

    given: str
    folder: Path | None
    store: str | None
    opening: Mapping[str, Any]


_chosen: ContextVar[Chosen | None] = ContextVar("_chosen", default=None)
_lock = threading.Lock()
# How many want it to be patched, and whether `patch_transformers` is one of them.
_users, _is_patched = 0, False
_originals: dict[str, Callable[..., Any]] = {}


def supported_transformers() -> ModuleType:
    """Import and return `transformers.modeling_utils`.

    Raises
    ------
    ImportError
        If transformers is missing, or lacks what is replaced in it.
    """
    with from_extra("transformers", "models of transformers"):
        import transformers
        from transformers import modeling_utils
    for name, needed in _REPLACED.items():
        function = getattr(modeling_utils, name, None)
        if function is None or not needed <= inspect.signature(function).parameters.keys():
            raise ImportError(
                f"transformers {transformers.__version__} loads models in a way that this release"
                " does not know: 5.0 or newer is needed, and 5.23 was tried:"
                f" {install_extra('transformers')}",
                name="transformers",
            )
    return modeling_utils


def patch_transformers() -> None:
    """Let `from_pretrained` of transformers load folders that have a store in place of weights.

    Afterwards ``AutoModel.from_pretrained(DIR)``, `pipeline` and all that loads models by them take
    a folder with ``config.json`` and ``model.zarr`` (``model.zarr.zip``, ``model.h5``), such as
    `bf16codecs.convert.pack_hugging_face` makes, in all threads of this process. With `variant` or
    `subfolder`, the store is where the file would be: ``model.fp16.zarr``. A folder that has
    ``model.safetensors``, or its index, is loaded from that, and so are other folders and names of
    models on the hub as they were. Calling it again changes nothing; `unpatch_transformers` undoes
    it.

    Raises
    ------
    ImportError
        If transformers is missing, or too old.

    Examples
    --------
    >>> import bf16codecs.torch
    >>> bf16codecs.torch.patch_transformers()  # doctest: +SKIP
    >>> AutoModelForCausalLM.from_pretrained("packed")  # doctest: +SKIP
    """
    global _is_patched
    modeling = supported_transformers()
    with _lock:
        if not _is_patched:
            _is_patched = True
            _add_user(modeling)


def unpatch_transformers() -> None:
    """Undo `patch_transformers`, if it was called."""
    global _is_patched
    with _lock:
        if _is_patched:
            _is_patched = False
            _remove_user(supported_transformers())


@contextmanager
def transformers_loads(chosen: Chosen) -> Iterator[None]:
    """Let transformers load what is chosen, in this thread, as long as the block runs."""
    modeling = supported_transformers()
    token = _chosen.set(chosen)
    with _lock:
        _add_user(modeling)
    try:
        yield
    finally:
        with _lock:
            _remove_user(modeling)
        _chosen.reset(token)


def _add_user(modeling: ModuleType) -> None:
    global _users
    _users += 1
    if _users == 1:
        for name, wrap in zip(_REPLACED, (_finding_stores, _reading_stores), strict=True):
            _originals[name] = getattr(modeling, name)
            setattr(modeling, name, wrap(_originals[name]))


def _remove_user(modeling: ModuleType) -> None:
    global _users
    _users -= 1
    if not _users:
        for name, original in _originals.items():
            # What others have put in its place since stays; with nothing chosen, ours does nothing.
            if getattr(getattr(modeling, name), "__wrapped__", None) is original:
                setattr(modeling, name, original)


def _finding_stores(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return what finds a model's files, and stores too."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def resolve(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        store = _found(bound.arguments)
        return original(*args, **kwargs) if store is None else ([store], None)

    return resolve


def _found(arguments: Mapping[str, Any]) -> _StorePath | None:
    """Return the store that is to be loaded, None if it is for transformers to find files."""
    given, chosen = arguments["pretrained_model_name_or_path"], _chosen.get()
    if chosen is not None and chosen.given == given:
        if chosen.folder is None:
            return _StorePath(str(chosen.store), chosen.opening)
        files, stores = _names(chosen.folder, arguments)
        for store in stores:
            if store.exists():
                _refuse_both(files, store)
                return _StorePath(str(store), chosen.opening)
        names = " nor ".join(str(store.relative_to(chosen.folder)) for store in stores)
        raise StoreError(
            f"{chosen.folder}: no store of a model in it: neither {names} (bf16codecs pack-hf makes"
            " such a folder)"
        )
    is_other = arguments["gguf_file"] is not None or arguments["use_safetensors"] is False
    if not _is_patched or is_other or given is None or not os.path.isdir(given):
        return None
    files, stores = _names(Path(given), arguments)
    if any(file.is_file() for file in files):
        return None
    return next((_StorePath(str(store)) for store in stores if store.exists()), None)


def _refuse_both(files: list[Path], store: Path) -> None:
    """Refuse a store beside files that transformers would take: either may be the newer one."""
    other = next((file for file in files if file.is_file()), None)
    if other is not None:
        raise StoreError(
            f"{store.parent}: has {other.name} and {store.name}: remove the one that is old, or"
            f" name the store, {store}"
        )


def _names(folder: Path, arguments: Mapping[str, Any]) -> tuple[list[Path], list[Path]]:
    """Return the files that transformers would take, and the stores that may be in their place."""
    folder = folder / ((arguments["download_kwargs"] or {}).get("subfolder") or "")
    explicit, variant = arguments["transformers_explicit_filename"], arguments["variant"]
    dotted = "" if variant is None else f".{variant}"
    files, stem = [f"model{dotted}.safetensors", f"model.safetensors.index{dotted}.json"], "model"
    if explicit is not None:
        # A configuration may be a stranger's: what leads out of the folder is for transformers to
        # refuse.
        if os.path.isabs(explicit) or ".." in Path(explicit).parts:
            return [], []
        files, dotted = [explicit], ""
        stem = explicit.removesuffix(".index.json").removesuffix(".safetensors")
    stores = [folder / f"{stem}{dotted}{suffix}" for suffix in STORE_SUFFIXES]
    return [folder / file for file in files], stores


def _reading_stores(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return what loads a file of a model, and stores too."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def load_state_dict(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        path = arguments["checkpoint_file"]
        if not isinstance(path, _StorePath):
            return original(*args, **kwargs)
        device = arguments.get("map_location")
        if device is None:
            # Who says no place takes values when their turn has come, by `tensor[...]`. The store
            # stays open until the last of these is gone.
            opened = path.open()
            return {name: opened.get_slice(name) for name in opened}
        with path.open() as model:
            return _on_meta(model) if str(device) == "meta" else model.load(device=device)

    return load_state_dict


def _on_meta(model: Model) -> dict[str, torch.Tensor]:
    """Return tensors without data, of the model's shapes and dtypes."""
    return {
        name: torch.empty(tensor.shape, dtype=TORCH_DTYPES[tensor.get_dtype()], device="meta")
        for name, tensor in model.items()
    }
