"""The content of a store that the fuzzer damages, and where damage cannot be detected.

A store is kept as the content of its files, by path; a store that is a file has one, with an empty
path.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

import bf16codecs
from bf16codecs._base.dtypes import DTYPE_BITS, DTYPE_NAMES
from bf16codecs._base.limits import is_addressable
from bf16codecs.store.attributes import ROUNDED
from store_fuzz_seeds import SEEDS, STEP

#: A safetensors header, where tensors are named.
HEADER = "(header)"
#: Several where an array stands for its copies and roundings too.
Names = frozenset[str]
#: First byte, the one after the last, and the tensors that lie there.
Region = tuple[int, int, Names]

# Codecs with a checksum of their content; Zarr's zstd has an optional one.
_CHECKED = (
    *("bf16codecs.huffman", "bf16codecs.arithmetic", "bf16codecs.zstd"),
    *("gzip", "zlib", "crc32c"),
)


@dataclass
class Truth:
    """The content of a model: its tensors, metadata and files."""

    metadata: dict[str, str]
    #: By name: safetensors' dtype, the shape there, and the bytes.
    tensors: dict[str, tuple[str, list[int], bytes]]
    files: dict[str, bytes]

    #: The other steps of a run.
    others: list[Truth] = field(default_factory=list)

    def is_elsewhere(self, found: NDArray[Any], selection: Any) -> bool:
        """Return whether a part belongs to another tensor of its form, or to another step.

        A step's index in a run is not verified (docs/trust.md, "What is not promised").
        """
        if not self.others:
            return False
        for truth in (self, *self.others):
            for name in truth.tensors:
                with suppress(IndexError):
                    if truth.array(name)[selection].tobytes() == found.tobytes():
                        return True
        return False

    def array(self, name: str) -> NDArray[Any]:
        """Return a tensor as readers should."""
        dtype, shape, raw = self.tensors[name]
        if not is_addressable(tuple(shape), DTYPE_BITS[dtype]):
            return np.frombuffer(raw, np.uint8)
        items = np.frombuffer(raw, DTYPE_NAMES.get(dtype, "uint8"))
        if items.size != math.prod(shape):  # packed: the shape of their bytes
            *rows, columns = shape
            bits = columns * DTYPE_BITS[dtype]
            return items.reshape((*rows, bits // 8) if bits % 8 == 0 else -1)
        return items.reshape(shape if items.size else -1)


def read_truth(original: Path) -> Truth:
    """Read a model without this package."""
    paths = sorted(original.iterdir()) if original.is_dir() else [original]
    truth = Truth({}, {}, {p.name if original.is_dir() else "": p.read_bytes() for p in paths})
    for name, raw in truth.files.items():
        if name.endswith(".json"):
            continue
        start = 8 + int.from_bytes(raw[:8], "little")
        for tensor, info in json.loads(raw[8:start]).items():
            if tensor == "__metadata__":
                truth.metadata.update(info)
                continue
            first, stop = info["data_offsets"]
            truth.tensors[tensor] = info["dtype"], info["shape"], raw[start + first : start + stop]
    return truth


@dataclass
class Seed:
    """A sound store, and its content."""

    name: str
    #: Name of the store's file or folder.
    store: str
    original: Path
    files: Mapping[str, bytes]
    #: By file: the bytes in which a change goes unnoticed if the tensor alone is read. Where
    #: no codec has a checksum only the digest tells, which `zarr2st` and `verify` look at.
    unchecked: Mapping[str, list[Region]]
    #: By file of a chunk in a folder: the tensors that the chunk belongs to.
    chunk_files: Mapping[str, Names] = field(default_factory=dict)
    #: Tensors and headers, by the paths of their arrays.
    names: dict[str, Names] = field(default_factory=dict)
    #: By tensor of a Zarr store: the filters before the codec.
    filters: dict[str, Any] = field(default_factory=dict)
    #: Paths of arrays that hold differences to a base.
    differences: frozenset[str] = frozenset()
    #: Whether a digest of its files detects what chunks do not, such as swapped chunks.
    has_digests: bool = True

    @cached_property
    def truth(self) -> Truth:
        """The content of the store."""
        truth = read_truth(self.original)
        if self.is_run:
            steps = self.original.parent.glob(f"{self.original.stem}-step*")
            truth.others = [read_truth(step) for step in steps]
        return truth

    @property
    def is_run(self) -> bool:
        """Whether the store is a run, of which a step is read."""
        return self.name.startswith("run")

    def model(self, path: Path) -> Path | str:
        """Return the path or store to open the model from."""
        return f"{path}@{STEP}" if self.is_run else path

    @property
    def is_folder(self) -> bool:
        """Whether the store is a folder."""
        return "" not in self.files

    @property
    def is_in_memory(self) -> bool:
        """Whether it is read from a store of zarr's in memory."""
        return self.name.startswith("memory")

    @property
    def is_hdf5(self) -> bool:
        """Whether the store is an HDF5 file."""
        return self.store.endswith(".h5")

    @property
    def is_zip(self) -> bool:
        """Whether the store is a ZIP file."""
        return self.store.endswith(".zip")


def load_seed(workspace: Path, name: str) -> Seed:
    """Read a seed."""
    store, original, _ = SEEDS[name]
    path = workspace / "seeds" / name / store
    found = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    files = {"" if p == path else p.relative_to(path).as_posix(): p.read_bytes() for p in found}
    seed = Seed(name, store, workspace / "originals" / original, files, {})
    with bf16codecs.open_model(seed.model(path)) as model:
        info = model._handle.opened.info
        for tensor, array in info.paths.items():
            array = array.removesuffix(ROUNDED)
            seed.names[array] = seed.names.get(array, frozenset()) | {tensor}
        seed.names |= {file.path: frozenset({HEADER}) for file in info.files}
        seed.differences = frozenset(info.differences)
        seed.has_digests = info.checkpoint is None or all(f.digests.kinds for f in info.files)
        seed.chunk_files, seed.unchecked = _regions(seed, path)
        if seed.store.endswith((".zarr", ".zip")):
            seed.filters = {name: filters_of(model, name) for name in model}
    return seed


def filters_of(model: bf16codecs.Model, name: str) -> Any:
    """Return the filters before a tensor's codec, in Zarr format 2."""
    opened = model._handle.opened
    path = opened.info.paths[name].removesuffix(ROUNDED)
    return None if path in opened.info.differences else opened.stored._document(path).get("filters")


def _regions(seed: Seed, path: Path) -> tuple[dict[str, Names], dict[str, list[Region]]]:
    if seed.is_hdf5:
        return {}, {"": _hdf5_regions(path, seed.names)}
    if seed.store.endswith((".zarr", ".zip")):
        keys = _zarr_chunks(seed)
        members = {key: (key, 0, len(content)) for key, content in seed.files.items()}
        if seed.is_zip:
            members = _zip_members(seed)
        unchecked: dict[str, list[Region]] = {}
        for key, (tensors, is_checked) in keys.items():
            file, start, stop = members[key]
            if not is_checked:
                unchecked.setdefault(file, []).append((start, stop, tensors))
        return {} if seed.is_zip else {k: t for k, (t, _) in keys.items()}, unchecked
    return {}, _safetensors_regions(seed)


def _zarr_chunks(seed: Seed) -> dict[str, tuple[Names, bool]]:
    """Return the keys of chunks: their tensors, and whether a checksum covers them."""
    keys = seed.files
    if seed.is_zip:
        keys = zip_contents(seed.files[""])
    found = {}
    for path, tensors in seed.names.items():
        for key in keys:
            name = key.removeprefix(f"{path}/")
            if name == key or name in ("zarr.json", ".zarray", ".zattrs"):
                continue
            found[key] = tensors, path in seed.differences or _is_checked(keys, path)
    return found


def _is_checked(keys: Mapping[str, bytes], path: str) -> bool:
    if f"{path}/.zarray" in keys:
        codec = json.loads(keys[f"{path}/.zarray"])["compressor"] or {"id": "none"}
        if codec["id"] == "zstd":
            return bool(codec.get("checksum"))
        return codec["id"] in _CHECKED
    document = json.loads(keys[f"{path}/zarr.json"])
    text = json.dumps(document["codecs"])
    if '"checksum": false' in text:
        return False
    return any(name in text for name in ('"checksum": true', *_CHECKED))


def zip_contents(raw: bytes) -> dict[str, bytes]:
    """Return the members of a ZIP file."""
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        return {member.filename: archive.read(member) for member in archive.infolist()}


def _zip_members(seed: Seed) -> dict[str, tuple[str, int, int]]:
    """Return where the data of each member lie."""
    raw, found = seed.files[""], {}
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        for member in archive.infolist():
            at = member.header_offset
            names = sum(int.from_bytes(raw[at + i : at + i + 2], "little") for i in (26, 28))
            start = at + 30 + names
            # Readers check the CRC-32 of deflated members.
            stop = start if member.compress_type else start + member.compress_size
            found[member.filename] = "", start, stop
    return found


def _hdf5_regions(path: Path, names: Mapping[str, Names]) -> list[Region]:
    """Return the data that no codec of this package covers."""
    regions: list[Region] = []
    with h5py.File(path) as file:
        for name, tensors in names.items():
            dataset = file[name].id
            properties = dataset.get_create_plist()
            filters = [properties.get_filter(i)[0] for i in range(properties.get_nfilters())]
            if filters == [bf16codecs.hdf5.filters.FILTER_ID] and "split" not in str(path.parent):
                continue
            if properties.get_layout() == h5py.h5d.CHUNKED:
                chunks = [dataset.get_chunk_info(i) for i in range(dataset.get_num_chunks())]
                regions += [(c.byte_offset, c.byte_offset + c.size, tensors) for c in chunks]
            elif dataset.get_offset() is not None:
                start = dataset.get_offset()
                regions.append((start, start + dataset.get_storage_size(), tensors))
    return regions


def _safetensors_regions(seed: Seed) -> dict[str, list[Region]]:
    found: dict[str, list[Region]] = {}
    for name, raw in seed.files.items():
        if name.endswith(".json"):
            continue
        start = 8 + int.from_bytes(raw[:8], "little")
        for tensor, info in json.loads(raw[8:start]).items():
            if tensor != "__metadata__":
                first, stop = info["data_offsets"]
                found.setdefault(name, []).append(
                    (start + first, start + stop, frozenset({tensor}))
                )
    return found
