"""Writes the golden stores of test_golden_stores.py.

    python tests/support/make_golden_stores.py

Golden stores pin the store layout: each was written by an early release and is read for ever. So
an existing one is never replaced; a new layout gets new names.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bf16codecs.convert import (
    append_to_run,
    safetensors_to_hdf5,
    safetensors_to_run,
    safetensors_to_zarr,
)

FOLDER = Path(__file__).resolve().parents[1] / "store" / "goldens"
CHUNK_SIZE = 4096  # several chunks for a matrix, the last one padded
BASE = "layout2-base.zarr.zip"
CHECKPOINT_BASE = "layout2-checkpoint.zarr.zip"


def safetensors_to_checkpoint(*arguments: Any, **options: Any) -> None:
    """Let a training job save a model, which takes PyTorch."""
    from golden_checkpoints import safetensors_to_checkpoint

    safetensors_to_checkpoint(*arguments, **options)


#: Name of a store: what converts, and with which options; a base is another of these stores.
STORES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "layout1-zarr3.zarr": (safetensors_to_zarr, {"codec": "arithmetic"}),
    "layout1-zarr2.zarr": (safetensors_to_zarr, {"codec": "huffman", "zarr_format": 2}),
    "layout1-zstd.zarr.zip": (safetensors_to_zarr, {"codec": "zstd"}),
    "layout1-best.zarr.zip": (safetensors_to_zarr, {"codec": "arithmetic", "level": "best"}),
    "layout1-none.zarr.zip": (safetensors_to_zarr, {"codec": "none"}),
    "layout1-arithmetic.h5": (safetensors_to_hdf5, {"codec": "arithmetic"}),
    "layout1-zstd.h5": (safetensors_to_hdf5, {"codec": "zstd"}),
    "layout1-none.h5": (safetensors_to_hdf5, {"codec": "none"}),
    # Tensors that are stored once, and differences to them.
    BASE: (safetensors_to_zarr, {}),
    "layout2-shared.h5": (safetensors_to_hdf5, {"codec": "huffman"}),
    "layout2-zarr3.zarr": (safetensors_to_zarr, {"base": BASE}),
    "layout2-zarr2.zarr.zip": (
        safetensors_to_zarr,
        {"codec": "huffman", "zarr_format": 2, "base": BASE},
    ),
    "layout2-best.zarr.zip": (safetensors_to_zarr, {"level": "best", "base": BASE}),
    "layout2-zstd.h5": (safetensors_to_hdf5, {"codec": "zstd", "base": "layout2-shared.h5"}),
    # Of a chain, with chunks of another size.
    "layout2-chain.h5": (
        safetensors_to_hdf5,
        {"base": "layout2-zarr3.zarr", "chunk_size": 3000},
    ),
    # With digests by BLAKE3, alone and beside SHA-256, which those above have.
    "layout2-blake3.zarr.zip": (safetensors_to_zarr, {}),
    "layout2-digests.h5": (
        safetensors_to_hdf5,
        {"base": "layout2-blake3.zarr.zip", "sha256": True},
    ),
    # Of training jobs: chunks are boxes, files have no digests, and there are objects.
    CHECKPOINT_BASE: (safetensors_to_checkpoint, {}),
    "layout2-checkpoint-based.zarr.zip": (safetensors_to_checkpoint, {"base": CHECKPOINT_BASE}),
}
#: Objects of these checkpoints beside tensors, and the keys of objects and tensors.
OBJECTS: dict[str, tuple[tuple[str | int, ...], Any]] = {
    "epoch": (("epoch",), 3),
    "betas": (("betas",), (0.9, 0.95)),
    "groups.0.rate": (("groups", 0, "rate"), 0.5),
    **{f"random.rank {n}": (("random", f"rank {n}"), bytes([n]) * 5) for n in range(4)},
}

#: Of the same files, with FP32 tensors in half precision.
LOSSY_STORES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    f"layout2-lossy-{name}.zarr.zip": (safetensors_to_zarr, {"lossy": "float16", **options})
    for name, options in {
        "rle-zarr3": {"codec": "delta-rle"},
        "rle-zarr2": {"codec": "delta-rle", "zarr_format": 2},
        "deflate-zarr3": {"codec": "delta-deflate", "level": 6},
        "deflate-zarr2": {"codec": "delta-deflate", "level": 6, "zarr_format": 2},
        "huffman-zarr3": {"codec": "huffman"},
        "digests-zarr3": {"sha256": True},
    }.items()
}

#: Runs, in groups of 3: how many steps are converted at once; the others are appended.
RUNS: dict[str, tuple[int, dict[str, Any]]] = {
    "layout2-run.zarr": (1, {}),
    "layout2-run.zarr.zip": (5, {"codec": "huffman", "zarr_format": 2}),
    "layout2-run.h5": (2, {"level": "best", "as_hdf5": True}),
    "layout2-run-blake3.zarr.zip": (5, {}),
}


def publish_files(*arguments: Any, **options: Any) -> None:
    """Let a training job publish models, which takes PyTorch."""
    from golden_checkpoints import publish_files

    publish_files(*arguments, **options)


#: Published runs of layout 3: with which options, and which steps are left.
PUBLISHED: dict[str, tuple[dict[str, int], list[int]]] = {
    "layout3-published.zarr.zip": ({"keyframe_every": 2, "keep_last": 3}, [30, 40, 50, 60]),
}

#: Name, dtype, shape; names that cannot be paths, forms that arrays do not keep.
SHARDS: dict[str, list[tuple[str, str, tuple[int, ...]]]] = {
    "model-00001-of-00002.safetensors": [
        ("model.embed.weight", "BF16", (53, 96)),
        ("model.layers.0.norm.weight", "BF16", (5,)),
        ("master", "F32", (3, 40)),
        ("step", "I64", ()),
    ],
    "model-00002-of-00002.safetensors": [
        ("../Scale", "F8_E4M3", (4, 16)),
        ("packed", "F6_E2M3", (2, 4)),
        ("mask", "BOOL", (9,)),
        ("empty", "F16", (0, 3)),
    ],
}
#: The models of layout 2. Of the others, "head" has the bytes of "embed", and "low" is the rounding
#: of "master".
MODEL: list[tuple[str, str, tuple[int, ...]]] = [
    ("model.embed.weight", "BF16", (53, 96)),
    ("head.weight", "BF16", (53, 96)),
    ("low", "BF16", (24, 40)),
    ("master", "F32", (24, 40)),
    ("codes", "I16", (700,)),
    ("wide", "F64", (9, 15)),
    ("norm", "F16", (5,)),
    ("step", "I64", ()),
    ("empty", "F16", (0, 3)),
]
#: Those of runs. "head" has the bytes of "embed" but at step 20, and "low" is the rounding of
#: "master" but at step 30; "late" is there from 10 to 30, and "changes" has six rows from 30 on.
CHECKPOINT: list[tuple[str, str, tuple[int, ...]]] = [
    ("embed.weight", "BF16", (53, 20)),
    ("head.weight", "BF16", (53, 20)),
    ("master", "F32", (24, 30)),
    ("low", "BF16", (24, 30)),
    ("late", "BF16", (9, 9)),
    ("changes", "F16", (5, 6)),
    ("step", "I64", ()),
    ("empty", "F16", (0, 3)),
]
STEPS = [0, 10, 20, 30, 40]
#: The order of dtypes in checkpoints.
WIDE_FIRST = ["I64", "F64", "F32", "BF16", "F16", "I16"]
_BITS = {"BF16": 16, "F16": 16, "F32": 32, "F64": 64, "I16": 16, "I64": 64}
_BITS |= {"F8_E4M3": 8, "F6_E2M3": 6, "BOOL": 8}


def _numbers(n: int, seed: int) -> np.ndarray:
    """Return `n` bytes of small bfloat16 numbers, by integer arithmetic alone."""
    items = np.arange(n // 2 + 1, dtype=np.uint64) + np.uint64(seed * 7919 + 1)
    items = items * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
    items ^= items >> np.uint64(29)
    word = (items * np.uint64(0xBF58476D1CE4E5B9)) >> np.uint64(32)
    exponent = np.uint64(118) + (word & np.uint64(3)) + (word >> np.uint64(2) & np.uint64(1))
    rest = word >> np.uint64(8) & np.uint64(0x807F)
    return (exponent << np.uint64(7) | rest).astype("<u2").view(np.uint8)[:n]


def shard(name: str) -> bytes:
    """Return the content of a safetensors file that the stores are made of."""
    tensors = {}
    for seed, (tensor, dtype, shape) in enumerate(SHARDS[name]):
        raw = _numbers(int(np.prod(shape, dtype=int)) * _BITS[dtype] // 8, seed)
        tensors[tensor] = raw & 1 if dtype == "BOOL" else raw
    return _file({"format": "pt", "shard": name}, SHARDS[name], tensors)


def _file(
    metadata: dict[str, str],
    forms: list[tuple[str, str, tuple[int, ...]]],
    tensors: dict[str, np.ndarray],
    separators: tuple[str, str] | None = None,
) -> bytes:
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    data = b""
    for tensor, dtype, shape in forms:
        raw = tensors[tensor].tobytes()
        offsets = [len(data), len(data) + len(raw)]
        header[tensor] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
        data += raw
    raw_header = json.dumps(header, separators=separators).encode()
    raw_header += b" " * (-len(raw_header) % 8)
    return len(raw_header).to_bytes(8, "little") + raw_header + data


def model(version: int, is_checkpoint: bool = False) -> bytes:
    """Return a safetensors file of layout 2: each version is near to the one before."""
    tensors: dict[str, np.ndarray] = {}
    for seed, (tensor, dtype, shape) in enumerate(MODEL):
        tensors[tensor] = _near(dtype, shape, seed, version)
    tensors["head.weight"] = tensors["model.embed.weight"]
    words = tensors["master"].view("<u4")
    words[:40] = 0x7F800000 + np.arange(40) * 0x10203  # infinity, and NaNs
    words[40:80] = 0x3F808000 + np.arange(40) * 0x10000  # ties
    tensors["low"] = _rounded(words)
    # What no base has.
    new = [] if version == 0 else [(f"new.{version}", "F16", (20, 33))]
    for tensor, _, shape in new:
        tensors[tensor] = _numbers(2 * int(np.prod(shape)), 50)
    forms = [*new, *MODEL]
    if is_checkpoint:  # as its store has it, for there was no file
        forms.sort(key=lambda form: (WIDE_FIRST.index(form[1]), form[0]))
        return _file({}, forms, tensors, (",", ":"))
    return _file({"format": "pt"}, forms, tensors)


def _near(dtype: str, shape: tuple[int, ...], seed: int, version: int) -> np.ndarray:
    """Return a tensor's bytes; in each version, the last bits of some of them differ."""
    raw = _numbers(int(np.prod(shape, dtype=int)) * _BITS[dtype] // 8, seed).copy()
    noise = _numbers(2 * raw.size, seed + 100 * version)[::2]
    return raw ^ (noise & (noise >> 1) & (noise >> 2) & (version > 0))


def _rounded(words: np.ndarray) -> np.ndarray:
    """Return the bytes of the BF16 numbers that are nearest to FP32 ones."""
    upper, is_nan = words >> 16, (words & 0x7FFFFFFF) > 0x7F800000
    nearest = (words + 0x7FFF + (upper & 1)) >> 16
    return np.where(is_nan, upper | 0x40, nearest).astype("<u2").view(np.uint8)


def checkpoint(place: int) -> bytes:
    """Return the safetensors file of a step of the runs, given by its index."""
    forms = [form for form in CHECKPOINT if form[0] != "late" or 1 <= place <= 3]
    if place >= 3:
        forms = [("changes", "F16", (6, 6)) if form[0] == "changes" else form for form in forms]
    tensors = {
        tensor: _near(dtype, shape, seed, place)
        for seed, (tensor, dtype, shape) in enumerate(forms)
    }
    if place != 2:
        tensors["head.weight"] = tensors["embed.weight"]
    if place != 3:
        tensors["low"] = _rounded(tensors["master"].view("<u4"))
    return _file({"format": "pt", "step": str(STEPS[place])}, forms, tensors)


def index() -> bytes:
    """Return the content of the index beside the shards."""
    files = {tensor: name for name, tensors in SHARDS.items() for tensor, _, _ in tensors}
    return json.dumps({"metadata": {}, "weight_map": files}, indent=2).encode()


def version_of(store: str) -> int:
    """Return the version of the model in a store of layout 2: how many bases it has."""
    base = STORES[store][1].get("base")
    return 0 if base is None else 1 + version_of(base)


def published(number: int) -> bytes:
    """Return the safetensors file of a step of the published runs."""
    forms = sorted(MODEL, key=lambda form: (WIDE_FIRST.index(form[1]), form[0]))
    tensors = {}
    for seed, (tensor, dtype, shape) in enumerate(MODEL):
        raw = _near(dtype, shape, seed, 0).copy()
        raw[number % 37 :: 37] ^= 1  # of one item in 18, or more
        tensors[tensor] = raw
    tensors["head.weight"] = tensors["model.embed.weight"]
    return _file({"format": "pt"}, forms, tensors, (",", ":"))


def originals(store: str) -> dict[str, bytes]:
    """Return the files that a golden store restores; of published runs, also of early steps."""
    if store in PUBLISHED:
        return {f"step-{number}.safetensors": published(number) for number in range(10, 70, 10)}
    if store in RUNS:
        return {f"step-{number}.safetensors": checkpoint(i) for i, number in enumerate(STEPS)}
    if store.startswith("layout2") and store not in LOSSY_STORES:
        return {"model.safetensors": model(version_of(store), "checkpoint" in store)}
    return {"model.safetensors.index.json": index(), **{name: shard(name) for name in SHARDS}}


def main() -> None:
    """Write the stores that do not exist."""
    FOLDER.mkdir(exist_ok=True)
    for store, (convert, options) in {**STORES, **LOSSY_STORES}.items():
        if (FOLDER / store).exists():
            print(f"{store}: kept", file=sys.stderr)
            continue
        options = {"chunk_size": CHUNK_SIZE, **options}
        if "base" in options:
            options["base"] = FOLDER / options["base"]
        with tempfile.TemporaryDirectory() as folder:
            for name, content in originals(store).items():
                Path(folder, name).write_bytes(content)
            convert(folder, FOLDER / store, **options)
    for store in RUNS:
        if (FOLDER / store).exists():
            print(f"{store}: kept", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as folder:
            make_run(store, Path(folder))
    for store, (options, _) in PUBLISHED.items():
        if (FOLDER / store).exists():
            print(f"{store}: kept", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as folder:
            for name, content in originals(store).items():
                Path(folder, name).write_bytes(content)
            publish_files(Path(folder), FOLDER / store, **options)


def make_run(store: str, folder: Path) -> None:
    """Write a run, and its checkpoints into a folder."""
    paths = []
    for name, content in originals(store).items():
        paths.append(folder / name)
        paths[-1].write_bytes(content)
    count, options = RUNS[store]
    options = {"chunk_size": CHUNK_SIZE // 4, "keyframe_every": 3, **options}
    safetensors_to_run(paths[:count], FOLDER / store, **options)
    for path in paths[count:]:
        append_to_run(path, FOLDER / store, chunk_size=CHUNK_SIZE // 4)


if __name__ == "__main__":
    main()
