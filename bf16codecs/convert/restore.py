"""Restore safetensors files from model stores."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bf16codecs._arrays.grid import Piece
from bf16codecs._base.arguments import for_caller
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.cluster import Cluster, NotSeenError, current_cluster, run_batches
from bf16codecs._base.limits import Limits
from bf16codecs._base.paths import given_path, names_folder, resolved
from bf16codecs._base.threads import codec_threads
from bf16codecs._files.digests import Digests, digests_of_file
from bf16codecs._files.reading import reserve, write_all
from bf16codecs._files.sync import sync as flush
from bf16codecs.convert.checks import check_restored_size
from bf16codecs.convert.decoding import digest_error, unpack
from bf16codecs.convert.restored import RestoredFiles, restored_files
from bf16codecs.convert.sources import is_foreign
from bf16codecs.convert.summary import BytesDone, Progress, Summary, shifted, summarize
from bf16codecs.convert.target import absolute_target, check_suffix, new_target, other_names
from bf16codecs.convert.workers import LEAST_FILES, Shared, on_pieces, sharing
from bf16codecs.safetensors import SAFETENSORS
from bf16codecs.store.bases import local_chain
from bf16codecs.store.kinds import (
    FOREIGN_SUFFIXES,
    GGUF_SUFFIX,
    PYTORCH_SUFFIXES,
    Kind,
    detect,
    suffix_of,
)
from bf16codecs.store.objects import sizes_of_objects
from bf16codecs.store.opening import Opening, open_run_store, open_store
from bf16codecs.store.reader import ModelReader, stored_arrays
from bf16codecs.store.runs.layout import RunInfo

__all__ = ["hdf5_to_safetensors", "run_to_safetensors", "step_folders", "zarr_to_safetensors"]


def zarr_to_safetensors(
    store: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    step: int | None = None,
    to: str | None = None,
    threads: int | None = None,
    overwrite: bool = False,
    base: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    max_bytes: int | None = None,
    sync: bool = True,
    progress: Progress | None = None,
) -> Summary:
    """Restore the original file, or the folder of shards with its index, from a model store.

    Parameters
    ----------
    store
        A folder, a ZIP file, or an address that zarr opens.
    dst
        The file to make, or the folder if the store has several files or an index. It appears
        only when it is complete and has the original's digest.
    step
        The step of a run to restore, unless the path names it: ``run.zarr@600``.
    to
        ``"safetensors"`` to make a safetensors file of a model that was another kind of file. The
        default restores that file.
    threads
        Number of threads; by default `bf16codecs.get_num_threads()`.
    overwrite
        Replace an existing file, or a folder that has only files of the same names.
    base
        Location of the base of the store, if it is not where the store says.
    storage_options
        Options of the file system of an address: credentials, endpoints, time-outs.
    max_bytes
        Largest size of the restored files in bytes. The default is 1 GiB, or 256 times the store's
        size if that is more; real models stay below it.
    sync
        Flush the files to the disk before they get their names.
    progress
        Called now and then with the phase, the bytes done and the total bytes.

    Returns
    -------
    Summary

    Raises
    ------
    StoreError
        If the store is incomplete, or its base is missing.
    bf16codecs.errors.BaseMismatchError
        If its base is another model, or was altered.
    bf16codecs.errors.CodecError
        If data are damaged. The target is not made then.
    FileExistsError
        If the target exists and `overwrite` is false, or it has other files.
    ValueError
        If an option is invalid, or the target is in the store or contains it.
    """
    limits = Limits(max_bytes)
    opening = Opening(storage_options, limits, base=base, step=step, for_runs=_for_runs())
    with closing(open_store(store, Kind.FOLDER, Kind.ZIP, opening=opening)) as reader:
        return _restore(restored_files(reader, to), dst, threads, overwrite, sync, progress)


def hdf5_to_safetensors(
    file: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    step: int | None = None,
    to: str | None = None,
    threads: int | None = None,
    overwrite: bool = False,
    base: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    max_bytes: int | None = None,
    sync: bool = True,
    progress: Progress | None = None,
) -> Summary:
    """Restore the original file, or the folder of shards with its index, from an HDF5 file.

    The parameters and errors are those of `zarr_to_safetensors`.
    """
    limits = Limits(max_bytes)
    opening = Opening(storage_options, limits, base=base, step=step, for_runs=_for_runs())
    with closing(open_store(file, Kind.HDF5, opening=opening)) as reader:
        return _restore(restored_files(reader, to), dst, threads, overwrite, sync, progress)


def run_to_safetensors(
    store: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    threads: int | None = None,
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    max_bytes: int | None = None,
    sync: bool = True,
    progress: Progress | None = None,
) -> Summary:
    """Restore the original files of all steps of a run.

    Parameters
    ----------
    store
        A run store: a folder, a ZIP file, an HDF5 file, or an address.
    dst
        The folder to make. It holds the files, or, if steps have several files or share names, a
        folder for each step, such as ``step-600``.
    threads, overwrite, storage_options, max_bytes, sync, progress
        As for `zarr_to_safetensors`. A folder is replaced only if it has no other files.

    Returns
    -------
    Summary

    Raises
    ------
    StoreError
        If it is not a run, or incomplete.
    bf16codecs.errors.CodecError
        If data are damaged. The target is not made then.
    FileExistsError
        If the target exists and `overwrite` is false, or it has other files.
    """
    start = time.perf_counter()
    opening = Opening(storage_options, Limits(max_bytes))
    advice = for_caller("zarr_to_safetensors or hdf5_to_safetensors restores it", "leave out --all")
    with closing(open_run_store(store, opening, advice)) as run:
        steps, folders = run.run.steps, step_folders(run.run)
        target = _target(run, dst, as_folder=True)
        paths = [
            os.path.join(folder, name)
            for step, folder in zip(steps, folders, strict=True)
            for name in step.file_names
        ]
        obstacle = partial(other_names, names=paths)
        total, done, tensors = sum(step.nbytes for step in steps), 0, 0
        run.check_size(total, "the original files")
        with (
            codec_threads(threads),
            new_target(target, overwrite, obstacle, sync, as_folder=True) as final,
            _revocable(final) as temporary,
        ):
            temporary.mkdir()
            for step, folder in zip(steps, folders, strict=True):
                (temporary / folder).mkdir(exist_ok=True)
                report = shifted(progress, "restore", done, total)
                reader = run.step(step.number)
                step_paths = [temporary / folder / name for name in step.file_names]
                _write(restored_files(reader, None), step_paths, report, sync)
                done, tensors = done + step.nbytes, tensors + len(reader.names)
        stored = run.total_nbytes()
        return Summary(
            len(paths),
            tensors,
            total,
            stored,
            time.perf_counter() - start,
            steps=len(steps),
            different_tensors=len(run.names),
        )


def _restore(
    files: RestoredFiles,
    dst: str | os.PathLike[str],
    threads: int | None,
    overwrite: bool,
    sync: bool,
    progress: Progress | None,
) -> Summary:
    start, reader = time.perf_counter(), files.reader
    objects = sizes_of_objects(reader) or {}
    target = _target(reader, dst, files.as_folder, files.kind)
    obstacle = partial(_other_than, kind=files.kind)
    if files.as_folder:
        obstacle = partial(other_names, names=files.names)
    with (
        codec_threads(threads),
        new_target(target, overwrite, obstacle, sync, files.as_folder) as final,
        _revocable(final) as temporary,
    ):
        if files.as_folder:
            temporary.mkdir()
        paths = [temporary / name for name in files.names] if files.as_folder else [temporary]
        _write(files, paths, progress and partial(progress, "restore"), sync)
    summary = summarize(reader, files.headers, start, len(objects))
    if files.headers is reader.headers:
        return summary
    hidden = tuple(name for header in reader.headers for name in header.hidden)
    return replace(summary, files=1, nbytes=files.headers[0].file_size, hidden=hidden)


@contextmanager
def _revocable(path: Path) -> Iterator[Path]:
    """Yield where to write what gets a path, which no job that a cluster gave up can write to."""
    if current_cluster() is None:
        yield path
        return
    place = path.with_name("scratch")
    yield place
    place.rename(path)


def _other_than(path: Path, kind: str) -> str:
    """Return why a path is not a file of a kind, which may be replaced; empty if it is one."""
    if not path.is_file():
        return "is not a file: choose another name"
    if not path.stat().st_size:
        return ""
    if kind != SAFETENSORS:
        return "" if is_foreign(path) else f"is not {_named(kind)}: choose another name"
    is_model = detect(path) is Kind.SAFETENSORS
    return "" if is_model else "is not a safetensors file: choose another name"


# The usual suffixes of files of other kinds.
_SUFFIXES_OF = {"pytorch": {*PYTORCH_SUFFIXES, ".pkl"}, "gguf": {GGUF_SUFFIX}}


def _named(kind: str) -> str:
    """Return what a file of another kind is called in messages."""
    names = {"pytorch": "a PyTorch file", "distcp": "a PyTorch checkpoint", "gguf": "a GGUF file"}
    return names.get(kind, f"a file of {kind!r:.80}")


def _for_runs() -> str:
    """Name the options that restore steps of a run, for the end of a message."""
    step, every = for_caller("step=", "--step"), for_caller("run_to_safetensors", "--all")
    return f" ({step}), or restore all of them with {every}"


def _target(
    reader: ModelReader, dst: str | os.PathLike[str], as_folder: bool, kind: str = SAFETENSORS
) -> Path:
    """Return the absolute path of a target that is named as the file or folder that it becomes.

    Raises ValueError if it is not, or lies in the store, or contains it or one of its bases.
    """
    where, _ = reader.location
    local = [] if "://" in where else [Path(where)]
    target = absolute_target(given_path(dst, "target"), local)
    if local and resolved(local[0]) in resolved(target).parents:
        raise ValueError(f"{dst}: lies in the store")
    absolute_target(target, local_chain(reader.base), f"base of {reader.where}")
    _check_name(reader, target, as_folder, kind)
    if not as_folder and names_folder(dst):
        name = os.path.join(dst, reader.info.files[0].name)
        raise ValueError(f"{dst}: a folder, but one file is restored: name it, such as {name}")
    return target


def _check_name(reader: ModelReader, target: Path, as_folder: bool, file_kind: str) -> None:
    """Refuse a target whose name does not fit what it becomes, a file or a folder."""
    first = None if as_folder else reader.info.files[0]
    original = "" if first is None else os.path.splitext(first.name)[1]
    if first is not None and first.kind == file_kind and target.suffix == original:
        return  # as it was called, whatever that says
    suffix, kind = suffix_of(target.name)
    stem = target.name.removesuffix(suffix) or "model"
    if not as_folder and file_kind != SAFETENSORS:
        if kind is not None:
            to = for_caller('to="safetensors"', "--to safetensors")
            name = stem + original
            raise ValueError(
                f"{target}: by its name {kind.value}, but {reader.where} restores"
                f" {_named(file_kind)}: choose another name, such as {name}, or make a safetensors"
                f" file ({to})"
            )
        suffix = target.suffix.lower()
        usual = _SUFFIXES_OF.get(file_kind, {suffix})
        if suffix in FOREIGN_SUFFIXES and suffix not in usual:
            raise ValueError(
                f"{target}: by its name a file of another kind, {suffix}, but {reader.where}"
                f" restores {_named(file_kind)}: choose another name, such as"
                f" {target.stem}{original}"
            )
        return
    if as_folder and kind is Kind.SAFETENSORS:
        raise ValueError(
            f"{target}: the name of a file, but {reader.where} holds several files, or an index:"
            f" name a folder for them, such as {stem}"
        )
    if not as_folder and suffix.endswith(".json"):
        raise ValueError(
            f"{target}: the name of an index, but {reader.where} has none: choose another name,"
            f" such as {stem}.safetensors"
        )
    check_suffix(target, Kind.SAFETENSORS, "" if as_folder else ".safetensors")


def _write(
    files: RestoredFiles, paths: Sequence[Path], progress: BytesDone | None, sync: bool
) -> None:
    """Write the files of a model, the index last, and check their digests."""
    check_restored_size(files.reader, files.headers)
    for path, header in zip(paths, files.headers, strict=False):  # the index is behind them
        with open(path, "xb") as file:
            reserve(file.fileno(), header.file_size)
            file.write(header.prefix)
            for offset, part in header.gaps:
                file.seek(offset)
                file.write(part)
    if files.index is not None:
        paths[-1].write_bytes(files.index)

    paths = paths[: len(files.headers)]
    cluster = current_cluster()
    if cluster is None:
        write = partial(_write_piece, paths)
        unpack(files.reader, files.headers, write, files.expected, progress)
    else:
        _write_on(cluster, files, paths, progress, sync)


def _write_piece(paths: Sequence[Path], piece: Piece, data: Bytes, _: Bytes | None) -> None:
    # Not for reading as well: NFS would then write back whole pages, parts of which others write.
    descriptor = os.open(paths[piece.array.file], os.O_WRONLY | getattr(os, "O_BINARY", 0))
    with open(descriptor, "wb", buffering=0) as file:
        file.seek(piece.offset)
        write_all(file, data)


def _write_on(
    cluster: Cluster,
    files: RestoredFiles,
    paths: Sequence[Path],
    progress: BytesDone | None,
    sync: bool,
) -> None:
    """Let workers write the tensors, and then compute the digests of what they have written."""
    reader = files.reader
    if files.headers is reader.headers and len(paths) >= LEAST_FILES * cluster.slots:
        _write_files_on(cluster, files, paths, progress, sync)
        return
    arrays = stored_arrays(reader, files.headers)
    with sharing(cluster, reader) as (store,):
        assert store is not None
        run_batches(
            cluster,
            partial(_write_on_worker, store, paths, cluster.threads, sync),
            (piece for array in arrays for piece in array.pieces()),
            lambda piece: piece.nbytes,
            progress,
            sum(array.nbytes for array in arrays),
        )
    pairs = list(zip(paths, files.expected, strict=bool(files.expected)))
    # Nothing else is left to do: several threads may hash a file.
    digests = [partial(digests_of_file, path, known.kinds) for path, known in pairs]
    with closing(cluster.run(digests)) as results:
        for number, found in results:
            difference = files.expected[number].difference(found)
            if difference is not None:
                raise digest_error(reader, reader.info.files[number], difference[0])


def _write_files_on(
    cluster: Cluster,
    files: RestoredFiles,
    paths: Sequence[Path],
    progress: BytesDone | None,
    sync: bool,
) -> None:
    """Let each job write a file, and compute its digest on the way."""
    done, total = 0, sum(header.file_size for header in files.headers)
    with sharing(cluster, files.reader) as (store,):
        assert store is not None
        job = partial(_write_file, store, paths, files.expected, cluster.threads, sync)
        with closing(cluster.run(partial(job, file) for file in range(len(paths)))) as results:
            for number, _ in results:
                done += files.headers[number].file_size
                if progress is not None:
                    progress(done, total)


def _write_file(
    store: Shared,
    paths: Sequence[Path],
    expected: Sequence[Digests],
    threads: int,
    sync: bool,
    file: int,
) -> None:
    """Decode a file on a worker, write it, and compare its digest."""
    if not paths[file].exists():
        raise NotSeenError.at(str(paths[file]))
    reader = store.model()
    with codec_threads(threads):
        unpack(reader, reader.headers, partial(_write_piece, paths), expected, only=file)
    if sync:
        flush(paths[file])


def _write_on_worker(
    store: Shared, paths: Sequence[Path], threads: int, sync: bool, pieces: Sequence[Piece]
) -> int:
    """Decode pieces, and write them to files that are there; return their size."""
    if not paths[0].exists():
        raise NotSeenError.at(str(paths[0]))

    def work(piece: Piece, data: Bytes) -> None:
        _write_piece(paths, piece, data, None)

    nbytes = on_pieces(store.model(), work, pieces, threads)
    # Here, since no other machine can: it has nothing of the files in its memory.
    for file in {piece.array.file for piece in pieces} if sync else ():
        flush(paths[file])
    return nbytes


def step_folders(run: RunInfo) -> list[str]:
    """Return the folder names of steps; all are empty if the files' names are distinct."""
    flat = [name for step in run.steps for name in step.file_names]
    if len(flat) > len(run.steps) or len(set(flat)) < len(flat):
        return [f"step-{step.number}" for step in run.steps]
    return [""] * len(run.steps)
