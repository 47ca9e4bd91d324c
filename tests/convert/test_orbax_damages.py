"""Damaged metadata of the arrays of Orbax checkpoints: an error, and no more memory than usual."""

from __future__ import annotations

import copy
import gzip
import itertools
import json
import os
import shutil
from pathlib import Path
from typing import Any

import google_crc32c
import numcodecs
import numpy as np
import pytest

import bf16codecs
from bf16codecs.errors import CorruptDataError, LimitError
from invoked import done
from orbax_checkpoints import (
    KEY,
    arrays,
    assert_same_tree,
    bfloat16,
    jax,
    needs_orbax,
    ocp,
    orbax,
    restored,
    save,
)
from tiers import by_tier

pytestmark = needs_orbax

# In a process of its own: tensorstore ends it where it gets no memory.
CONVERT = """
import sys
from pathlib import Path
from bf16codecs.convert.orbax import orbax_to_zarr
from bf16codecs.errors import BF16CodecsError

for source in sorted(Path(sys.argv[1]).iterdir()):
    try:
        orbax_to_zarr(source, "m.zarr", overwrite=True)
    except BF16CodecsError as error:
        assert str(source) in str(error) and "\\n" not in str(error), error
        print(source.name, str(error))
    else:
        print(source.name, "is converted")
if sys.platform.startswith("linux"):
    (peak,) = (a for a in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in a)
    assert int(peak.split()[1]) < 300_000, peak
"""

JUNK = [None, -1, 0, 1.5, "x", [], {}, True, 2**62, 10**30]
SIZES = [
    [5_120_000_000, 256],
    [2**20, 2**20],
    [2**62, 2**62],
    [2**15, 2**15],
    [2**62, 1],
    [3, 10**9],
    [0, 0],
    [-1, 5],
    [300],
    [1, 1, 1],
]
GRID = "chunk_grid", "configuration", "chunk_shape"


def changed(document: dict[str, Any], *changes: tuple[tuple[Any, ...], Any]) -> dict[str, Any]:
    document = copy.deepcopy(document)
    for path, value in changes:
        inner = document
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
    return document


def damages(document: dict[str, Any]) -> list[dict[str, Any]]:
    found = [changed(document, ((key,), value)) for key in document for value in JUNK]
    shape, *chunks = [("shape",), ("chunks",)]
    if "chunks" not in document:
        chunks = [GRID, *([("codecs", 0, *GRID[1:])] if "shard" in str(document) else [])]
    for size in SIZES:
        found += [changed(document, (path, size)) for path in (shape, *chunks)]
        found.append(changed(document, (shape, size), (chunks[0], size)))
    found.append(changed(document, (shape, [2**14, 2**14]), (chunks[0], [1, 1])))
    return found


def sharded(path: Path) -> Path:
    tree = {"w": bfloat16(64, 64)}
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_zarr3=True, use_ocdbt=False)) as own:
        arguments = jax.tree.map(lambda _: ocp.SaveArgs(chunk_byte_size=512), tree)
        own.save(path, tree, save_args=arguments)
    return path


def without_chunks(path: Path) -> Path:
    """Remove an array's chunks: older Orbax stores none for zeros."""
    for chunk in (path / "w").iterdir():
        if chunk.name not in (".zarray", "zarr.json"):
            chunk.unlink() if chunk.is_file() else shutil.rmtree(chunk)
    document = json.loads((path / "_METADATA").read_text())
    document["store_array_data_equal_to_fill_value"] = False
    (path / "_METADATA").write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    ("kind", "is_zeros"),
    by_tier(
        [("zarr3", False)],
        list(itertools.product(["zarr2", "zarr3", "shards"], [False, True])),
    ),
)
def test_damaged_metadata(tmp_path: Path, run_python, kind: str, is_zeros: bool) -> None:
    source = tmp_path / "orbax"
    if kind == "shards":
        sharded(source)
    else:
        save(source, {"w": bfloat16(300, 100)}, use_ocdbt=False, use_zarr3=kind == "zarr3")
    if is_zeros:
        without_chunks(source)
    name = ".zarray" if kind == "zarr2" else "zarr.json"
    cases = damages(json.loads((source / "w" / name).read_text()))[:: by_tier(7, 1)]
    for number, document in enumerate(cases):
        copied = shutil.copytree(source, tmp_path / "damaged" / f"{number:03}")
        (copied / "w" / name).write_text(json.dumps(document))
    lines = run_python(CONVERT, tmp_path / "damaged").stdout.splitlines()
    assert len(lines) == len(cases)
    assert sum("is converted" in line for line in lines) < len(cases) / 4
    assert not list(tmp_path.glob(".bf16codecs*"))


def with_chunks(source: Path, **changes: Any) -> Path:
    path = source / "w" / ".zarray"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return source


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return save(tmp_path / "orbax", {"w": bfloat16(300, 100)}, use_ocdbt=False)


def test_chunks_that_are_not_credible(source: Path, tmp_path: Path) -> None:
    for why, changes in {
        "chunks of 5120000000 x 256 items, in an array of 300 x 100": {
            "chunks": [5_120_000_000, 256]
        },
        "cut into 268435456 chunks of 2 bytes": {"chunks": [1, 1], "shape": [2**14, 2**14]},
    }.items():
        with pytest.raises(CorruptDataError, match=f"tensor 'w': damaged: {why}: not credible;"):
            orbax.orbax_to_zarr(with_chunks(source, **changes), tmp_path / "m.zarr")
    with_chunks(source, chunks=[300, 100], shape=[5_120_000_000, 256])
    with pytest.raises(LimitError, match="orbax: its arrays: 2621440000000 bytes once decoded"):
        orbax.orbax_to_zarr(source, tmp_path / "m.zarr")


def test_what_the_caller_allows(source: Path, tmp_path: Path) -> None:
    with pytest.raises(LimitError, match=r"max_bytes allows \(59999\)"):
        orbax.orbax_to_zarr(source, tmp_path / "m.zarr", max_bytes=59_999)
    orbax.orbax_to_zarr(source, tmp_path / "m.zarr", max_bytes=60_000)


def test_chunks_larger_than_a_small_array(source: Path, tmp_path: Path) -> None:
    """Other programs may cut so; Orbax does not."""
    without_chunks(with_chunks(source, chunks=[512, 512]))
    orbax.orbax_to_zarr(source, tmp_path / "m.zarr")
    orbax.zarr_to_orbax(tmp_path / "m.zarr", tmp_path / "back")
    assert_same_tree(restored(tmp_path / "back"), restored(source))


def test_no_memory_for_a_chunk(source: Path, tmp_path: Path, monkeypatch) -> None:
    def fail(label: str, nbytes: int) -> None:
        raise MemoryError(f"{label}: {nbytes}")

    monkeypatch.setattr("bf16codecs.convert.orbax.arrays.check_memory", fail)
    with pytest.raises(MemoryError, match="tensor 'w': 60000"):
        orbax.orbax_to_zarr(source, tmp_path / "m.zarr")
    assert sorted(tmp_path.iterdir()) == [source]
    monkeypatch.undo()
    with pytest.raises(MemoryError, match="no memory for a chunk of 4611686018427387904 bytes"):
        arrays.check_memory("w", 2**62)


def test_chunks_of_strangers(source: Path, tmp_path: Path) -> None:
    """A store's metadata of a checkpoint's chunks are not trusted either."""
    safetensors_numpy = pytest.importorskip("safetensors.numpy")
    orbax.orbax_to_zarr(source, tmp_path / "m.zarr")
    with bf16codecs.open_model(tmp_path / "m.zarr") as model:
        document = json.loads(model.metadata()[KEY])
        tensors = {"w": model["w"][...].view(np.uint16)}
    array = json.loads(document["files"]["w/.zarray"])
    array |= {"chunks": [5_120_000_000, 256], "dtype": "<u2", "fill_value": 0}
    document["files"]["w/.zarray"] = json.dumps(array)
    safetensors_numpy.save_file(tensors, tmp_path / "x.safetensors", {KEY: json.dumps(document)})
    done("st2zarr", tmp_path / "x.safetensors", tmp_path / "x.zarr")
    with pytest.raises(CorruptDataError, match="chunks of 5120000000 x 256 items"):
        orbax.zarr_to_orbax(tmp_path / "x.zarr", tmp_path / "back")
    assert not (tmp_path / "back").exists()


def zarr3_with_blosc(source: Path, is_sharded: bool) -> Path:
    """Replace an array by one of format 3 with Blosc, without chunks."""
    shutil.rmtree(source / "w")
    blosc = {"cname": "zstd", "clevel": 1, "shuffle": "noshuffle", "typesize": 1, "blocksize": 0}
    codecs: list[dict[str, Any]] = [
        {"name": "bytes", "configuration": {"endian": "little"}},
        {"name": "blosc", "configuration": blosc},
    ]
    if is_sharded:
        index = [codecs[0], {"name": "crc32c"}]
        sharding = {"chunk_shape": [300, 100], "codecs": codecs, "index_codecs": index}
        codecs = [{"name": "sharding_indexed", "configuration": sharding}]
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [300, 100],
        "data_type": "bfloat16",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [300, 100]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0.0,
        "codecs": codecs,
    }
    (source / "w/c/0").mkdir(parents=True)
    (source / "w/zarr.json").write_text(json.dumps(document))
    return source / "w/c/0/0"


def test_chunks_and_documents_that_take_memory(source: Path, tmp_path: Path, run_python) -> None:
    """The last of them would make tensorstore abort the process."""
    bomb = numcodecs.Blosc("zstd", 9, numcodecs.Blosc.NOSHUFFLE).encode(np.zeros(1 << 29, "u1"))
    index = np.array([0, len(bomb)], "<u8").tobytes()
    shard = bomb + index + google_crc32c.value(index).to_bytes(4, "little")
    told = {}

    def case(name: str, why: str) -> Path:
        told[name] = why
        return shutil.copytree(source, tmp_path / "damaged" / name)

    inflates = "chunk '{}': damaged: it inflates to more than"
    own = with_chunks(case("blosc", inflates.format("0.0")), compressor={"id": "blosc"})
    (own / "w/0.0").write_bytes(bomb)
    own = case("blosc of format 3", inflates.format("c/0/0"))
    zarr3_with_blosc(own, is_sharded=False).write_bytes(bomb)
    own = case("blosc in shards", inflates.format("c/0/0"))
    zarr3_with_blosc(own, is_sharded=True).write_bytes(shard)
    own = case("large chunk", "chunk '0.0': damaged: it takes more than")
    os.truncate(own / "w/0.0", 1 << 30)
    own = case("large document", "more than 32 MiB beside its arrays, with '.zarray'")
    os.truncate(own / "w/.zarray", 1 << 30)
    own = case("nested document", "w/.zarray: not JSON")
    nested = (own / "w/.zarray").read_text().rstrip()[:-1] + ', "x": %s%s}'
    (own / "w/.zarray").write_text(nested % ("[" * 1_000_000, "]" * 1_000_000))
    database = save(tmp_path / "database", {"w": bfloat16(300, 100)})
    # The second one is read only where the first refers to it.
    for name in ("manifest.ocdbt", f"manifest.{1:016x}"):
        told[name] = f"more than 32 MiB beside its arrays, with '{name}'"
        own = shutil.copytree(database, tmp_path / "damaged" / name)
        with open(own / name, "ab") as file:
            file.truncate(1 << 30)
    lines = run_python(CONVERT, tmp_path / "damaged").stdout.splitlines()
    assert len(lines) == len(told)
    for line, (name, why) in zip(lines, sorted(told.items()), strict=True):
        assert line.startswith(name)
        assert why in line


def test_blosc_is_read(source: Path, tmp_path: Path) -> None:
    before = restored(source)
    raw = before["w"].tobytes()
    chunk = with_chunks(source, compressor={"id": "blosc"}) / "w/0.0"
    chunk.write_bytes(numcodecs.Blosc().encode(raw))
    orbax.orbax_to_zarr(source, tmp_path / "m.zarr")
    with bf16codecs.open_model(tmp_path / "m.zarr") as model:
        assert model["w"][...].tobytes() == raw


def test_blosc_in_another_codec_needs_the_callers(source: Path, tmp_path: Path) -> None:
    chunk = zarr3_with_blosc(source, is_sharded=False)
    path = source / "w/zarr.json"
    document = json.loads(path.read_text())
    document["codecs"].append({"name": "gzip", "configuration": {"level": 1}})
    path.write_text(json.dumps(document))
    raw = bytes(60_000)
    chunk.write_bytes(gzip.compress(numcodecs.Blosc().encode(raw)))
    with pytest.raises(LimitError, match="tensor 'w': its codecs, bytes, blosc, gzip, may inflate"):
        orbax.orbax_to_zarr(source, tmp_path / "m.zarr")
    orbax.orbax_to_zarr(source, tmp_path / "m.zarr", max_bytes=60_000)
