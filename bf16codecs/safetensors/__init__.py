"""Safetensors files: a file, a folder of shards or an index, with their headers checked."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bf16codecs._base.arguments import for_caller
from bf16codecs._base.dtypes import DTYPE_BITS
from bf16codecs._base.messages import few
from bf16codecs._base.paths import given_path, index_suffix
from bf16codecs._files.publish import open_unreplaced, recover_missing
from bf16codecs.errors import SafetensorsError
from bf16codecs.safetensors.header import (
    MAX_HEADER_BYTES,
    SAFETENSORS,
    START_BYTES,
    Header,
    TensorInfo,
    header_nbytes,
    is_plain_name,
    is_safetensors,
    json_object,
    make_header,
    name_fault,
    open_file,
    parse_header,
    read_header,
    unlike,
)

__all__ = [
    "DTYPE_BITS",
    "MAX_HEADER_BYTES",
    "SAFETENSORS",
    "START_BYTES",
    "Header",
    "SafetensorsError",
    "Source",
    "SourceFile",
    "TensorInfo",
    "check_index",
    "check_listed",
    "check_names_to_store",
    "check_together",
    "choose_files",
    "header_nbytes",
    "is_plain_name",
    "is_safetensors",
    "json_object",
    "make_header",
    "open_file",
    "open_source",
    "parse_header",
    "read_header",
    "read_index",
    "shard_names",
    "unlike",
    "weight_map",
]

# No model has more files. Behind the numbers, diffusers has put the name of a variant.
_SHARD = re.compile(r"(.+)-(\d{1,9})-of-(\d{1,9})((?:\.[^.]+)?\.safetensors)", re.ASCII | re.DOTALL)
# Of indexes that are named.
_SHOWN = 3


@dataclass(frozen=True)
class SourceFile:
    """A safetensors file on disk."""

    path: Path
    header: Header

    @property
    def name(self) -> str:
        """The file's name without folders."""
        return self.path.name


@dataclass(frozen=True)
class Source:
    """One model: its files, and the path and verbatim content of its index, if any."""

    files: tuple[SourceFile, ...]
    index: Path | None = None
    index_raw: bytes = b""
    #: The rest of the folder that was named: indexes, files, and folders with a slash behind them.
    left_out: tuple[str, ...] = ()

    @property
    def paths(self) -> list[Path]:
        """All files on disk."""
        return [f.path for f in self.files] + ([self.index] if self.index is not None else [])


def read_index(path: Path) -> bytes:
    """Read an index; raise SafetensorsError if it is too large, or not a regular file."""
    with open_file(path) as index:
        raw = index.read(MAX_HEADER_BYTES + 1)
    if len(raw) > MAX_HEADER_BYTES:
        raise SafetensorsError(f"{path}: larger than {MAX_HEADER_BYTES} bytes")
    return raw


def weight_map(raw: bytes, path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the name of each tensor's file, from an index; the names are not checked."""
    found = dict(json_object(raw, str(path))).get("weight_map")
    if not isinstance(found, dict):
        raise SafetensorsError(f"{path}: no weight_map")
    return found


def shard_names(raw: bytes, path: str | os.PathLike[str]) -> dict[str, list[str]]:
    """Return the tensor names that an index lists for each file.

    SafetensorsError is raised if it names something else than files beside it.
    """
    shards: dict[str, list[str]] = {}
    for tensor, name in weight_map(raw, path).items():
        # A name with folders could lead anywhere; the index is beside its files.
        if not isinstance(name, str) or not is_plain_name(name):
            raise SafetensorsError(
                f"{path}: tensor {tensor!r:.80} is in {name!r:.80}, not a plain file name"
            )
        shards.setdefault(name, []).append(tensor)
    return shards


def _refuse_shared_names(
    path: str | os.PathLike[str], files: Iterable[SourceFile], advice: str = ""
) -> None:
    seen: dict[str, SourceFile] = {}
    for file in files:
        for tensor in file.header.tensors:
            other = seen.setdefault(tensor.name, file)
            if other is not file:
                raise SafetensorsError(
                    f"{path}: tensor {tensor.name!r} is in {other.name}, and also in"
                    f" {file.name}{advice}"
                )


def check_index(
    path: str | os.PathLike[str], shards: Mapping[str, list[str]], files: Iterable[SourceFile]
) -> None:
    """Refuse an index that has a tensor in another file than the files do, or in two of them.

    `path` is the index's, for messages, and `shards` what `shard_names` returns.
    """
    files = list(files)
    for file in files:
        present = {t.name for t in file.header.tensors}
        for tensor in shards[file.name]:
            if tensor not in present:
                raise SafetensorsError(f"{path}: tensor {tensor!r} is not in {file.name}")
    _refuse_shared_names(path, files)


def _open_index(path: Path) -> Source:
    raw = read_index(path)
    shards = shard_names(raw, path)
    paths = [path.parent / name for name in sorted(shards)]
    files = tuple(SourceFile(p, read_header(p)) for p in paths)
    check_index(path, shards, files)
    return Source(files, path, raw)


def _refuse_missing_shards(path: str | os.PathLike[str], names: Iterable[str]) -> None:
    """Refuse a folder without all shards that the names count, as after a download cut short."""
    present: dict[tuple[str, str, str], dict[int, str]] = {}
    for name in names:
        if match := _SHARD.fullmatch(name):
            present.setdefault((match[1], match[3], match[4]), {})[int(match[2])] = match[2]
    for (stem, total, end), shards in present.items():
        numbers = range(0 if 0 in shards else 1, int(total) + (0 not in shards))
        # Looks at one more than there are: the total is only a claim.
        lacking = next((n for n in numbers if n not in shards), None)
        if lacking is not None:
            width = len(next(iter(shards.values())))
            name = f"{stem}-{lacking:0{width}}-of-{total}{end}"
            raise SafetensorsError(
                f"{path}: {name} is missing: the names of the others say that it is one of"
                f" {int(total)}, {len(shards)} of them are there: get the rest, or name one file"
            )


def _open_folder(path: Path) -> Source:
    # Hidden files are temporary files of other programs.
    entries = sorted(entry for entry in path.iterdir() if entry.name[0] != ".")
    try:
        source = _open_entries(path, [entry for entry in entries if not entry.is_dir()])
    except SafetensorsError as e:
        if unfinished := _unfinished_download(path):
            raise SafetensorsError(
                f"{e}; a download has not ended, {unfinished.name}: repeat it to get the rest"
            ) from e
        raise
    used = set(source.paths)
    others = [entry.name + "/" * entry.is_dir() for entry in entries if entry not in used]
    # Indexes first, which would be missed: of many names, a message has a few.
    others.sort(key=lambda name: not index_suffix(name))
    return replace(source, left_out=tuple(others))


def _unfinished_download(folder: Path) -> Path | None:
    """Return a file that huggingface_hub has begun to download into a folder, or a snapshot."""
    places = [folder, folder / ".cache" / "huggingface" / "download"]
    if folder.parent.name == "snapshots":
        places.append(folder.parent.parent / "blobs")
    found = (path for place in places for path in place.glob("*.incomplete"))
    return next(found, None)


def _open_entries(path: Path, files: Iterable[Path]) -> Source:
    """Open the model that is in a folder, of whose files some are the model's."""
    names = [file.name for file in files]
    index, shards = choose_files(path, names, lambda name: _has_files(path / name))
    if index is not None:
        source = _open_index(path / index)
        check_listed(path, index, shards, source.files)
        return source
    opened = tuple(SourceFile(path / name, read_header(path / name)) for name in shards)
    check_together(path, opened)
    return Source(opened)


def choose_files(
    path: str | os.PathLike[str], names: Iterable[str], has_files: Callable[[str], bool]
) -> tuple[str | None, list[str]]:
    """Return the index that a folder's model has, None without one, and all safetensors files.

    `names` are those of the files in the folder, at `path`; `has_files` tells whether an index
    names one of them, or is damaged. SafetensorsError is raised if there is no model, more than one
    index, or a part of a model.
    """
    names = list(names)
    shards = [name for name in names if name.endswith(".safetensors")]
    indexes = [name for name in names if index_suffix(name)]
    if shards:
        # Another's may have been left behind, or come with a download that left its files out.
        indexes = [name for name in indexes if has_files(name)]
    if len(indexes) > 1:
        raise SafetensorsError(
            f"{path}: more than one index, {few(indexes, _SHOWN)}: name one of them instead of the"
            " folder"
        )
    if not indexes:
        if not shards:
            raise SafetensorsError(
                f"{path}: no model in this folder: no safetensors, PyTorch or GGUF file"
            )
        _refuse_missing_shards(path, shards)
    return (indexes[0] if indexes else None), shards


def check_listed(
    path: str | os.PathLike[str], index: str, shards: Iterable[str], files: Iterable[SourceFile]
) -> None:
    """Refuse a folder with files that its index, which lists `files`, does not know."""
    extra = set(shards) - {file.name for file in files}
    if extra:
        raise SafetensorsError(
            f"{path}: {min(extra)} is not in {index};"
            f" to leave it out, name the index instead of the folder"
        )


def check_together(path: str | os.PathLike[str], files: Iterable[SourceFile]) -> None:
    """Refuse a folder whose files are several models, since a tensor is in two of them."""
    series = for_caller("safetensors_to_run", f"st2zarr --series {path}/*.safetensors")
    advice = f": checkpoints, or several models: name one, or make a run of all with {series}"
    _refuse_shared_names(path, files, advice)


def _has_files(index: Path) -> bool:
    """Tell whether an index names an existing file, or is damaged, which must be reported."""
    try:
        names = shard_names(read_index(index), index)
    except SafetensorsError:
        return True
    return any((index.parent / name).exists() for name in names)


def open_source(path: str | os.PathLike[str]) -> Source:
    """Read and check the headers of a model.

    `path` is that of a safetensors file, of a folder of them (its index is used if it has one), or
    of an index, `*.safetensors.index.json`, also of a variant, `*.safetensors.index.fp16.json`.
    SafetensorsError is raised if a file breaks the format, or files and index contradict each
    other.
    """
    path = Path(given_path(path, "source"))
    recover_missing(path)
    return open_unreplaced(path, lambda: _open_source(path))


def _open_source(path: Path) -> Source:
    if path.is_dir():
        return _open_folder(path)
    if path.name.endswith(".json"):
        return _open_index(path)
    return Source((SourceFile(path, read_header(path)),))


def check_names_to_store(paths: Iterable[Path]) -> None:
    """Raise SafetensorsError for files, or an index, with names that stores do not keep.

    A store restores its files by their names, and readers refuse those that are not plain. Files
    that are only read, or that a store is compared with, may have any name.
    """
    for path in paths:
        if fault := name_fault(path.name):
            raise SafetensorsError(
                f"{path}: its name {fault}: stores keep names of files to restore them by, and"
                " plain ones alone: rename it"
            )
