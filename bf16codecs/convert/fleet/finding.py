"""Find models below a folder, by the names of files alone."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from bf16codecs._base.paths import index_suffix, last_name, require_path
from bf16codecs.store.kinds import (
    GGUF_SUFFIX,
    HUB_SCHEME,
    OBJECT_SCHEMES,
    PYTORCH_INDEX_SUFFIX,
    PYTORCH_SUFFIXES,
    ZARR_MARKERS,
    address_scheme,
    is_file_address,
    path_of,
)

__all__ = ["FoundModel", "find_models", "models_among"]

_SAFETENSORS = ".safetensors"
_SHARD = re.compile(r"-\d{5}-of-\d{5}\.\w+$")
# Names that say nothing: the folder's name is that of the model.
_GENERIC = {
    *("model", "pytorch_model", "diffusion_pytorch_model", "adapter_model", "consolidated"),
    *("weights", "checkpoint", "open_clip_model", "open_clip_pytorch_model"),
}
# Files of PyTorch beside a model: states of a training.
_NO_MODEL = re.compile(r"(training_args|optimizer|scheduler|scaler|rng_state|global_step)")


class FoundModel(NamedTuple):
    """A model: its path below the folder, "" for the folder itself, and the name of its store."""

    path: str
    name: str


def find_models(source: str, options: Mapping[str, Any] | None = None) -> Iterator[tuple[str, str]]:
    """Yield the models at a path or an address, and names for them; a folder may have any number.

    Addresses of the web and of hubs are taken for one model each, since they list no folders.
    Raises OSError if nothing is there, or it cannot be listed.
    """
    path = path_of(source)
    place = (source if path is None else path).rstrip("/") or source
    if path is not None:
        require_path(place)
        root = os.path.basename(os.path.abspath(place))
        is_folder = os.path.isdir(place)
        found = models_among(_files_below(place), root) if is_folder else [_only(root)]
    elif address_scheme(source) == HUB_SCHEME:
        found = [_only(re.sub(r"@[^/]*", "", place.partition("://")[2]))]
    elif is_file_address(source) or address_scheme(source) not in OBJECT_SCHEMES:
        found = [_only(last_name(re.sub(r"[?#].*", "", place)))]
    else:
        # obstore is imported only for addresses.
        from bf16codecs.store.remote.object_folder import ObjectFolder

        keys = ObjectFolder(place, options or {}).listed()
        found = models_among(keys, last_name(place))
    for model in found:
        yield f"{place}/{model.path}" if model.path else place, model.name


def _only(name: str) -> FoundModel:
    return FoundModel("", _stem(name))


def _files_below(path: str) -> Iterator[str]:
    def refuse(error: OSError) -> None:
        raise error

    seen = set[str]()
    for folder, folders, names in os.walk(path, onerror=refuse, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen or not ZARR_MARKERS.isdisjoint(names):  # links may lead back
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        below = os.path.relpath(folder, path).replace(os.sep, "/")
        yield from (name if below == "." else f"{below}/{name}" for name in names)


def models_among(files: Iterable[str], root: str) -> list[FoundModel]:
    """Return the models among files, given by their paths below a folder that is called `root`.

    An index, or shards without one, make one model of a folder; other files are one each. Stores,
    hidden folders, and PyTorch files beside safetensors, are left out.

    Examples
    --------
    >>> found = models_among(["a/model.safetensors", "a/config.json", "b/x.safetensors"], "models")
    >>> [tuple(model) for model in found]
    [('a/model.safetensors', 'a'), ('b/x.safetensors', 'b/x')]
    """
    by_folder: defaultdict[str, list[str]] = defaultdict(list)
    for file in files:
        folder, _, name = file.rpartition("/")
        by_folder[folder].append(name)
    stores = {folder for folder, names in by_folder.items() if not ZARR_MARKERS.isdisjoint(names)}

    def is_left_out(folder: str) -> bool:
        parts = PurePosixPath(folder).parts
        above = ("/".join(parts[:count]) for count in range(len(parts) + 1))
        return any(part.startswith(".") for part in parts) or not stores.isdisjoint(above)

    found = []
    for folder in sorted(by_folder):
        if is_left_out(folder):
            continue
        sources = sorted(set(_in_folder(by_folder[folder])))
        for source in sources:
            path = "/".join(filter(None, (folder, source)))
            stem = _stem(source)
            is_folder = not source or (len(sources) == 1 and stem in _GENERIC)
            name = folder or root if is_folder else "/".join(filter(None, (folder, stem)))
            found.append(FoundModel(path, name))
    return found


def _in_folder(names: list[str]) -> Iterator[str]:
    """Yield the models among the files of one folder; "" is the folder itself."""
    names = [name for name in names if name == ".metadata" or not name.startswith(".")]
    safetensors = [name for name in names if name.endswith(_SAFETENSORS)]
    indexes = [name for name in names if index_suffix(name)]
    if safetensors or indexes:
        shards = [name for name in safetensors if _SHARD.search(name)]
        are_one = len({_SHARD.sub("", name) for name in safetensors}) == 1
        if shards and are_one and len(indexes) < 2:
            yield ""
        else:
            yield from indexes
            yield from (name for name in safetensors if not (indexes and name in shards))
    elif ".metadata" in names and any(name.endswith(".distcp") for name in names):
        yield ""
    else:
        indexes = [name for name in names if name.endswith(PYTORCH_INDEX_SUFFIX)]
        yield from indexes
        yield from (
            name
            for name in names
            if name.endswith(PYTORCH_SUFFIXES)
            and not (_NO_MODEL.match(name) or (indexes and _SHARD.search(name)))
        )
    yield from (name for name in names if name.endswith(GGUF_SUFFIX))


def _stem(name: str) -> str:
    """Return the name of a file without the suffix of a model or an index."""
    for suffix in (index_suffix(name), PYTORCH_INDEX_SUFFIX, _SAFETENSORS, GGUF_SUFFIX):
        if suffix and name.endswith(suffix):
            return name.removesuffix(suffix)
    base, suffix = os.path.splitext(name)
    return base if suffix in PYTORCH_SUFFIXES else name
