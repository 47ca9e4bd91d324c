"""Makes transformers find and read stores.

Where it looks for a model's files, it also finds stores, and gets stand-ins for the safetensors
files in them. Where it loads such a file, it gets slices that are read when it needs them, as from
the file itself. The rest remains with transformers: configuration, dtypes, devices, ties, and
missing tensors.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bf16codecs._base.messages import few
from bf16codecs.errors import StoreError
from bf16codecs.store.kinds import STORE_SUFFIXES
from bf16codecs.torch.on_hub import store_on_hub
from bf16codecs.torch.replacing import Patch, Replacement
from bf16codecs.torch.stored_files import FileInStore, Files, ShardIndex, files_in, files_in_each

__all__ = [
    "PATCHES",
    "REPLACEMENT",
    "Chosen",
    "patch_transformers",
    "stores_of",
    "transformers_loads",
    "unpatch_transformers",
]

# Suffixes of files of weights, and of their index.
_FILE, _INDEX = ".safetensors", ".safetensors.index.json"


@dataclass(frozen=True)
class Chosen:
    """The stores to load where transformers is given `path`.

    They are in `folder`, or `store` is the path or address of one. `opening` has options of
    `open_model`.
    """

    path: str
    folder: Path | None
    store: str | None
    opening: Mapping[str, Any]


_chosen: ContextVar[Chosen | None] = ContextVar("_chosen", default=None)


def patch_transformers() -> None:
    """Let `from_pretrained` of transformers load folders that have a store instead of weights.

    Afterwards ``AutoModel.from_pretrained(DIR)``, `pipeline` and everything that loads models by
    them take a folder with ``config.json`` and ``model.zarr`` (``model.zarr.zip``, ``model.h5``),
    such as `bf16codecs.convert.pack_hugging_face` makes, in all threads of this process. With
    `variant` or `subfolder`, the store has the name that the file would have: ``model.fp16.zarr``.
    In a folder that has an index without its files, each file may be a store. A folder that has
    ``model.safetensors``, or an index with its files, is loaded from these; other folders are
    loaded as before. So are names of models on the hub, ``owner/name``, that have weights there;
    those with a store instead are read there, by ranges (extra ``hub``). Calling this again changes
    nothing; `unpatch_transformers` undoes it.

    Raises
    ------
    ImportError
        If transformers is missing, or loads models in another way than the tested releases.

    Examples
    --------
    >>> import bf16codecs.torch
    >>> bf16codecs.torch.patch_transformers()  # doctest: +SKIP
    >>> AutoModelForCausalLM.from_pretrained("packed")  # doctest: +SKIP
    """
    REPLACEMENT.add(patch_transformers)


def unpatch_transformers() -> None:
    """Undo `patch_transformers`, if it was called.

    Later replacements by other libraries stay.
    """
    REPLACEMENT.remove(patch_transformers)


@contextmanager
def transformers_loads(chosen: Chosen) -> Iterator[None]:
    """Let transformers load the chosen stores, in this thread, inside the block.

    It may also load other folders with stores, such as that of an adapter's model.
    """
    user = object()
    REPLACEMENT.add(user, lasts=False)
    token = _chosen.set(chosen)
    try:
        yield
    finally:
        _chosen.reset(token)
        REPLACEMENT.remove(user)


# --- finding --------------------------------------------------------------------------------------


def _finding_stores(
    original: Callable[..., Any], signature: inspect.Signature
) -> Callable[..., Any]:
    """Wrap the function that finds a model's files, so that it also finds those in stores."""

    @functools.wraps(original)
    def resolve(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        found = _found(bound.arguments)
        if found is not None:
            return found
        try:
            return original(*args, **kwargs)
        except OSError:
            # Asked last: most repositories have the files, and need no further request.
            found = _on_hub(bound.arguments)
            if found is None:
                raise
            return found

    return resolve


def _finding_named_files(
    original: Callable[..., Any], signature: inspect.Signature
) -> Callable[..., Any]:
    """Wrap the function that finds a file by its name, so that it also finds files in stores."""

    @functools.wraps(original)
    def cached_file(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        path, name = arguments["path_or_repo_id"], arguments["filename"]
        if _may_have_stores(path) and str(name).endswith(_FILE):
            subfolder = arguments.get("kwargs", {}).get("subfolder") or ""
            found = _in_place_of(*_candidates(Path(path, subfolder), name, None))
            if found is not None:
                return found[0][0]
        return original(*args, **kwargs)

    return cached_file


def _may_have_stores(path: Any) -> bool:
    """Tell whether to look for stores at the path that transformers is given."""
    is_wanted = _chosen.get() is not None or REPLACEMENT.lasts
    return is_wanted and path is not None and os.path.isdir(path)


def _found(arguments: Mapping[str, Any]) -> Files | None:
    """Return the files to load; None if transformers has to find them."""
    path, chosen = arguments["pretrained_model_name_or_path"], _chosen.get()
    explicit, variant = arguments["transformers_explicit_filename"], arguments["variant"]
    subfolder = (arguments["download_kwargs"] or {}).get("subfolder") or ""
    # An adapter is beside the model, or instead of it.
    is_adapter = explicit is not None and explicit.startswith("adapter_model.")
    if chosen is not None and chosen.path == path and not is_adapter:
        if chosen.folder is None:
            return files_in(str(chosen.store), chosen.opening)
        files, stores = _candidates(chosen.folder / subfolder, explicit, variant)
        if stores:
            return _stored_alone(chosen.folder, files, stores).open(chosen.opening)
    is_other = arguments["gguf_file"] is not None or arguments["use_safetensors"] is False
    if is_other or not _may_have_stores(path):
        return None
    return _in_place_of(*_candidates(Path(path, subfolder), explicit, variant))


def _on_hub(arguments: Mapping[str, Any]) -> Files | None:
    """Return the files in a store of a repository on a hub; None if it has none."""
    name, download = arguments["pretrained_model_name_or_path"], arguments["download_kwargs"] or {}
    is_other = arguments["gguf_file"] is not None or arguments["use_safetensors"] is False
    is_wanted = REPLACEMENT.lasts
    if not is_wanted or is_other or download.get("local_files_only"):
        return None
    folder = Path(download.get("subfolder") or "")
    explicit, variant = arguments["transformers_explicit_filename"], arguments["variant"]
    _, stores = _candidates(folder, explicit, variant)
    found = store_on_hub(name, download.get("revision"), stores, download.get("token"))
    return None if found is None else files_in(*found)


def _in_place_of(files: list[Path], stores: list[Path]) -> Files | None:
    """Return the files in a store, if one exists and transformers can load none of `files`."""
    found = None if _loadable(files) is not None else _Stored.find(files, stores)
    return None if found is None else found.open({})


@dataclass(frozen=True)
class _Stored:
    """The store that replaces a model's files, or the stores that replace those of an index."""

    stores: list[Path]
    index: ShardIndex | None

    @classmethod
    def find(cls, files: list[Path], stores: list[Path]) -> _Stored | None:
        """Find the stores to read instead of the files that transformers would take."""
        store = next((store for store in stores if store.exists()), None)
        if store is not None:
            return cls([store], None)
        indexes = filter(None, map(_index, files))
        return next((cls(found, index) for index in indexes if (found := index.stores())), None)

    def open(self, opening: Mapping[str, Any]) -> Files:
        """Open the stores, with options as `bf16codecs.open_model` takes them."""
        if self.index is None:
            return files_in(str(self.stores[0]), opening)
        return files_in_each(self.stores, self.index, opening)


def _stored_alone(folder: Path, files: list[Path], stores: list[Path]) -> _Stored:
    """Find the stores; refuse a folder that has none, or that also has files to load."""
    found = _Stored.find(files, stores)
    if found is None:
        names = " nor ".join(str(store.relative_to(folder)) for store in stores)
        raise StoreError(
            f"{folder}: no store of a model in it: neither {names}{_other_stores(files)}"
            " (bf16codecs pack-hf makes such a folder)"
        )
    other = _loadable(files)
    if other is not None:  # either may be the newer one
        store = found.stores[0]
        raise StoreError(
            f"{store.parent}: has {other.name} and {store.name}: remove the one that is old, or"
            f" name the store, {store}"
        )
    return found


def stores_of(path: str, revision: str | None, subfolder: str) -> list[FileInStore]:
    """Return the files in the stores of a packed folder, on a disk or on a hub by its name.

    Raises StoreError if it has no store of a model, or also has files to load.
    """
    folder = Path(path, subfolder)
    if not folder.is_dir():
        _, stores = _candidates(Path(subfolder), None, None)
        found = store_on_hub(path, revision, stores, None)
        if found is None:
            raise StoreError(
                f"{path}: neither a folder, nor a repository on a hub that has a store of a model"
                " (bf16codecs pack-hf makes such folders)"
            )
        return files_in(*found)[0]
    return _stored_alone(folder, *_candidates(folder, None, None)).open({})[0]


def _index(file: Path) -> ShardIndex | None:
    return ShardIndex.read(file) if file.suffix == ".json" and file.is_file() else None


def _loadable(files: list[Path]) -> Path | None:
    """Return the first file that transformers can load: of weights, or an index that has files.

    A file or its store goes before an index that is invalid or names files in other folders.
    """
    for file in files:
        index = _index(file)
        if index is not None and index.has_files:
            return file
        if index is None and file.is_file() and (file.suffix != ".json" or len(files) == 1):
            return file
    return None


def _other_stores(files: list[Path]) -> str:
    """Name the stores in the folder that was searched, with their variants."""
    if not files or not files[0].parent.is_dir():
        return ""
    stores = []
    for name in sorted(os.listdir(files[0].parent)):
        suffix = next((suffix for suffix in STORE_SUFFIXES if name.endswith(suffix)), None)
        if suffix is not None:
            stem, _, variant = name.removesuffix(suffix).partition(".")
            stores.append(f"{name} (variant={variant or None!r})" if stem == "model" else name)
    return f"; there is {few(stores, 3)}" if stores else ""


def _candidates(
    folder: Path, explicit: str | None, variant: str | None
) -> tuple[list[Path], list[Path]]:
    """Return the files that transformers would take, and the stores that may replace them."""
    dotted = "" if variant is None else f".{variant}"
    files, stem = [f"model{dotted}{_FILE}", f"model.safetensors.index{dotted}.json"], "model"
    if explicit is not None:
        # A configuration may be a stranger's. Paths that lead out of the folder, which transformers
        # refuses, and files of other formats are left to it.
        is_inside = not os.path.isabs(explicit) and ".." not in Path(explicit).parts
        if not is_inside or not explicit.endswith((_FILE, _INDEX)):
            return [], []
        files, dotted = [explicit], ""
        stem = explicit.removesuffix(_INDEX).removesuffix(_FILE)
    stores = [folder / f"{stem}{dotted}{suffix}" for suffix in STORE_SUFFIXES]
    return [folder / file for file in files], stores


# --- reading --------------------------------------------------------------------------------------


def _reading_stores(
    original: Callable[..., Any], signature: inspect.Signature
) -> Callable[..., Any]:
    """Wrap the function that loads a file, so that it also loads files in stores."""

    @functools.wraps(original)
    def load_state_dict(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        file, device = arguments["checkpoint_file"], arguments.get("map_location")
        if not isinstance(file, FileInStore):
            return original(*args, **kwargs)
        # Without a device, transformers reads values later, by `tensor[...]`.
        return file.slices() if device is None else file.load(device)

    return load_state_dict


def _opening_stores(
    original: Callable[..., Any], signature: inspect.Signature
) -> Callable[..., Any]:
    """Wrap the function that opens a file, so that it also opens the store of a file in one."""

    @functools.wraps(original)
    def safe_open(*args: Any, **kwargs: Any) -> Any:
        file = signature.bind(*args, **kwargs).arguments["filename"]
        return file.model if isinstance(file, FileInStore) else original(*args, **kwargs)

    return safe_open


def _reading_metadata(
    original: Callable[..., Any], signature: inspect.Signature
) -> Callable[..., Any]:
    """Wrap the method that keeps quantized files' metadata, so that it also takes stores."""

    @functools.wraps(original)
    def set_metadata(*args: Any, **kwargs: Any) -> None:
        arguments = signature.bind(*args, **kwargs).arguments
        files = arguments["checkpoint_files"]
        if not isinstance(files[0], FileInStore):
            original(*args, **kwargs)
            return
        stored = (file.metadata for file in files if isinstance(file, FileInStore))
        arguments["self"].metadata = {k: v for metadata in stored for k, v in metadata.items()}

    return set_metadata


_MODELS, _LAYERS = "transformers.modeling_utils", "transformers.modeling_layers"
_RESOLVED = (
    "pretrained_model_name_or_path",
    "variant",
    "gguf_file",
    "use_safetensors",
    "transformers_explicit_filename",
    "download_kwargs",
)

#: The functions of transformers that ours replace; some releases lack the optional ones.
PATCHES = (
    Patch(_MODELS, "_get_resolved_checkpoint_files", _RESOLVED, _finding_stores),
    Patch(_MODELS, "load_state_dict", ("checkpoint_file", "map_location"), _reading_stores),
    # Other files, which the class of a configuration names.
    Patch(_MODELS, "cached_file", ("path_or_repo_id", "filename"), _finding_named_files, True),
    # Layers that predict several tokens.
    Patch(_LAYERS, "_get_resolved_checkpoint_files", _RESOLVED, _finding_stores, True),
    Patch(_LAYERS, "safe_open", ("filename", "framework"), _opening_stores, True),
    Patch(
        "transformers.quantizers.quantizer_torchao",
        "TorchAoHfQuantizer.set_metadata",
        ("self", "checkpoint_files"),
        _reading_metadata,
        True,
    ),
)
#: Ours in place of these.
REPLACEMENT = Replacement("transformers", "5.0, 5.23 and 5.24", PATCHES)
