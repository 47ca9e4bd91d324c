"""Stores for the tests of the zarrs codecs: arrays of each codec, and damaged ones."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 (its names are data types of NumPy then)
import numpy as np
import zarr

import bf16codecs
from bf16codecs import BF16Arithmetic, BF16Huffman, BF16Split, BF16Zstd
from bf16codecs.codecs import RunLength
from bf16codecs.convert import safetensors_to_zarr
from bf16codecs.errors import CodecError
from bf16codecs.zarr import BF16BlocksCodec
from makers.growing import grow
from models import entry, file_bytes
from strange_frames import damaged

ROWS, COLUMNS = 1700, 1000
BLOCKS = {"compressors": None, "fill_value": float("nan"), "config": {"write_empty_chunks": True}}


def weights(shape: tuple[int, ...], dtype: str = "bfloat16") -> np.ndarray:
    values = np.random.default_rng(1).normal(0, 0.02, shape)
    if np.dtype(dtype).kind == "c":
        return (values + 1j * values[::-1]).astype(dtype)
    return values.astype(dtype)


def create(path: Path, data: np.ndarray, **options: Any) -> None:
    """Write an array, and its items beside it."""
    zarr.create_array(path, data=data, **options)
    path.with_name(f"{path.name}.raw").write_bytes(np.ascontiguousarray(data).tobytes())


def of_blocks(folder: Path, codecs: dict[str, Any]) -> None:
    matrix = weights((ROWS, COLUMNS))
    for name, codec in codecs.items():
        create(folder / f"blocks-{name}", matrix, serializer=BF16BlocksCodec(codec),
               chunks=(850, COLUMNS), **BLOCKS)  # fmt: skip
    for dtype in ("float16", "float32", "float64", "complex64"):
        create(folder / f"blocks-{dtype}", weights((ROWS, COLUMNS), dtype),
               chunks=(ROWS, COLUMNS), serializer=BF16BlocksCodec("arithmetic"),
               **BLOCKS)  # fmt: skip
    create(folder / "blocks-uint8", weights((ROWS, 4 * COLUMNS)).view("u1")[:, ::4].copy(),
           chunks=(ROWS, 2 * COLUMNS), serializer=BF16BlocksCodec("huffman"),
           **BLOCKS | {"fill_value": 0})  # fmt: skip
    create(folder / "blocks-cube", weights((40, 50, 700)), chunks=(40, 50, 700),
           serializer=BF16BlocksCodec("huffman"), **BLOCKS)  # fmt: skip
    create(folder / "small", weights((30, 7)), serializer=BF16BlocksCodec("huffman"), **BLOCKS)
    create(folder / "shards", matrix[:1600, :500], serializer=BF16BlocksCodec("huffman"),
           chunks=(800, 500), shards=(1600, 500), **BLOCKS)  # fmt: skip


def with_missing_chunk(path: Path) -> None:
    matrix = weights((ROWS, COLUMNS))
    matrix[850:] = float("nan")
    create(path, matrix, serializer=BF16BlocksCodec("huffman"), chunks=(850, COLUMNS), **BLOCKS)
    (path / "c/1/0").unlink()


def of_steps(folder: Path) -> None:
    steps = np.stack([weights((1000, 1000))] * 4)
    steps[1:, ::7, ::5] *= 2
    create(folder / "blocks-steps", steps, chunks=steps.shape,
           serializer=BF16BlocksCodec(BF16Arithmetic(steps=4)), **BLOCKS)  # fmt: skip
    path = folder / "growing"
    padded = steps.copy()
    padded[3].view(np.uint8)[:] = 255
    create(path, padded, chunks=steps.shape,
           serializer=BF16BlocksCodec(BF16Huffman(steps=4)), **BLOCKS)  # fmt: skip
    (path / "c/0/0/0").write_bytes(grow(steps[:3], 4, dtype="bfloat16", block=1 << 15))


def of_compressors(folder: Path, codecs: dict[str, Any]) -> None:
    options = {"chunks": (500, COLUMNS), "fill_value": float("nan")}
    for name, codec in {**codecs, "rle": RunLength()}.items():
        create(folder / f"bytes-{name}", weights((ROWS, COLUMNS)), compressors=codec, **options)
    singles = weights((ROWS, COLUMNS), "float32")
    for name, codec in {
        "huffman": BF16Huffman("float32"), "auto": BF16Arithmetic("auto"), "rle": RunLength(),
    }.items():  # fmt: skip
        create(folder / f"v2-{name}", singles, compressors=codec, zarr_format=2, **options)


def of_a_model(folder: Path) -> None:
    """Take an array out of a store that a conversion wrote."""
    matrix = weights((ROWS, COLUMNS))
    store = folder.with_name("model.zarr")
    source = folder.with_name("model.safetensors")
    header = {"layers.0.weight": entry("BF16", matrix.shape)}
    source.write_bytes(file_bytes(header, matrix.tobytes()))
    safetensors_to_zarr(source, store)
    shutil.copytree(store / "layers/0/weight", folder / "blocks-model")
    (folder / "blocks-model.raw").write_bytes(matrix.tobytes())


def write_arrays(folder: Path, has_zstd: bool) -> None:
    """Write an array of each kind, and beside it `NAME.raw`."""
    folder.mkdir()
    codecs = {
        "split": BF16Split(),
        "by-byte": BF16Split(by="byte"),
        "huffman": BF16Huffman(),
        "no-checksums": BF16Huffman(checksum=False),
        "fast": BF16Arithmetic(),
        "best": BF16Arithmetic(level="best"),
    }
    if has_zstd:
        codecs["zstd"] = BF16Zstd(level=4)
    of_blocks(folder, codecs)
    with_missing_chunk(folder / "missing")
    of_steps(folder)
    of_a_model(folder)
    of_compressors(folder, codecs)


def damaged_chunks(frame: bytes, raw: bytes) -> Iterator[bytes]:
    for seed in range(6):
        yield from damaged(frame, seed)
    head = bytearray(frame)
    for at in range(64):
        head[at] ^= 255
        yield bytes(head)
        head[at] ^= 255
    codec = BF16Huffman()
    yield codec.encode(raw[:-2])
    yield codec.encode(raw + b"\0\0")
    yield bf16codecs.encode_delta(codec, raw, raw)
    yield b""


def write_damaged(folder: Path) -> None:
    """Write arrays with one damaged chunk, and beside each Python's error, or an empty file."""
    folder.mkdir()
    matrix = weights((700, COLUMNS))
    (folder / "original").write_bytes(matrix.tobytes())
    path = folder / "0"
    zarr.create_array(path, data=matrix, chunks=matrix.shape,
                      serializer=BF16BlocksCodec("huffman"), **BLOCKS)  # fmt: skip
    metadata = (path / "zarr.json").read_bytes()
    frame = (path / "c/0/0").read_bytes()
    (folder / "0.verdict").write_text("")
    for number, chunk in enumerate(damaged_chunks(frame, matrix.tobytes()), 1):
        path = folder / str(number)
        (path / "c/0").mkdir(parents=True)
        (path / "zarr.json").write_bytes(metadata)
        (path / "c/0/0").write_bytes(chunk)
        verdict = ""
        try:
            items = zarr.open_array(path, mode="r")[:]
            assert items.tobytes() == matrix.tobytes()
        except CodecError as error:
            verdict = str(error)
        path.with_name(f"{number}.verdict").write_text(verdict)


REFUSED: dict[str, list[Any]] = {
    "unknown-parameter": [{"name": "bf16codecs.blocks", "configuration": {"code": 1}}],
    "no-codec": [{"name": "bf16codecs.blocks", "configuration": {"codec": {"name": "zstd"}}}],
    "unknown-key": [
        {
            "name": "bf16codecs.blocks",
            "configuration": {"codec": {"name": "bf16codecs.huffman", "level": 1}},
        }
    ],
    "auto": [
        {"name": "bytes", "configuration": {"endian": "little"}},
        {"name": "bf16codecs.huffman", "configuration": {"dtype": "auto"}},
    ],
    "level": [
        {"name": "bytes", "configuration": {"endian": "little"}},
        {"name": "bf16codecs.arithmetic", "configuration": {"level": 1}},
    ],
    "parameter-of-rle": [
        {"name": "bytes", "configuration": {"endian": "little"}},
        {"name": "bf16codecs.rle", "configuration": {"level": 1}},
    ],
    "delta": [
        {"name": "bytes", "configuration": {"endian": "little"}},
        {"name": "bf16codecs.delta", "configuration": {"dtype": "<u2"}},
    ],
}


def write_refused(folder: Path) -> None:
    """Write metadata that no reader of these codecs may take."""
    folder.mkdir()
    zarr.create_array(folder / "model", shape=(4, 4), dtype="bfloat16", compressors=None)
    metadata = json.loads((folder / "model/zarr.json").read_text("utf-8"))
    (folder / "model/zarr.json").unlink()
    (folder / "model").rmdir()
    for name, codecs in REFUSED.items():
        (folder / name).mkdir()
        other = copy.deepcopy(metadata) | {"codecs": codecs}
        (folder / name / "zarr.json").write_text(json.dumps(other))
