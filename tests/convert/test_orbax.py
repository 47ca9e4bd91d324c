"""Orbax checkpoints to stores and back: the same tree, the same bits."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bf16codecs
from bits import assert_same_bits
from invoked import done, refused
from orbax_checkpoints import (
    FLOATS,
    FORMATS,
    arrays,
    assert_same_tree,
    bfloat16,
    jax,
    needs_orbax,
    normal,
    ocp,
    on_devices,
    orbax,
    restored,
    save,
)

pytestmark = needs_orbax

NAME = "a/b.c:d é"


def whole_tree() -> dict[str, Any]:
    return {
        "params": {
            "layers": [{"w": bfloat16(33, 70), NAME: FLOATS}, {"w": bfloat16(33, 70)}],
            "pair": (np.array([True, False]), np.array(-0.0, "f8")),
            "rows": on_devices(bfloat16(64, 6), "x"),
            "columns": on_devices(normal(8, 3, 32), "x", None, "y"),
            "all": on_devices(np.zeros((8, 8), "f4"), ("x", "y")),
            "none": None,
            "no_layers": [],
            "nothing": {},
        },
        "step": 7,
        "rate": 1e-3,
        "key": np.array([1, 2], "u4"),
        "complex": np.array([1 - 2j], "c8"),
        "small": np.array([[1], [-2]], "i1"),
        "text": "Grüße",
        "flag": True,
    }


def documents(path: Path) -> dict[str, bytes]:
    """Return all files but those of databases and the chunks of arrays in plain folders."""
    return {
        str(own.relative_to(path)): own.read_bytes()
        for own in path.rglob("*")
        if own.is_file()
        and not {"d", "ocdbt.process_0", "manifest.ocdbt"} & set(own.relative_to(path).parts)
        and (own.suffix or own.name.startswith("_") or own.parent.name == "array_metadatas")
    }


def there_and_back(source: Path, folder: Path, **options: Any) -> Path:
    orbax.orbax_to_zarr(source, folder / "m.zarr", **options)
    orbax.zarr_to_orbax(folder / "m.zarr", folder / "back")
    return folder / "back"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return save(tmp_path / "orbax", {"w": bfloat16(300, 100), "s": 3}, use_ocdbt=False)


@pytest.mark.parametrize("options", FORMATS.values(), ids=FORMATS)
def test_the_same_tree_and_bits(tmp_path: Path, options: dict[str, bool]) -> None:
    tree = whole_tree()
    source = save(tmp_path / "orbax", tree, **options)
    back = there_and_back(source, tmp_path)
    assert_same_tree(restored(back), restored(source))
    assert_same_bits(restored(back)["params"]["layers"][0][NAME], FLOATS)
    assert documents(back) == documents(source)
    with bf16codecs.open_model(tmp_path / "m.zarr") as model:
        assert_same_bits(model["params.layers.1.w"][...], tree["params"]["layers"][1]["w"])
        assert_same_bits(model["params.columns"][:, 1, 3:], tree["params"]["columns"][:, 1, 3:])
        assert model["step"][...] == 7


def test_arrays_keep_their_chunks(tmp_path: Path) -> None:
    source = save(tmp_path / "orbax", whole_tree(), use_ocdbt=False)
    back = there_and_back(source, tmp_path)
    chunks = sorted(own.name for own in (source / "params.columns").iterdir())
    assert chunks == [".zarray", "0.0.0", "0.0.1", "1.0.0", "1.0.1"]
    assert sorted(own.name for own in (back / "params.columns").iterdir()) == chunks


def test_shards_of_smaller_chunks(tmp_path: Path) -> None:
    tree = {"w": bfloat16(64, 64), "b": bfloat16(100)}
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_zarr3=True)) as checkpointer:
        arguments = jax.tree.map(lambda _: ocp.SaveArgs(chunk_byte_size=512), tree)
        checkpointer.save(tmp_path / "orbax", tree, save_args=arguments)
    back = there_and_back(tmp_path / "orbax", tmp_path)
    assert_same_tree(restored(back), restored(tmp_path / "orbax"))


def test_restored_onto_devices(tmp_path: Path) -> None:
    """Orbax's metadata of how arrays were sharded are kept."""
    tree = {"w": on_devices(bfloat16(8, 8), "x", "y")}
    back = there_and_back(save(tmp_path / "orbax", tree), tmp_path)
    (found,) = jax.tree.leaves(ocp.StandardCheckpointer().restore(back))
    assert found.sharding == tree["w"].sharding
    assert_same_bits(found, tree["w"])


def test_groups_are_no_arrays(source: Path, tmp_path: Path) -> None:
    """Orbax writes no groups; those that others have added are kept."""
    group = b'{"zarr_format": 3, "node_type": "group"}'
    (source / "zarr.json").write_bytes(group)
    back = there_and_back(source, tmp_path)
    assert (back / "zarr.json").read_bytes() == group
    assert_same_tree(restored(back), restored(source))


@pytest.mark.parametrize("cut", [(), ("x",), (None, "x"), ("x", "y")], ids=str)
def test_arrays_are_decoded_once(tmp_path: Path, monkeypatch, cut: tuple[str | None, ...]) -> None:
    """To find copies, only the chunks that hold a sample are read; files are closed."""
    values = normal(6, 400, 2)
    tree = {f"w{i}": on_devices(values + i, *cut) for i in range(12)}
    source = save(tmp_path / "orbax", tree)
    decode, decoded = arrays.OrbaxArray.decode, []

    def counted(array: arrays.OrbaxArray, folder: Path) -> arrays.Scratch:
        decoded.append((array.label, decode(array, folder)))
        return decoded[-1][1]

    monkeypatch.setattr(arrays.OrbaxArray, "decode", counted)
    orbax.orbax_to_zarr(source, tmp_path / "m.zarr")
    assert len(decoded) == len({label for label, _ in decoded}) == 12
    assert all(scratch._file.closed for _, scratch in decoded)
    with bf16codecs.open_model(tmp_path / "m.zarr") as model:
        for name, array in tree.items():
            assert_same_bits(model[name][...], np.asarray(array))


def test_a_sample_has_the_items_of_its_range(tmp_path: Path) -> None:
    """Wherever a range begins and ends: in rows of any axis, and in chunks."""
    values = normal(4, 3, 6, 2)
    save(tmp_path / "orbax", {"w": on_devices(values, "x", None, "y")}, use_ocdbt=False)
    from bf16codecs.convert.orbax.layout import Location

    opener = arrays.ArrayOpener(tmp_path / "orbax", "orbax")
    array = opener.open("w", Location(None, "w", "zarr", True))
    for start in range(0, 144, 5):
        for stop in (*range(start, 144, 7), 144):
            out = np.empty((stop - start) * 4, np.uint8)
            array.read(start * 4, out)
            assert out.tobytes() == values.reshape(-1)[start:stop].tobytes()


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux tells the peak of a child")
def test_memory_is_that_of_chunks(tmp_path: Path, run_python) -> None:
    """Arrays of 400 MB together, cut into columns: a row of chunks is half of an array."""
    values = normal(2048, 4096)
    tree = {f"w{i}": on_devices(values + i, "x", "y") for i in range(12)}
    save(tmp_path / "orbax", tree, use_ocdbt=False)
    code = """
import sys
from pathlib import Path
from bf16codecs.convert import orbax
getattr(orbax, sys.argv[1])(*sys.argv[2:])
(peak,) = (line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
print(int(peak.split()[1]) * 1024)
"""
    for function, *paths in [
        ("orbax_to_zarr", "orbax", "m.zarr"),
        ("zarr_to_orbax", "m.zarr", "back"),
    ]:
        assert int(run_python(code, function, *paths).stdout) < 260e6


def test_a_step_of_a_manager(tmp_path: Path) -> None:
    tree = {"w": bfloat16(40, 3), "m": FLOATS}
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        items = {"state": ocp.args.StandardSave(tree), "data": ocp.args.JsonSave({"at": [1, 2]})}
        manager.save(3, args=ocp.args.Composite(**items), custom_metadata={"loss": 2.5})
    orbax.orbax_to_zarr(tmp_path / "run" / "3", tmp_path / "m.zarr")
    with bf16codecs.open_model(tmp_path / "m.zarr") as model:
        assert sorted(model) == ["m", "w"]
    (tmp_path / "again").mkdir()
    orbax.zarr_to_orbax(tmp_path / "m.zarr", tmp_path / "again" / "3")
    with ocp.CheckpointManager(tmp_path / "again", item_names=("state", "data")) as manager:
        arguments = {"state": ocp.args.StandardRestore(tree), "data": ocp.args.JsonRestore()}
        found = manager.restore(3, args=ocp.args.Composite(**arguments))
        assert_same_tree(found["state"], tree)
        assert found["data"] == {"at": [1, 2]}
        assert manager.metadata(3).custom_metadata == {"loss": 2.5}


def test_several_items_have_arrays(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        items = {
            "params": ocp.args.StandardSave({"w": bfloat16(4)}),
            "opt": ocp.args.StandardSave({"w": FLOATS}),
            "one": ocp.args.ArraySave(np.arange(3)),
            "random": ocp.args.NumpyRandomKeySave(np.random.get_state()),  # noqa: NPY002
        }
        manager.save(0, args=ocp.args.Composite(**items))
    back = there_and_back(tmp_path / "run" / "0", tmp_path)
    with bf16codecs.open_model(tmp_path / "m.zarr") as model:
        assert {"params/w", "opt/w", "one/checkpoint"} < set(model)
    for item in ("params", "opt"):
        assert_same_tree(restored(back / item), restored(tmp_path / "run" / "0" / item))


@pytest.mark.parametrize("use_ocdbt", [True, False])
def test_trees_of_older_checkpoints(tmp_path: Path, use_ocdbt: bool) -> None:
    """Which Orbax finds in a file `checkpoint`, where there is no `_METADATA`."""
    msgpack = pytest.importorskip("msgpack")
    tree = {"a": {"w": bfloat16(3)}, "n": FLOATS}
    source = save(tmp_path / "orbax", tree, use_ocdbt=use_ocdbt)
    (source / "_METADATA").unlink()
    leaves = {"a": {"w": "PLACEHOLDER://a.w"}, "n": "PLACEHOLDER://n"}
    (source / "checkpoint").write_bytes(msgpack.packb(leaves))
    assert_same_tree(restored(there_and_back(source, tmp_path)), tree)


def test_arrays_that_need_no_tree(tmp_path: Path) -> None:
    """An array alone, and a folder of nothing but arrays."""
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        items = {"one": ocp.args.ArraySave(FLOATS), "all": ocp.args.StandardSave({"w": FLOATS})}
        manager.save(0, args=ocp.args.Composite(**items))
    step = tmp_path / "run" / "0"
    (step / "one" / "_METADATA").unlink()
    save(tmp_path / "bare", {"a": {"w": FLOATS}}, use_ocdbt=False)
    shutil.copytree(tmp_path / "bare" / "a.w", step / "bare" / "a.w")
    back = there_and_back(step, tmp_path)
    with ocp.Checkpointer(ocp.ArrayCheckpointHandler()) as checkpointer:
        assert_same_bits(checkpointer.restore(back / "one"), FLOATS)
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False)) as checkpointer:
        assert_same_bits(checkpointer.restore(back / "bare")["a"]["w"], FLOATS)


def test_the_safetensors_of_a_store_of_a_checkpoint(tmp_path: Path) -> None:
    """It is a model store like any other: safetensors reads what it restores."""
    safetensors_numpy = pytest.importorskip("safetensors.numpy")
    source = save(tmp_path / "orbax", {"a": {"w": FLOATS}, "n": np.arange(5)})
    orbax.orbax_to_zarr(source, tmp_path / "m.zarr", codec="zstd", sha256=True)
    done("bf16codecs", "verify", tmp_path / "m.zarr")
    done("zarr2st", tmp_path / "m.zarr", tmp_path / "m.safetensors")
    found = safetensors_numpy.load_file(tmp_path / "m.safetensors")
    assert sorted(found) == ["a.w", "n"]
    assert_same_bits(found["a.w"], FLOATS)


def test_a_store_with_a_base(tmp_path: Path) -> None:
    first = {"w": bfloat16(100, 100)}
    second = {"w": first["w"].copy()}
    second["w"][3] = 1
    orbax.orbax_to_zarr(save(tmp_path / "one", first), tmp_path / "base.zarr")
    source = save(tmp_path / "two", second)
    back = there_and_back(source, tmp_path, base=tmp_path / "base.zarr")
    assert_same_tree(restored(back), restored(source))


def test_documents_that_are_no_text(source: Path, tmp_path: Path) -> None:
    (source / "iterator").write_bytes(bytes(range(256)))
    assert (there_and_back(source, tmp_path) / "iterator").read_bytes() == bytes(range(256))


def test_progress(source: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []

    def progress(*args: Any) -> None:
        seen.append(args)

    orbax.orbax_to_zarr(source, tmp_path / "m.zarr", progress=progress)
    orbax.zarr_to_orbax(tmp_path / "m.zarr", tmp_path / "back", progress=progress)
    assert [phase for phase, now, total in seen if now == total] == [
        "convert",
        "verify",
        "restore",
        "verify",
    ]
    assert {total for _, _, total in seen} == {60_008}


def test_command(source: Path, tmp_path: Path) -> None:
    store, back = tmp_path / "m.zarr", tmp_path / "back"
    line = done("bf16codecs", "orbax", source, store, "--codec", "huffman", "--zarr-format", "2")
    assert "m.zarr: 2 tensors, " in line
    assert "verified" in line
    assert (store / ".zgroup").exists()
    assert "huffman" in done("bf16codecs", "info", store)
    result = json.loads(done("bf16codecs", "orbax", store, back, "--json"))
    assert result["done"] == "restored"
    assert result["tensors"] == 2
    assert_same_tree(restored(back), restored(source))
    assert "--overwrite replaces it" in refused("bf16codecs", "orbax", store, back)
    assert done("bf16codecs", "orbax", store, back, "--overwrite", "--quiet") == ""
