"""Makes small stores of every kind, which the store fuzzer damages.

All hold the same tensors, in one file or in two with an index; or one tensor of several blocks.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import h5py
import numpy as np
import zarr
import zarr.codecs
from numcodecs import Blosc, Shuffle, Zlib

import bf16codecs
from based_models import write_nearby
from bf16codecs import hdf5
from bf16codecs._base.half import round_to_bfloat16
from bf16codecs.convert import safetensors_to_hdf5, safetensors_to_run, safetensors_to_zarr
from bf16codecs.convert.options import Options
from bf16codecs.convert.store import convert_model
from bf16codecs.store.files import FilesReader, open_safetensors
from bf16codecs.store.kinds import Kind
from bf16codecs.zarr import BF16BlocksCodec
from edit_store import edit_attributes, edit_json
from folders import copy_of
from make_golden_stores import FOLDER, originals
from models import entry, file_bytes

#: The step of a run that is read.
STEP = 7
CHUNK_SIZE = 256  # several chunks for a matrix

#: Of each file: name, dtype, shape. Some tensors have the same form as others.
FILES = {
    "m-1.safetensors": [
        ("w.a", "BF16", (24, 16)),
        ("w.b", "BF16", (24, 16)),
        ("scale", "F32", (5, 7)),
        ("step", "I64", ()),
        ("half", "F16", (0, 3)),
    ],
    "m-2.safetensors": [
        ("ids", "U8", (300,)),
        ("mask", "BOOL", (3,)),
        ("e8", "F8_E8M0", (2, 2)),
        ("packed", "F4", (2, 4)),
        ("complex", "C64", (2, 1)),
    ],
}
#: More than one block of a frame, and a chunk of little information.
LONG = [("long", "BF16", (1100, 512))]
#: FP32 numbers that half precision represents: a lossy store of them restores the original.
HALVES = [("halves", "F32", (24, 16)), ("w.a", "BF16", (24, 16)), ("ids", "U8", (300,))]
#: Tensors that are stored once: w.b has the bytes of w.a, and low is the rounding of master.
REPEATED = [
    ("w.a", "BF16", (24, 24)),
    ("w.b", "BF16", (24, 24)),
    ("master", "F32", (16, 40)),
    ("low", "BF16", (16, 40)),
]

#: Of golden stores that training jobs made: these take PyTorch, fuzzing does not.
CHECKPOINTS = {
    "checkpoint.safetensors": "layout2-checkpoint.zarr.zip",
    "checkpoint-based.safetensors": "layout2-checkpoint-based.zarr.zip",
}

Tensors = list[tuple[str, str, tuple[int, ...]]]


def _values(name: str, dtype: str, shape: tuple[int, ...], seed: int) -> bytes:
    nbytes = entry(dtype, shape)["data_offsets"][1]
    rng = np.random.default_rng(seed)
    if name == "long":
        values = np.zeros(nbytes, np.uint8)
        values[:: nbytes // 7] = 63
        return values.tobytes()
    if dtype == "BOOL":
        return bytes(i % 2 for i in range(nbytes))
    if name == "halves":
        return rng.normal(0, 0.02, shape).astype("<f2").astype("<f4").tobytes()
    # Exponents close together, like those of weights: every codec finds something to do.
    items = (
        0x3C00 | rng.integers(0, 512, nbytes // 2 + 1) | rng.integers(0, 2, nbytes // 2 + 1) << 15
    )
    return items.astype("<u2").tobytes()[:nbytes]


def _write_file(path: Path, tensors: Tensors, seed: int) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt", path.name: "x"}}
    values: dict[str, bytes] = {}
    offset = 0
    for i, (name, dtype, shape) in enumerate(tensors):
        header[name] = entry(dtype, shape, offset)
        offset = header[name]["data_offsets"][1]
        values[name] = _values(name, dtype, shape, 100 * seed + i)
    if "low" in values:
        values["w.b"] = values["w.a"]
        master = np.frombuffer(values["master"], np.float32)
        values["low"] = round_to_bfloat16(master).tobytes()
    path.write_bytes(file_bytes(header, b"".join(values.values())))


def write_originals(folder: Path) -> None:
    """Write the models that stores are made of: four files, and two shards."""
    _write_file(folder / "m.safetensors", [t for ts in FILES.values() for t in ts], 1)
    _write_file(folder / "long.safetensors", LONG, 2)
    _write_file(folder / "halves.safetensors", HALVES, 5)
    _write_file(folder / "repeated.safetensors", REPEATED, 6)
    for name, store in CHECKPOINTS.items():
        (folder / name).write_bytes(originals(store)["model.safetensors"])
    (folder / "shards").mkdir()
    weight_map = {}
    for seed, (name, tensors) in enumerate(FILES.items(), 3):
        _write_file(folder / "shards" / name, tensors, seed)
        weight_map |= {tensor: name for tensor, _, _ in tensors}
    index = json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}, indent=1)
    (folder / "shards" / "m.safetensors.index.json").write_text(index)


# --- how stores are made --------------------------------------------------------------------------

Make = Callable[[Path, Path], object]


def _unconsolidated(source: Path, store: Path, **options: Any) -> None:
    safetensors_to_zarr(source, store, **options)
    (store / ".zmetadata").unlink(missing_ok=True)
    if (store / "zarr.json").exists():
        edit_json(store, "zarr.json", lambda root: root.pop("consolidated_metadata"))


def _rewritten(
    source: Path, store: Path, change: Callable[[zarr.Array], dict[str, Any]], zarr_format: int
) -> None:
    """Let zarr write the arrays of a store again."""
    safetensors_to_zarr(source, store, zarr_format=zarr_format, chunk_size=CHUNK_SIZE)
    group = zarr.open_group(store, mode="r+")
    for path, array in list(_arrays(group)):
        options = change(array)
        # zarr is slow: only some of the arrays, so that the fuzzer reaches more stores.
        if not options or path not in _REWRITTEN:
            continue
        data, attributes = array[...], dict(array.attrs)
        zarr.create_array(
            group.store,
            name=path,
            data=np.asarray(data, array.dtype),
            fill_value=array.fill_value,
            attributes=attributes,
            overwrite=True,
            zarr_format=zarr_format,
            config={"write_empty_chunks": True},  # a missing chunk is an error to this package
            **options,
        )
    zarr.consolidate_metadata(group.store)


_REWRITTEN = ("w/a", "scale", "step", "ids")


def _arrays(group: zarr.Group) -> Iterator[tuple[str, zarr.Array]]:
    yield from group.arrays()
    for name, sub in group.groups():
        yield from ((f"{name}/{path}", array) for path, array in _arrays(sub))


def _sharded(array: zarr.Array) -> dict[str, Any]:
    if array.ndim != 2 or array.dtype.name != "bfloat16":
        return {}
    return {
        "chunks": (6, 8),
        "shards": (12, 16),
        "serializer": BF16BlocksCodec("huffman"),
        "compressors": None,
    }


def _rechunked(array: zarr.Array) -> dict[str, Any]:
    chunks = tuple(max(1, size // 2 - 1) for size in array.shape)
    is_float = array.dtype.name in ("bfloat16", "float32")
    return {"chunks": chunks, "compressors": bf16codecs.BF16Huffman() if is_float else "auto"}


def _compressed(codec: Any) -> Callable[[zarr.Array], dict[str, Any]]:
    return lambda array: {"chunks": array.chunks, "compressors": codec}


def _compressed_v2(array: zarr.Array) -> dict[str, Any]:
    if array.shape == (300,):
        return {"chunks": array.chunks, "filters": [Shuffle(2)], "compressors": Zlib(1)}
    # Blosc does not take ml_dtypes' dtypes.
    return {"chunks": array.chunks, "compressors": Zlib(1) if array.dtype.kind == "V" else Blosc()}


def _deflated(source: Path, store: Path, **options: Any) -> None:
    plain = store.with_name("plain.zarr.zip")
    safetensors_to_zarr(source, plain, **options)
    with zipfile.ZipFile(plain) as old, zipfile.ZipFile(store, "w", zipfile.ZIP_DEFLATED) as new:
        for member in old.infolist():
            new.writestr(member.filename, old.read(member), zipfile.ZIP_DEFLATED)
    plain.unlink()


def _refiltered(source: Path, store: Path) -> None:
    """Let HDF5 store the matrices of a store again, with filters of its own."""
    safetensors_to_hdf5(source, store, chunk_size=CHUNK_SIZE)
    with h5py.File(store, "r+") as file:
        for path in ("w/a", "w/b", "scale"):
            old = file[path]
            values = hdf5.read_tensor(old)
            bits = values.view(f"u{values.itemsize}")
            attributes, kind, chunks = dict(old.attrs), h5py.Datatype(old.id.get_type()), old.chunks
            del file[path]
            new = file.create_dataset(
                path, bits.shape, kind, chunks=chunks, shuffle=True, fletcher32=True,
                compression=None if path == "w/b" else "gzip",
            )  # fmt: skip
            new.id.write(h5py.h5s.ALL, h5py.h5s.ALL, bits, mtype=new.id.get_type())
            new.attrs.update(attributes)


def _based(source: Path, store: Path, make: Make, on: Make | None = None) -> None:
    """Make differences to a file beside the source, or to a store of it."""
    base = source.with_name(f"{source.stem}-base.safetensors")
    write_nearby(source, base, len(base.name))
    if on is not None:
        model, base = base, base.with_name(f"{store.parent.name}-{base.stem}")
        on(model, base)
    # Damaged ones are elsewhere.
    with patch("bf16codecs.convert.bases.path_to", lambda base, store: base):
        make(source, store, base=base)


def _run(source: Path, store: Path, **options: Any) -> None:
    """Make a run in which the source is a step, between two that are near to it."""
    steps = [source.with_name(f"{source.stem}-step{number}.safetensors") for number in (3, 9)]
    for seed, step in enumerate(steps):
        write_nearby(source, step, seed)
    sources = [steps[0], source, steps[1]]
    safetensors_to_run(sources, store, steps=[3, STEP, 9], chunk_size=CHUNK_SIZE, **options)


def _checkpoint(source: Path, store: Path) -> None:
    """Copy a golden store that a training job made, or unpack it."""
    golden = FOLDER / CHECKPOINTS[source.name]
    if store.suffix == ".zip":
        copy_of(golden, store)
    else:
        with zipfile.ZipFile(golden) as archive:
            archive.extractall(store)

    def find_base(root: dict[str, Any]) -> None:
        if "base" in root:  # damaged ones are elsewhere
            root["base"]["path"] = str(FOLDER / root["base"]["path"])

    edit_attributes(store, find_base)


def _with_objects(source: Path, store: Path) -> None:
    """Make a checkpoint in HDF5, as no training job does."""
    text = b'{"objects":{"a":[0,3],"b":[3,4]},"names":{"a":["x",0],"b":["b"]}}'
    model = FilesReader("m", open_safetensors(source).files, checkpoint=(text, b"objects"))
    convert_model(model, store, Kind.HDF5, Options(chunk_size=CHUNK_SIZE))


def _zarr(**options: Any) -> Make:
    return partial(safetensors_to_zarr, chunk_size=CHUNK_SIZE, **options)


def _hdf5(**options: Any) -> Make:
    return partial(safetensors_to_hdf5, chunk_size=CHUNK_SIZE, **options)


_SMALL = {"chunk_size": CHUNK_SIZE}
_WHOLE = {"chunk_size": 1 << 24}
_GZIP = zarr.codecs.GzipCodec(level=1)

#: The codecs with levels, by the names of `--codec` and `--level`.
_CODECS: dict[str, dict[str, Any]] = {
    "arithmetic": {},
    "best": {"level": "best"},
    **{codec: {"codec": codec} for codec in ("huffman", "zstd", "split", "none")},
}
_REWRITES: dict[str, Callable[[zarr.Array], dict[str, Any]]] = {
    "sharded": _sharded,
    "rechunked": _rechunked,
    "zstd": _compressed(zarr.codecs.ZstdCodec(level=1)),
    "gzip": _compressed(_GZIP),
    "blosc": _compressed(zarr.codecs.BloscCodec(cname="lz4")),
    "crc32c": _compressed([_GZIP, zarr.codecs.Crc32cCodec()]),
}

#: By name of a seed: the store's name, its original in `write_originals`, and its maker.
SEEDS: dict[str, tuple[str, str, Make]] = {
    **{f"zarr3-{n}": ("m.zarr", "m.safetensors", _zarr(**o)) for n, o in _CODECS.items()},
    **{
        f"zarr2-{n}": ("m.zarr", "m.safetensors", _zarr(zarr_format=2, **o))
        for n, o in _CODECS.items()
        if n != "best"
    },
    **{f"hdf5-{n}": ("m.h5", "m.safetensors", _hdf5(**o)) for n, o in _CODECS.items()},
    "hdf5-filters": ("m.h5", "m.safetensors", _refiltered),
    "zip-arithmetic": ("m.zarr.zip", "m.safetensors", _zarr()),
    "zip-none": ("m.zarr.zip", "m.safetensors", _zarr(codec="none")),
    "zip-zarr2": ("m.zarr.zip", "m.safetensors", _zarr(codec="huffman", zarr_format=2)),
    "zip-deflated": ("m.zarr.zip", "m.safetensors", partial(_deflated, **_SMALL)),
    "zip-deflated-none": ("m.zarr.zip", "m.safetensors", partial(_deflated, codec="none")),
    "shards-zarr3": ("m.zarr", "shards", _zarr()),
    "shards-zarr2": ("m.zarr", "shards", _zarr(zarr_format=2, codec="none")),
    "shards-zip": ("m.zarr.zip", "shards", _zarr()),
    "shards-hdf5": ("m.h5", "shards", _hdf5()),
    "safetensors-file": ("m.safetensors", "m.safetensors", copy_of),
    "safetensors-shards": ("m", "shards", copy_of),
    "single-zarr3": ("m.zarr", "m.safetensors", partial(_unconsolidated, **_SMALL)),
    "single-zarr2": ("m.zarr", "m.safetensors", partial(_unconsolidated, zarr_format=2, **_SMALL)),
    # Read through a zarr store, as remote ones are.
    "memory-zarr3": ("m.zarr", "m.safetensors", _zarr()),
    "memory-zarr2": ("m.zarr", "m.safetensors", _zarr(codec="none", zarr_format=2)),
    **{
        f"zarr-{name}": (
            "m.zarr",
            "m.safetensors",
            partial(_rewritten, change=change, zarr_format=3),
        )
        for name, change in _REWRITES.items()
    },
    "zarr-blosc2": (
        "m.zarr",
        "m.safetensors",
        partial(_rewritten, change=_compressed_v2, zarr_format=2),
    ),
    **{
        f"lossy-zarr{zarr_format}-{codec}": (
            "m.zarr",
            "halves.safetensors",
            _zarr(lossy="float16", codec=codec, zarr_format=zarr_format),
        )
        for codec in ("delta-rle", "delta-deflate")
        for zarr_format in (3, 2)
    },
    "lossy-zip": ("m.zarr.zip", "halves.safetensors", _zarr(lossy="float16", codec="huffman")),
    "long-zarr3": ("m.zarr", "long.safetensors", partial(safetensors_to_zarr, **_WHOLE)),
    "long-hdf5": ("m.h5", "long.safetensors", partial(safetensors_to_hdf5, **_WHOLE)),
    "long-zip": ("m.zarr.zip", "long.safetensors", partial(safetensors_to_zarr, **_WHOLE)),
    "repeated-zarr3": ("m.zarr", "repeated.safetensors", _zarr()),
    "repeated-hdf5": ("m.h5", "repeated.safetensors", _hdf5()),
    "based-zarr3": ("m.zarr", "m.safetensors", partial(_based, make=_zarr())),
    "based-zarr2": (
        "m.zarr",
        "m.safetensors",
        partial(_based, make=_zarr(codec="huffman", zarr_format=2), on=_hdf5()),
    ),
    "based-hdf5": ("m.h5", "m.safetensors", partial(_based, make=_hdf5(), on=_zarr())),
    "based-zip": ("m.zarr.zip", "m.safetensors", partial(_based, make=_zarr(level="best"))),
    "based-long": (
        "m.zarr",
        "long.safetensors",
        partial(_based, make=partial(safetensors_to_zarr, **_WHOLE), on=_hdf5()),
    ),
    "based-repeated": (
        "m.zarr",
        "repeated.safetensors",
        partial(_based, make=_zarr(), on=partial(_based, make=_zarr(codec="split"))),
    ),
    "checkpoint-zarr3": ("m.zarr", "checkpoint.safetensors", _checkpoint),
    "checkpoint-zip": ("m.zarr.zip", "checkpoint.safetensors", _checkpoint),
    "checkpoint-based": ("m.zarr", "checkpoint-based.safetensors", _checkpoint),
    "checkpoint-hdf5": ("m.h5", "m.safetensors", _with_objects),
    "run-zarr3": ("m.zarr", "m.safetensors", partial(_run, keyframe_every=4)),
    "run-zarr2": ("m.zarr.zip", "m.safetensors", partial(_run, keyframe_every=2, zarr_format=2)),
    "run-hdf5": ("m.h5", "m.safetensors", partial(_run, keyframe_every=4, as_hdf5=True)),
}


def make_seeds(workspace: Path, names: list[str]) -> None:
    """Write seeds, and their source models, into a folder."""
    sources = workspace / "originals"
    sources.mkdir()
    write_originals(sources)
    for name in names:
        store, original, make = SEEDS[name]
        folder = workspace / "seeds" / name
        folder.mkdir(parents=True)
        make(sources / original, folder / store)
