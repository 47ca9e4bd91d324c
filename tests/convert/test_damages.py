"""Stores with several damaged chunks: `verify` reports all of them."""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

import h5py
import pytest
import zarr

from based_models import KINDS, convert, write_nearby
from bf16codecs import open_model
from bf16codecs._arrays import storage
from bf16codecs.convert import (
    append_to_run,
    safetensors_to_run,
    safetensors_to_zarr,
    verify_store,
)
from bf16codecs.errors import CorruptDataError, LimitError, ServerError, StoreError
from damage import damage_of, error_of, places
from edit_store import claim_shape, edit_array, edit_json, write_zip, zip_members
from invoked import run
from lazy_models import weights, write_safetensors, write_store
from make_golden_stores import FOLDER
from run_stores import TARGETS
from servers import serving

ARRAYS = {f"t{i}": weights((128, 64), seed=i) for i in range(4)}
#: Tensor and index of the chunks that are damaged.
CHUNKS = [("t0", (1, 0)), ("t1", (0, 0)), ("t1", (3, 0)), ("t3", (2, 0))]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_safetensors(tmp_path / "m-1.safetensors", ARRAYS)


@pytest.fixture
def frames(tmp_path: Path, source: Path) -> dict[tuple[str, tuple[int, ...]], bytes]:
    """Return the frame of each chunk, which is the same in every kind of store."""
    safetensors_to_zarr(source, tmp_path / "frames.zarr", chunk_size=4096)
    return {
        (name, (i, 0)): (tmp_path / "frames.zarr" / name / f"c.{i}.0").read_bytes()
        for name in ARRAYS
        for i in range(4)
    }


def flip(store: Path, frame: bytes) -> None:
    """Change a byte of a frame in a store of any kind."""
    files = [store] if store.is_file() else [p for p in store.rglob("*") if p.is_file()]
    for file in files:
        content = bytearray(file.read_bytes())
        at = content.find(frame)
        if at >= 0:
            content[at + len(frame) // 2] ^= 1
            file.write_bytes(content)
            return
    raise AssertionError("no file has the frame")


@pytest.mark.parametrize("kind", KINDS)
def test_all_damaged_chunks_are_reported(
    kind: str, tmp_path: Path, source: Path, frames: dict[Any, bytes]
) -> None:
    store = convert(kind, source, tmp_path / "m", chunk_size=4096)
    for chunk in CHUNKS:
        flip(store, frames[chunk])
    assert places(damage_of(store)) == CHUNKS
    found = damage_of(store, source)
    assert places(found) == CHUNKS
    assert all("damaged: " in damage.message for damage in found)
    assert {damage.step for damage in found} == {None}


def test_a_single_one_is_reported_by_its_own_error(
    tmp_path: Path, source: Path, frames: dict[Any, bytes]
) -> None:
    store = convert("zarr3", source, tmp_path / "m", chunk_size=4096)
    flip(store, frames[CHUNKS[0]])
    with pytest.raises(CorruptDataError, match=r"chunk t0/c\.1\.0: damaged: .*; restore it") as e:
        verify_store(store)
    assert "not intact" not in str(e.value)
    assert places(e.value.damage) == CHUNKS[:1]
    result = run("bf16codecs", "verify", store)
    assert (result.exit_code, result.stdout) == (1, "")
    assert len(result.stderr.splitlines()) == 1


def test_missing_chunks_other_bytes_and_other_digests(tmp_path: Path, source: Path) -> None:
    """The error has the type of the first one."""
    store = convert("zarr3", source, tmp_path / "m", chunk_size=4096, codec="none")
    chunks = {name: store / name / "c.1.0" for name in ("t0", "t2")}
    raw = chunks["t0"].read_bytes()
    chunks["t0"].write_bytes(bytes([raw[0] ^ 1]) + raw[1:])
    # Without checksums only the whole file tells.
    (found,) = damage_of(store)
    assert (found.tensor, found.chunk) == (None, None)
    assert found.message == "m-1.safetensors has another BLAKE3 than the original"
    error = error_of(store, source)
    assert places(error.damage) == [(None, None)]
    assert places(error.differences) == [("t0", (1, 0))]
    assert error.differences[0].message == f"tensor 't0', chunk (1, 0) differs from {source}"
    chunks["t2"].unlink()
    assert places(damage_of(store, error=StoreError)) == [("t2", (1, 0))]
    error = error_of(store, source, error=StoreError)
    assert places(error.damage) == [("t2", (1, 0))]
    assert places(error.differences) == [("t0", (1, 0))]


def test_each_file_is_compared_for_itself(tmp_path: Path) -> None:
    """Digests are compared for the files that have no damaged chunk."""
    folder = tmp_path / "shards"
    folder.mkdir()
    for i, name in enumerate("abc"):
        write_safetensors(folder / f"{name}.safetensors", {name: weights((128, 64), seed=i)})
    store = tmp_path / "m.zarr"
    safetensors_to_zarr(folder, store, chunk_size=4096, codec="none")
    (store / "a" / "c.0.0").unlink()
    chunk = store / "b" / "c.0.0"
    chunk.write_bytes(bytes(4096))
    found = damage_of(store, error=StoreError)
    assert places(found) == [("a", (0, 0)), (None, None)]
    assert found[1].message.startswith("b.safetensors has another")


def test_arrays_that_cannot_be_opened(tmp_path: Path, source: Path) -> None:
    store = convert("zarr3", source, tmp_path / "m")
    document = json.loads((store / "zarr.json").read_text())
    for name in ("t1", "t3"):
        document["consolidated_metadata"]["metadata"][name]["data_type"] = "float128"
    (store / "zarr.json").write_text(json.dumps(document))
    assert places(damage_of(store, error=StoreError)) == [("t1", None), ("t3", None)]


def _rename(attributes: dict[str, Any]) -> None:
    attributes["tensor"] = "zzz"


@pytest.mark.parametrize("kind", KINDS)
def test_an_array_of_another_tensor(kind: str, tmp_path: Path, source: Path) -> None:
    """Reading refuses what names another tensor, though all of its data are sound."""
    store = convert(kind, source, tmp_path / "m")
    if kind == "hdf5":
        with h5py.File(store, "r+") as file:
            attributes = json.loads(file["t1"].attrs["bf16codecs"])
            _rename(attributes)
            file["t1"].attrs["bf16codecs"] = json.dumps(attributes)
    elif kind == "zarr2":
        edit_json(
            store, ".zmetadata", lambda root: _rename(root["metadata"]["t1/.zattrs"]["bf16codecs"])
        )
    else:
        edit_array(store, "t1", lambda node: _rename(node["attributes"]["bf16codecs"]))
    with open_model(store) as model, pytest.raises(StoreError, match="that of 'zzz'"):
        model.load()
    error = error_of(store, error=StoreError)
    assert places(error.damage) == [("t1", None)]
    assert error.damage[0].message == "tensor 't1': the array is that of 'zzz'"
    assert str(error).endswith("; restore it from its source or a copy")


def test_attributes_and_chunks(tmp_path: Path, source: Path, frames: dict[Any, bytes]) -> None:
    """Data are read as far as arrays can be opened, with any attributes."""
    store = convert("zarr3", source, tmp_path / "m", chunk_size=4096)
    for chunk in CHUNKS:
        flip(store, frames[chunk])
    edit_array(store, "t1", lambda node: _rename(node["attributes"]["bf16codecs"]))
    assert places(damage_of(store, error=StoreError)) == [("t1", None), *CHUNKS]


@pytest.mark.parametrize("is_zip", [False, True], ids=["folder", "zip"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_metadata_of_single_arrays(
    zarr_format: int, is_zip: bool, tmp_path: Path, source: Path
) -> None:
    """Readers of single arrays need them, so that they have to agree with the root's."""
    sound = tmp_path / ("m.zarr.zip" if is_zip else "m.zarr")
    safetensors_to_zarr(source, sound, zarr_format=zarr_format)
    names = {2: [".zarray", ".zattrs", ".zgroup"], 3: ["zarr.json"]}[zarr_format]
    for name in names:
        folders = ["safetensors"] if name == ".zgroup" else ["t1", "safetensors/header/0"]
        if zarr_format == 3:
            folders.append("safetensors")
        for at, content in itertools.product(folders, (None, b"garbage", b"{}")):
            if (name, content) == (".zattrs", b"{}") and at != "t1":
                continue
            store = sound.with_name(f"damaged-{sound.name}")
            shutil.copy(sound, store) if is_zip else shutil.copytree(sound, store)
            _put(store, f"{at}/{name}", content)
            (found,) = damage_of(store, error=StoreError)
            where = "t1" if at == "t1" else None
            assert (found.tensor, found.chunk) == (where, None), (at, name, content)
            assert f"{at}/{name} " in found.message
            store.unlink() if is_zip else shutil.rmtree(store)


def _put(store: Path, key: str, content: bytes | None) -> None:
    """Replace a file of a folder or a ZIP file, or remove it."""
    if store.is_file():
        members = zip_members(store)
        del members[key]
        write_zip(store, members if content is None else {**members, key: content})
    elif content is None:
        (store / key).unlink()
    else:
        (store / key).write_bytes(content)


@pytest.mark.parametrize("array", ["objects", "checkpoint"])
def test_metadata_of_arrays_that_are_no_tensors(tmp_path: Path, array: str) -> None:
    store = tmp_path / "m.zarr"
    with zipfile.ZipFile(FOLDER / "layout2-checkpoint.zarr.zip") as archive:
        archive.extractall(store)
    _put(store, f"safetensors/{array}/zarr.json", b"{}")
    (found,) = damage_of(store, error=StoreError)
    assert f"safetensors/{array}/zarr.json " in found.message


def test_fields_of_the_copies(tmp_path: Path, source: Path) -> None:
    """Nothing here reads them, and zarr opens no group without them."""
    store = convert("zarr3", source, tmp_path / "m")
    edit_array(store, "safetensors", lambda node: node["consolidated_metadata"].pop("kind"))
    (found,) = damage_of(store, error=StoreError)
    assert found.message.startswith("damaged: zarr cannot open it: Consolidated metadata kind=")
    edit_json(store, "zarr.json", lambda root: root["consolidated_metadata"].pop("metadata"))
    (found,) = damage_of(store, error=StoreError)
    assert found.message == "damaged consolidated metadata: without 'metadata'"


def test_fields_of_the_copies_in_format_2(tmp_path: Path, source: Path) -> None:
    store = convert("zarr2", source, tmp_path / "m")
    group = "safetensors/.zgroup"
    edit_json(
        store,
        ".zmetadata",
        lambda root: root["metadata"][group]["consolidated_metadata"].pop("metadata"),
    )
    (found,) = damage_of(store, error=StoreError)
    assert found.message.startswith("damaged: zarr cannot open it: ")


def test_a_shape_in_the_copies_that_is_none(tmp_path: Path, source: Path) -> None:
    """An append may make the array longer than its copy says for a moment."""
    store = tmp_path / "run.zarr"
    append_to_run(source, store, step=1)
    for shape in ({"x": [1, 9]}, {"0": 1}, [], ["1"], "1", None, 1):
        edit_json(
            store,
            "zarr.json",
            lambda root, shape=shape: root["consolidated_metadata"]["metadata"]["t1"].update(
                shape=shape
            ),
        )
        assert damage_of(store, error=StoreError), shape


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_attributes_of_others(zarr_format: int, tmp_path: Path, source: Path) -> None:
    """Zarr libraries write them to the array's own metadata alone."""
    store = tmp_path / "m.zarr"
    safetensors_to_zarr(source, store, zarr_format=zarr_format)
    array = zarr.open_array(store, path="t1", mode="r+", zarr_format=zarr_format)
    array.attrs["note"] = "mine"
    zarr.open_group(store, path="safetensors", mode="r+").attrs["note"] = "mine"
    verify_store(store)


@pytest.mark.parametrize("kind", TARGETS)
def test_all_steps_of_a_run(kind: str, tmp_path: Path, source: Path) -> None:
    """A chunk is reported for each step that cannot be read because of it."""
    near = write_nearby(source, tmp_path / "m-2.safetensors")
    arrays = {"t0": ARRAYS["t0"], "u": weights((128, 64), seed=9)}
    other = write_safetensors(tmp_path / "m-3.safetensors", arrays)
    name, options = TARGETS[kind]
    store = tmp_path / name
    options = {"steps": [1, 2, 3], "chunk_size": 4096, "verify": False, **options}
    safetensors_to_run([source, near, other], store, **options)
    # The first version's frame, which the second one needs, and that of another tensor.
    safetensors_to_zarr(other, tmp_path / "other.zarr", chunk_size=4096)
    safetensors_to_zarr(source, tmp_path / "first.zarr", chunk_size=4096)
    for chunk in ("first.zarr/t2/c.1.0", "other.zarr/u/c.3.0"):
        frame = (tmp_path / chunk).read_bytes()
        flip(store, frame[100:])
    found = damage_of(store)
    assert [(d.step, d.tensor, d.chunk) for d in found] == [
        (1, "t2", (1, 0)),
        (2, "t2", (1, 0)),
        (3, "u", (3, 0)),
    ]
    error = error_of(f"{store}@3")
    assert places(error.damage) == [("u", (3, 0))]
    assert str(error).startswith(f"{store}@3: tensor 'u', chunk ")


@pytest.mark.parametrize("kind", TARGETS)
def test_a_single_one_of_a_run(kind: str, tmp_path: Path, source: Path) -> None:
    """The message names the step, by which users know it."""
    last = write_safetensors(tmp_path / "m-600.safetensors", {"t0": weights((128, 64), seed=9)})
    name, options = TARGETS[kind]
    store = tmp_path / name
    safetensors_to_run([source, last], store, steps=[100, 600], **options)
    safetensors_to_zarr(last, tmp_path / "last.zarr")
    flip(store, (tmp_path / "last.zarr" / "t0" / "c.0.0").read_bytes()[100:])
    error = error_of(store)
    assert str(error).startswith(f"{store}: step 600: tensor 't0', chunk ")


def test_the_report_of_the_command(tmp_path: Path, source: Path) -> None:
    store = convert("zarr3", source, tmp_path / "m", chunk_size=1024, codec="huffman")
    chunks = sorted(store.glob("t[0-2]/c.*"))
    for chunk in chunks:
        os.truncate(chunk, 40)
    result = run("bf16codecs", "verify", store)
    lines = result.stdout.splitlines()
    assert (result.exit_code, len(chunks), len(lines)) == (1, 48, 21)
    assert lines[0].startswith("tensor 't0', chunk t0/c.0.0: damaged: ")
    assert lines[-1] == "and 28 more (--json has them)"
    (line,) = result.stderr.splitlines()
    assert f"{store}: not intact: 48 chunks in 3 tensors; the first: tensor 't0'" in line
    assert line.endswith("restore it from its source or a copy")
    result = run("bf16codecs", "verify", store, "--json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["intact"]) == (1, False)
    assert len(document["damage"]) == 48
    assert document["damage"][17]["tensor"] == "t1"
    assert document["damage"][17]["chunk"] == [1, 0]
    assert result.stderr.splitlines() == [line]
    result = run("bf16codecs", "verify", store, "--quiet")
    assert (result.exit_code, result.stdout) == (1, "")


def test_there_is_an_end(tmp_path: Path) -> None:
    """A store of a few bytes may promise millions of chunks."""
    store = write_store(tmp_path / "m.zarr", {"w": ARRAYS["t0"]})
    claim_shape(store, [1 << 20, 64], [1, 64])
    with pytest.raises(
        CorruptDataError, match="intact: stopped after 10000 chunks in 1 tensor"
    ) as e:
        verify_store(store)
    assert places(e.value.damage) == [("w", (i, 0)) for i in range(10_000)]


def test_a_limit_is_no_damage(tmp_path: Path, source: Path) -> None:
    """A limit ends the reading at once: the store may be sound."""
    store = convert("zarr3", source, tmp_path / "m")
    with pytest.raises(LimitError, match=r"more than max_bytes allows \(10\)") as caught:
        verify_store(store, max_bytes=10)
    assert caught.value.damage == ()


def test_neither_is_a_filter_that_needs_a_limit(tmp_path: Path) -> None:
    arrays = {name: weights((64, 8), "float32") for name in "ab"}
    source = write_safetensors(tmp_path / "m.safetensors", arrays)
    store = convert("hdf5", source, tmp_path / "m")
    with h5py.File(store, "r+") as file:
        for name, array in arrays.items():
            attributes = dict(file[name].attrs)
            del file[name]
            file.create_dataset(name, data=array, compression="lzf").attrs.update(attributes)
    with pytest.raises(LimitError, match="allow it with max_bytes") as caught:
        verify_store(store)
    assert caught.value.damage == ()
    verify_store(store, source, max_bytes=1 << 20)


def test_a_disk_that_fails(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks on bad sectors are reported like damaged ones."""
    store = convert("zarr3", source, tmp_path / "m", chunk_size=4096)
    original = storage.OpenRange.read

    def read(self: storage.OpenRange, request: Any) -> Any:
        if self.key in ("t0/c.1.0", "t2/c.0.0"):
            raise OSError(5, "Input/output error")
        return original(self, request)

    monkeypatch.setattr(storage.OpenRange, "read", read)
    found = damage_of(store, error=StoreError)
    assert places(found) == [("t0", (1, 0)), ("t2", (0, 0))]
    assert "Input/output error" in found[0].message


def test_a_server_that_fails_is_not_asked_for_the_rest(
    tmp_path: Path, frames: dict[Any, bytes]
) -> None:
    pytest.importorskip("aiohttp")
    # Eight reads at a time are on their way when one fails.
    arrays = ARRAYS | {f"t{i}": ARRAYS["t3"] + i for i in range(4, 10)}
    source = write_safetensors(tmp_path / "more.safetensors", arrays)
    store = convert("zarr3", source, tmp_path / "m", chunk_size=4096)
    flip(store, frames[CHUNKS[0]])
    with serving(tmp_path) as server:
        place = f"{server.url}/{store.name}"
        server.deny = "t2/c.1"
        found = damage_of(place)
        assert places(found) == [*CHUNKS[:1], (None, None)]
        assert "403" in found[1].message
        assert found[1].message.endswith(": the rest was not read")
        assert not any("t9/c.3" in path for _, path, _ in server.requests)
        server.deny = "t0/c.0"
        with pytest.raises(OSError, match="403"):
            verify_store(place)


def test_a_server_that_ignores_ranges_is_no_damage(tmp_path: Path) -> None:
    """Chunks of runs are read in parts: the server's fault is not reported as damage."""
    pytest.importorskip("aiohttp")
    arrays = {f"t{i}": weights((256, 512), seed=i) for i in range(20)}
    source = write_safetensors(tmp_path / "m-1.safetensors", arrays)
    safetensors_to_run([source], tmp_path / "run.zarr", steps=[1])
    with serving(tmp_path) as server:
        server.ignore_ranges = True
        place = f"{server.url}/run.zarr"
        with pytest.raises(ServerError, match="ignores ranges: download it") as caught:
            verify_store(place)
        assert caught.value.damage == ()
        assert str(caught.value).count(server.url) == 1
        assert not any("/t9/c." in path for _, path, _ in server.requests)  # it ends at once
        assert run("bf16codecs", "verify", "--json", place).stdout == ""


def test_too_many_open_files_are_no_damage(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    safetensors_to_zarr(source, tmp_path / "m.zarr")
    original = storage.OpenRange.read

    def read(self: Any, request: Any) -> Any:
        if re.match(r"t[0-3]/c", str(self.key)):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return original(self, request)

    monkeypatch.setattr(storage.OpenRange, "read", read)
    with pytest.raises(
        OSError, match=r"tensor 't\d', .*: Too many open files; allow more .*ulimit"
    ):
        verify_store(tmp_path / "m.zarr")
