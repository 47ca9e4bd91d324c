"""Load models from the page cache to a GPU: stores of this package, and safetensors files."""

from __future__ import annotations

import json
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bf16codecs._base import interrupt as _interrupt
from bf16codecs._base.dtypes import DTYPE_NAMES
from bf16codecs._files.reading import disk_size
from bf16codecs.bench.data import Bytes
from bf16codecs.bench.gpu.work import LEAST_SECONDS, TensorCopy, Work
from bf16codecs.convert import safetensors_to_zarr
from bf16codecs.model import open_model
from bf16codecs.model.gpu import Target, read_onto

__all__ = [
    "FILE",
    "STORES",
    "TORCH_FILE",
    "TORCH_STORE",
    "CopiedModel",
    "ModelLoader",
    "loaders",
    "torch_with_cuda",
]

#: References: for loaders that read to allocated memory, and for those that make PyTorch tensors.
FILE, TORCH_FILE = "safetensors file", "safetensors.torch"

#: Compared with them: stores, by codec, and a store loaded as PyTorch tensors.
STORES = {"arithmetic": "arithmetic store", "huffman": "huffman store"}
TORCH_STORE = "bf16codecs.torch"


class CopiedModel(Sequence[Bytes]):
    """A model of copies of tensors, no two of which are equal.

    Stores keep equal tensors once: equal copies would take no space, and would be read from the
    cache. So each copy is rotated by one item more than the one before.

    Parameters
    ----------
    work
        Tensors and their targets.
    nbytes
        Largest size of the model.

    Attributes
    ----------
    copies : list of TensorCopy
        Targets of the copies, each with its index in this sequence as `tensor`.
    """

    def __init__(self, work: Work, nbytes: int) -> None:
        self._tensors, self._item_size = work.tensors, work.item_size
        self.copies = [replace(copy, tensor=i) for i, copy in enumerate(work.first(nbytes))]

    def __len__(self) -> int:
        return len(self.copies)

    def __getitem__(self, index: Any) -> Any:
        """Return the bytes of a tensor."""
        copy, tensor = divmod(range(len(self))[index], len(self._tensors))
        return np.roll(self._tensors[tensor], -copy * self._item_size)


@dataclass(frozen=True)
class ModelLoader:
    """A way to load a model.

    Attributes
    ----------
    name : str
        Name in the table.
    reference : str
        Name of the loader that it is compared with.
    nbytes : int
        Size on the disk.
    load : callable
        Loads the model, and returns the addresses of the copies; None if they are in the work's
        `out`.
    """

    name: str
    reference: str
    nbytes: int
    load: Callable[[], Sequence[int] | None]

    def seconds(self) -> float:
        """Load the model; return the seconds taken."""
        begin = time.perf_counter()
        self.load()
        return max(LEAST_SECONDS, time.perf_counter() - begin)


def torch_with_cuda() -> Any:
    """Return PyTorch if it can use CUDA, and None otherwise."""
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


@contextmanager
def loaders(work: Work, model: CopiedModel) -> Iterator[list[ModelLoader]]:
    """Write a model in each format, yield its loaders, and remove the files.

    Parameters
    ----------
    work
        Targets of the tensors.
    model
        Contents of the tensors.
    """
    with _interrupt.temporary(), TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"
        _write(file, work, model)
        stores = {}
        for codec, name in STORES.items():
            store = Path(folder) / f"{codec}.zarr"
            safetensors_to_zarr(file, store, codec=codec, verify=False, sync=False)
            stores[name] = store
        ways = [_loader(FILE, file, work, model.copies)]
        ways += [_loader(name, store, work, model.copies) for name, store in stores.items()]
        if torch_with_cuda() is not None:
            ways += _torch_loaders(file, stores[STORES["arithmetic"]], work, len(model))
        yield ways


def _name(index: int) -> str:
    return f"model.{index}.weight"


def _write(path: Path, work: Work, model: CopiedModel) -> None:
    """Write a safetensors file."""
    dtype = next(name for name, item in DTYPE_NAMES.items() if item == work.dtype)
    header, end = {}, 0
    for copy in model.copies:
        shape = [copy.nbytes // work.item_size]
        offsets = [end, end + copy.nbytes]
        header[_name(copy.tensor)] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        end += copy.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for content in model:
            file.write(content.data)


def _loader(name: str, path: Path, work: Work, copies: Sequence[TensorCopy]) -> ModelLoader:
    def load() -> None:
        with open_model(path, max_bytes=sys.maxsize) as model:
            targets = [
                Target(model[_name(copy.tensor)], work.out.address + copy.offset) for copy in copies
            ]
            read_onto(work.device, targets)

    return ModelLoader(name, FILE, disk_size(path), load)


def _torch_loaders(file: Path, store: Path, work: Work, count: int) -> Iterator[ModelLoader]:
    """Yield loaders of PyTorch tensors, which keep the tensors until the next call."""
    import safetensors.torch
    import torch

    device = f"cuda:{work.device.ordinal}"
    kept: dict[str, Any] = {}

    def addresses() -> list[int]:
        torch.cuda.synchronize(device)
        return [kept[_name(i)].data_ptr() for i in range(count)]

    def load_file() -> list[int]:
        kept.clear()
        kept.update(safetensors.torch.load_file(file, device=device))
        return addresses()

    def load_store() -> list[int]:
        kept.clear()
        with open_model(store, None, sys.maxsize, None, "torch", device) as model:
            kept.update(model.load())
        return addresses()

    yield ModelLoader(TORCH_FILE, TORCH_FILE, disk_size(file), load_file)
    yield ModelLoader(TORCH_STORE, TORCH_FILE, disk_size(store), load_store)
