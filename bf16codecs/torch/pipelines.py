"""Makes diffusers find and read stores, as `patching` does transformers."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bf16codecs.store.kinds import STORE_SUFFIXES
from bf16codecs.torch.on_hub import store_on_hub
from bf16codecs.torch.patching import REPLACEMENT as TRANSFORMERS
from bf16codecs.torch.replacing import Patch, Replacement
from bf16codecs.torch.stored_files import FileInStore, all_in

__all__ = ["patch_diffusers", "unpatch_diffusers"]

_FILE = ".safetensors"


def patch_diffusers() -> None:
    """Let `from_pretrained` of diffusers load folders that have stores instead of weights.

    Afterwards ``DiffusionPipeline.from_pretrained(DIR)``, and the `from_pretrained` of its models,
    take what `bf16codecs.convert.pack_hugging_face` makes of a pipeline: in each folder,
    ``config.json`` and ``diffusion_pytorch_model.zarr`` (``.zarr.zip``, ``.h5``), or with a variant
    ``diffusion_pytorch_model.fp16.zarr``. Of names on the hub, ``owner/name``, stores are read
    there, by ranges (extra ``hub``). Where safetensors files are, they are loaded as before, and a
    store goes before pickled weights. Text encoders are models of transformers: if that is
    installed, this also does what `patch_transformers` does. Calling this again changes nothing;
    `unpatch_diffusers` undoes it.

    Raises
    ------
    ImportError
        If diffusers is missing, or loads models in another way than the tested releases.

    Examples
    --------
    >>> import bf16codecs.torch
    >>> bf16codecs.torch.patch_diffusers()  # doctest: +SKIP
    >>> DiffusionPipeline.from_pretrained("packed")  # doctest: +SKIP
    """
    if find_spec("transformers") is not None:
        TRANSFORMERS.add(patch_diffusers)
    try:
        _replacement.add(patch_diffusers)
    except ImportError:
        TRANSFORMERS.remove(patch_diffusers)
        raise


def unpatch_diffusers() -> None:
    """Undo `patch_diffusers`, if it was called. A call of `patch_transformers` stays in force."""
    _replacement.remove(patch_diffusers)
    TRANSFORMERS.remove(patch_diffusers)


def _finding_stores(
    original: Callable[..., Any], signature: inspect.Signature
) -> Callable[..., Any]:
    """Wrap the function that finds a model's file, so that it also finds those in stores."""

    @functools.wraps(original)
    def get_model_file(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        try:
            return original(*args, **kwargs)
        except OSError:
            found = _found(bound.arguments)
            if found is None:
                raise
            return found

    return get_model_file


def _found(arguments: Mapping[str, Any]) -> FileInStore | None:
    """Return the files in the store that a model has instead of one that diffusers looks for."""
    path, file = arguments["pretrained_model_name_or_path"], str(arguments["weights_name"])
    if not _replacement.lasts or not file.endswith(_FILE):
        return None
    subfolder = arguments["subfolder"] or ""
    stores = [Path(f"{file.removesuffix(_FILE)}{suffix}") for suffix in STORE_SUFFIXES]
    # As diffusers does: files are in the folder itself, or else in a subfolder.
    there = (f / store for f in (Path(path), Path(path, subfolder)) for store in stores)
    found = next((str(store) for store in there if store.exists()), None)
    if found is not None:
        return all_in(found, {})
    if arguments["local_files_only"]:
        return None
    stores = [Path(subfolder, store) for store in stores]
    commit = arguments["revision"] or arguments["commit_hash"]
    on_hub = store_on_hub(path, commit, stores, arguments["token"])
    return None if on_hub is None else all_in(*on_hub)


def _reading_stores(
    original: Callable[..., Any], signature: inspect.Signature
) -> Callable[..., Any]:
    """Wrap the function that loads a file, so that it also loads files in stores."""

    @functools.wraps(original)
    def load_state_dict(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        file = bound.arguments["checkpoint_file"]
        if not isinstance(file, FileInStore):
            return original(*args, **kwargs)
        return file.load(bound.arguments.get("map_location", "cpu"))

    return load_state_dict


_MODELS = "diffusers.models.modeling_utils"
_replacement = Replacement(
    "diffusers",
    "0.35, 0.39 and 0.42",
    (
        Patch(
            _MODELS,
            "_get_model_file",
            (
                "pretrained_model_name_or_path",
                "weights_name",
                "subfolder",
                "local_files_only",
                "revision",
                "commit_hash",
                "token",
            ),
            _finding_stores,
        ),
        Patch(_MODELS, "load_state_dict", ("checkpoint_file",), _reading_stores),
    ),
)
