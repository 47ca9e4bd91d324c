"""Write what the tests of the browser example read, and what Python makes of it.

python make_cases.py FOLDER

``cases.json`` says of selections of arrays and tensors, in the stores beside it, where the bytes
are that NumPy gives; what `make_verdicts` writes, what decoding damaged frames and stores gives.
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import zarr
from make_verdicts import write_frames, write_stores

import bf16codecs
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
        missing = group.create_array(
            "missing",
            shape=(4, 4),
            chunks=(2, 4),
            dtype="bfloat16",
            fill_value=1.5,
            compressors=None,
        )
        missing[:2] = 0.25
        cases.add(store, missing[:], [[None, None]], array="missing")


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


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    write_frames(folder)
    cases, rng = Cases(folder), np.random.default_rng(3)
    write_arrays(cases, rng)
    write_large(cases, rng)
    write_models(cases, rng)
    write_run(cases, rng)
    cases.write()
    write_stores(folder)


if __name__ == "__main__":
    main()
