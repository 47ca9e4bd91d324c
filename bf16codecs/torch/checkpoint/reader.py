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
from bf16codecs.store.kinds import detect, path_of
from bf16codecs.store.objects import read_checkpoint, read_object
from bf16codecs.store.opening import split_step
from bf16codecs.store.reader import ModelReader
from bf16codecs.store.zarr.metadata import NoGroupError
from bf16codecs.torch.checkpoint.threads import count_sharing, thread_share, usable_processors
from bf16codecs.torch.tensors import TORCH_DTYPES

if TYPE_CHECKING:
    from bf16codecs.cuda.device import Device

__all__ = ["StoreReader"]

# The metadata file of checkpoints of PyTorch's own writer.
_TORCH_METADATA = ".metadata"


class StoreReader(StorageReader):
    """Reads model stores, for `torch.distributed.checkpoint.load`.

    Each process decodes only the blocks that its shards need, however many processes wrote the
    checkpoint. Other model stores can also be read; they have tensors alone.

    Objects other than tensors are PyTorch's pickles, and may run code when they are loaded. By
    default, only those are loaded that `torch.load` loads with ``weights_only=True``.

    Parameters
    ----------
    path
        Whatever `bf16codecs.open_model` opens, or a folder of checkpoints, if
        ``load(..., checkpoint_id=...)`` names one in it. A store is opened here to check it, and
        closed again until `load`.
    base, storage_options, max_bytes
        As `bf16codecs.open_model` takes them.
    cast
        Convert to the dtypes of the tensors to load into, by PyTorch. By default, another dtype is
        an error.
    threads
        How many threads each process uses; by default its part of the machine's cores.
    weights_only
        As `torch.load` takes it: refuse objects of other classes than PyTorch's, Python's simplest,
        and those of `torch.serialization.add_safe_globals`. With False, an object may run any code:
        use it only for checkpoints that you trust.

    Raises
    ------
    FileNotFoundError
        If the path does not exist.
    StoreError, bf16codecs.errors.CodecError
        If it is not a store, or is a checkpoint that PyTorch itself reads, or its lists of tensors
        and objects are damaged. An address without a store, and without the suffix ``.zarr``, may
        be a folder of checkpoints, and is an error only in `load`.
    TypeError
        If `weights_only` is not a bool.

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
        """Begin to load, from another path if one is given."""
        self.close()
        if checkpoint_id:
            self._set_path(checkpoint_id)

    def _set_path(self, path: str | os.PathLike[str]) -> None:
        """Set a path, and open it once: errors of `load` come in a hundred lines of torch's."""
        self.path = given_path(path, "checkpoint")
        if _may_have_checkpoints(self.path):
            return
        try:
            self._opened()
        except NoGroupError:
            # At addresses, a folder of checkpoints looks like a missing store.
            if path_of(self.path) is not None or self.path.endswith(".zarr"):
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
            # Assigned last: torch calls again after a failure.
            model = open_model(self.path, *self._arguments)
            try:
                self._checkpoint = read_checkpoint(model._handle.opened) or Checkpoint()
            except BaseException:
                model.close()
                raise
            self._model = model
        return self._model

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the store's contents as torch's metadata.

        Each tensor is listed as one piece; processes request parts of it.
        """
        self.close()  # since the last load, another checkpoint may have taken its path
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
            If a tensor is to be loaded into one of another dtype, and `cast` is false.
        ValueError
            If one is to be loaded into a tensor of a class that computes its numbers from other
            data.
        StoreError
            If an object may run code, and `weights_only` is true.
        """
        opened = self._opened()._handle.opened
        processes = plan.storage_data if isinstance(plan.storage_data, int) else 1
        with codec_threads(self._threads or thread_share(processes)):
            objects = [item for item in plan.items if item.type is LoadItemType.BYTE_IO]
            contents = [self._object(opened, item.storage_index.fqn) for item in objects]
            for item, content in zip(objects, contents, strict=True):
                planner.load_bytes(item, content)
            tensors = (item for item in plan.items if item.type is not LoadItemType.BYTE_IO)
            boxes = [_BoxRead.of(opened, item, planner, self._cast) for item in tensors]
            works = (work_with_bases(opened, box.name, box.work) for box in boxes)
            opened.check_size(sum(box.nbytes for box in boxes), "what is loaded", sum(works))
            concurrency = max(1, min((box.array.concurrency for box in boxes), default=1))
            direct = [(box, box.memory) for box in boxes if box.memory is not None]
            scratch = max((box.array.scratch_nbytes for box, _ in direct), default=0)
            run_all((job for box, out in direct for job in box.jobs(out)), concurrency, scratch)
            on_gpus = [box for box in boxes if box.gpu is not None]
            _read_onto_gpus(self._opened(), on_gpus, self._threads or LOADING_THREADS)
            for box in boxes:
                if box.memory is None and box.gpu is None:
                    box.copy(concurrency)
                else:  # autograd cannot see these writes
                    torch.autograd.graph.increment_version(box.target)
                planner.commit_tensor(box.item, box.target)
        self.close()
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _object(self, opened: ModelReader, name: str) -> io.BytesIO:
        """Return the bytes of an object, for the planner to unpickle."""
        content = read_object(opened, self._checkpoint.objects[name])
        if not self._weights_only:
            return io.BytesIO(content)
        return _harmless(content, f"{opened.where}: object {name!r:.300}")

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Tell whether this may be a checkpoint: any path or address."""
        return bool(os.fspath(checkpoint_id))

    def __repr__(self) -> str:
        return f"<StoreReader {self.path}>"


def _may_have_checkpoints(path: str) -> bool:
    """Tell whether a path is a folder, not a store; raise StoreError for PyTorch's checkpoints."""
    if "://" in path:
        return False
    path, _ = split_step(path)
    if os.path.isfile(os.path.join(path, _TORCH_METADATA)):
        raise StoreError(
            f"{path}: a checkpoint of PyTorch's FileSystemWriter: FileSystemReader reads it"
        )
    return os.path.isdir(path) and detect(path) is None


def _read_onto_gpus(model: Model, boxes: Sequence[_BoxRead], threads: int) -> None:
    """Decode boxes into the memory of their targets on GPUs."""
    by_device: defaultdict[torch.device, list[_BoxRead]] = defaultdict(list)
    for box in boxes:
        by_device[box.target.device].append(box)
    for device, reads in by_device.items():
        targets = [Target(model[box.name], box.target.data_ptr(), box.axes) for box in reads]
        gpu = reads[0].gpu
        assert gpu is not None
        read_into_torch(device, gpu, targets, min(threads, LOADING_THREADS))


def _tensor_metadata(name: str, dtype: str, shape: tuple[int, ...]) -> TensorStorageMetadata:
    if dtype not in TORCH_DTYPES:
        raise StoreError(f"tensor {name!r}: this PyTorch has no dtype for {dtype}")
    size = torch.Size(shape)
    whole = ChunkStorageMetadata(torch.Size([0] * len(size)), size)
    return TensorStorageMetadata(TensorProperties(dtype=TORCH_DTYPES[dtype]), size, [whole])


@dataclass(frozen=True)
class _BoxRead:
    """A box of a stored tensor, and the tensor to read it into."""

    item: ReadItem
    array: ArrayReader
    #: The safetensors dtype.
    stored_dtype: str
    target: torch.Tensor
    #: The target's memory, if the CPU can decode into it.
    memory: NDArray[Any] | None
    #: The GPU of the target, if it can decode into its memory.
    gpu: Device | None

    @classmethod
    def of(cls, opened: ModelReader, item: ReadItem, planner: LoadPlanner, cast: bool) -> _BoxRead:
        name = item.storage_index.fqn
        array, stored = opened.tensor(name)
        opened.check_header(name)
        stored = stored or next(k for k, dtype in ARRAY_DTYPES.items() if dtype == array.dtype.name)
        target = plain_tensor(planner.resolve_tensor(item), name).detach()
        dtype, memory, gpu = TORCH_DTYPES[stored], None, None
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
        return cls(item, array, stored, target, memory, gpu)

    @property
    def name(self) -> str:
        """The name of the tensor in the store."""
        return self.item.storage_index.fqn

    @property
    def axes(self) -> list[range]:
        """The indices along each axis."""
        item = self.item
        extents = zip(item.storage_offsets, item.lengths, strict=True)
        return [range(offset, offset + length) for offset, length in extents]

    @property
    def nbytes(self) -> int:
        """Size of the box."""
        return math.prod(self.item.lengths) * self.array.dtype.itemsize

    @property
    def work(self) -> int:
        """The number of bytes that are decoded for it."""
        return self.array.box_work(self.axes).total

    def jobs(self, out: NDArray[Any]) -> Iterator[Job]:
        """Yield the jobs that read the box."""
        return self.array.box_jobs(self.axes, out)

    def copy(self, concurrency: int) -> None:
        """Read the box, and copy it to a target on another device, or of another dtype."""
        values = np.empty(tuple(self.item.lengths), self.array.dtype)
        run_all(self.jobs(values), concurrency, self.array.scratch_nbytes)
        self.target.copy_(as_tensor(values, self.stored_dtype))


def _harmless(content: bytes, label: str) -> io.BytesIO:
    """Load an object without running code, and return it as PyTorch saves it anew.

    Another loader may find another object in `content`. Raises StoreError if ``weights_only``
    refuses it.
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
            " (torch.serialization.add_safe_globals), or, if you trust the checkpoint's author,"
            " read it with StoreReader(..., weights_only=False)"
        ) from e
    except Exception as e:  # damaged objects raise anything
        raise StoreError(f"{label}: not loaded with weights_only=True: {one_line(e)}") from e
    saved.seek(0)
    return saved


def _unsafe_names(content: bytes) -> list[str]:
    """Return the names of classes and functions that would have to be allowed, if available."""
    with suppress(Exception):
        return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(content)))
    return []
