"""Convert the models of a plan, one after the other, or side by side on a cluster."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from bf16codecs._base import interrupt as _interrupt
from bf16codecs._base.arguments import argument, for_caller
from bf16codecs._base.cluster import Cluster, ClusterError, current_cluster, on_cluster
from bf16codecs._base.messages import one_line
from bf16codecs._base.paths import absolute
from bf16codecs._base.threads import codec_threads
from bf16codecs._files.publish import recover_missing
from bf16codecs.convert.checks import differing_names, stored_index
from bf16codecs.convert.fleet.plan import Conversion, check_plan, in_rounds, with_absolute_paths
from bf16codecs.convert.fleet.sharing import POOL, prune_pool, share_chunks
from bf16codecs.convert.new_store import is_object_address, options_of_target
from bf16codecs.convert.options import Options, zarr_kind
from bf16codecs.convert.sources import opened_source
from bf16codecs.convert.store import convert_model
from bf16codecs.convert.summary import Progress
from bf16codecs.convert.target import is_free_folder
from bf16codecs.store.bases import identity
from bf16codecs.store.kinds import Kind, address_scheme, path_of
from bf16codecs.store.opening import Opening, open_store
from bf16codecs.store.reader import ModelReader

__all__ = ["ConversionResult", "convert_fleet"]

# A single worker converts models up to this size, in some minutes; all of them share larger ones,
# one after the other, which come last: otherwise, the cluster would wait for a few.
_ONE_WORKERS = 64 << 30
# How long to wait for another process that writes the same store, and how often to look: it may
# be a worker that was given up too early, or one of a command that was killed.
_WAIT_SECONDS, _LOOK_SECONDS = 300, 5


@dataclass(frozen=True)
class ConversionResult:
    """The result for one model of a fleet; sizes in bytes."""

    conversion: Conversion
    #: "converted", "there" if its store was complete before, or "failed".
    state: str
    nbytes: int = 0
    stored_nbytes: int = 0
    seconds: float = 0.0
    #: Bytes of its chunks that other stores have, too, in the same files.
    shared_nbytes: int = 0
    #: A line about the store's base, if it is not as planned, or why it failed.
    note: str = ""


class _TooLarge(Exception):
    """A model that a single worker would take too long for."""


def convert_fleet(
    conversions: Sequence[Conversion],
    *,
    share: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> Iterator[ConversionResult]:
    """Convert models, and yield the result of each as soon as it is there.

    A model that fails does not end the others. A store that is complete, and has the source's
    files, headers and index, stays as it is: repeating the call after an interruption does what is
    left. Bases that are stores of the same plan are made first. In `bf16codecs.dask.cluster`,
    workers convert models side by side, and together those above 64 GiB.

    Parameters
    ----------
    conversions
        A plan: see `plan_fleet`.
    share
        Let chunks that several stores have be hard links to one file, below a hidden folder beside
        them. Each store stays complete by itself. All have to be folders on one disk.
    progress
        As for `safetensors_to_zarr`, for each model anew; not called on a cluster.
    options
        Other arguments of `safetensors_to_zarr`, except `base` and `lossy`. With `overwrite`,
        stores are made again.

    Yields
    ------
    ConversionResult

    Raises
    ------
    ValueError, TypeError
        If an option is invalid, or stores of the plan are bases of each other.
    ConnectionError
        If the cluster fails.
    """
    for name in ("base", "lossy"):
        if options.get(name) is not None:
            raise ValueError(f"{name} is not for fleets: a plan has a base for each store")
    checked = Options(**options, progress=progress)
    check_plan(conversions)
    is_local = next((each.store for each in conversions if not is_object_address(each.store)), "")
    if checked.target_options and is_local:
        raise ValueError(f"{argument('target_options')} are for addresses: {is_local} is a path")
    rounds, pool = in_rounds(conversions), _pool(conversions) if share else None
    return _in_rounds(conversions, rounds, checked, pool, current_cluster())


def _pool(conversions: Sequence[Conversion]) -> Path | None:
    """Return the folder of shared chunks; raise ValueError if stores cannot share chunks."""
    for each in conversions:
        if is_object_address(each.store) or zarr_kind(each.store) is not Kind.FOLDER:
            share = argument("share")
            raise ValueError(
                f"{each.store}: {share} is for stores in folders of a disk: others have no links;"
                " let models have bases instead"
            )
    folders = [os.path.dirname(absolute(path_of(each.store) or "")) for each in conversions]
    return Path(os.path.commonpath(folders), POOL) if folders else None


def _in_rounds(
    conversions: Sequence[Conversion],
    rounds: Sequence[Sequence[int]],
    options: Options,
    pool: Path | None,
    cluster: Cluster | None,
) -> Iterator[ConversionResult]:
    failed = set[str]()
    try:
        for numbers in rounds:
            todo = [conversions[number] for number in numbers]
            for each in todo:
                if each.base and identity(each.base) in failed:
                    yield ConversionResult(each, "failed", note=f"its base, {each.base}, failed")
            todo = [each for each in todo if not each.base or identity(each.base) not in failed]
            results = (
                (_convert(each, options, pool) for each in todo)
                if cluster is None
                else _on_workers(cluster, todo, options, pool)
            )
            for result in results:
                if result.state == "failed":
                    failed.add(identity(result.conversion.store))
                yield result
    finally:
        if pool is not None:
            prune_pool(pool)


def _on_workers(
    cluster: Cluster, todo: Sequence[Conversion], options: Options, pool: Path | None
) -> Iterator[ConversionResult]:
    of_worker = replace(options, progress=None, threads=cluster.threads)
    job = partial(_convert_on_worker, of_worker, pool)

    def killed(number: int, reason: str) -> ConversionResult:
        return ConversionResult(todo[number], "failed", note=reason)

    large = []
    jobs = (partial(job, with_absolute_paths(each)) for each in todo)
    with closing(cluster.run(jobs, killed)) as results:
        for number, result in results:
            if result is None:
                large.append(todo[number])
            else:
                given, absolute_one = todo[number], with_absolute_paths(todo[number])
                note = result.note.replace(absolute_one.source, given.source)
                note = note.replace(absolute_one.store, given.store)
                yield replace(result, conversion=given, note=note)
    for conversion in large:
        with on_cluster(cluster):
            result = _convert(conversion, replace(options, progress=None), pool)
        yield result


def _convert_on_worker(
    options: Options, pool: Path | None, conversion: Conversion
) -> ConversionResult | None:
    """Convert a model on a worker; return None if it is too large for one."""
    try:
        with codec_threads(options.threads):
            return _convert(conversion, options, pool, _ONE_WORKERS)
    except _TooLarge:
        return None


def _convert(
    conversion: Conversion, options: Options, pool: Path | None, most: int | None = None
) -> ConversionResult:
    """Convert a model; raise _TooLarge if it has more bytes than that."""
    start = time.perf_counter()
    try:
        with _interrupt.temporary():  # one of several, each of which is reported
            result = _converted(conversion, options, most)
            if pool is not None:
                shared = share_chunks(Path(path_of(conversion.store) or ""), pool)
                result = replace(result, shared_nbytes=shared)
    except (ClusterError, _TooLarge):
        raise
    except Exception as e:
        result = ConversionResult(conversion, "failed", note=one_line(e))
    return replace(result, seconds=time.perf_counter() - start)


def _converted(conversion: Conversion, options: Options, most: int | None) -> ConversionResult:
    options = replace(options, base=conversion.base or None)
    of_source = options.storage_options if address_scheme(conversion.source) else None
    with closing(opened_source(conversion.source, to_store=True, options=of_source)) as source:
        if not options.overwrite and (there := _there(conversion, source, options)):
            return there
        if most is not None and source.total_nbytes() > most:
            raise _TooLarge
        kind = zarr_kind(conversion.store)
        if (path := path_of(conversion.store)) is not None:
            os.makedirs(os.path.dirname(absolute(path)), exist_ok=True)
        try:
            summary = convert_model(source, conversion.store, kind, options)
        except (FileExistsError, BlockingIOError) as e:
            if there := _awaited(conversion, source, options, isinstance(e, BlockingIOError)):
                return there
            raise
    sizes = summary.nbytes, summary.stored_nbytes
    return ConversionResult(conversion, "converted", *sizes, note=summary.base)


def _awaited(
    conversion: Conversion, source: ModelReader, options: Options, is_busy: bool
) -> ConversionResult | None:
    """Return the result for a store that another process has made, or is making."""
    until = time.monotonic() + (_WAIT_SECONDS if is_busy else 0)
    while (there := _there(conversion, source, options)) is None and time.monotonic() < until:
        time.sleep(_LOOK_SECONDS)
        _interrupt.check()
    return there


def _there(
    conversion: Conversion, source: ModelReader, options: Options
) -> ConversionResult | None:
    """Return the result for a store that is complete; None if nothing is there.

    Raises FileExistsError if it holds another model.
    """
    of_store, is_remote = None, is_object_address(conversion.store)
    if is_remote:
        # zarr and obstore are imported only for addresses.
        from bf16codecs.convert.new_remote import has_store

        places = [conversion.source, conversion.base]
        given = options.target_options, options.storage_options
        of_store = options_of_target(conversion.store, *given, places)
        is_there = has_store(conversion.store, of_store)
    else:
        path = Path(path_of(conversion.store) or "")
        recover_missing(path)
        is_there = os.path.lexists(path) and not is_free_folder(path)
    if not is_there:
        return None
    # With its base, which may have been replaced.
    opening = Opening(of_store)
    with closing(open_store(conversion.store, opening=opening)) as store:
        option = for_caller("overwrite=True", "--overwrite")
        difference = differing_names(store, store.headers, stored_index(store), source)
        if difference is not None:
            raise FileExistsError(
                f"{conversion.store}: holds another model: {difference} ({option} replaces it)"
            )
        if not is_remote and _is_newer(source, conversion.store):
            raise FileExistsError(
                f"{conversion.store}: is older than its source: compare them (bf16codecs verify),"
                f" or convert it again ({option})"
            )
        nbytes = sum(header.file_size for header in source.headers) + len(stored_index(source))
        found = "" if store.base is None else store.base.where
        is_planned = identity(found or ".") == identity(conversion.base or ".")
        other = "" if is_planned else f"has {found or 'none'} as base, not as planned"
        return ConversionResult(conversion, "there", nbytes, store.total_nbytes(), note=other)


def _is_newer(source: ModelReader, store: str) -> bool:
    """Return whether a file of a source on this disk was written after a store on it."""
    made_at = os.stat(path_of(store) or "").st_mtime
    return any(path.is_file() and path.stat().st_mtime > made_at for path in source.paths)
