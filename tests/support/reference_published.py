"""A second reader of published runs, written from docs/published_runs.md alone.

It translates the keys of the run store that a published run stands for.
"""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

import reference_decoder
from reference_checksum import checksum
from reference_store import ReferenceStore, box, fill_value, joined

MAGIC = bytes([0xBF, 0x16, 0xC0, 0xDE])
NO_PARENT = 65535


class ReferencePublished(ReferenceStore):
    """A step of a published run."""

    def __init__(self, path: Path, step: int) -> None:
        self.path = path
        self.published = json.loads(super().read("zarr.json"))["attributes"]["bf16codecs"]
        assert self.published["layout"] == 3
        self.plan = json.loads(super().read(self.published["published"]["plan"]))
        self.packs: dict[tuple[int, str], dict[tuple[int, int], bytes]] = {}
        super().__init__(path, step)

    @property
    def steps(self) -> list[dict[str, Any]]:
        return self.published["steps"]

    @property
    def group(self) -> int:
        return self.published["published"]["group"]

    def slot(self, index: int) -> int:
        return (self.published["published"]["dropped"] + index) % self.group

    def documents(self) -> dict[str, Any]:
        return self.plan["root"]["consolidated_metadata"]["metadata"]

    def paths(self) -> list[str]:
        placements = self.plan["root"]["attributes"]["bf16codecs"]["tensors"].values()
        return sorted({each["path"] for of_tensor in placements for each in of_tensor})

    def read(self, key: str) -> bytes:
        if key == "zarr.json":
            return self.root_document()
        folder, _, name = key.rpartition("/")
        if name == "zarr.json":
            return json.dumps(self.documents()[folder]).encode()
        if folder == "safetensors/header/0":
            return self.plan["header"].encode()
        group, *index = map(int, name.split(".")[1:])
        if folder == "step":
            numbers = [step["step"] for step in self.steps]
            chunk = np.zeros(4096, "<i8")
            part = numbers[4096 * group : 4096 * (group + 1)]
            chunk[: len(part)] = part
            return chunk.tobytes()
        return self.growing_frame(folder, group, index)

    def root_document(self) -> bytes:
        root = json.loads(json.dumps(self.plan["root"]))
        (only,) = root["attributes"]["bf16codecs"]["steps"]
        root["attributes"]["bf16codecs"]["steps"] = [
            {
                "step": step["step"],
                "files": only["files"],
                "parent": index - 1 if self.slot(index) else None,
            }
            for index, step in enumerate(self.steps)
        ]
        return json.dumps(root).encode()

    def growing_frame(self, path: str, group: int, index: list[int]) -> bytes:
        document = self.documents()[path]
        shape = document["shape"][1:]
        chunks = document["chunk_grid"]["configuration"]["chunk_shape"][1:]
        number = 0
        for at, size, chunk in zip(index, shape, chunks, strict=True):
            number = number * -(-size // chunk) + at
        first = group * self.group
        frames = [
            self.frame(first + slot, "change" if slot else "whole", path, number)
            for slot, _ in enumerate(self.steps[first : first + self.group])
        ]
        dtype, k = frames[0][6] & 15, frames[0][7] & 31
        head = MAGIC + bytes([2, 16, dtype, k]) + frames[0][8:16]
        head += struct.pack("<IQ", self.group, 0)
        head += struct.pack("<I", checksum(head))
        directory, end = head, len(head) + 16 * self.group
        for slot in range(self.group):
            if slot < len(frames):
                end += len(frames[slot])
                entry = struct.pack("<QHH", end, slot - 1 if slot else NO_PARENT, 0)
                directory += entry + struct.pack("<I", checksum(entry))
            else:
                directory += bytes(16)
        return b"".join([directory, *frames])

    def frame(self, index: int, kind: str, path: str, chunk: int) -> bytes:
        """Return a frame of a step, from the packs of a kind."""
        if (index, kind) not in self.packs:
            found: dict[tuple[int, int], bytes] = {}
            step = self.steps[index]
            for name, size in step[kind].items():
                content = ReferenceStore.read(self, f"{step['key']}/{name}")
                assert len(content) == size
                assert content[:8] == b"BF16PACK"
                at = 12 + int.from_bytes(content[8:12], "little")
                for array, number, nbytes in json.loads(zlib.decompress(content[12:at]))["frames"]:
                    assert (array, number) not in found
                    found[array, number] = content[at : at + nbytes]
                    at += nbytes
                assert at == size
            self.packs[index, kind] = found
        return self.packs[index, kind][self.paths().index(path), chunk]

    def changed(self, name: str, before: np.ndarray) -> np.ndarray:
        """Return a tensor, from what it was at the step before, by what has changed alone."""
        assert self.place is not None
        path = self.tensors[name]
        grid = self.documents()[path]["chunk_grid"]["configuration"]["chunk_shape"]
        chunks = tuple(grid[1:])
        number = iter(range(1 << 30))

        def decode(index: tuple[int, ...], nbytes: int) -> bytes:
            padded = np.full(chunks, fill_value(before.dtype), before.dtype)
            part = before[box(index, chunks, before.shape)]
            padded[tuple(slice(0, n) for n in part.shape)] = part
            assert self.place is not None
            frame = self.frame(self.place, "change", path, next(number))
            return reference_decoder.decode(frame, padded.tobytes())

        return joined(before.shape, chunks, before.dtype, decode)
