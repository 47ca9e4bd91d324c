"""A second reader of model stores and runs, written from docs/store.md and docs/runs.md alone.

Of Zarr format 3, in folders and ZIP files, with the codecs of this package and Zstandard.
"""

from __future__ import annotations

import itertools
import json
import math
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (NumPy's bfloat16 and float8)
import numpy as np
from numcodecs import Zstd

import reference_decoder
import reference_growing

Place = int | None


class ReferenceStore:
    """A store, or one step of a run."""

    def __init__(self, path: Path, step: int | None = None) -> None:
        self.path = path
        self.root = json.loads(self.read("zarr.json"))["attributes"]["bf16codecs"]
        self.place: Place = None
        self.content = self.root
        self.tensors: dict[str, Any] = self.root["tensors"]
        if step is not None:
            numbers = [entry["step"] for entry in self.root["steps"]]
            self.place = numbers.index(step)
            self.content = self.root["steps"][self.place]
            self.tensors = {
                name: form["path"] if "path" in form else {"rounded": form["rounded"]}
                for name, forms in self.root["tensors"].items()
                for form in forms
                if self.is_at(form)
            }
        self.base: ReferenceStore | None = None
        if "base" in self.root:
            place = self.root["base"]
            self.base = ReferenceStore(path.parent / place["path"], place.get("step"))

    def read(self, key: str) -> bytes:
        if self.path.is_dir():
            return (self.path / key).read_bytes()
        with zipfile.ZipFile(self.path) as archive:
            return archive.read(key)

    def is_at(self, form: dict[str, Any]) -> bool:
        spans = form.get("at", [[0, None]])
        assert self.place is not None
        return any(a <= self.place and (b is None or self.place < b) for a, b in spans)

    def files(self) -> dict[str, bytes]:
        """Return the files that the store restores."""
        found = {}
        for entry in self.content["files"]:
            if "outline" in entry:
                found[entry["name"]] = self.outlined(entry)
                continue
            header = self.array(entry["header"], None).tobytes()
            forms = {k: v for k, v in json.loads(header).items() if k != "__metadata__"}
            data = bytearray(max((v["data_offsets"][1] for v in forms.values()), default=0))
            for name, form in forms.items():
                begin, end = form["data_offsets"]
                data[begin:end] = self.tensor(name).tobytes()
            found[entry["name"]] = len(header).to_bytes(8, "little") + header + bytes(data)
        if "index" in self.content:
            entry = self.content["index"]
            found[entry["name"]] = self.array(entry["path"], None).tobytes()
        return found

    def outlined(self, entry: dict[str, Any]) -> bytes:
        """Return a file of another kind than safetensors."""
        outline = self.array(entry["outline"], None).tobytes()
        length = int.from_bytes(outline[:8], "little")
        text, others = json.loads(outline[8 : 8 + length]), outline[8 + length :]
        file = bytearray()
        for name, form in text["tensors"].items():
            gap = form["offset"] - len(file)
            file, others = file + others[:gap], others[gap:]
            file += self.tensor(name).tobytes()
        file += others
        assert len(file) == entry["size"]
        assert self.tensors.keys() >= text["tensors"].keys() | text.get("aliases", {}).keys()
        return bytes(file)

    def checkpoint(self) -> dict[str, Any]:
        """Return the text of a training job's checkpoint."""
        return json.loads(self.array(self.root["checkpoint"]["path"], None).tobytes())

    def objects(self) -> dict[str, bytes]:
        """Return the objects of a checkpoint that are not tensors."""
        path = self.root["checkpoint"].get("objects")
        whole = b"" if path is None else self.array(path, None).tobytes()
        places = self.checkpoint()["objects"].items()
        return {name: whole[start : start + size] for name, (start, size) in places}

    def tensor(self, name: str) -> np.ndarray:
        """Return a tensor's array."""
        value = self.tensors[name]
        if isinstance(value, str):
            # Several may have one path: a difference's is that of the others too.
            shared = [v for v in self.tensors.values() if isinstance(v, dict)]
            value = next((v for v in shared if v.get("difference") == value), value)
        if isinstance(value, str):
            return self.array(value, self.place)
        if "rounded" in value:
            owner = [n for n, v in self.tensors.items() if value["rounded"] in (v, _path_of(v))]
            return rounded(self.tensor(owner[0]))
        return self.difference(name, value)

    def array(self, path: str, place: Place) -> np.ndarray:
        """Return an array, or one step of it."""
        document = json.loads(self.read(f"{path}/zarr.json"))
        shape = tuple(document["shape"])
        chunks = tuple(document["chunk_grid"]["configuration"]["chunk_shape"])
        dtype = np.dtype(document["data_type"])
        names = [codec["name"] for codec in document["codecs"]]
        assert document["chunk_key_encoding"]["configuration"]["separator"] == "."

        def decode(key: str, slot: int | None, nbytes: int) -> bytes:
            content = self.read(f"{path}/{key}")
            for name in reversed(names):
                if name == "zstd":
                    content = Zstd().decode(content)
                elif name == "bf16codecs.blocks":
                    content = decoded(content, slot)
                else:
                    assert name == "bytes"
            assert len(content) == nbytes
            return content

        if place is None:
            return joined(shape, chunks, dtype, lambda i, n: decode(_key(i), None, n))
        group, slot = divmod(place, chunks[0])
        return joined(shape[1:], chunks[1:], dtype, lambda i, n: decode(_key((group, *i)), slot, n))

    def difference(self, name: str, value: dict[str, Any]) -> np.ndarray:
        """Return the tensor that is stored as a difference to the base's of the same name."""
        assert self.base is not None
        below = self.base.tensor(name)
        dtype = below.dtype
        if value["dtype"] == "BF16" and dtype == np.float32:
            below, dtype = rounded(below), np.dtype("bfloat16")
        if value["dtype"] == "F32" and dtype.name == "bfloat16":
            below = (below.view("u2").astype("u4") << 16).view("f4")
            dtype = below.dtype
        chunks = tuple(value.get("chunks", below.shape))

        def decode(index: tuple[int, ...], nbytes: int) -> bytes:
            padded = np.full(chunks, fill_value(dtype), dtype)
            part = below[box(index, chunks, below.shape)]
            padded[tuple(slice(0, n) for n in part.shape)] = part
            frame = self.read(f"{value['difference']}/{_key(index)}")
            return reference_decoder.decode(frame, padded.tobytes())

        return joined(below.shape, chunks, dtype, decode)


def fill_value(dtype: np.dtype[Any]) -> Any:
    """Return NaN for floats, all bits of which are those of NumPy's, and zero for others."""
    if dtype.kind == "c":
        return complex(np.nan, np.nan)
    return np.nan if dtype.kind in "fV" else 0


def decoded(content: bytes, slot: int | None) -> bytes:
    """Decode a chunk, or one version of it."""
    if slot is None:
        return reference_decoder.decode(content)
    return reference_growing.decode_versions(content)[slot]


def rounded(values: np.ndarray) -> np.ndarray:
    """Round FP32 to nearest, ties to even; a NaN's upper half, made quiet."""
    bits = values.view("u4").astype("u8")
    nearest = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return np.where(is_nan, bits >> 16 | 0x40, nearest).astype("u2").view("bfloat16")


def joined(shape: tuple[int, ...], chunks: tuple[int, ...], dtype: Any, decode: Any) -> np.ndarray:
    """Assemble an array from its chunks, the last of which are padded."""
    out = np.empty(shape, dtype)
    nbytes = math.prod(chunks) * dtype.itemsize
    counts = [-(-n // c) if c else 0 for n, c in zip(shape, chunks, strict=True)]
    for index in itertools.product(*map(range, counts)):
        place = box(index, chunks, shape)
        chunk = np.frombuffer(decode(index, nbytes), dtype).reshape(chunks)
        out[place] = chunk[tuple(slice(0, s.stop - s.start) for s in place)]
    return out


def box(index: tuple[int, ...], chunks: tuple[int, ...], shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Return the slices of an array that a chunk covers."""
    return tuple(
        slice(i * c, min((i + 1) * c, n)) for i, c, n in zip(index, chunks, shape, strict=True)
    )


def _key(index: tuple[int, ...]) -> str:
    return ".".join(["c", *map(str, index)])


def _path_of(value: Any) -> str:
    return value.get("difference", "") if isinstance(value, dict) else value
