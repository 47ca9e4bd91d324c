"""What lets transformers find and read stores.

It is led to them at two places. Where it looks for a model's files, it finds the store. Where it
loads one of them, it gets what reads each tensor when its turn has come, as it does from
safetensors files. All else is its own: configuration, dtypes, devices, ties, what is missing.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from bf16codecs._forks import make_lock
from bf16codecs._messages import few, from_extra
from bf16codecs.errors import StoreError
from bf16codecs.model.model import Model, open_model
from bf16codecs.store.kinds import STORE_SUFFIXES
from bf16codecs.torch.tied import TORCH_DTYPES

__all__ = [
    "Chosen",
    "patch_transformers",
    "transformers_loads",
    "unpatch_transformers",
]

#: What is replaced in `transformers.modeling_utils`, and the parameters that ours relies on; the
#: first of them is the function's first one.
_REPLACED = {
    "_get_resolved_checkpoint_files": (
        "pretrained_model_name_or_path",
        "variant",
        "gguf_file",
        "use_safetensors",
        "transformers_explicit_filename",
        "download_kwargs",
    ),
    "load_state_dict": ("checkpoint_file", "map_location"),
}

#: Releases of transformers.
_TRIED = "5.0, 5.23 and 5.24"


class _StorePath(str):
    """Stands for a store among the paths of files that transformers loads.

    What is no file of theirs is for `load_state_dict`: of a name that ends as one of theirs,
    transformers would open the file itself.
    """

    #: Where the store is, and how it is opened, as `open_model` takes them.
    place: str
    opening: Mapping[str, Any]

    def __new__(cls, place: str, opening: Mapping[str, Any] | None = None) -> _StorePath:
        """Stand for a store that is opened with some options."""
        made = super().__new__(cls, f"<{place}>")
        made.place, made.opening = place, opening or {}
        return made

    def open(self) -> Model:
        """Open the store."""
        return open_model(self.place, framework="torch", **self.opening)


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
_lock = make_lock()
# How many want it to be patched, and whether `patch_transformers` is one of them.
_users, _is_patched = 0, False
# What is there in the place of what else, or below something that others have put there.
_ours: list[tuple[Callable[..., Any], Callable[..., Any]]] = []


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
        If transformers is missing, or loads models in another way than the releases that were
        tried.

    Examples
    --------
    >>> import bf16codecs.torch
    >>> bf16codecs.torch.patch_transformers()  # doctest: +SKIP
    >>> AutoModelForCausalLM.from_pretrained("packed")  # doctest: +SKIP
    """
    global _is_patched
    modeling = _imported()
    with _lock:
        if _is_patched:
            _put_in_place(modeling)  # others may have put back what was there before
        else:
            _add_user(modeling)
            _is_patched = True


def unpatch_transformers() -> None:
    """Undo `patch_transformers`, if it was called.

    What others have put in the places of the two functions since stays.
    """
    global _is_patched
    with _lock:
        if _is_patched:
            _is_patched = False
            _remove_user(_imported())


@contextmanager
def transformers_loads(chosen: Chosen) -> Iterator[None]:
    """Let transformers load what is chosen, in this thread, as long as the block runs."""
    modeling = _imported()
    with _lock:
        _add_user(modeling)
    token = _chosen.set(chosen)
    try:
        yield
    finally:
        _chosen.reset(token)
        with _lock:
            _remove_user(modeling)


def _imported() -> ModuleType:
    with from_extra("transformers", "models of transformers"):
        from transformers import modeling_utils
    return modeling_utils


def _add_user(modeling: ModuleType) -> None:
    global _users
    _put_in_place(modeling)
    _users += 1


def _put_in_place(modeling: ModuleType) -> None:
    """Put ours in place where it is not: all of it, or nothing of it if one cannot be."""
    wraps = zip(_REPLACED, (_finding_stores, _reading_stores), strict=True)
    missing = [(name, wrap) for name, wrap in wraps if not _has_ours(getattr(modeling, name, None))]
    signatures = [_signature(modeling, name) for name, _ in missing]
    for (name, wrap), signature in zip(missing, signatures, strict=True):
        original = getattr(modeling, name)
        ours = wrap(original, signature)
        _ours.append((ours, original))
        setattr(modeling, name, ours)


def _remove_user(modeling: ModuleType) -> None:
    global _users
    _users -= 1
    if _users:
        return
    # What others have put on top stays, and so does ours below it: with nothing chosen, it does
    # nothing, and whoever patches again gets ours on top.
    for ours, original in reversed(_ours):
        for name in _REPLACED:
            if getattr(modeling, name, None) is ours:
                setattr(modeling, name, original)
    _ours.clear()


def _has_ours(function: Any) -> bool:
    """Tell whether a function is one of ours, or says that it is around one."""
    while function is not None:
        if any(function is ours for ours, _ in _ours):
            return True
        function = getattr(function, "__wrapped__", None)
    return False


def _signature(modeling: ModuleType, name: str) -> inspect.Signature:
    """Return what tells the arguments of what is to be replaced.

    Raises
    ------
    ImportError
        If it does not have the parameters that ours relies on.
    """
    needed, function = _REPLACED[name], getattr(modeling, name, None)
    if function is not None:
        signature = inspect.signature(function)  # of what others have wrapped, if they say so
        if signature.parameters.keys() >= set(needed):
            return signature
        with suppress(TypeError):
            signature.bind(**dict.fromkeys(needed))
            return _loose_signature(*needed)
    import transformers

    raise ImportError(
        f"transformers {transformers.__version__} loads models in a way that this release does not"
        f" know: {_TRIED} were tried: install one of these",
        name="transformers",
    )


def _loose_signature(first: str, *others: str) -> inspect.Signature:
    """Return what tells the arguments of what takes any, as a function around the original does."""
    kinds = inspect.Parameter
    return inspect.Signature(
        [
            kinds(first, kinds.POSITIONAL_OR_KEYWORD),
            kinds("args", kinds.VAR_POSITIONAL),
            *(kinds(name, kinds.KEYWORD_ONLY, default=None) for name in others),
            kinds("kwargs", kinds.VAR_KEYWORD),
        ]
    )


def _finding_stores(
    original: Callable[..., Any], signature: inspect.Signature
) -> Callable[..., Any]:
    """Return what finds a model's files, and stores too."""

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
            f"{chosen.folder}: no store of a model in it: neither {names}{_others(files)}"
            " (bf16codecs pack-hf makes such a folder)"
        )
    is_other = arguments["gguf_file"] is not None or arguments["use_safetensors"] is False
    if not _is_patched or is_other or given is None or not os.path.isdir(given):
        return None
    files, stores = _names(Path(given), arguments)
    if any(file.is_file() for file in files):
        return None
    return next((_StorePath(str(store)) for store in stores if store.exists()), None)


def _others(files: list[Path]) -> str:
    """Name stores that are where others were looked for, and the variants that they are of."""
    if not files or not files[0].parent.is_dir():
        return ""
    told = []
    for name in sorted(os.listdir(files[0].parent)):
        suffix = next((suffix for suffix in STORE_SUFFIXES if name.endswith(suffix)), None)
        if suffix is not None:
            stem, _, variant = name.removesuffix(suffix).partition(".")
            told.append(f"{name} (variant={variant or None!r})" if stem == "model" else name)
    return f"; there is {few(told, 3)}" if told else ""


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


def _reading_stores(
    original: Callable[..., Any], signature: inspect.Signature
) -> Callable[..., Any]:
    """Return what loads a file of a model, and stores too."""

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
