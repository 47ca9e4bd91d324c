"""Models loaded from the page cache to a GPU: stores of this package, and safetensors files."""

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
from bf16codecs.bench.gpu.work import LEAST_SECONDS, Piece, Work
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

#: What others are compared with: those that read to memory that is there, and PyTorch's tensors.
FILE, TORCH_FILE = "safetensors file", "safetensors.torch"

#: What is compared with them: stores, by their codecs, and what makes tensors of PyTorch.
STORES = {"arithmetic": "arithmetic store", "huffman": "huffman store"}
TORCH_STORE = "bf16codecs.torch"


class CopiedModel(Sequence[Bytes]):
    """A model of copies of tensors, no two of which are equal.

    Stores keep once what is the same: equal copies would be as small as the tensors themselves, and
    would be read from where the processor just was. So each copy begins an item later than the one
    before, and has at its end what that leaves out.

    Parameters
    ----------
    work
        Where the tensors are.
    nbytes
        What the model has room for.

    Attributes
    ----------
    pieces : list of Piece
        Where the copies are loaded to, each with its place in this sequence.
    """

    def __init__(self, work: Work, nbytes: int) -> None:
        self._tensors, self._item_size = work.tensors, work.item_size
        self.pieces = [replace(p, tensor=place) for place, p in enumerate(work.first(nbytes))]

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, place: Any) -> Any:
        """Return the bytes of the tensor at a place."""
        copy, tensor = divmod(range(len(self))[place], len(self._tensors))
        return np.roll(self._tensors[tensor], -copy * self._item_size)


@dataclass(frozen=True)
class ModelLoader:
    """A way to load a model.

    Attributes
    ----------
    name : str
        What the table calls it.
    reference : str
        The name of the one that it is compared with.
    nbytes : int
        Size on the disk.
    load : callable
        Loads the model, and returns where the pieces are; None: where the work has them.
    """

    name: str
    reference: str
    nbytes: int
    load: Callable[[], Sequence[int] | None]

    def seconds(self) -> float:
        """Load the model; return how long it took."""
        begin = time.perf_counter()
        self.load()
        return max(LEAST_SECONDS, time.perf_counter() - begin)


def torch_with_cuda() -> Any:
    """Return PyTorch if it has CUDA, and None otherwise."""
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


@contextmanager
def loaders(work: Work, model: CopiedModel) -> Iterator[list[ModelLoader]]:
    """Write a model in each form; yield what loads it. Then the files go.

    Parameters
    ----------
    work
        Where it is loaded to.
    model
        What it has.
    """
    with _interrupt.temporary(), TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"
        _write(file, work, model)
        stores = {}
        for codec, name in STORES.items():
            store = Path(folder) / f"{codec}.zarr"
            safetensors_to_zarr(file, store, codec=codec, verify=False, sync=False)
            stores[name] = store
        made = [_onto(FILE, file, work, model.pieces)]
        made += [_onto(name, store, work, model.pieces) for name, store in stores.items()]
        if torch_with_cuda() is not None:
            made += _of_torch(file, stores[STORES["arithmetic"]], work, len(model))
        yield made


def _name(place: int) -> str:
    return f"model.{place}.weight"


def _write(path: Path, work: Work, model: CopiedModel) -> None:
    """Write a safetensors file."""
    dtype = next(name for name, item in DTYPE_NAMES.items() if item == work.dtype)
    header, end = {}, 0
    for piece in model.pieces:
        shape = [piece.nbytes // work.item_size]
        offsets = [end, end + piece.nbytes]
        header[_name(piece.tensor)] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        end += piece.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for content in model:
            file.write(content.data)


def _onto(name: str, path: Path, work: Work, pieces: Sequence[Piece]) -> ModelLoader:
    def load() -> None:
        with open_model(path, max_bytes=sys.maxsize) as model:
            targets = [
                Target(model[_name(piece.tensor)], work.out.address + piece.offset)
                for piece in pieces
            ]
            read_onto(work.device, targets)

    return ModelLoader(name, FILE, disk_size(path), load)


def _of_torch(file: Path, store: Path, work: Work, count: int) -> Iterator[ModelLoader]:
    """Yield what makes so many tensors of PyTorch, which are kept until the next call."""
    import safetensors.torch
    import torch

    device = f"cuda:{work.device.ordinal}"
    kept: dict[str, Any] = {}

    def addresses() -> list[int]:
        torch.cuda.synchronize(device)
        return [kept[_name(place)].data_ptr() for place in range(count)]

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
