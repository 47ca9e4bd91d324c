"""Models loaded from the page cache to a GPU: stores of this package, and safetensors files."""

from __future__ import annotations

import json
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bf16codecs import _interrupt
from bf16codecs._dtypes import DTYPE_NAMES
from bf16codecs._files import disk_size
from bf16codecs.bench.gpu.work import LEAST_SECONDS, Piece, Work
from bf16codecs.convert import safetensors_to_zarr
from bf16codecs.model import open_model
from bf16codecs.model.gpu import Target, read_onto

__all__ = [
    "FILE",
    "STORES",
    "TORCH_FILE",
    "TORCH_STORE",
    "ModelLoader",
    "loaders",
    "torch_with_cuda",
]

#: What others are compared with: those that read to memory that is there, and PyTorch's tensors.
FILE, TORCH_FILE = "safetensors file", "safetensors.torch"

#: What is compared with them: stores, by their codecs, and what makes tensors of PyTorch.
STORES = {"arithmetic": "arithmetic store", "huffman": "huffman store"}
TORCH_STORE = "bf16codecs.torch"


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
def loaders(work: Work, pieces: Sequence[Piece]) -> Iterator[list[ModelLoader]]:
    """Write a model of some pieces in each form; yield what loads it. Then the files go.

    Parameters
    ----------
    work
        Where they are loaded to.
    pieces
        What the model has.
    """
    with _interrupt.temporary(), TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"
        _write(file, work, pieces)
        stores = {}
        for codec, name in STORES.items():
            store = Path(folder) / f"{codec}.zarr"
            safetensors_to_zarr(file, store, codec=codec, verify=False, sync=False)
            stores[name] = store
        made = [_onto(FILE, file, work, pieces)]
        made += [_onto(name, store, work, pieces) for name, store in stores.items()]
        if torch_with_cuda() is not None:
            made += _of_torch(file, stores[STORES["arithmetic"]], work, pieces)
        yield made


def _name(place: int) -> str:
    return f"model.{place}.weight"


def _write(path: Path, work: Work, pieces: Sequence[Piece]) -> None:
    """Write a safetensors file."""
    dtype = next(name for name, item in DTYPE_NAMES.items() if item == work.dtype)
    header, end = {}, 0
    for place, piece in enumerate(pieces):
        shape = [piece.nbytes // work.item_size]
        offsets = [end, end + piece.nbytes]
        header[_name(place)] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        end += piece.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for piece in pieces:
            file.write(work.tensors[piece.tensor].data)


def _onto(name: str, path: Path, work: Work, pieces: Sequence[Piece]) -> ModelLoader:
    def load() -> None:
        with open_model(path, max_bytes=sys.maxsize) as model:
            targets = [
                Target(model[_name(place)], work.out.address + piece.offset)
                for place, piece in enumerate(pieces)
            ]
            read_onto(work.device, targets)

    return ModelLoader(name, FILE, disk_size(path), load)


def _of_torch(
    file: Path, store: Path, work: Work, pieces: Sequence[Piece]
) -> Iterator[ModelLoader]:
    """Yield what makes tensors of PyTorch: those of the last call are kept until the next."""
    import safetensors.torch
    import torch

    device = f"cuda:{work.device.ordinal}"
    kept: dict[str, Any] = {}

    def addresses() -> list[int]:
        torch.cuda.synchronize(device)
        return [kept[_name(place)].data_ptr() for place in range(len(pieces))]

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
