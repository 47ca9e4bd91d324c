"""Errors about stores that are none, damaged or incomplete: one line that names the file."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import zarr
from zarr.storage import LocalStore

import tiers
from bf16codecs.errors import (
    CodecError,
    CorruptDataError,
    TruncatedDataError,
    UnsupportedVersionError,
)
from bf16codecs.model import open_model
from bf16codecs.store import StoreError
from edit_store import edit_json
from lazy_models import weights, write_store
from looping import noted
from store_cases import put_back


@pytest.fixture
def store(tmp_path):
    arrays = {"model.embed_tokens.weight": weights((300, 64)), "steps": np.arange(5)}
    return write_store(tmp_path / "m.zarr", arrays, chunk_size=1 << 14)


def test_paths_that_are_no_models(tmp_path, store):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.bin").write_bytes(b"nothing")
    (tmp_path / "bad.zip").write_bytes(b"PK nothing")
    zarr.create_group(tmp_path / "group.zarr")
    zarr.create_array(tmp_path / "array.zarr", shape=3, dtype="u1")
    zarr.create_group(tmp_path / "group2.zarr", zarr_format=2)
    broken = tmp_path / "broken.zarr"
    broken.mkdir()
    (broken / "zarr.json").write_text('{"zarr_format": 3,')
    (tmp_path / "list.zarr").mkdir()
    (tmp_path / "list.zarr" / "zarr.json").write_text("[]")
    for name in ("empty", "file.bin", "group.zarr", "array.zarr", "group2.zarr"):
        with pytest.raises(StoreError, match=f"{name}: not a model store"):
            open_model(tmp_path / name)
    for name in ("bad.zip", "broken.zarr", "list.zarr"):
        with pytest.raises(StoreError, match=name):
            open_model(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        open_model(tmp_path / "nothing.zarr")
    with pytest.raises(ValueError, match="storage_options"):
        open_model(store, {"anon": True})
    with pytest.raises(StoreError, match=r"nonsense://bucket.*(install|needed)"):
        open_model("nonsense://bucket/m.zarr")


def test_a_newer_layout_advises_an_upgrade(store):
    edit_json(store, "zarr.json", lambda root: root["attributes"]["bf16codecs"].update(layout=4))
    with pytest.raises(UnsupportedVersionError, match="upgrade"):
        open_model(store)


def test_paths_do_not_lead_out_of_the_store(store, tmp_path):
    shutil.copytree(store / "steps", tmp_path / "steps")
    for path in ("../steps", "model/../steps", "/steps", "..", "", "a\\b", "c:/x"):
        edit_json(
            store,
            "zarr.json",
            lambda r, p=path: r["attributes"]["bf16codecs"]["tensors"].update(steps=p),
        )
        with open_model(store) as model, pytest.raises(StoreError, match="not a path"):
            model["steps"]


METADATA_CHANGES = {
    "missing": lambda nodes: nodes.pop("steps"),
    "a group": lambda nodes: nodes["steps"].update(node_type="group"),
    "shape": lambda nodes: nodes["steps"].update(shape=[-5]),
    "text shape": lambda nodes: nodes["steps"].update(shape="5"),
    "chunks": lambda nodes: nodes["steps"]["chunk_grid"]["configuration"].update(chunk_shape=[0]),
    "dimensions": lambda nodes: nodes["steps"].update(shape=[5, 1]),
    "no codecs": lambda nodes: nodes["steps"].pop("codecs"),
    "unknown codec": lambda nodes: nodes["steps"].update(codecs=[{"name": "nonsense"}]),
}


def test_damaged_metadata_raise(store):
    shutil.rmtree(store / "steps")  # zarr would find the array's own metadata
    for name, change in METADATA_CHANGES.items():

        def change_root(root, change=change):
            change(root["consolidated_metadata"]["metadata"])

        with noted(name), put_back(store):
            edit_json(store, "zarr.json", change_root)
            with open_model(store) as model, pytest.raises((StoreError, OSError), match="steps"):
                model["steps"][:]


@pytest.mark.parametrize("codec", ["huffman", "none", "zstd"])
@pytest.mark.parametrize("size", ["small", "large"])
def test_missing_and_damaged_chunks_are_named(tmp_path, codec, size):
    array = weights((600, 1024) if size == "large" else (100, 64))
    store = write_store(tmp_path / "m.zarr", {"x.y": array, "n": np.arange(100)}, codec=codec)
    where = f"{store}: tensor 'x.y', chunk x/y/c.0.0: "
    chunk = store / "x" / "y" / "c.0.0"
    good = chunk.read_bytes()
    reads = [
        lambda m: m["x.y"][7],
        lambda m: m["x.y"][:],
        lambda m: m.load(),
        lambda m: m["x.y"][::90],
    ]
    damaged = [good[:30], good[: len(good) // 3], b"x" * len(good)]
    if codec == "none":
        damaged = []  # without a checksum, only missing bytes are noticed
    for content in (b"", *damaged, None):
        chunk.unlink() if content is None else chunk.write_bytes(content)
        for read in reads:
            with open_model(store) as model:
                with pytest.raises((StoreError, CorruptDataError, TruncatedDataError)) as error:
                    read(model)
                assert str(error.value).startswith(where)
                assert "\n" not in str(error.value)
    if codec != "none":
        flipped = bytearray(good)
        flipped[len(good) // 2] ^= 16
        chunk.write_bytes(flipped)
        with open_model(store) as model, pytest.raises(CorruptDataError, match=r"x/y/c\.0\.0"):
            model.load()


def test_info_names_a_missing_array(store):
    """Consolidated metadata still have it."""
    shutil.rmtree(store / "steps")
    with open_model(store) as model, pytest.raises(StoreError) as error:
        model.info()
    assert str(error.value).startswith(f"{store}: tensor 'steps': damaged: steps is missing; ")


def test_a_missing_chunk_is_an_error_in_zarr(store):
    (store / "steps" / "c.0").unlink()
    with open_model(store) as model:
        array = model["steps"].zarr
        with pytest.raises(StoreError, match=r"steps/c\.0: it is missing"):
            array[:]


def test_oversized_chunks_are_not_read(store):
    with open(store / "model" / "embed_tokens" / "weight" / "c.0.0", "r+b") as file:
        file.truncate(1 << 40)
    with open_model(store) as model, pytest.raises(CorruptDataError, match="more than"):
        model["model.embed_tokens.weight"][:]


@pytest.mark.parametrize(("codec", "of_versions"), [("plain-zstd", 0), ("arithmetic", 128 * 4000)])
def test_chunks_may_have_twice_their_size_and_a_little(tmp_path, codec, of_versions):
    """Frames may have an entry and a head for each version, with as little as one item."""
    store = write_store(tmp_path / "m.zarr", {"n": weights((2000,))}, codec=codec)
    chunk, limit = store / "n" / "c.0", 2 * 4000 + 4096 + of_versions
    content = chunk.read_bytes()
    for size in (limit, limit + 1):
        chunk.write_bytes(content.ljust(size, b"x"))
        with open_model(store) as model, pytest.raises(CorruptDataError) as error:
            model["n"][:]
        assert (f"more than the {limit} it can" in str(error.value)) == (size > limit)


@pytest.mark.parametrize("codec", ["arithmetic", "huffman", "zstd"])
def test_any_damage_is_noticed_or_harmless(tmp_path, codec):
    """After a byte has changed, reading raises or gives exactly what was stored."""
    array = weights((700, 1024))  # three blocks
    store = write_store(tmp_path / "m.zarr", {"w": array}, codec=codec)
    chunk = store / "w" / "c.0.0"
    good = chunk.read_bytes()
    rng = tiers.rng("any damage", codec)
    noticed = 0
    count = tiers.by_tier(20, 60)
    for position in [*range(0, 64, 3), *(rng.randrange(len(good)) for _ in range(count))]:
        bad = bytearray(good)
        bad[position] ^= rng.randrange(1, 256)
        chunk.write_bytes(bad)
        for selection in (np.s_[:], np.s_[300], np.s_[::300, 7]):
            with open_model(store) as model:
                try:
                    found = model["w"][selection]
                except (CodecError, StoreError):
                    noticed += 1
                else:
                    assert found.tobytes() == array[selection].tobytes()
    assert noticed > count


def test_options_are_for_addresses(store):
    with pytest.raises(ValueError, match="storage_options"):
        open_model(LocalStore(store), {"anon": True})
