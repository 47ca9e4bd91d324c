"""Reading from folders, HTTP, S3 through real clients, memory and obstore."""

import os
import pickle
import shutil
from functools import partial

import numpy as np
import pytest
import zarr
from zarr.storage import ObjectStore

import bf16codecs
from bf16codecs.convert import verify_store
from bf16codecs.store import StoreError
from bits import assert_same_bits
from lazy_models import weights, write_store
from servers import serving

pytestmark = [
    pytest.mark.usefixtures("fsspec"),
    pytest.mark.filterwarnings(
        "ignore:datetime.datetime.utcnow:DeprecationWarning", "ignore:Unclosed"
    ),
]

ARRAYS = {"w": weights((1500, 1024)), "norm": weights((64,)), "n": np.arange(100)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("m") / "m.zarr", ARRAYS, chunk_size=1 << 20)


class Place:
    """A location of the store's copy: how paths there are opened, and files changed."""

    def __init__(self, open, files, root, error_when_cut=ValueError):
        self.open = open
        self.files = files
        self.root = root
        #: Some servers refuse ranges past a chunk's end, others send the part that exists.
        self.error_when_cut = error_when_cut


def by_obstore(s3, path):
    obstore = pytest.importorskip("obstore.store")
    store = obstore.S3Store(
        "bucket",
        prefix=f"models/{path}",
        endpoint=s3["endpoint_url"],
        access_key_id="k",
        secret_access_key="s",
        region="us-east-1",
        client_options={"allow_http": True},
    )
    return bf16codecs.open_model(ObjectStore(store, read_only=True))


def by_local_obstore(folder, path):
    obstore = pytest.importorskip("obstore.store")
    store = obstore.LocalStore(folder / path, mkdir=True)
    return bf16codecs.open_model(ObjectStore(store, read_only=True))


slow = pytest.mark.slow


@pytest.fixture(
    params=[
        *("folder", "HTTP", "memory", "obstore"),
        pytest.param("S3", marks=slow),
        pytest.param("S3 by obstore", marks=slow),
    ]
)
def place(request, fsspec, folder, tmp_path):
    """Copy the store to a place."""
    open_model, files = bf16codecs.open_model, fsspec.filesystem
    if request.param == "folder":
        place = Place(lambda p: open_model(tmp_path / p), files("file"), os.fspath(tmp_path))
    elif request.param == "HTTP":
        url = request.getfixturevalue("server").url
        place = Place(
            lambda p: open_model(f"{url}/{p}"), files("file"), os.fspath(tmp_path), OSError
        )
    elif request.param == "obstore":
        opened = partial(by_local_obstore, tmp_path)
        place = Place(opened, files("file"), os.fspath(tmp_path), OSError)
    elif request.param == "memory":
        place = Place(lambda p: open_model(f"memory://models/{p}"), files("memory"), "/models")
    else:
        s3 = request.getfixturevalue("s3")
        root = "bucket/models"
        place = Place(lambda p: open_model(f"s3://{root}/{p}", s3), files("s3", **s3), root)
        if request.param == "S3 by obstore":
            place = Place(partial(by_obstore, s3), place.files, root, OSError)
    place.files.put(f"{folder}/", f"{place.root}/m.zarr", recursive=True)
    yield place
    place.files.rm(f"{place.root}/m.zarr", recursive=True)


@pytest.fixture
def server(tmp_path):
    pytest.importorskip("aiohttp")
    with serving(tmp_path) as server:
        yield server


def check(model):
    assert model.keys() == list(ARRAYS)
    for name, array in ARRAYS.items():
        tensor = model[name]
        assert_same_bits(tensor[3:40:2], array[3:40:2])
        assert_same_bits(np.asarray(tensor), array)
    assert_same_bits(model["w"][1100, 5:9], ARRAYS["w"][1100, 5:9])
    assert_same_bits(model["w"].zarr[1100, 5:9], ARRAYS["w"][1100, 5:9])
    for name, array in model.load().items():
        assert_same_bits(array, ARRAYS[name])


def test_all_is_read(place):
    with place.open("m.zarr") as model:
        check(model)


def test_tensors_pickle(place):
    with place.open("m.zarr") as model:
        pickled = pickle.dumps(model["w"])
    assert_same_bits(pickle.loads(pickled)[7], ARRAYS["w"][7])


def test_paths_that_are_no_models(place):
    place.files.makedirs(f"{place.root}/nothing.zarr", exist_ok=True)
    place.files.pipe_file(f"{place.root}/nothing.zarr/x", b"x")
    with pytest.raises(StoreError, match="not a model store"):
        place.open("nothing.zarr")


def test_a_bucket_of_objects(folder, server, tmp_path):
    """To read objects, s3fs takes any server of files."""
    pytest.importorskip("s3fs")
    shutil.copytree(folder, tmp_path / "bucket" / "m.zarr")
    options = {"anon": True, "endpoint_url": server.url}
    with bf16codecs.open_model("s3://bucket/m.zarr", options) as model:
        check(model)


def test_missing_and_damaged_chunks_are_named(place):
    key = f"{place.root}/m.zarr/w/c.1.0"
    good = place.files.cat_file(key)
    place.files.rm_file(key)
    with place.open("m.zarr") as model:
        with pytest.raises(StoreError, match=r"tensor 'w', chunk w/c\.1\.0: it is missing"):
            model["w"][700]
        named = r"tensor 'w', chunk w/c\.1\.0: "
        place.files.pipe_file(key, b"nonsense")
        with pytest.raises(ValueError, match=named):
            model["w"][900]
        place.files.pipe_file(key, good[: len(good) // 2])
        with pytest.raises(place.error_when_cut, match=named):
            model["w"][900]
        assert_same_bits(model["w"][3], ARRAYS["w"][3])


def test_a_store_in_memory_is_verified(fsspec, folder):
    files = fsspec.filesystem("memory")
    files.put(f"{folder}/", "/models/m.zarr", recursive=True)
    try:
        assert verify_store("memory://models/m.zarr").tensors == 3
    finally:
        files.rm("/models", recursive=True)


def test_addresses_that_only_obstore_opens(fsspec, folder, monkeypatch):
    pytest.importorskip("obstore")

    def unknown(scheme):
        raise ImportError(f"install the file system of {scheme}")

    advice = "no installed package opens nonsense:// addresses: check the scheme, or install"
    for address in ("nonsense://bucket/m.zarr", "zip::nonsense://bucket/m.zip"):
        with pytest.raises(StoreError, match=f"^{address}: {advice}"):
            bf16codecs.open_model(address)
    monkeypatch.setattr(fsspec, "get_filesystem_class", unknown)
    # obstore opens local folders as file:// only, which open_model would take for a path.
    with pytest.raises(StoreError, match="install the file system of gopher"):
        bf16codecs.open_model("gopher://bucket/m.zarr")
    monkeypatch.setattr("bf16codecs.store.kinds.LOCAL_SCHEMES", ())
    with bf16codecs.open_model(folder.as_uri()) as model:
        check(model)


def test_without_any_package_for_an_address(run_python):
    code = """
import sys
sys.modules["obstore.store"] = sys.modules["fsspec"] = None
import bf16codecs
try:
    bf16codecs.open_model("s3://bucket/m.zarr")
except ValueError as error:
    print(error)
"""
    assert "pip install 'bf16codecs[remote]'" in run_python(code).stdout


def test_a_zip_file_behind_an_address(fsspec, tmp_path):
    path = write_store(tmp_path / "m.zarr.zip", ARRAYS)
    files = fsspec.filesystem("memory")
    files.pipe_file("/zips/m.zarr.zip", path.read_bytes())
    try:
        for address in ("memory://zips/m.zarr.zip", "zip::memory://zips/m.zarr.zip"):
            with bf16codecs.open_model(address) as model:
                check(model)
    finally:
        files.rm("/zips", recursive=True)


@pytest.mark.slow  # test_http has zarr alone read from a server
def test_plain_zarr_needs_no_call_of_this_package(s3, fsspec, folder):
    fsspec.filesystem("s3", **s3).put(f"{folder}/", "bucket/plain/m.zarr", recursive=True)
    group = zarr.open_group("s3://bucket/plain/m.zarr", storage_options=s3, mode="r")
    assert_same_bits(group["w"][1100], ARRAYS["w"][1100])
