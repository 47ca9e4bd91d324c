"""Objects of training checkpoints that are not tensors: sound, damaged, and untrusted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import bf16codecs
import tiers
from based_models import base_of
from bf16codecs.convert import (
    hdf5_to_safetensors,
    rebase_store,
    safetensors_to_hdf5,
    safetensors_to_zarr,
    verify_store,
    zarr_to_safetensors,
)
from bf16codecs.convert.options import Options
from bf16codecs.convert.store import convert_model
from bf16codecs.errors import CorruptDataError, LimitError, StoreError
from bf16codecs.store.checkpoint import Checkpoint, CheckpointPaths
from bf16codecs.store.files import FilesReader, open_safetensors
from bf16codecs.store.kinds import Kind
from edit_store import edit_attributes, write_zip, zip_members
from folders import copy_of
from invoked import done, run
from lazy_models import weights, write_safetensors
from looping import noted
from make_golden_stores import FOLDER
from store_cases import put_back

GOLDEN = "layout2-checkpoint.zarr.zip"
OBJECTS = b"one, two"
TEXT = b'{"objects":{"a":[0,3],"b":[5,3],"none":[8,0]},"names":{"a":["x",0],"w":["w"]}}'
KINDS = {"m.zarr": safetensors_to_zarr, "m.h5": safetensors_to_hdf5}
kinds = pytest.mark.parametrize("kind", KINDS)


def texts(objects: str, names: str = '{"a":["a"]}') -> bytes:
    return f'{{"objects":{objects},"names":{names}}}'.encode()


BAD_TEXTS = {
    "nothing": b"",
    "cut off": TEXT[:-1],
    "not JSON": b"{'objects':{}}",
    "not UTF-8": b'{"objects":{"\xff":[0,1]}}',
    "UTF-16": TEXT.decode().encode("utf-16"),
    "a list": b"[]",
    "null": b"null",
    "a number": b"3",
    "a string": b'"objects"',
    "no objects": b'{"names":{}}',
    "objects are a list": texts("[]"),
    "objects are null": texts("null"),
    "deep": b'{"objects":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep place": texts('{"a":' + "[" * 900 + "]" * 900 + "}"),
    "long number": texts(f'{{"a":[0,{"9" * 5000}]}}'),
    **{
        f"place {place}"[:40]: texts(f'{{"a":{place}}}')
        for place in (
            *('"x"', "null", "3", "{}", "[]", "[0]", "[0,1,2]", '["0","1"]', "[null,1]", "[[0],1]"),
            *("[true,1]", "[0,false]", "[0,1.0]", "[0.0,1]", "[0,1e999]", "[0,NaN]", "[-1,2]"),
            *("[3,-1]", "[-8,8]", "[0,9]", "[9,0]", "[8,1]", f"[{1 << 64},0]", f"[0,{9**400}]"),
            f"[{-(1 << 64)},{1 << 64}]",
        )
    },
    **{
        f"names {names}": texts('{"a":[0,1]}', names)
        for names in (
            *("[]", "null", "3", '{"a":[]}', '{"a":"x"}', '{"a":null}', '{"a":{"b":1}}'),
            *('{"a":[1.5]}', '{"a":[true]}', '{"a":[null]}', '{"a":[["b"]]}', '{"a":[{}]}'),
            *('{"a":[0]}', '{"a":[0,"x"]}', '{"a":["x",-1]}', '{"a":["x",0],"b":["x","y"]}'),
            *(
                '{"a":["list",1000000000]}',
                f'{{"a":["list",{1 << 70}]}}',
                '{"a":["x",65537,65537]}',
            ),
        )
    },
    "deep names": texts('{"a":[0,1]}', '{"a":["x"' + ',"x"' * 128 + "]}"),
    "long lists": texts(
        '{"a":[0,1]}', "{" + ",".join(f'"{i}":["{i}",50000]' for i in range(100)) + "}"
    ),
    "objects that are one": texts('{"a":[0,5],"b":[0,5]}'),
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    arrays = {"w": weights((40, 8)), "grid": np.zeros((2, 3), np.uint8)}
    return write_safetensors(tmp_path / "m.safetensors", arrays)


def store_of(model: Path, kind: str = "m.zarr", text: bytes = TEXT, **options: Any) -> Path:
    """Make a checkpoint of a model with any text."""
    return make(model, model.with_name(kind), (text, OBJECTS), verify=text == TEXT, **options)


def make(model: Path, store: Path, objects: tuple[bytes, bytes], **options: Any) -> Path:
    """Make a store of a model with such objects."""
    kind = Kind.HDF5 if store.suffix == ".h5" else Kind.FOLDER
    # Not read from the source, which would refuse an invalid text.
    given = mock.patch("bf16codecs.convert.packing.read_parts", return_value=objects)
    with closing(open_safetensors(model)) as plain, given:
        source = FilesReader(plain.where, plain.files, checkpoint=objects)
        convert_model(source, store, kind, Options(**options))
    return store


def objects_of(store: Path) -> dict[str, bytes]:
    with bf16codecs.open_model(store) as opened:
        return {name: opened.object_bytes(name) for name in opened.objects()}


def assert_refused(store: Path, error: type[Exception] = StoreError) -> None:
    """Check that every command refuses a store in one line, and leaves nothing behind."""
    before = set(store.parent.iterdir())
    restore = hdf5_to_safetensors if store.suffix == ".h5" else zarr_to_safetensors
    for call in (verify_store, lambda path: restore(path, path.with_name("new.safetensors"))):
        with pytest.raises(error) as caught:
            call(store)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 1000
    for command in ("info", "verify"):
        result = run("bf16codecs", command, store)
        assert result.exit_code == 1, command
        assert len(result.stderr.splitlines()) == 1
    assert set(store.parent.iterdir()) == before


def assert_each_is_refused(store: Path, changes: dict[str, Callable[[Any], object]]) -> None:
    for name, change in changes.items():
        with noted(name), put_back(store):
            edit_attributes(store, change)
            assert_refused(store)


@kinds
def test_objects_are_read(model: Path, kind: str) -> None:
    store = store_of(model, kind)
    assert objects_of(store) == {"a": b"one", "b": b"two", "none": b""}
    assert verify_store(store, model).objects == 3
    with bf16codecs.open_model(store) as opened:
        assert opened.objects() == {"a": 3, "b": 3, "none": 0}
        with pytest.raises(KeyError, match=r"m\.(zarr|h5) has no object 'c'"):
            opened.object_bytes("c")


def test_other_models_have_no_objects(model: Path) -> None:
    with bf16codecs.open_model(model) as opened:
        assert opened.objects() == {}
        assert opened.info().to_json()["objects"] is None


def test_objects_are_reported(model: Path) -> None:
    store = store_of(model)
    told = done("bf16codecs", "info", store)
    assert "m.zarr: a checkpoint of a training job in a Zarr store, format 3\n" in told
    assert "objects: 3 (6 B)" in told
    document = json.loads(done("bf16codecs", "info", store, "--json"))
    assert document["objects"] == [
        {"name": "a", "nbytes": 3},
        {"name": "b", "nbytes": 3},
        {"name": "none", "nbytes": 0},
    ]
    told = done("zarr2st", store, model.with_name("new.safetensors"))
    assert told.endswith("restored, without 3 objects of the checkpoint\n")
    assert "2 tensors, 3 objects, " in done("bf16codecs", "verify", store)
    with bf16codecs.open_model(store) as opened:
        assert "objects: 3 (6 B)" in opened._repr_html_()


def test_objects_of_no_bytes_take_no_array(model: Path) -> None:
    store = make(model, model.with_name("m.zarr"), (b'{"objects":{"a":[0,0]}}', b""))
    assert objects_of(store) == {"a": b""}
    assert verify_store(store).objects == 1
    edit_attributes(store, lambda root: root["checkpoint"].update(objects="safetensors/header/0"))
    assert objects_of(store) == {"a": b""}


def test_texts_that_are_not_what_the_layout_says(model: Path) -> None:
    for name, text in BAD_TEXTS.items():
        with noted(name), pytest.raises((ValueError, RecursionError)):
            Checkpoint.from_text(text, len(OBJECTS))
    for name, text in list(BAD_TEXTS.items())[:: tiers.by_tier(4, 1)]:
        with noted(name):
            store = store_of(model, text=text, overwrite=True)
            with bf16codecs.open_model(store) as opened:
                assert set(opened.load()) == {"w", "grid"}  # which have nothing to do with it
                for call in (opened.objects, lambda: opened.object_bytes("a"), opened.info):
                    with pytest.raises(StoreError, match="text of the checkpoint: ") as caught:
                        call()
                    assert "\n" not in str(caught.value)
            assert_refused(store)


def test_names_that_are_sound() -> None:
    """Deep, long, and with gaps, as empty dictionaries leave them in lists."""
    names = {
        "deep": ["x", *["y", 0] * 60],
        "gap": ["z", 3],
        **{f"many.{i}": ["many", i] for i in range(100_000)},
    }
    text = json.dumps({"objects": {"a": [0, 5], "b": [5, 3]}, "names": names}).encode()
    assert Checkpoint.from_text(text, 8).names["many.99999"] == ("many", 99999)


def test_a_text_in_hdf5_that_is_none(model: Path) -> None:
    assert_refused(store_of(model, "m.h5", b"[]"))


NO_ENTRIES = [
    *(None, 3, "x", [], ["path"], {}, {"objects": "safetensors/objects"}, {"path": None}),
    *({"path": 3}, {"path": ["x"]}, {"path": "safetensors/checkpoint", "objects": 3}),
    {"path": "safetensors/checkpoint", "objects": {}},
]


@kinds
def test_entries_that_are_none(model: Path, kind: str) -> None:
    store = store_of(model, kind)
    for entry in NO_ENTRIES:
        with noted(entry), put_back(store):
            with pytest.raises((KeyError, TypeError, ValueError)):
                CheckpointPaths.from_entry(entry)
            edit_attributes(store, lambda root, entry=entry: root.update(checkpoint=entry))
            with pytest.raises(StoreError, match="damaged store attributes"):
                bf16codecs.open_model(store)
            assert_refused(store)


OTHER_PATHS = ["", "nowhere", "w", "w#bfloat16", "grid", "safetensors", "../m.zarr/w", "/w", "a\0b"]


@kinds
def test_paths_that_lead_to_something_else(model: Path, kind: str) -> None:
    changes = {
        f"{key} {path!r}": lambda root, new={key: path}: root["checkpoint"].update(new)
        for key in ("path", "objects")
        for path in OTHER_PATHS
    }
    assert_each_is_refused(store_of(model, kind), changes)


def test_a_text_that_is_another_one(model: Path) -> None:
    """A safetensors header is JSON as well, but no checkpoint's text."""
    store = store_of(model)
    edit_attributes(store, lambda root: root["checkpoint"].update(path="safetensors/header/0"))
    assert_refused(store)


@pytest.mark.parametrize("array", ["checkpoint", "objects"])
def test_arrays_that_are_missing(model: Path, array: str) -> None:
    store = store_of(model)
    shutil.rmtree(store / "safetensors" / array)
    if array == "objects":  # which takes no look at its chunks
        done("bf16codecs", "info", store)
        with pytest.raises(StoreError, match="missing"):
            objects_of(store)
        with pytest.raises(StoreError, match="missing"):
            verify_store(store)
    else:
        assert_refused(store)


def test_a_chunk_of_objects_that_is_damaged(tmp_path: Path) -> None:
    """Nothing but the objects in it is lost."""
    store = tmp_path / "m.zarr.zip"
    members = zip_members(FOLDER / GOLDEN)
    content = members["safetensors/objects/c.1"]
    middle = len(content) // 2
    changed = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    write_zip(store, {**members, "safetensors/objects/c.1": changed})
    with pytest.raises(CorruptDataError, match="objects of the checkpoint") as caught:
        verify_store(store)
    assert [own.chunk for own in caught.value.damage] == [(1,)]
    with bf16codecs.open_model(store) as opened:
        assert len(opened.load()) == 9
        read: dict[str, bool] = {}
        for name in opened.objects():
            try:
                read[name] = bool(opened.object_bytes(name))
            except CorruptDataError:
                read[name] = False
    assert read["betas"]  # in the first of three chunks
    assert read["random.rank 3"]
    assert not all(read.values())


def test_objects_count_towards_the_limit(model: Path) -> None:
    store = store_of(model, chunk_size=4096)
    with (
        bf16codecs.open_model(store, max_bytes=2) as opened,
        pytest.raises(LimitError),
    ):
        opened.object_bytes("a")


@pytest.mark.parametrize("name", ["layout1-none.zarr.zip", "layout1-none.h5"])
def test_layout_1_knows_nothing_of_it(tmp_path: Path, name: str) -> None:
    store = copy_of(FOLDER / name, tmp_path)
    edit_attributes(store, lambda root: root.update(checkpoint={"path": "nowhere"}))
    assert objects_of(store) == {}
    assert verify_store(store).objects == 0
    edit_attributes(store, lambda root: root["files"][0].pop("sha256"))
    with pytest.raises(StoreError, match="no digest"):
        bf16codecs.open_model(store)


def test_runs_know_nothing_of_it(tmp_path: Path) -> None:
    store = copy_of(FOLDER / "layout2-run.h5", tmp_path)
    edit_attributes(store, lambda root: root.update(checkpoint={"path": "nowhere"}))
    verify_store(store)
    with bf16codecs.open_run(store) as run:
        assert run[20].objects() == {}

    def without_digests(root: Any) -> None:
        for file in root["steps"][0]["files"]:
            file.pop("sha256")

    edit_attributes(store, without_digests)
    with pytest.raises(StoreError, match="no digest"):
        bf16codecs.open_run(store)


def golden(tmp_path: Path, change: Callable[[Any], object]) -> Path:
    store = copy_of(FOLDER / GOLDEN, tmp_path)
    edit_attributes(store, change)
    return store


def test_only_checkpoints_need_no_digests(tmp_path: Path) -> None:
    store = golden(tmp_path, lambda root: root.pop("checkpoint"))
    with pytest.raises(StoreError, match="no digest"):
        bf16codecs.open_model(store)
    assert_refused(store)


def test_an_index_needs_a_digest(tmp_path: Path) -> None:
    index = {"name": "model.json", "size": 2, "path": "safetensors/header/0"}
    assert_refused(golden(tmp_path, lambda root: root.update(index=index)))


def test_digests_that_are_none(tmp_path: Path) -> None:
    changes = {
        repr(digest): lambda root, digest=digest: root["files"][0].update(blake3=digest)
        for digest in (5, {}, [])
    }
    assert_each_is_refused(golden(tmp_path, lambda root: None), changes)


def test_digests_are_compared_where_there_are_any(tmp_path: Path) -> None:
    store = golden(tmp_path, lambda root: root["files"][0].update(blake3="00" * 32))
    with pytest.raises(CorruptDataError, match="BLAKE3"):
        verify_store(store)
    with pytest.raises(CorruptDataError, match="BLAKE3"):
        zarr_to_safetensors(store, tmp_path / "new.safetensors")
    assert not (tmp_path / "new.safetensors").exists()


@kinds
def test_another_base_keeps_objects(model: Path, kind: str) -> None:
    store, base = store_of(model, kind), model.with_name("base.zarr")
    safetensors_to_zarr(model, base)
    assert rebase_store(store, base).objects == 3
    assert base_of(store) is not None
    assert objects_of(store) == {"a": b"one", "b": b"two", "none": b""}
    assert rebase_store(store, base).is_unchanged
    assert rebase_store(store).objects == 3
    assert objects_of(store) == {"a": b"one", "b": b"two", "none": b""}
    assert verify_store(store, model).objects == 3


def test_a_checkpoint_with_a_base_gets_whole(tmp_path: Path) -> None:
    """Its files then get digests, since they are read as a whole."""
    based = "layout2-checkpoint-based.zarr.zip"
    for name in (GOLDEN, based):
        copy_of(FOLDER / name, tmp_path)
    before, files = objects_of(tmp_path / based), []
    rebase_store(tmp_path / based)
    (tmp_path / GOLDEN).unlink()
    assert objects_of(tmp_path / based) == before
    verify_store(tmp_path / based)
    edit_attributes(tmp_path / based, lambda root: files.extend(root["files"]))
    assert files[0]["blake3"]


@kinds
def test_objects_that_a_conversion_loses_are_noticed(
    model: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(reader: object) -> tuple[bytes, bytes]:
        return TEXT, OBJECTS if isinstance(reader, FilesReader) else b""

    monkeypatch.setattr("bf16codecs.convert.store.read_parts", lost)
    with pytest.raises(CorruptDataError, match="has other objects than its source"):
        store_of(model, kind)
    assert not model.with_name(kind).exists()
