"""Pack folders of Hugging Face models, with their weights in stores, and unpack them."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from bf16codecs._base import interrupt as _interrupt
from bf16codecs._base.arguments import argument, for_caller
from bf16codecs._base.limits import DEFAULT_LIMITS
from bf16codecs._base.messages import few, one_line
from bf16codecs._base.paths import given_path, missing_path, resolved
from bf16codecs._files.digests import kinds_of
from bf16codecs._files.folders import Folder
from bf16codecs._files.publish import WORKING_PREFIX
from bf16codecs._files.reading import disk_size
from bf16codecs.convert.hugging_face.folders import Tree, list_tree
from bf16codecs.convert.hugging_face.new_packed import NewPacked, new_packed
from bf16codecs.convert.hugging_face.packed import (
    MANIFEST,
    Manifest,
    NotedFile,
    copy_noted,
    folder_modes,
    rest_of,
    rights_of_new,
    set_modes,
    stored_files,
)
from bf16codecs.convert.hugging_face.weight_sets import WeightSet, weight_sets
from bf16codecs.convert.new_store import Target, is_object_address, object_address
from bf16codecs.convert.options import Options, StoreOptions
from bf16codecs.convert.restore import zarr_to_safetensors
from bf16codecs.convert.store import convert_model
from bf16codecs.convert.summary import Progress, Summary, part_of
from bf16codecs.convert.target import absolute_target, new_target, other_names
from bf16codecs.errors import BF16CodecsError, SafetensorsError, StoreError
from bf16codecs.store.choice import DEFAULT_CHUNK_SIZE, DEFAULT_CODEC
from bf16codecs.store.kinds import GGUF_SUFFIX, PYTORCH_SUFFIXES, Kind, suffix_of
from bf16codecs.store.opening import Opening, open_store

__all__ = ["FolderSummary", "pack_hugging_face", "unpack_hugging_face"]

# The most missing or changed files that a message names.
_SHOWN = 3
#: Suffixes of weights that are not packed, although users may expect it.
_OTHER_WEIGHTS = {*PYTORCH_SUFFIXES, GGUF_SUFFIX, ".msgpack"}

_Part = TypeVar("_Part")


@dataclass(frozen=True)
class FolderSummary(Summary):
    """The result of packing or unpacking a folder; sizes are those of all files."""

    #: The paths of the stores, and of the files that are copied unchanged.
    stores: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    #: The treatment of each index that is not in a store with its files, and the reason.
    apart: Mapping[str, str] = field(default_factory=dict)
    #: After unpacking without `verify`, the files that changed since they were packed.
    changed: tuple[str, ...] = ()

    @property
    def other_weights(self) -> tuple[str, ...]:
        """Unchanged files whose suffixes are those of weights in other formats."""
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
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> FolderSummary:
    """Copy a folder of a Hugging Face model, with its safetensors files in Zarr stores.

    All other files are copied unchanged. ``BF16CODECS.md`` is added, unless the folder has one: it
    tells readers how to load the stores, and how to restore the files. An index and its files
    become one store, ``model.zarr`` for ``model.safetensors.index.json``; each other safetensors
    file becomes one of its own, and so do the files of an index that contradicts them. The same
    holds for all folders below. `bf16codecs.torch.from_pretrained` loads the result, and
    `unpack_hugging_face` restores every file.

    Parameters
    ----------
    folder
        The folder. Links to files, as in the cache of huggingface_hub, are copied as files.
    packed
        The folder to make, on a disk, where it appears only when it is complete; or its address in
        an object store, ``s3://``, ``gs://`` or ``az://``, where the manifest is written last.
    codec, level, chunk_size, threads, sha256
        See `safetensors_to_zarr`.
    verify
        Read back all written data, and compare them.
    overwrite
        Replace an existing packed folder, on a disk.
    sync
        Flush all data to the disk before the folder gets its name.
    storage_options
        Options of the object store.
    progress
        Called with the phase (``"copy"``, ``"convert"``, ``"verify"``), the bytes done and the
        total bytes.

    Returns
    -------
    FolderSummary

    Raises
    ------
    SafetensorsError
        If the folder has no safetensors files, or one is damaged.
    FileNotFoundError, NotADirectoryError
        If the folder does not exist, or is not a folder.
    FileExistsError
        If `packed` exists and `overwrite` is false, or it is not a packed folder.
    ValueError
        If an option is invalid, one folder is in the other, or the source is already packed, or has
        something that would be loaded instead of a store, a link to a folder, or anything that is
        neither a file nor a folder.
    BlockingIOError
        If another process is writing the same folder in an object store.
    OSError
        If a file cannot be read or written, or a server fails.
    """
    start = time.perf_counter()
    source, target = _source(folder, "packed"), _packed_target(folder, packed, storage_options)
    tree = list_tree(source, follow=True)
    _refuse_packed(source, tree)
    sets, apart = weight_sets(tree)
    if not sets:
        raise SafetensorsError(
            f"{source}: no weights to pack: neither *.safetensors nor *.safetensors.index.json in"
            " it or in a folder below (other formats, such as *.bin, are not packed)"
        )
    weights = {name for weight_set in sets for name in weight_set.names}
    kept = {name: path for name, path in tree.files.items() if name not in weights}
    options: dict[str, Any] = {
        "codec": codec,
        "level": level,
        "chunk_size": chunk_size,
        "threads": threads,
        "sha256": sha256,
        "verify": verify,
    }
    folders = folder_modes(source, tree.folders)
    with new_packed(target, storage_options, overwrite, sync) as made:
        noted = made.copy(Tree(kept, tree.folders), kinds_of(sha256), verify, progress)
        stores = _store(sets, made, options, progress)
        made.finish(Manifest(stores, noted, folders))
        stored_nbytes = made.stored_nbytes()
    headers = [header for weight_set in sets for header in weight_set.source.headers]
    return FolderSummary(
        len(tree.files),
        sum(len(header.tensors) for header in headers),
        sum(path.stat().st_size for path in tree.files.values()),
        stored_nbytes,
        time.perf_counter() - start,
        stores=tuple(stores),
        kept=tuple(kept),
        apart=apart,
    )


def unpack_hugging_face(
    packed: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    threads: int | None = None,
    max_bytes: int | None = None,
    verify: bool = True,
    overwrite: bool = False,
    sync: bool = True,
    progress: Progress | None = None,
) -> FolderSummary:
    """Restore every file of a folder from `pack_hugging_face`, byte for byte, with its mode.

    Files that were added to the packed folder since are copied as well. Rights to write that the
    umask takes from new folders go only to the owner.

    Parameters
    ----------
    packed
        The packed folder. It need not be trusted: only regular files are read, and no links are
        followed.
    folder
        The folder to make. It appears only when it is complete, and every safetensors file has its
        digest.
    threads, max_bytes, sync
        See `zarr_to_safetensors`. `max_bytes` limits each store; the default limit applies to
        each store and to all of them together.
    verify
        Refuse files and stores that changed since they were packed. If false, their current
        content is restored, and the summary names them. Damaged stores are never restored.
    overwrite
        Replace an existing folder that has no files but those to restore.
    progress
        Called with the phase (``"copy"``, ``"restore"``), the bytes done and the total bytes.

    Returns
    -------
    FolderSummary

    Raises
    ------
    StoreError
        If it is not a packed folder, lacks files, has conflicting ones, or has links.
    bf16codecs.errors.CodecError
        If data are damaged. Then the target is not made.
    FileNotFoundError, NotADirectoryError
        If the folder does not exist, or is not a folder.
    FileExistsError
        If the target exists and `overwrite` is false, or it has other files.
    ValueError
        If one folder is in the other.
    """
    start = time.perf_counter()
    source, target = _source(packed, "restored"), _target(packed, folder)
    manifest = Manifest.read(source)
    tree = rest_of(source, manifest)
    held = Folder(source, follow=True)
    sizes, tensors, changed = _check_stores(source, manifest, held)
    if max_bytes is None:
        # Each store may expand to no more than the limit of one store, but all of them to more.
        whole = f"{source}: the files in its stores"
        DEFAULT_LIMITS.check(sum(sizes), lambda most: held.size_below(""), whole)
    names = [*tree.files, *manifest.weights]
    obstacle = partial(other_names, names=[*names, *tree.folders])
    with new_target(target, overwrite, obstacle, sync, as_folder=True) as temporary:
        rights = rights_of_new(temporary)
        copied = copy_noted(tree, temporary, kinds_of(False), True, progress, rights)
        changed += _changed(manifest.files, copied)
        if changed and verify:
            anyway = for_caller("verify=False", "--no-verify")
            raise StoreError(
                f"{source}: changed since it was packed: {few(changed, _SHOWN)}: {anyway} restores"
                " what is there now"
            )
        options = {"threads": threads, "max_bytes": max_bytes}
        restored = manifest.within(rights)
        _restore(source, restored, temporary, sizes, options, progress)
        set_modes(temporary, restored)
        nbytes = disk_size(temporary)
    return FolderSummary(
        len(names),
        tensors,
        nbytes,
        held.size_below(""),
        time.perf_counter() - start,
        stores=tuple(manifest.stores),
        kept=tuple(tree.files),
        changed=tuple(changed),
    )


def _source(given: str | os.PathLike[str], done: str) -> Path:
    """Return the path of the source, which must be a folder; `done` is for messages."""
    text = given_path(given, "folder")
    if "://" in text:
        raise ValueError(
            f"{text}: an address, and only local folders are {done}: download it first"
        )
    source = Path(text)
    if not source.is_dir():
        if source.exists():
            raise NotADirectoryError(errno.ENOTDIR, "a file, not a model's folder", str(source))
        raise missing_path(source, "No such folder")
    return source


def _packed_target(
    given: str | os.PathLike[str],
    to: str | os.PathLike[str],
    options: Mapping[str, Any] | None,
) -> Target:
    """Return the path or address of the folder to make."""
    text = given_path(to, "target")
    if is_object_address(text):
        _check_name(text)
        return object_address(text, Kind.FOLDER, [], StoreOptions())
    if options:
        name = argument("storage_options")
        raise ValueError(f"{name} are for addresses: {text} is a path")
    return _target(given, to)


def _target(given: str | os.PathLike[str], to: str | os.PathLike[str]) -> Path:
    """Return the absolute target; refuse folders of which one is in the other."""
    source = Path(given)
    target = absolute_target(given_path(to, "target"), [source], "folder")
    if resolved(source) in resolved(target).parents:
        raise ValueError(f"{to}: lies in the folder {given}: choose a folder outside of it")
    _check_name(target.name)
    return target


def _check_name(name: str) -> None:
    """Refuse a target with the name of a store or a file."""
    kind = suffix_of(name.rstrip("/"))[1]
    if kind is not None:
        raise ValueError(f"{name}: the name of {kind.value}, not of a folder: choose another name")


def _refuse_packed(source: Path, tree: Tree) -> None:
    """Refuse a folder that has a manifest, or something else of that name."""
    if MANIFEST not in {*tree.files, *tree.folders}:
        return
    try:
        Manifest.read(source)
    except (BF16CodecsError, OSError) as e:
        raise ValueError(
            f"{source}: has something else of the name {MANIFEST}, which packing needs: move it"
            f" elsewhere ({one_line(e)})"
        ) from e
    restores = for_caller("unpack_hugging_face", "--restore")
    raise ValueError(f"{source}: is packed already, as its {MANIFEST} says: {restores} undoes it")


def _with_reports(
    parts: Iterable[_Part], sizes: Sequence[int], progress: Progress | None
) -> Iterator[tuple[_Part, Progress | None]]:
    """Yield each part with a function that reports its progress within the total."""
    total, before = sum(sizes), 0
    for part, size in zip(parts, sizes, strict=True):
        yield part, part_of(progress, before, total)
        before += size


def _store(
    sets: Sequence[WeightSet],
    made: NewPacked,
    options: Mapping[str, Any],
    progress: Progress | None,
) -> dict[str, dict[str, NotedFile]]:
    """Make the stores of a packed folder, and return the entries of their files."""
    stores = {}
    with _interrupt.temporary():
        for weight_set, report in _with_reports(
            sets, [s.source.total_nbytes() for s in sets], progress
        ):
            location = made.location(weight_set.store)
            with closing(weight_set.source) as source:
                store_options = Options(
                    **options, sync=False, progress=report, target_options=made.options
                )
                convert_model(source, location, Kind.FOLDER, store_options)
            opening = Opening(made.options)
            with closing(open_store(location, Kind.FOLDER, opening=opening)) as reader:
                stored = stored_files(reader)
            stores[weight_set.store] = {
                name: NotedFile.of(file, stored[file.name].digests)
                for name, file in zip(weight_set.names, weight_set.source.paths, strict=True)
            }
    return stores


def _check_stores(
    source: Path, manifest: Manifest, held: Folder
) -> tuple[list[int], int, list[str]]:
    """Return the sizes of files in stores, the number of tensors, and names of changed files."""
    sizes, tensors, changed = [], 0, []
    for name, files in manifest.stores.items():
        held.refuse_links(name)  # opening a store would follow links
        with closing(open_store(source / name, Kind.FOLDER)) as reader:
            stored = stored_files(reader)
            if stored.keys() != {file.rpartition("/")[2] for file in files}:
                raise StoreError(f"{source / name}: has other files than {MANIFEST} says")
            sizes.append(sum(file.size for file in reader.info.files))
            tensors += len(reader.names)
        for file, noted in files.items():
            now = stored[file.rpartition("/")[2]]
            if noted.is_other(now.size, now.restored):
                changed.append(f"{file} (in {name})")
    return sizes, tensors, changed


def _changed(noted: Mapping[str, NotedFile], copied: Mapping[str, NotedFile]) -> list[str]:
    """Return the files that differ from their entries."""
    return [n for n, file in noted.items() if file.is_other(copied[n].size, copied[n].digests)]


def _restore(
    source: Path,
    manifest: Manifest,
    target: Path,
    sizes: Sequence[int],
    options: Mapping[str, Any],
    progress: Progress | None,
) -> None:
    """Restore the files in stores to their paths in the target."""
    scratch = target / f"{WORKING_PREFIX}restored"
    with _interrupt.temporary():
        for (name, files), report in _with_reports(manifest.stores.items(), sizes, progress):
            store = source / name
            zarr_to_safetensors(store, scratch, sync=False, progress=report, **options)
            _move(scratch, target, files)


def _move(scratch: Path, target: Path, files: Mapping[str, NotedFile]) -> None:
    """Move restored files, one at `scratch` or several in it, to their paths in the target."""
    is_folder = scratch.is_dir()
    for name, noted in files.items():
        path = target / name
        os.rename(scratch / path.name if is_folder else scratch, path)
        path.chmod(noted.mode)
    if is_folder:
        scratch.rmdir()
