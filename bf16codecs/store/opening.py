"""Opens models of any kind at paths and addresses."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bf16codecs._arrays.parts import base_advice
from bf16codecs._arrays.storage import FolderStorage, LocalStorage
from bf16codecs._arrays.zipped import ZipStorage
from bf16codecs._base.arguments import argument, for_caller
from bf16codecs._base.limits import DEFAULT_LIMITS, Limits
from bf16codecs._base.messages import damaged, named_errors, one_line
from bf16codecs._base.paths import given_path
from bf16codecs._files.publish import open_unreplaced
from bf16codecs.errors import BF16CodecsError, StoreError
from bf16codecs.store.bases import MOST_BASES, check_base, identity, is_beside, location_of
from bf16codecs.store.files import open_safetensors
from bf16codecs.store.kinds import (
    HUB_SCHEME,
    Kind,
    detect,
    detect_given,
    kind_of_address,
    maker_of,
    path_of,
    refuse_hdf5,
    restorer_of,
    suffix_of,
)
from bf16codecs.store.layout import ATTRIBUTES_KEY
from bf16codecs.store.plan import header_path
from bf16codecs.store.published.layout import PUBLISHED_KEY
from bf16codecs.store.reader import ModelReader
from bf16codecs.store.runs.layout import listed
from bf16codecs.store.runs.reader import RunReader, StepReader
from bf16codecs.store.zarr.metadata import NoGroupError, read_root
from bf16codecs.store.zarr.reader import ZarrArrays

if TYPE_CHECKING:
    from bf16codecs.zarr.strict import StrictStore

__all__ = [
    "Opening",
    "model_attributes",
    "names_published_run",
    "names_run",
    "open_any",
    "open_either",
    "open_run_store",
    "open_store",
    "split_step",
    "with_base",
]


_STEP = re.compile(r"(.+)@(\d{1,19})", re.DOTALL)
# A repository on a hub, at a revision; the revision may look like the number of a step.
_REVISION = re.compile(rf"{HUB_SCHEME}://(\w+/)?[^/@]+/[^/@]+@[^/@]+", re.IGNORECASE)
_CANNOT = ": its base cannot be opened: "


@dataclass(frozen=True)
class Opening:
    """How a model is opened, and the bases that it may have."""

    #: Options of the file system behind an address.
    options: Mapping[str, Any] | None = None
    limits: Limits = DEFAULT_LIMITS
    #: The model's base, if it has moved; an open base stays open when the model is closed.
    base: Any = None
    #: The step of a run to open as a model, if the source does not name one.
    step: int | None = None
    #: Whether the base is opened at once, instead of when it is first needed.
    with_base: bool = True
    #: Advice for the error if a run is given instead of a model.
    for_runs: str = ""
    #: Whether a step of a run is accepted as a model.
    takes_steps: bool = True
    #: Whether the path comes from a user, not from a store that names its base.
    is_given: bool = True
    #: The stores opened so far in a chain, each the base of the one before.
    chain: tuple[str, ...] = ()


def open_any(source: Any, opening: Opening = Opening()) -> ModelReader:
    """Open a model of any kind: a path, an address, or a store of zarr's.

    Raises StoreError if it is not a model, or its base cannot be opened; BaseMismatchError if
    its base is another model; OSError if nothing is at the path, or it cannot be read; ValueError
    if the path is empty.
    """
    path, step = split_step(source)
    return _as_model(_open_raw(path, opening), opening.step if step is None else step, opening)


def open_run_store(
    source: Any, opening: Opening = Opening(), advice: str | None = None
) -> RunReader:
    """Open a run of any kind; errors are those of `open_any`.

    `advice` is for the error if a model is given instead of a run.
    """
    path, step = split_step(source)
    if step is not None:
        also = for_caller(", or open it with open_model", "")
        raise StoreError(f"{source}: a step, not a run: leave out @{step}{also}")
    reader = _open_raw(path, opening)
    if reader.info.run is None:
        reader.close()
        if advice is None:
            advice = for_caller(
                "open it with open_model, or make a run with safetensors_to_run",
                "st2zarr --series makes runs",
            )
        raise StoreError(f"{reader.where}: one model, not a run: {advice}")
    return RunReader(reader)


def names_run(path: Path) -> bool:
    """Return whether the attributes of a store, which are not checked, are those of a run.

    Errors are those of `model_attributes`.
    """
    return not {"run", PUBLISHED_KEY}.isdisjoint(model_attributes(path))


def names_published_run(path: Path) -> bool:
    """Return whether a store, as for `names_run`, is a published run."""
    return PUBLISHED_KEY in model_attributes(path)


def model_attributes(path: Path) -> Mapping[str, Any]:
    """Return this package's attributes of a local store, unchecked; empty without a model store.

    Raises BF16CodecsError if they are damaged, and OSError if the store cannot be read.
    """
    kind = detect(path)
    if kind in (None, Kind.SAFETENSORS):
        return {}
    if kind is Kind.HDF5:
        from bf16codecs.store.hdf5.reader import hdf5_attributes

        attributes = hdf5_attributes(path, DEFAULT_LIMITS)
    else:
        with closing(FolderStorage(path) if kind is Kind.FOLDER else ZipStorage(path)) as storage:
            try:
                attributes = read_root(str(path), storage).attributes
            except NoGroupError:
                return {}
    ours = attributes.get(ATTRIBUTES_KEY)
    return ours if isinstance(ours, Mapping) else {}


def split_step(source: Any) -> tuple[Any, int | None]:
    """Split ``run.zarr@600`` into the run and the number of the step; others have none."""
    if not isinstance(source, (str, os.PathLike)):
        return source, None
    text = os.fspath(source)
    match = None if _REVISION.fullmatch(text) else _STEP.fullmatch(text)
    if match is None or (path_of(text) and os.path.lexists(str(path_of(text)))):
        return text, None
    return match[1], int(match[2])


def _open_raw(source: Any, opening: Opening) -> ModelReader:
    """Open a path or an address: a model, or a run."""
    if not isinstance(source, (str, os.PathLike)):
        # zarr is imported only for its own stores, and for addresses.
        from bf16codecs.store.remote.opening import open_given

        _check_options("a zarr store", opening)
        return open_given(source, opening.limits)
    text = given_path(source, "model")
    path = path_of(text)
    if path is None:
        from bf16codecs.store.remote.opening import open_address

        return open_address(text, dict(opening.options or {}), opening.limits)
    _check_options(text, opening)
    find = detect_given if opening.is_given else detect
    return open_unreplaced(
        Path(path), lambda: _open_path(path, find(path), opening.limits), ModelReader.close
    )


def _check_options(what: str, opening: Opening) -> None:
    """Refuse storage options unless the model or its base is at an address."""
    base = opening.base
    is_remote = isinstance(base, (str, os.PathLike)) and path_of(os.fspath(base)) is None
    if opening.options and not is_remote:
        raise ValueError(
            f"{what}: {argument('storage_options')} apply to addresses only: neither it nor"
            f" {argument('base')} is at one, and a base that a store names gets none"
        )


def _as_model(reader: ModelReader, step: int | None, opening: Opening) -> ModelReader:
    """Take the step of a run, and let a model find its base."""
    try:
        run = reader.info.run
        if run is not None and opening.base is not None:
            raise ValueError(f"{reader.where}: a run has no base: leave out {argument('base')}")
        if run is not None and not opening.takes_steps:
            raise StoreError(f"{reader.where}: a run: neither it nor its steps can be rewritten")
        if run is not None and step is None:
            example = f", as in {reader.where}@{run.numbers[-1]}" if run.steps else ""
            raise StoreError(
                f"{reader.where}: a run, with steps {listed(run.numbers)}: name one of them"
                f"{example}{opening.for_runs}"
            )
        if step is not None:
            if run is None:
                given = f"@{step}" if opening.step is None else argument("step")
                raise StoreError(
                    f"{reader.where}: one model, not a run with a step {step}: leave out {given}"
                )
            index = run.index_of(step, reader.where)
            reader.stored.read_up_to(index)
            reader = StepReader(reader, index)
        return with_base(reader, opening)
    except BaseException:
        reader.close()
        raise


def with_base(reader: ModelReader, opening: Opening) -> ModelReader:
    """Let a model find its base."""
    if reader.info.base is None:
        if opening.base is not None:
            raise ValueError(f"{reader.where}: has no base: leave out {argument('base')}")
        return reader
    reader.open_base = partial(_open_base, opening=opening)
    if opening.with_base:
        _ = reader.base
    return reader


def _open_base(reader: ModelReader, opening: Opening) -> ModelReader:
    """Open the base of a model, and compare it with the model's reference to it."""
    reference = reader.info.base
    assert reference is not None
    if isinstance(opening.base, ModelReader):
        reader.closes_base = False
        check_base(reference, opening.base, reader.where)
        return opening.base
    where, _ = reader.location
    given = opening.base is not None
    with named_errors(reader.where):
        source = opening.base if given else location_of(reference, where)
    is_store = not isinstance(source, (str, os.PathLike))
    name = str(source) if is_store else os.fspath(source)
    chain = (*opening.chain, identity(where) if where else reader.where)
    if identity(name) in chain:
        raise StoreError(f"{reader.where}: its bases form a cycle: it is its own base")
    if len(chain) > MOST_BASES:
        raise StoreError(
            f"{reader.where}: more than {MOST_BASES} bases, each that of another: let"
            " bf16codecs rebase make one of them whole"
        )
    # An address in a store gets no credentials that are meant for another host.
    is_known = not is_store and path_of(name) is None
    options = opening.options if is_known and (given or is_beside(name, where)) else None
    try:
        base = open_any(source, Opening(options, opening.limits, is_given=given, chain=chain))
    except (BF16CodecsError, OSError, ValueError, ImportError) as e:
        text = one_line(e)
        # In a chain, name the store that was to be opened, and the one whose base fails.
        rest = text.partition(_CANNOT)[2]
        text = rest if _CANNOT in rest else text
        advice = "" if base_advice() in text else f"; {base_advice()}"
        kind: type[Exception] = type(e) if isinstance(e, BF16CodecsError) else StoreError
        if isinstance(e, OSError) and path_of(name) is None:
            kind = OSError  # errors of servers are OSErrors for the model itself as well
        raise kind(f"{reader.where}{_CANNOT}{text}{advice}") from e
    try:
        check_base(reference, base, reader.where)
    except BaseException:
        base.close()
        raise
    return base


def open_either(source: Any, opening: Opening = Opening()) -> ModelReader:
    """Open a model, or all of a run if its path names no step; errors are those of `open_any`."""
    path, step = split_step(source)
    reader = _open_raw(path, opening)
    if step is None and opening.base is None and reader.info.run is not None:
        return RunReader(reader)
    return _as_model(reader, step, opening)


def open_store(
    store: str | os.PathLike[str], *kinds: Kind, opening: Opening = Opening()
) -> ModelReader:
    """Open a model store to read all of it.

    Parameters
    ----------
    store
        A path or an address.
    kinds
        Kinds that it may be; by default, Zarr in a folder or a ZIP file, or HDF5.
    opening
        How.

    Returns
    -------
    ModelReader

    Raises
    ------
    StoreError
        If it is not a model store, or is one of another kind.
    OSError
        If nothing is at the path, or it cannot be read.
    ValueError
        If the path is empty.
    """
    text, step = split_step(store)
    path = path_of(text)
    kind = kind_of_address(text) if path is None else detect_given(path)
    if path is None and kind is Kind.HDF5:
        refuse_hdf5(text)
    _check_kind(text, kind, kinds, "" if path is not None else " by its name")
    step = opening.step if step is None else step
    reader = _open_raw(text, opening)
    try:
        if path is None and not reader.stored.zarr_format:  # no name on a hub tells that
            _check_kind(text, Kind.SAFETENSORS, kinds)
    except BaseException:
        reader.close()
        raise
    return _as_model(reader, step, opening)


def _check_kind(text: str, kind: Kind | None, kinds: Sequence[Kind], by: str = "") -> None:
    """Refuse another kind than those of `open_store`; `by` says what tells the kind."""
    if kind is None or kind in (kinds or (Kind.FOLDER, Kind.ZIP, Kind.HDF5)):
        return
    expected = kinds[0].value if kinds else "a model store"
    restorer = restorer_of(kind)
    advice = f"{restorer} restores it" if restorer else "it needs no restoring"
    if not kinds:
        advice = f"{maker_of(Kind.FOLDER)} and {maker_of(Kind.HDF5)} make stores of these"
    raise StoreError(f"{text}: not {expected}, but{by} {kind.value}: {advice}")


def _open_path(text: str, kind: Kind | None, limits: Limits) -> ModelReader:
    path = Path(text)
    # If the root of a model store has no metadata, the reader reports it.
    if kind is Kind.FOLDER or (kind is None and (path / header_path(0)).is_dir()):
        folder = FolderStorage(path)
        return ModelReader(ZarrArrays(text, folder, partial(_strict_store, path, folder), limits))
    if kind is Kind.ZIP:
        archive = ZipStorage(path)
        return ModelReader(ZarrArrays(text, archive, partial(_strict_store, path, archive), limits))
    if kind is Kind.SAFETENSORS:
        return open_safetensors(path, limits)
    if kind is Kind.HDF5:
        # h5py is imported only for HDF5 files.
        from bf16codecs.store.hdf5.reader import open_hdf5

        return open_hdf5(path, limits)
    none_in = "no Zarr group, no safetensors"
    if not path.is_dir():
        is_file = path.is_file()
        is_empty = is_file and not path.stat().st_size
        why = "it is empty" if is_empty else "neither a folder, nor a ZIP, HDF5 or safetensors file"
        # If it has the name of a store, its first bytes are damaged, or all of them gone.
        is_damaged = is_file and suffix_of(path.name)[1] is not None
        raise StoreError(f"{text}: {damaged(why) if is_damaged else f'not a model store: {why}'}")
    stores = sorted(name for name in os.listdir(path) if suffix_of(name)[1] is not None)
    advice = f"; name what is in it, such as {stores[0]!r:.80}" if stores else ""
    raise StoreError(f"{text}: not a model store: {none_in}{advice}")


def _strict_store(path: Path, storage: LocalStorage) -> StrictStore:
    """Open a folder or a ZIP file with zarr, which is imported only for that."""
    from bf16codecs.store.remote.opening import strict_store

    return strict_store(path, storage)
