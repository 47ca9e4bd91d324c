"""Untrusted stores: nothing outside of them is read, and contradictions are refused."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import socket
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bf16codecs
from bf16codecs.convert import safetensors_to_zarr, verify_store, zarr_to_safetensors
from bf16codecs.errors import CodecError, SafetensorsError
from bf16codecs.store import StoreError
from bf16codecs.store.opening import open_store
from edit_store import claim_shape, edit_array, edit_json, zip_members
from lazy_models import weights, write_shards, write_store
from looping import noted
from snapshots import snapshot_of
from store_cases import put_back

NO_TENSOR = r"no array|no safetensors header"
NO_FILE = "not a regular file|Permission|No such device"

posix = pytest.mark.skipif(os.name != "posix", reason="pipes and links of POSIX systems")


def readers(path: Path, tensor: str = "w") -> list[Callable[[], Any]]:
    """Return every way to the data of a store."""
    return [
        lambda: bf16codecs.open_model(path)[tensor][3:5],
        lambda: bf16codecs.open_model(path)[tensor][[3, 5], [3, 5]],
        lambda: bf16codecs.open_model(path).load(),
        lambda: bf16codecs.open_model(path)[tensor].zarr[3:5],
        lambda: zarr_to_safetensors(path, path.with_name("back")),
        lambda: verify_store(path),
    ]


def refused(path: Path, match: str, tensor: str = "w") -> None:
    for read in readers(path, tensor):
        with pytest.raises(StoreError, match=match):
            read()
    assert not path.with_name("back").exists()


# --- nothing but the files of the store ----------------------------------------------------------


@pytest.mark.parametrize("codec", ["arithmetic", "none"])
@pytest.mark.parametrize("zarr_format", [2, 3])
@posix
def test_a_chunk_that_is_a_link_is_not_followed(tmp_path, arrays, codec, zarr_format):
    store = write_store(tmp_path / "m.zarr", arrays, codec=codec, zarr_format=zarr_format)
    (chunk,) = (p for p in (store / "w").iterdir() if p.name[0] in "c0")
    secret = chunk.rename(tmp_path / "secret")
    for target in (secret, Path("..", "..", "secret"), tmp_path / "nothing"):
        chunk.symlink_to(target)
        refused(store, "symbolic link")
        chunk.unlink()
    secret.rename(chunk)
    chunk.parent.rename(tmp_path / "folder")
    (store / "w").symlink_to(tmp_path / "folder", target_is_directory=True)
    refused(store, "symbolic link")


@posix
@pytest.mark.parametrize("name", ["zarr.json", "safetensors/header/0/c.0"])
def test_metadata_that_are_a_link_are_not_followed(store, tmp_path, name):
    (store / name).rename(tmp_path / "elsewhere")
    (store / name).symlink_to(tmp_path / "elsewhere")
    for read in readers(store)[:3] + readers(store)[4:]:  # zarr reads no header
        with pytest.raises((StoreError, OSError), match="symbolic link"):
            read()


@posix
def test_sizes_of_linked_folders_are_not_taken(store, tmp_path):
    (store / "w").rename(tmp_path / "w")
    (store / "w").symlink_to("/", target_is_directory=True)
    with closing(open_store(store)) as reader, pytest.raises(StoreError, match="symbolic link"):
        reader.stored_nbytes("w")


@posix
def test_the_size_of_a_pipe_is_not_waited_for(store):
    shutil.rmtree(store / "w")
    os.mkfifo(store / "w")
    with closing(open_store(store)) as reader:
        assert reader.stored_nbytes("w") == 0


@posix
@pytest.mark.parametrize("by_descriptor", [True, False])
def test_folders_without_an_end(store, monkeypatch, by_descriptor):
    """1,500 of them ended in a RecursionError, and 300 with no descriptor left."""
    if not by_descriptor:
        monkeypatch.delattr(os, "fwalk", raising=False)
    folder = store / "w" / Path(*["d"] * 63)
    folder.mkdir(parents=True)
    with closing(open_store(store)) as reader:
        assert 0 < reader.stored_nbytes("w") < reader.total_nbytes()
    (folder / Path(*["d"] * 200)).mkdir(parents=True)
    with closing(open_store(store)) as reader:
        for size in (reader.total_nbytes, lambda: reader.stored_nbytes("w")):
            with pytest.raises(StoreError, match=r"m\.zarr: has more than 64 levels") as caught:
                size()
            assert "\n" not in str(caught.value)


def test_a_store_may_be_named_by_a_link(store, tmp_path, arrays):
    (tmp_path / "link.zarr").symlink_to(store)
    with bf16codecs.open_model(tmp_path / "link.zarr") as model:
        assert model["w"][3].tobytes() == arrays["w"][3].tobytes()


@posix
@pytest.mark.parametrize("name", ["m.zarr", "m.zarr.zip"])
def test_stores_in_the_cache_of_huggingface_hub(
    tmp_path: Path, arrays: dict[str, Any], name: str
) -> None:
    """Their files are links to files beside all snapshots, as `snapshot_download` leaves them."""
    written = write_store(tmp_path / name, arrays)
    cached = snapshot_of(written, tmp_path / "cache")
    with closing(open_store(cached)) as reader, closing(open_store(written)) as original:
        assert reader.total_nbytes() == original.total_nbytes()
    for read in readers(cached):
        read()


@posix
@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "socket"])
def test_pipes_folders_devices_and_sockets_are_refused(store, kind, monkeypatch):
    if kind == "device" and os.geteuid() != 0:
        pytest.skip("only root makes devices")
    for name in ("zarr.json", "w/c.0.0", "safetensors/header/0/c.0"):
        with noted(name), put_back(store):
            (store / name).unlink()
            if kind == "pipe":
                os.mkfifo(store / name)
            elif kind == "folder":
                (store / name).mkdir()
            elif kind == "socket":
                with monkeypatch.context() as patch, socket.socket(socket.AF_UNIX) as made:
                    patch.chdir((store / name).parent)  # the whole path may be too long
                    made.bind(Path(name).name)
            else:
                os.mknod(store / name, 0o020666, os.makedev(1, 5))  # that of endless zeros
            for read in readers(store)[:3] + readers(store)[4:]:  # zarr reads no header
                with pytest.raises((StoreError, OSError), match=NO_FILE):
                    read()


@posix
@pytest.mark.parametrize("scheme", ["file://", "FILE://", "local://"])
def test_addresses_of_local_files_are_paths(store, tmp_path, arrays, scheme):
    with bf16codecs.open_model(f"{scheme}{store}") as model:
        assert model["w"][3].tobytes() == arrays["w"][3].tobytes()
    (store / "w/c.0.0").rename(tmp_path / "chunk")
    (store / "w/c.0.0").symlink_to(tmp_path / "chunk")
    with pytest.raises(StoreError, match="symbolic link"):
        bf16codecs.open_model(f"{scheme}{store}").load()


@pytest.mark.parametrize("chain", ["simplecache::file://", "zip::local://", "zip::memory://x::"])
def test_local_files_behind_other_schemes_are_refused(store, chain):
    with pytest.raises(StoreError, match="give the path itself"):
        bf16codecs.open_model(f"{chain}{store}")


@posix
def test_a_pipe_for_a_safetensors_index_is_refused(tmp_path, arrays):
    folder = write_shards(tmp_path / "model", [arrays])
    (index,) = folder.glob("*.json")
    index.unlink()
    os.mkfifo(index)
    for path in (folder, index):
        with pytest.raises(SafetensorsError, match="not a regular file"):
            bf16codecs.open_model(path)


def test_a_zip_file_has_no_links(tmp_path, arrays):
    store = write_store(tmp_path / "m.zarr.zip", arrays)
    rewrite_zip(store, "w/c.0.0", lambda info: setattr(info, "external_attr", 0o120777 << 16))
    refused(store, "not a regular file")


def test_of_members_of_one_name_the_last_is_read(tmp_path, arrays):
    """So zarr writes what it changes."""
    store = write_store(tmp_path / "m.zarr.zip", arrays, codec="none")
    other = weights((64, 32), seed=1)
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(store, "a") as archive:
        archive.writestr("w/c.0.0", other.tobytes())
    with bf16codecs.open_model(store) as model:
        assert model["w"][...].tobytes() == model.load()["w"].tobytes() == other.tobytes()


@posix
def test_safetensors_may_be_links(tmp_path, arrays):
    """As in Hugging Face's cache."""
    blobs = write_shards(tmp_path / "blobs", [{"w": arrays["w"]}, {"n": arrays["n"]}])
    folder = tmp_path / "snapshot"
    folder.mkdir()
    for number, blob in enumerate(sorted(blobs.iterdir())):
        (folder / blob.name).symlink_to(blob.rename(blobs / str(number)))
    for source in (folder, folder / "model.safetensors.index.json"):
        safetensors_to_zarr(source, tmp_path / "m.zarr", overwrite=True)
        for path in (source, tmp_path / "m.zarr"):
            with bf16codecs.open_model(path) as model:
                assert model["w"][3].tobytes() == arrays["w"][3].tobytes()
                assert model.load()["n"].tobytes() == arrays["n"].tobytes()


def rewrite_zip(store: Path, key: str, change: Callable[[zipfile.ZipInfo], object]) -> None:
    members = zip_members(store)
    with zipfile.ZipFile(store, "w") as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            if name == key:
                change(info)
            archive.writestr(info, content)


@pytest.mark.parametrize("field", [26, 28])
def test_a_zip_member_that_reaches_into_the_next_is_refused(tmp_path, arrays, field):
    """A local header that says longer names than there are moves the data behind it."""
    store = write_store(tmp_path / "m.zarr.zip", arrays, codec="none")
    with zipfile.ZipFile(store) as archive:
        at = archive.getinfo("n/c.0").header_offset + field
    raw = bytearray(store.read_bytes())
    raw[at] += 8
    store.write_bytes(raw)
    with bf16codecs.open_model(store) as model:
        for read in (lambda: model["n"][5:9], lambda: model["n"][...], model.load):
            with pytest.raises(CodecError, match=r"overlaps the next|two names"):
                read()


OUTSIDE = [
    *("../secret/w", "/secret", "w/../../secret", "w//c", ".", "", "w\0", "c:/x", "a\\b"),
    *("%2e%2e/secret", "..%2fsecret", "w?x", "w#x", "w\nx", "w\x7fx"),  # in addresses
]


@pytest.mark.parametrize("name", ["m.zarr", "m2.zarr", "m.zarr.zip"])
def test_paths_stay_in_the_store(tmp_path, arrays, name):
    store = write_store(tmp_path / name, arrays, zarr_format=2 if name == "m2.zarr" else 3)
    key = ".zmetadata" if name == "m2.zarr" else "zarr.json"
    for path in OUTSIDE:

        def change(root: dict[str, Any], path: str = path) -> None:
            attributes = root["metadata"][".zattrs"] if name == "m2.zarr" else root["attributes"]
            attributes["bf16codecs"]["tensors"]["w"] = path

        edit_json(store, key, change)
        for read in readers(store):
            with noted(repr(path)), pytest.raises(StoreError):
                read()


class Code:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._path,)


@pytest.mark.parametrize("max_bytes", [None, 1 << 20])
def test_no_codec_executes_code(tmp_path, max_bytes):
    """numcodecs' Pickle would; other unknown codecs need `max_bytes` alone."""
    content, made = pickle.dumps(Code(tmp_path / "made")), tmp_path / "made"
    pickle.loads(content)
    made.unlink()
    codec, shuffle = {"id": "pickle", "protocol": 5}, {"id": "shuffle", "elementsize": 1}
    for array in (weights((8,)), np.arange(8), np.zeros(8, "f4")):
        for compressor, filters in ((codec, None), (None, [codec]), (None, [shuffle, codec])):
            path = write_store(tmp_path / "m.zarr", {"w": array}, codec="none", zarr_format=2)
            options = {"compressor": compressor, "filters": filters}

            def change(root: dict[str, Any], options: dict[str, Any] = options) -> None:
                root["metadata"]["w/.zarray"].update(options)

            edit_json(path, ".zmetadata", change)
            (path / "w/0").write_bytes(content)
            with (
                noted(array.dtype, options),
                pytest.raises(StoreError),
                bf16codecs.open_model(path, max_bytes=max_bytes) as model,
            ):
                model["w"].zarr[...]
            with pytest.raises(StoreError):
                verify_store(path, max_bytes=max_bytes)
            assert not made.exists()


# --- contradictions to the header ----------------------------------------------------------------


CONTRADICTIONS: list[Callable[[Any], object]] = [
    lambda a: a.update(shape=[63, 32]),
    lambda a: a.update(shape=[64, 31]),
    lambda a: a.update(shape=[32, 64]),
    lambda a: a.update(shape=[63, 32], dimension_names=None),
    lambda a: a.update(shape=[63, 32], dimension_names=["dim0_63", "dim1_32"]),
    lambda a: a.update(data_type="float16"),
    lambda a: (a.update(data_type="float16"), a["attributes"]["bf16codecs"].clear()),
    lambda a: a["attributes"]["bf16codecs"].update(tensor="n"),
    lambda a: a["attributes"]["bf16codecs"].update(dtype="F16"),
    lambda a: a["attributes"]["bf16codecs"].update(dtype="int8"),
    lambda a: a["attributes"]["bf16codecs"].update(dtype=[]),
    lambda a: a["attributes"]["bf16codecs"].update(shape=[1]),
    lambda a: a["attributes"]["bf16codecs"].update(shape="x"),
]


@pytest.mark.parametrize("name", ["m.zarr", "m.zarr.zip"])
def test_metadata_that_contradict_the_header_are_refused(tmp_path, arrays, name):
    store = write_store(tmp_path / name, arrays, codec="none")
    for number, change in enumerate(CONTRADICTIONS):
        with noted(f"contradiction {number}"), put_back(store):
            edit_array(store, "w", change)
            for read in readers(store)[:3]:
                with pytest.raises(StoreError):
                    read()


def test_arrays_of_more_than_32_dimensions_are_refused(tmp_path):
    """Even where the header agrees: such a tensor is stored as its bytes."""
    for count in (33, 1000):
        store = write_store(tmp_path / "m.zarr", {"w": weights((1,))})
        claim_shape(store, [1] * count, [1] * count)
        for read in readers(store)[:3] + readers(store)[4:]:
            with noted(count), pytest.raises(StoreError):
                read()


def test_two_tensors_that_swapped_their_paths_are_refused(tmp_path):
    store = write_store(tmp_path / "m.zarr", {"a": weights((8, 8)), "b": weights((8, 8), seed=1)})

    def swap(root: dict[str, Any]) -> None:
        root["attributes"]["bf16codecs"]["tensors"] = {"a": "b", "b": "a"}

    edit_json(store, "zarr.json", swap)
    with bf16codecs.open_model(store) as model:
        for read in (model.load, lambda: model["a"][3], lambda: model["b"]):
            with pytest.raises(StoreError, match="the array is that of"):
                read()


@pytest.mark.parametrize(
    "tensors", [{"w": "w"}, {"w": "w", "n": "n", "m": "n"}, {"x": "w", "n": "n"}, {}]
)
def test_tensors_that_the_header_does_not_have_are_refused(store, tensors):
    def change(root: dict[str, Any]) -> None:
        root["attributes"]["bf16codecs"]["tensors"] = tensors
        for path in tensors.values():
            root["consolidated_metadata"]["metadata"][path]["attributes"] = {}

    edit_json(store, "zarr.json", change)
    with (
        bf16codecs.open_model(store) as model,
        pytest.raises(StoreError, match=NO_TENSOR),
    ):
        model.load()


def test_the_dtype_that_an_array_does_not_tell_is_the_headers(tmp_path):
    store = write_store(tmp_path / "m.zarr", {"w": np.arange(9, dtype=np.uint8)})
    header = store / "safetensors/header/0/c.0"
    raw = header.read_bytes()
    edit_array(store, "w", lambda a: a["attributes"].clear())
    with bf16codecs.open_model(store) as model:
        assert model["w"].get_dtype() == "U8"
    header.unlink()
    with bf16codecs.open_model(store) as model, pytest.raises(StoreError, match="header"):
        model["w"]
    assert raw


def test_an_index_that_the_attributes_do_not_name_is_missed(tmp_path, arrays):
    store = tmp_path / "m.zarr"
    safetensors_to_zarr(write_shards(tmp_path / "model", [arrays]), store)
    edit_json(store, "zarr.json", lambda root: root["attributes"]["bf16codecs"].pop("index"))
    with pytest.raises(CodecError, match="has an index that its attributes do not name"):
        zarr_to_safetensors(store, tmp_path / "back")


def test_shards_are_restored_under_the_names_of_the_index(tmp_path, arrays):
    folder = write_shards(tmp_path / "model", [arrays])
    store = tmp_path / "m.zarr"
    safetensors_to_zarr(folder, store)

    def change(root: dict[str, Any]) -> None:
        root["attributes"]["bf16codecs"]["files"][0]["name"] = "other.safetensors"

    edit_json(store, "zarr.json", change)
    for read in (
        lambda: zarr_to_safetensors(store, tmp_path / "back"),
        lambda: verify_store(store),
    ):
        with pytest.raises(ValueError, match=r"file .* is in "):
            read()
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("length", [9, 11])
@pytest.mark.parametrize("name", ["m.zarr", "m2.zarr", "m.zarr.zip"])
def test_uncompressed_chunks_of_another_size_are_refused(tmp_path, name, length):
    """Without a checksum, rows would come from other places."""
    arrays = {"n": np.arange(100).reshape(20, 5)}
    options = {"codec": "none", "chunk_size": 400, "zarr_format": 2 if name == "m2.zarr" else 3}
    store = write_store(tmp_path / name, arrays, **options)

    def change(root: dict[str, Any]) -> None:
        if name == "m2.zarr":
            root["metadata"]["n/.zarray"]["chunks"] = [length, 5]
        else:
            grid = root["consolidated_metadata"]["metadata"]["n"]["chunk_grid"]
            grid["configuration"]["chunk_shape"] = [length, 5]

    edit_json(store, ".zmetadata" if name == "m2.zarr" else "zarr.json", change)
    for read in (readers(store, "n")[0], readers(store, "n")[2], *readers(store, "n")[4:]):
        with pytest.raises((StoreError, CodecError), match=r"expected|more than"):
            read()


@pytest.mark.parametrize("name", ["m.zarr", "m.zarr.zip"])
def test_arrays_for_dask_and_zarr_are_checked(tmp_path, name):
    """Before a graph or a list of all claimed chunks is made."""
    store = write_store(tmp_path / name, {"n": np.arange(40)}, codec="none")

    def change(node: dict[str, Any]) -> None:
        node.update(shape=[1 << 31], dimension_names=None)
        node["chunk_grid"]["configuration"]["chunk_shape"] = [1]

    edit_array(store, "n", change)
    tensor = bf16codecs.open_model(store)["n"]
    with pytest.raises(StoreError, match="of shape"):
        tensor.zarr  # noqa: B018
    pytest.importorskip("dask")
    with pytest.raises(StoreError, match="of shape"):
        tensor.dask()


@pytest.mark.parametrize("name", ["m.zarr", "m2.zarr"])
def test_zarrs_array_is_what_the_root_says_of_it(tmp_path, arrays, name):
    """The copy beside the array is compared with nothing before: it had any shape and codecs."""
    store = write_store(tmp_path / name, arrays, zarr_format=2 if name == "m2.zarr" else 3)
    path = store / ("w/.zarray" if name == "m2.zarr" else "w/zarr.json")
    sound = json.loads(path.read_text())
    for change in ({"shape": [32, 64]}, {"shape": [1 << 40, 32]}, {"codecs": []}, None):
        path.write_text("" if change is None else json.dumps({**sound, **change}))
        with noted(change), bf16codecs.open_model(store) as model:
            array = model["w"].zarr
            assert array.shape == (64, 32)
            assert array[3:5].tobytes() == arrays["w"][3:5].tobytes()


def test_remote_arrays_without_dimension_names_are_held_to_the_header(tmp_path):
    store = write_store(tmp_path / "m.zarr", {"n": np.arange(40)}, codec="none")
    edit_array(store, "n", lambda a: a.update(shape=[39], dimension_names=None))
    fsspec = pytest.importorskip("fsspec")
    fsspec.filesystem("memory").put(str(store), "/held.zarr", recursive=True)
    with bf16codecs.open_model("memory://held.zarr") as model:
        for read in (model.load, lambda: model["n"][:]):
            with pytest.raises(StoreError, match=r"of shape \(39,\)"):
                read()
