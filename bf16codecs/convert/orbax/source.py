"""An Orbax checkpoint as a model of one virtual safetensors file."""

from __future__ import annotations

import os
from collections import OrderedDict
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bf16codecs._base.buffers import Bytes
from bf16codecs._base.forks import make_lock
from bf16codecs._base.limits import Limits
from bf16codecs._base.messages import named_errors
from bf16codecs.convert.orbax.arrays import ArrayOpener, OrbaxArray, Scratch, read_database
from bf16codecs.convert.orbax.layout import KEY, Checkpoint, read_checkpoint
from bf16codecs.errors import StoreError
from bf16codecs.safetensors import Header, make_header
from bf16codecs.store.files import FilesReader, ModelFile, ReadBytes

__all__ = ["CheckpointReader", "open_checkpoint"]

# Decoded tensors in the cache: threads read adjacent ones.
_KEPT = 4
# Possible copies are first compared by 2,048 items. Decoding a whole tensor for that would be a
# waste: the cache drops it long before the conversion reaches it.
_SAMPLE_BYTES = 2048 * 8


class _Decoded:
    """The tensors of a checkpoint, with the last few decoded in temporary files."""

    def __init__(self, arrays: list[OrbaxArray], folder: Path) -> None:
        self._arrays, self._folder = arrays, folder
        self._lock = make_lock()
        self._kept: OrderedDict[int, Scratch] = OrderedDict()
        self._samples: dict[int, tuple[int, bytes]] = {}

    def read(self, number: int, start: int, out: Bytes) -> None:
        """Read bytes of a tensor; one thread decodes at a time, to bound the memory."""
        with self._lock:
            if self._read_sample(number, start, out):
                return
            scratch = self._get(number).shared()
        with closing(scratch):
            scratch.read(start, out)

    def close(self) -> None:
        """Remove the temporary files."""
        with self._lock:
            while self._kept:
                self._drop()

    def _read_sample(self, number: int, start: int, out: Bytes) -> bool:
        """Read a single sample of a tensor without decoding it; return False for other reads."""
        item_size = self._arrays[number].item_size
        if number in self._kept or out.size > _SAMPLE_BYTES or start % item_size:
            return False
        if number not in self._samples:
            self._arrays[number].read(start, out)
            self._samples[number] = start, out.tobytes()
            return True
        first, sample = self._samples[number]
        if (first, len(sample)) != (start, out.size):
            return False
        out[:] = np.frombuffer(sample, np.uint8)
        return True

    def _get(self, number: int) -> Scratch:
        if number not in self._kept:
            while len(self._kept) >= _KEPT:
                self._drop()
            self._kept[number] = self._arrays[number].decode(self._folder)
            self._samples.pop(number, None)
        self._kept.move_to_end(number)
        return self._kept[number]

    def _drop(self) -> None:
        _, scratch = self._kept.popitem(last=False)
        scratch.close()  # takes effect once its readers have closed it as well


class CheckpointReader(FilesReader):
    """Reads a checkpoint as a model of one file; `decoded` has tensors in the header's order."""

    is_shareable = False

    def __init__(
        self,
        root: Path,
        checkpoint: Checkpoint,
        header: Header,
        decoded: _Decoded,
        limits: Limits,
    ) -> None:
        def read(offset: int, out: Bytes) -> None:
            number, start = header.find(offset)
            decoded.read(number, start, out)

        content, name = ReadBytes(read, header.file_size), f"{root.name}.safetensors"
        file = ModelFile(name, header, content, str(root.with_name(name)))
        super().__init__(str(root), [file], limits, paths=[root], state=partial(_state, root))
        self.root, self.checkpoint, self._decoded = root, checkpoint, decoded

    def close(self) -> None:
        """Remove the decoded tensors."""
        super().close()
        self._decoded.close()


def _state(root: Path) -> dict[str, Any]:
    paths = [
        os.path.join(folder, name) for folder, _, names in os.walk(root) for name in sorted(names)
    ]
    status = {path: os.stat(path) for path in paths}
    return {path: (s.st_size, s.st_mtime_ns) for path, s in status.items()}


def open_checkpoint(
    root: Path, scratch: Path, limits: Limits, header: Header | None = None
) -> CheckpointReader:
    """Open a checkpoint; raise StoreError if a given `header` has other tensors.

    `scratch` is a folder with room for a few decoded tensors.
    """
    checkpoint = read_checkpoint(root, read_database)
    with named_errors(str(root)):
        locations = checkpoint.arrays()
    opener = ArrayOpener(root, str(root), limits)
    arrays = {name: opener.open(name, location) for name, location in locations.items()}
    if not arrays:
        raise StoreError(f"{root}: an Orbax checkpoint without arrays")
    if header is None:
        specs = {name: (array.dtype, array.shape) for name, array in arrays.items()}
        header = make_header(specs, {KEY: checkpoint.to_text()}, str(root))
    if arrays.keys() != {tensor.name for tensor in header.tensors}:
        raise StoreError(f"{root}: has other arrays than the original")
    ordered = [arrays[tensor.name] for tensor in header.tensors]
    return CheckpointReader(root, checkpoint, header, _Decoded(ordered, scratch), limits)
