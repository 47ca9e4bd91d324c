"""Folders of Hugging Face models with their weights in stores: there and back."""

from __future__ import annotations

import errno
import filecmp
import json
import os
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from bf16codecs import _interrupt
from bf16codecs._arguments import for_caller
from bf16codecs._files import disk_size
from bf16codecs._messages import few
from bf16codecs._paths import given_path
from bf16codecs._replace import WORKING_PREFIX
from bf16codecs.convert.defaults import DEFAULT_CHUNK_SIZE
from bf16codecs.convert.folders import Tree, WeightSet, list_tree, weight_sets
from bf16codecs.convert.restoring import zarr_to_safetensors
from bf16codecs.convert.storing import safetensors_to_zarr
from bf16codecs.convert.summary import Progress, Summary
from bf16codecs.convert.target import absolute_target, new_target, other_names
from bf16codecs.errors import (
    CorruptDataError,
    SafetensorsError,
    StoreError,
    UnsupportedVersionError,
)
from bf16codecs.safetensors import is_plain_name
from bf16codecs.store.choice import DEFAULT_CODEC
from bf16codecs.store.kinds import Kind, suffix_of
from bf16codecs.store.opening import open_store

__all__ = ["FolderSummary", "pack_hugging_face", "unpack_hugging_face"]

#: The file of a packed folder that says which stores its weights are in.
MANIFEST = "bf16codecs.json"
# Of files that are missing.
_SHOWN = 3
_LAYOUT = 1
#: Of weights that are not packed, which some may have expected.
_OTHER_WEIGHTS = {".bin", ".ckpt", ".gguf", ".msgpack", ".pt", ".pth"}

_Part = TypeVar("_Part")


@dataclass(frozen=True)
class FolderSummary(Summary):
    """The result of packing a folder, or of unpacking it; sizes are those of all files."""

    #: The paths of the stores, and of the files that are as they were.
    stores: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()

    @property
    def other_weights(self) -> tuple[str, ...]:
        """Files that are as they were, and by their names weights in another format."""
        return tuple(name for name in self.kept if Path(name).suffix.lower() in _OTHER_WEIGHTS)


def pack_hugging_face(
    folder: str | os.PathLike[str],
    packed: str | os.PathLike[str],
    *,
    codec: str = DEFAULT_CODEC,
    level: str | int | None = None,
    chunk_size: int = DEFAULT_CHUNK_SIZE,
    threads: int | None = None,
    sha256: bool = False,
    verify: bool = True,
    overwrite: bool = False,
    sync: bool = True,
    progress: Progress | None = None,
) -> FolderSummary:
    """Copy a folder of a Hugging Face model, with its safetensors files in Zarr stores.

    All other files are copied as they are. An index and its files become one store,
    ``model.zarr`` for ``model.safetensors.index.json``; each other safetensors file becomes one of
    its own. So it is in all folders below. `bf16codecs.torch.from_pretrained` loads the result, and
    `unpack_hugging_face` restores every file.

    Parameters
    ----------
    folder
        The folder. Links in it are copied as what they lead to.
    packed
        The folder to make. It appears only when it is complete.
    codec, level, chunk_size, threads, sha256
        As for `safetensors_to_zarr`.
    verify
        Read everything that was written again, and compare it.
    overwrite
        Replace an existing packed folder.
    sync
        Flush everything to the disk before it gets its name.
    progress
        Called with the phase (``"copy"``, ``"convert"``, ``"verify"``), the bytes done and the
        total bytes.

    Returns
    -------
    FolderSummary

    Raises
    ------
    SafetensorsError
        If there are no safetensors files, or one is damaged.
    FileNotFoundError, NotADirectoryError
        If there is no such folder.
    FileExistsError
        If `packed` exists and `overwrite` is false, or it is not a packed folder.
    ValueError
        If an option makes no sense, one folder is in the other, or the source is packed already, or
        has something of the name that a store would be looked for by.
    OSError
        If a file cannot be read or written.
    """
    start = time.perf_counter()
    source, target = _places(folder, packed)
    tree = list_tree(source)
    if MANIFEST in tree.files:
        restores = for_caller("unpack_hugging_face", "--restore")
        raise ValueError(
            f"{source}: is packed already, as its {MANIFEST} says: {restores} undoes it"
        )
    sets = weight_sets(tree)
    if not sets:
        raise SafetensorsError(
            f"{source}: no weights to pack: neither *.safetensors nor *.safetensors.index.json in"
            " it or in a folder below (other formats, such as *.bin, are not packed)"
        )
    weights = {name for own in sets for name in own.names}
    kept = {name: path for name, path in tree.files.items() if name not in weights}
    options: dict[str, Any] = {
        "codec": codec,
        "level": level,
        "chunk_size": chunk_size,
        "threads": threads,
        "sha256": sha256,
        "verify": verify,
    }
    with new_target(target, overwrite, _not_packed, sync, as_folder=True) as temporary:
        _copy(Tree(kept, tree.folders), temporary, verify, progress)
        with _interrupt.temporary():
            for own, report in _with_reports(sets, [s.source.nbytes for s in sets], progress):
                safetensors_to_zarr(
                    own.source, temporary / own.store, sync=False, progress=report, **options
                )
        _write_manifest(temporary / MANIFEST, sets, kept)
        stored_nbytes = disk_size(temporary)
    files = [file for own in sets for file in own.source.files]
    return FolderSummary(
        len(tree.files),
        sum(len(file.header.tensors) for file in files),
        sum(path.stat().st_size for path in tree.files.values()),
        stored_nbytes,
        time.perf_counter() - start,
        stores=tuple(own.store for own in sets),
        kept=tuple(kept),
    )


def unpack_hugging_face(
    packed: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    threads: int | None = None,
    max_bytes: int | None = None,
    overwrite: bool = False,
    sync: bool = True,
    progress: Progress | None = None,
) -> FolderSummary:
    """Restore what `pack_hugging_face` packed: every file, byte for byte, with its mode.

    Parameters
    ----------
    packed
        The packed folder.
    folder
        The folder to make. It appears only when it is complete, and every safetensors file has its
        digest.
    threads, max_bytes, sync
        As for `zarr_to_safetensors`; `max_bytes` is for each store.
    overwrite
        Replace an existing folder that has no other files than those that are restored.
    progress
        Called with the phase (``"copy"``, ``"restore"``), the bytes done and the total bytes.

    Returns
    -------
    FolderSummary

    Raises
    ------
    StoreError
        If it is not a packed folder, or lacks something.
    bf16codecs.errors.CodecError
        If data are damaged. The target is not made then.
    FileNotFoundError, NotADirectoryError
        If there is no such folder.
    FileExistsError
        If the target exists and `overwrite` is false, or it has other files.
    ValueError
        If one folder is in the other.
    """
    start = time.perf_counter()
    source, target = _places(packed, folder)
    stores, kept = _read_manifest(source / MANIFEST)
    tree = list_tree(source, without={MANIFEST, *stores})
    missing = sorted(kept - set(tree.files))
    if missing:
        raise StoreError(
            f"{source}: {few(missing, _SHOWN)} is not there, and was when it was packed: put it"
            f" back, or take its name out of {MANIFEST}"
        )
    sizes, tensors = [], 0
    for name in stores:
        with closing(open_store(source / name, Kind.FOLDER)) as reader:
            sizes.append(sum(file.size for file in reader.info.files))
            tensors += len(reader.names)
    weights = [name for names in stores.values() for name in names]
    names = [*tree.files, *weights]
    if len({*names, *tree.folders}) < len(names) + len(tree.folders):
        raise StoreError(f"{source / MANIFEST}: names files that are there, or one of them twice")
    obstacle = partial(other_names, names=[*names, *tree.folders])
    with new_target(target, overwrite, obstacle, sync, as_folder=True) as temporary:
        _copy(tree, temporary, True, progress)
        scratch = temporary / f"{WORKING_PREFIX}restored"
        with _interrupt.temporary():
            for (name, modes), report in _with_reports(stores.items(), sizes, progress):
                zarr_to_safetensors(
                    source / name,
                    scratch,
                    threads=threads,
                    max_bytes=max_bytes,
                    sync=False,
                    progress=report,
                )
                _place(scratch, temporary, modes, source / name)
        nbytes = disk_size(temporary)
    return FolderSummary(
        len(names),
        tensors,
        nbytes,
        disk_size(source),
        time.perf_counter() - start,
        stores=tuple(stores),
        kept=tuple(tree.files),
    )


def _places(given: str | os.PathLike[str], to: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Return source and absolute target, two folders of which neither is in the other."""
    source = Path(given_path(given, "folder"))
    if not source.is_dir():
        if source.exists():
            raise NotADirectoryError(
                errno.ENOTDIR, "It is a file, not a model's folder", str(source)
            )
        raise FileNotFoundError(errno.ENOENT, "No such folder", str(source))
    target = absolute_target(given_path(to, "target"), [source], "folder")
    if source.resolve() in target.resolve().parents:
        raise ValueError(f"{to}: lies in the folder {given}")
    kind = suffix_of(target.name)[1]
    if kind is not None:
        raise ValueError(f"{to}: the name of {kind.value}, and a folder is to be made")
    return source, target


def _not_packed(path: Path) -> str:
    """Say why a path is no packed folder; nothing if it is one."""
    return "" if (path / MANIFEST).is_file() else f"it is no packed folder: no {MANIFEST} in it"


def _with_reports(
    parts: Iterable[_Part], sizes: Sequence[int], progress: Progress | None
) -> Iterator[tuple[_Part, Progress | None]]:
    """Yield parts, each with what reports its progress as part of that of all, by their sizes."""
    total, before = sum(sizes), 0
    for part, size in zip(parts, sizes, strict=True):
        report = progress and _shifted(progress, before, total)
        yield part, report
        before += size


def _shifted(progress: Progress, before: int, total: int) -> Progress:
    return lambda phase, done, _: progress(phase, min(before + done, total), total)


def _copy(tree: Tree, target: Path, verify: bool, progress: Progress | None) -> None:
    """Make a folder with these folders and files, as they are."""
    target.mkdir()
    for name in tree.folders:
        (target / name).mkdir()
    total, done = sum(path.stat().st_size for path in tree.files.values()), 0
    for name, path in tree.files.items():
        copy = target / name
        shutil.copyfile(path, copy)
        if verify and not filecmp.cmp(path, copy, shallow=False):
            raise CorruptDataError(f"{copy}: was not read back as {path} was written to it")
        shutil.copymode(path, copy)
        done += copy.stat().st_size
        if progress is not None:
            progress("copy", min(done, total), total)
        _interrupt.check()


def _write_manifest(path: Path, sets: list[WeightSet], kept: Iterable[str]) -> None:
    stores = {
        own.store: {
            name: f"{stat.S_IMODE(file.stat().st_mode):04o}"
            for name, file in zip(own.names, own.source.paths, strict=True)
        }
        for own in sets
    }
    content = {"layout": _LAYOUT, "stores": stores, "files": sorted(kept)}
    text = json.dumps(content, indent=2)
    path.write_text(f"{text}\n", encoding="utf-8")


def _read_manifest(path: Path) -> tuple[dict[str, dict[str, int]], set[str]]:
    """Return the modes of the files that each store has, by the paths of both, and other files."""
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        packs = for_caller("pack_hugging_face", "pack-hf without --restore")
        text = f"{path.parent}: not a packed folder: no {MANIFEST} in it ({packs} makes one)"
        raise StoreError(text) from None
    except (ValueError, RecursionError) as e:
        raise StoreError(f"{path}: not JSON ({e})") from e
    layout = document.get("layout") if isinstance(document, dict) else None
    if isinstance(layout, int) and layout > _LAYOUT:
        raise UnsupportedVersionError(f"{path}: layout {layout} needs a newer release")
    try:
        stores = {
            store: {name: int(mode, 8) & 0o777 for name, mode in files.items()}
            for store, files in document["stores"].items()
        }
        kept = set(document.get("files", []))
    except (AttributeError, KeyError, TypeError, ValueError):
        stores, kept = {}, set()
    if layout != _LAYOUT or not stores or not all(map(_is_sound, stores, stores.values())):
        raise StoreError(f"{path}: does not say which files are in which stores of the folder")
    return stores, kept


def _is_sound(store: str, files: Mapping[str, int]) -> bool:
    """Tell whether a store and its files are in one folder, which is below the packed one."""
    folder, _, own = store.rpartition("/")
    pairs = [name.rpartition("/") for name in files]
    return (
        bool(pairs)
        and {".", ".."}.isdisjoint(Path(folder).parts)
        and not os.path.isabs(store)
        and all(map(is_plain_name, [own, *(name for *_, name in pairs)]))
        and all(place == folder for place, *_ in pairs)
    )


def _place(scratch: Path, target: Path, modes: Mapping[str, int], store: Path) -> None:
    """Move the file or the folder that a store was restored to, to the places of its files."""
    if scratch.is_dir():
        restored = {path.name: path for path in scratch.iterdir()}
    else:
        restored = {next(iter(modes)).rpartition("/")[2]: scratch}
    if restored.keys() != {name.rpartition("/")[2] for name in modes}:
        raise StoreError(f"{store}: has other files than {MANIFEST} says")
    for name, mode in modes.items():
        path = target / name
        os.rename(restored[path.name], path)
        path.chmod(mode)
    if scratch.is_dir():
        scratch.rmdir()
