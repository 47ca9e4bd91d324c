"""Write what the tests of the browser example read, and what Python makes of it.

python make_cases.py FOLDER

``cases.json`` says of selections of arrays and tensors, in the stores beside it, where the bytes
are that NumPy gives; what `make_verdicts` writes, what decoding damaged frames and stores gives.
"""

from __future__ import annotations

import json
import shutil
import struct
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import zarr
from make_verdicts import write_frames, write_stores, write_unfinished

import bf16codecs
from bf16codecs import _core
from bf16codecs.bench.synthetic import RECIPES
from bf16codecs.convert import append_to_run, safetensors_to_run, safetensors_to_zarr
from bf16codecs.zarr import (
    BF16ArithmeticCodec,
    BF16BlocksCodec,
    BF16HuffmanCodec,
    BF16SplitCodec,
    BF16ZstdCodec,
)

SAFETENSORS = {
    "bfloat16": "BF16",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "complex64": "C64",
    "int64": "I64",
    "uint8": "U8",
    "bool": "BOOL",
}


class Cases:
    """The cases, whose expected bytes are written beside."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.all = folder, []

    def add(self, store: str, data: np.ndarray, selections: list[Any], **where: Any) -> None:
        """Add what NumPy gives for selections of an array."""
        for selection in selections:
            slices = tuple(s if isinstance(s, int) else slice(*(s or [None])) for s in selection)
            name = f"expected-{len(self.all)}.bin"
            found = np.ascontiguousarray(data[slices])
            (self.folder / name).write_bytes(found.tobytes())
            case = {"store": store, "selection": selection, "expected": name, **where}
            self.all.append({**case, "dtype": data.dtype.name, "shape": list(data[slices].shape)})

    def write(self) -> None:
        """Write the list."""
        (self.folder / "cases.json").write_text(json.dumps(self.all))


def numbers(dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Return numbers as weights are, with some of every kind of special value among them."""
    values = rng.standard_normal(shape) * 0.02
    if dtype == "bool":
        return values > 0
    if dtype in ("int64", "uint8"):
        return np.abs(values * 1000).astype(dtype)
    if dtype == "complex64":
        return (values + 1j * rng.standard_normal(shape)).astype(dtype)
    native = np.dtype(getattr(ml_dtypes, dtype, dtype))
    array = values.astype(native)
    array.reshape(-1)[:5] = np.array([0.0, -0.0, np.nan, np.inf, -np.inf]).astype(native)
    return array


FLOATS = ("bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2")
# Sides, a column, a window with steps, an item, all, nothing.
PLANE = [
    [[0, 3, 1], None],
    [None, 17],
    [[5, 250, 7], [100, 140, 3]],
    [211, -1],
    [None, None],
    [[4, 4, 1], None],
]


def write_arrays(cases: Cases, rng: np.random.Generator) -> None:
    """Arrays of every codec, data type and arrangement, in both formats."""
    codecs = {
        "split": (bf16codecs.BF16Split, BF16SplitCodec, {}),
        "huffman": (bf16codecs.BF16Huffman, BF16HuffmanCodec, {}),
        "fast": (bf16codecs.BF16Arithmetic, BF16ArithmeticCodec, {}),
        "best": (bf16codecs.BF16Arithmetic, BF16ArithmeticCodec, {"level": "best"}),
        "zstd": (bf16codecs.BF16Zstd, BF16ZstdCodec, {}),
        "unchecked": (bf16codecs.BF16Huffman, BF16HuffmanCodec, {"checksum": False}),
    }
    for zarr_format in (2, 3):
        store = f"arrays{zarr_format}.zarr"
        group = zarr.create_group(cases.folder / store, zarr_format=zarr_format)
        for dtype in FLOATS:
            data = numbers(dtype, (300, 220), rng)
            for name, (plain, of_bytes, options) in codecs.items():
                codec = plain(dtype=dtype, **options)
                kinds: dict[str, dict[str, Any]] = {"v2": {"compressors": codec}}
                if zarr_format == 3:
                    of_chunk = {"serializer": BF16BlocksCodec(codec), "compressors": None}
                    kinds = {
                        "blocks": of_chunk,
                        "bytes": {"compressors": of_bytes(dtype=dtype, **options)},
                        "shards": {**of_chunk, "shards": (256, 220)},
                    }
                for kind, settings in kinds.items():
                    path = f"{dtype}-{name}-{kind}"
                    group.create_array(path, data=data, chunks=(128, 110), **settings)
                    cases.add(store, data, PLANE, array=path)
        write_arrangements(cases, rng, group, store)
        write_missing(cases, group, store)


def write_arrangements(
    cases: Cases, rng: np.random.Generator, group: zarr.Group, store: str
) -> None:
    """Orders of dimensions and of bytes, separators, scalars, arrays without items."""
    old = group.metadata.zarr_format == 2
    data = numbers("float32", (300, 220), rng)
    codec = bf16codecs.BF16Arithmetic(dtype="float32")
    settings = {"compressors": codec if old else BF16ArithmeticCodec(dtype="float32")}
    chunks = {"chunks": (128, 110)}
    order = {"order": "F"} if old else {"filters": zarr.codecs.TransposeCodec(order=(1, 0))}
    separator = {"chunk_key_encoding": {"name": "v2", "separator": "/"}}
    empty, scalar = np.zeros((0, 5), np.float32), np.float32(-1.75).reshape(())
    kinds: dict[str, tuple[np.ndarray, dict[str, Any]]] = {
        "order-f": (data, {**settings, **chunks, **order}),
        "separator": (data, {**settings, **chunks, **separator}),
        "scalar": (scalar, settings),
        "empty": (empty, settings),
    }
    if old:
        kinds |= {
            f"big-endian-{size}": (data.astype(f">f{size}"), {"compressors": plain, **chunks})
            for size, plain in ((4, codec), (2, bf16codecs.BF16Huffman(dtype="float16")))
        }
    else:
        in_blocks = {"serializer": BF16BlocksCodec(codec), "compressors": None}
        kinds |= {
            "scalar-blocks": (scalar, in_blocks),
            "separator-blocks": (data, {**in_blocks, **chunks, **separator}),
        }
    for name, (array, own) in kinds.items():
        group.create_array(name, data=array, **own)
        selections = PLANE if array is data or array.size == data.size else [[None] * array.ndim]
        cases.add(store, array.astype(array.dtype.newbyteorder("<")), selections, array=name)


FILLS = {
    **dict.fromkeys(FLOATS, 1.5),
    **{f"{sign}int{bits}": 7 for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "bool": True,
    "complex64": 1.5 - 2j,
}


def write_missing(cases: Cases, group: zarr.Group, store: str) -> None:
    """Chunks that are not there, of every data type, and large ones of which a part is read."""
    old = group.metadata.zarr_format == 2
    for dtype, fill in FILLS.items():
        native = np.dtype(getattr(ml_dtypes, dtype, dtype))
        fills = {"": fill, "-nan": np.nan} if dtype in FLOATS else {"": fill}
        if old:
            fills["-none"] = None
        for kind, value in fills.items():
            settings: dict[str, Any] = {"fill_value": value, "dtype": native, "compressors": None}
            if dtype in FLOATS:
                codec = bf16codecs.BF16Huffman(dtype=dtype)
                in_blocks = {"serializer": BF16BlocksCodec(codec)}
                settings |= {"compressors": codec} if old else in_blocks
            name = f"missing-{dtype}{kind}"
            array = group.create_array(name, shape=(4, 4), chunks=(2, 4), **settings)
            array[:2] = np.ones((2, 4), native)
            cases.add(store, array[:], [[None, None], [3, 1], [2, [1, 3, 1]]], array=name)
            if dtype in FLOATS:
                shape = (2048, 1024)
                array = group.create_array(f"{name}-large", shape=shape, chunks=shape, **settings)
                cases.add(store, array[:], [[[5, 7, 1], None]], array=f"{name}-large")


def write_large(cases: Cases, rng: np.random.Generator) -> None:
    """Chunks of many blocks, of which parts are read; with steps, too."""
    group = zarr.create_group(cases.folder / "large.zarr")
    for dtype, codec in (("bfloat16", "arithmetic"), ("float32", "huffman"), ("bfloat16", "zstd")):
        data = numbers(dtype, (1500, 1100), rng)
        settings = {"serializer": BF16BlocksCodec(codec), "compressors": None}
        path = f"{dtype}-{codec}"
        group.create_array(path, data=data, chunks=(1024, 1100), **settings)
        rows = [[[700, 703, 1], None], [[1020, 1030, 1], [3, 9, 2]], [None, 1]]
        cases.add("large.zarr", data, rows, array=path)
    old = zarr.create_group(cases.folder / "large2.zarr", zarr_format=2)
    for order in "<>":
        data = numbers("float32", (1500, 1100), rng).astype(f"{order}f4")
        path = "little" if order == "<" else "big"
        codec = bf16codecs.BF16Huffman(dtype="float32")
        old.create_array(path, data=data, chunks=(1024, 1100), compressors=codec)
        cases.add("large2.zarr", data.astype("<f4"), rows, array=path)
    steps = np.stack([numbers("bfloat16", (900, 1000), rng)] * 4)
    for step in range(1, 4):
        changed = rng.integers(0, steps[0].size, 9000)
        steps[step] = steps[step - 1]
        steps[step].reshape(-1)[changed] = numbers("bfloat16", (9000,), rng)
    codec = bf16codecs.BF16Arithmetic(steps=4)
    settings = {"serializer": BF16BlocksCodec(codec), "compressors": None}
    group.create_array("steps", data=steps, chunks=(4, 900, 1000), **settings)
    parts = [[2, [400, 404, 1], None], [None, 899, 5], [[1, 4, 2], [0, 2, 1], [0, 9, 1]]]
    cases.add("large.zarr", steps, parts, array="steps")


def write_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> Path:
    header, at = {}, 0
    for name, data in tensors.items():
        header[name] = {
            "dtype": SAFETENSORS[data.dtype.name],
            "shape": list(data.shape),
            "data_offsets": [at, at + data.nbytes],
        }
        at += data.nbytes
    text = json.dumps(header).encode()
    data = b"".join(array.tobytes() for array in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def write_models(cases: Cases, rng: np.random.Generator) -> None:
    """Model stores of every codec and format, a lossy one, one with a base, and a run."""
    model = {f"of.{dtype}": numbers(dtype, (40, 30), rng) for dtype in SAFETENSORS}
    model["one"] = np.float32(1.25).reshape(())
    for dtype in FLOATS:
        native = np.dtype(getattr(ml_dtypes, dtype, dtype))
        model[f"one.{dtype}"] = np.asarray(0.0625, native)
    model["none"] = np.zeros((0, 4), np.float32)
    # What the store keeps once: a copy, and a rounding.
    model["twice"] = model["of.bfloat16"]
    model["wide"] = numbers("float32", (64, 64), rng)
    model["wide.rounded"] = model["wide"].astype(ml_dtypes.bfloat16)
    src = write_safetensors(cases.folder / "model.safetensors", model)
    for codec in ("arithmetic", "huffman", "zstd", "split", "none"):
        for zarr_format in (2, 3):
            store = f"model-{codec}-{zarr_format}.zarr"
            safetensors_to_zarr(src, cases.folder / store, codec=codec, zarr_format=zarr_format)
            for name, data in model.items():
                cases.add(store, data, [[None] * data.ndim], tensor=name)
            cases.add(store, model["none"], [[None, 2], [[0, 9, 2], [1, 1, 1]]], tensor="none")
    lossy = {"half": model["of.float16"], "single": model["wide"]}
    halved = {"half": model["of.float16"], "single": model["wide"].astype(np.float16)}
    src = write_safetensors(cases.folder / "lossy.safetensors", lossy)
    for codec in ("delta-rle", "delta-deflate", "arithmetic"):
        for zarr_format in (2, 3):
            store = f"lossy-{codec}-{zarr_format}.zarr"
            safetensors_to_zarr(
                src, cases.folder / store, codec=codec, zarr_format=zarr_format, lossy="float16"
            )
            for name, data in halved.items():
                cases.add(store, data, [[None, None]], tensor=name)


def write_run(cases: Cases, rng: np.random.Generator) -> None:
    weights = numbers("bfloat16", (1200, 700), rng)
    checkpoints = []
    for step in (10, 20, 30, 40):
        weights = weights.copy()
        weights.reshape(-1)[rng.integers(0, weights.size, 5000)] = numbers("bfloat16", (5000,), rng)
        small = np.arange(6, dtype=np.float32) * step
        flags, ids = np.arange(9) % step == 0, np.arange(5) * step
        tensors = {"w": weights, "small": small, "flags": flags, "ids": ids}
        path = cases.folder / f"checkpoint-{step}.safetensors"
        checkpoints.append((step, write_safetensors(path, tensors), tensors))
    run = cases.folder / "run.zarr"
    safetensors_to_run([path for _, path, _ in checkpoints[:2]], run, keyframe_every=8)
    for step, path, _ in checkpoints[2:]:
        append_to_run(path, run, step=step)
    for step, _, tensors in checkpoints:
        rows = [[[600, 603, 1], None], [None, None]]
        cases.add("run.zarr", tensors["w"], rows, tensor="w", step=step)
        for name in ("small", "flags", "ids"):
            cases.add("run.zarr", tensors[name], [[None]], tensor=name, step=step)
    # Against a base: what a reader of one store refuses.
    safetensors_to_zarr(checkpoints[0][1], cases.folder / "base.zarr")
    safetensors_to_zarr(
        checkpoints[1][1], cases.folder / "difference.zarr", base=cases.folder / "base.zarr"
    )


def write_zeros(cases: Cases) -> None:
    """Write a large chunk whose frame is smaller than what is read of it at first."""
    zeros = np.zeros((2048, 1024), np.float32)
    group = zarr.create_group(cases.folder / "zeros.zarr")
    settings = {"serializer": BF16BlocksCodec("arithmetic"), "compressors": None, "fill_value": 1}
    group.create_array("zeros", data=zeros, chunks=zeros.shape, **settings)
    cases.add("zeros.zarr", zeros, [[[700, 703, 1], None], [None, 5]], array="zeros")


def write_quantised(cases: Cases, rng: np.random.Generator) -> None:
    """Write weights that were quantised once, of every recipe, whose frames are grids."""
    group = zarr.create_group(cases.folder / "quantised.zarr")
    normal = rng.normal(0, 0.02, (256, 512)).astype(np.float32)
    for recipe, make in RECIPES.items():
        for dtype in ("bfloat16", "float16", "float32"):
            data = make(normal).astype(getattr(ml_dtypes, dtype, dtype))
            path = f"{recipe}-{dtype}"
            settings = {"serializer": BF16BlocksCodec("arithmetic"), "compressors": None}
            group.create_array(path, data=data, chunks=data.shape, **settings)
            cases.add("quantised.zarr", data, [[None, [100, 140, 3]], [None, None]], array=path)


def write_huge(folder: Path) -> None:
    """Write a sound frame of 3 KiB that holds 3 GiB of zeros."""
    blocks, log2 = 768, 21
    table = struct.pack("<I", 4) * blocks
    header = struct.pack("<IBBBBQ", 0xDEC016BF, 1, 2, 0, log2, blocks << log2 + 1)
    header += struct.pack("<I", _core.checksum(header))
    # Of each block, two constant planes.
    head = header + struct.pack("<I", _core.checksum(table)) + table
    (folder / "huge.bin").write_bytes(head + bytes([1, 1, 0, 0]) * blocks)


def main() -> None:
    folder = Path(sys.argv[1])
    # Of the run before.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_frames(folder)
    write_huge(folder)
    cases, rng = Cases(folder), np.random.default_rng(3)
    write_arrays(cases, rng)
    write_large(cases, rng)
    write_zeros(cases)
    write_quantised(cases, rng)
    write_models(cases, rng)
    write_run(cases, rng)
    cases.write()
    write_stores(folder)
    write_unfinished(folder)


if __name__ == "__main__":
    main()
