"""A reader of checkpoints for `torch.distributed.checkpoint`."""

from __future__ import annotations

import io
import math
import os
import pickle
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed.checkpoint import LoadPlan, LoadPlanner, Metadata, StorageReader
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem
from torch.futures import Future

from bf16codecs._arrays.array import ArrayReader, Job
from bf16codecs._arrays.on_device import decodes_there
from bf16codecs._base.dtypes import ARRAY_DTYPES
from bf16codecs._base.messages import few, one_line
from bf16codecs._base.paths import given_path
from bf16codecs._base.threads import codec_threads, run_all
from bf16codecs._base.torch_tensors import as_tensor, is_memory_of, memory_of, plain_tensor
from bf16codecs.errors import StoreError
from bf16codecs.model.gpu import LOADING_THREADS, Target, gpu_of, read_into_torch
from bf16codecs.model.model import Model, open_model
from bf16codecs.store.bases import work_with_bases
from bf16codecs.store.checkpoint import Checkpoint
from bf16codecs.store.kinds import detect
from bf16codecs.store.objects import read_checkpoint, read_object
from bf16codecs.store.opening import split_step
from bf16codecs.store.reader import ModelReader
from bf16codecs.store.zarr.metadata import NoGroupError
from bf16codecs.torch.checkpoint.threads import count_sharing, thread_share, usable_processors
from bf16codecs.torch.tensors import TORCH_DTYPES

if TYPE_CHECKING:
    from bf16codecs.cuda.device import Device

__all__ = ["StoreReader"]

# A file of checkpoints that PyTorch's own writer makes.
_TORCH_METADATA = ".metadata"


class StoreReader(StorageReader):
    """Reads model stores, for `torch.distributed.checkpoint.load`.

    Each process decodes the blocks that its shards need, and nothing else, whatever number of
    processes wrote the checkpoint. A store that no training job wrote is also read: it has tensors
    alone.

    Objects that are no tensors are PyTorch's pickles, and may run code when they are loaded. By
    default, only those are loaded that `torch.load` loads with ``weights_only=True``.

    Parameters
    ----------
    path
        Whatever `bf16codecs.open_model` opens, or a folder, if ``load(..., checkpoint_id=...)`` is
        given what is in it. It is opened here, and closed until it is loaded.
    base, storage_options, max_bytes
        As `bf16codecs.open_model` takes them.
    cast
        Load into tensors of another dtype, with a conversion by PyTorch. By default that is an
        error.
    threads
        How many threads each process uses; by default its part of the machine's cores.
    weights_only
        As `torch.load` takes it: refuse objects of other classes than PyTorch's, Python's simplest,
        and those of `torch.serialization.add_safe_globals`. With False, whatever is in an object is
        run: for checkpoints that you trust.

    Raises
    ------
    FileNotFoundError
        If nothing is there.
    StoreError, bf16codecs.errors.CodecError
        If it is no store, or what it says of its tensors and objects is damaged, or a checkpoint
        that PyTorch itself reads. At an address, `load` tells what has no store.
    TypeError
        If `weights_only` is no bool.

    Examples
    --------
    >>> import torch.distributed.checkpoint as dcp
    >>> from bf16codecs.torch.checkpoint import StoreReader
    >>> dcp.load(state, storage_reader=StoreReader("run/step-600.zarr"))  # doctest: +SKIP
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        base: Any = None,
        storage_options: Mapping[str, Any] | None = None,
        max_bytes: int | None = None,
        cast: bool = False,
        threads: int | None = None,
        weights_only: bool = True,
    ) -> None:
        super().__init__()
        if not isinstance(weights_only, bool):
            raise TypeError(f"weights_only must be True or False, not {weights_only!r:.80}")
        self._arguments = storage_options, max_bytes, base
        self._cast, self._threads, self._weights_only = cast, threads, weights_only
        self._model: Model | None = None
        self._checkpoint = Checkpoint()
        self._set_path(path)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_model": None}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin to load, from another path if there is one."""
        self.close()
        if checkpoint_id:
            self._set_path(checkpoint_id)

    def _set_path(self, path: str | os.PathLike[str]) -> None:
        """Set a path and try to open it: in `load`, torch reports errors in a hundred lines."""
        self.path = given_path(path, "checkpoint")
        if _may_have_checkpoints(self.path):
            return
        try:
            self._opened()
        except NoGroupError:
            if "://" not in self.path:  # at addresses, a folder looks like a missing store
                raise
        finally:
            self.close()

    def close(self) -> None:
        """Close the store."""
        if self._model is not None:
            self._model.close()
            self._model = None

    def _opened(self) -> Model:
        if self._model is None:
            # Assigned once all is read: torch asks again after a failure.
            model = open_model(self.path, *self._arguments)
            try:
                self._checkpoint = read_checkpoint(model._home.opened) or Checkpoint()
            except BaseException:
                model.close()
                raise
            self._model = model
        return self._model

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the store's contents as torch's metadata.

        Each tensor is one piece: processes ask for parts of it.
        """
        self.close()  # another checkpoint may have that name since the load before
        model = self._opened()
        entries: dict[str, Any] = dict.fromkeys(self._checkpoint.objects, BytesStorageMetadata())
        for name, tensor in model.items():
            entries[name] = _tensor_metadata(name, tensor.get_dtype(), tensor.shape)
        return Metadata(entries, planner_data=dict(self._checkpoint.names) or None)

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Do nothing: the store is open."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Report the processors that this process may use."""
        return replace(plan, storage_data=usable_processors())

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Give each process the number of processes that share its processors."""
        processors = [plan.storage_data for plan in plans]
        return [
            replace(plan, storage_data=count_sharing(plan.storage_data, processors))
            for plan in plans
        ]

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read the tensors and objects of this process's plan.

        Raises
        ------
        TypeError
            If a tensor is to be loaded into one of another dtype, and nothing is said of `cast`.
        ValueError
            If one is to be loaded into a tensor of a class that computes its numbers from other
            data.
        StoreError
            If an object might run code, and `weights_only` is true.
        """
        opened = self._opened()._home.opened
        processes = plan.storage_data if isinstance(plan.storage_data, int) else 1
        with codec_threads(self._threads or thread_share(processes)):
            objects = [item for item in plan.items if item.type is LoadItemType.BYTE_IO]
            contents = [self._object(opened, item.storage_index.fqn) for item in objects]
            for item, content in zip(objects, contents, strict=True):
                planner.load_bytes(item, content)
            tensors = (item for item in plan.items if item.type is not LoadItemType.BYTE_IO)
            wanted = [_Wanted.of(opened, item, planner, self._cast) for item in tensors]
            works = (work_with_bases(opened, own.name, own.work) for own in wanted)
            sizes = sum(own.nbytes for own in wanted), sum(works)
            opened.check_size(sizes[0], "what is loaded", sizes[1])
            concurrency = max(1, min((own.array.concurrency for own in wanted), default=1))
            direct = [(own, own.memory) for own in wanted if own.memory is not None]
            scratch = max((own.array.scratch_nbytes for own, _ in direct), default=0)
            run_all((job for own, out in direct for job in own.jobs(out)), concurrency, scratch)
            there = [own for own in wanted if own.gpu is not None]
            _read_onto_gpus(self._opened(), there, self._threads or LOADING_THREADS)
            for own in wanted:
                if own.memory is None and own.gpu is None:
                    own.copy(concurrency)
                else:  # autograd does not see that it was written to
                    torch.autograd.graph.increment_version(own.target)
                planner.commit_tensor(own.item, own.target)
        self.close()
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _object(self, opened: ModelReader, name: str) -> io.BytesIO:
        """Return the bytes of an object, which a planner unpickles."""
        content = read_object(opened, self._checkpoint.objects[name])
        if not self._weights_only:
            return io.BytesIO(content)
        return _harmless(content, f"{opened.where}: object {name!r:.300}")

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Tell whether something may be there."""
        return bool(os.fspath(checkpoint_id))

    def __repr__(self) -> str:
        return f"<StoreReader {self.path}>"


def _may_have_checkpoints(path: str) -> bool:
    """Return whether a path is a folder and no store; raise StoreError if PyTorch reads it."""
    if "://" in path:
        return False
    place, _ = split_step(path)
    if os.path.isfile(os.path.join(place, _TORCH_METADATA)):
        raise StoreError(
            f"{place}: a checkpoint of PyTorch's FileSystemWriter: FileSystemReader reads it"
        )
    return os.path.isdir(place) and detect(place) is None


def _read_onto_gpus(model: Model, wanted: Sequence[_Wanted], threads: int) -> None:
    """Decode boxes to where they go on GPUs."""
    by_device: defaultdict[torch.device, list[_Wanted]] = defaultdict(list)
    for own in wanted:
        by_device[own.target.device].append(own)
    for device, there in by_device.items():
        targets = [Target(model[own.name], own.target.data_ptr(), own.axes) for own in there]
        gpu = there[0].gpu
        assert gpu is not None
        read_into_torch(device, gpu, targets, min(threads, LOADING_THREADS))


def _tensor_metadata(name: str, kind: str, shape: tuple[int, ...]) -> TensorStorageMetadata:
    if kind not in TORCH_DTYPES:
        raise StoreError(f"tensor {name!r}: this PyTorch has no dtype for {kind}")
    size = torch.Size(shape)
    whole = ChunkStorageMetadata(torch.Size([0] * len(size)), size)
    return TensorStorageMetadata(TensorProperties(dtype=TORCH_DTYPES[kind]), size, [whole])


@dataclass(frozen=True)
class _Wanted:
    """A box of a tensor, and where it goes."""

    item: ReadItem
    array: ArrayReader
    kind: str
    target: torch.Tensor
    #: Of the target, if it can be decoded into.
    memory: NDArray[Any] | None
    #: That has the target's memory, if it can be decoded there.
    gpu: Device | None

    @classmethod
    def of(cls, opened: ModelReader, item: ReadItem, planner: LoadPlanner, cast: bool) -> _Wanted:
        name = item.storage_index.fqn
        array, kind = opened.tensor(name)
        opened.check_header(name)
        kind = kind or next(k for k, dtype in ARRAY_DTYPES.items() if dtype == array.dtype.name)
        target = plain_tensor(planner.resolve_tensor(item), name).detach()
        dtype, memory, gpu = TORCH_DTYPES[kind], None, None
        if target.dtype != dtype and not cast:
            raise TypeError(
                f"tensor {name!r}: is {dtype} in {opened.where}, and to be loaded into"
                f" {target.dtype}: StoreReader(..., cast=True) converts it"
            )
        if target.shape != item.lengths:
            shapes = tuple(item.lengths), tuple(target.shape)
            raise ValueError(f"tensor {name!r}: {shapes[0]} is to be loaded into {shapes[1]}")
        if is_memory_of(target, dtype):
            memory = memory_of(target, array.dtype)
        elif (
            decodes_there(array) and is_memory_of(target, dtype, "cuda") and target.is_contiguous()
        ):
            gpu = gpu_of(target.device)
        return cls(item, array, kind, target, memory, gpu)

    @property
    def name(self) -> str:
        """The name of the tensor in the store."""
        return self.item.storage_index.fqn

    @property
    def axes(self) -> list[range]:
        """The indices along each axis."""
        item = self.item
        places = zip(item.storage_offsets, item.lengths, strict=True)
        return [range(offset, offset + length) for offset, length in places]

    @property
    def nbytes(self) -> int:
        """Size of the box."""
        return math.prod(self.item.lengths) * self.array.dtype.itemsize

    @property
    def work(self) -> int:
        """The number of bytes that are decoded for it."""
        return self.array.box_work(self.axes).total

    def jobs(self, out: NDArray[Any]) -> Iterator[Job]:
        """Yield what together reads the box."""
        return self.array.box_jobs(self.axes, out)

    def copy(self, concurrency: int) -> None:
        """Read the box, and copy it to where it goes: another device, or dtype."""
        values = np.empty(tuple(self.item.lengths), self.array.dtype)
        run_all(self.jobs(values), concurrency, self.array.scratch_nbytes)
        self.target.copy_(as_tensor(values, self.kind))


def _harmless(content: bytes, label: str) -> io.BytesIO:
    """Load an object without running code, and return it as PyTorch saves it anew.

    Other loaders may read other things in `content`. Raises StoreError if ``weights_only`` fails.
    """
    saved = io.BytesIO()
    try:
        torch.save(torch.load(io.BytesIO(content), weights_only=True), saved)
    except MemoryError:
        raise
    except pickle.UnpicklingError as e:
        names = _unsafe_names(content)
        has = f"has {few(names, 3)}, and " if names else ""
        raise StoreError(
            f"{label}: {has}may run code when it is loaded: allow the classes that you know"
            " (torch.serialization.add_safe_globals), or, if you trust who wrote the checkpoint,"
            " read it with StoreReader(..., weights_only=False)"
        ) from e
    except Exception as e:  # of damaged ones, anything
        raise StoreError(f"{label}: not loaded with weights_only=True: {one_line(e)}") from e
    saved.seek(0)
    return saved


def _unsafe_names(content: bytes) -> list[str]:
    """Return the names of classes and functions that would have to be allowed, if any tells."""
    with suppress(Exception):
        return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(content)))
    return []
