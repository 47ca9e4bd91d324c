"""Reading from object stores: S3 through real clients, memory, and stores of obstore."""

import pickle

import numpy as np
import pytest
import zarr
from zarr.storage import ObjectStore

import bf16codecs
from bf16codecs.convert import verify_store
from bf16codecs.store import StoreError
from bits import assert_same_bits
from lazy_models import weights, write_store

fsspec = pytest.importorskip("fsspec")

pytestmark = pytest.mark.filterwarnings(
    "ignore:datetime.datetime.utcnow:DeprecationWarning", "ignore:Unclosed"
)

ARRAYS = {"w": weights((1500, 1024)), "norm": weights((64,)), "n": np.arange(100)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("m") / "m.zarr", ARRAYS, chunk_size=1 << 20)


@pytest.fixture(scope="module")
def s3(folder):
    """Return the options for a client of an S3 server that has the store in a bucket."""
    pytest.importorskip("s3fs")
    server_of = pytest.importorskip("moto.server")
    server = server_of.ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = {"key": "k", "secret": "s", "endpoint_url": f"http://{host}:{port}"}
    files = fsspec.filesystem("s3", **options)
    files.mkdir("bucket")
    files.put(f"{folder}/", "bucket/models/m.zarr", recursive=True)
    yield options
    server.stop()


@pytest.fixture
def memory(folder):
    files = fsspec.filesystem("memory")
    files.put(f"{folder}/", "/models/m.zarr", recursive=True)
    yield "memory://models/m.zarr"
    files.rm("/models", recursive=True)


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


def test_s3(s3):
    with bf16codecs.open_model("s3://bucket/models/m.zarr", storage_options=s3) as model:
        check(model)
        pickled = pickle.dumps(model["w"])
    assert_same_bits(pickle.loads(pickled)[7], ARRAYS["w"][7])


def test_s3_errors(s3):
    with pytest.raises(StoreError, match="not a model store"):
        bf16codecs.open_model("s3://bucket/models/nothing.zarr", storage_options=s3)
    files = fsspec.filesystem("s3", **s3)
    key = "bucket/models/m.zarr/w/c.1.0"
    good = files.cat_file(key)
    files.rm_file(key)
    try:
        with bf16codecs.open_model("s3://bucket/models/m.zarr", storage_options=s3) as model:
            with pytest.raises(StoreError, match=r"tensor 'w', chunk w/c\.1\.0: it is missing"):
                model["w"][700]
            files.pipe_file(key, good[: len(good) // 2])
            with pytest.raises(ValueError, match=r"tensor 'w', chunk w/c\.1\.0: "):
                model["w"][900]
    finally:
        files.pipe_file(key, good)


def test_s3_by_obstore(s3):
    obstore = pytest.importorskip("obstore.store")
    store = obstore.S3Store(
        "bucket",
        prefix="models/m.zarr",
        endpoint=s3["endpoint_url"],
        access_key_id="k",
        secret_access_key="s",
        region="us-east-1",
        client_options={"allow_http": True},
    )
    with bf16codecs.open_model(ObjectStore(store, read_only=True)) as model:
        check(model)


def test_memory(memory):
    with bf16codecs.open_model(memory) as model:
        check(model)
    assert verify_store(memory).tensors == 3


def test_a_damaged_chunk_in_memory(memory):
    files = fsspec.filesystem("memory")
    files.pipe_file("/models/m.zarr/w/c.0.0", b"nonsense")
    with (
        bf16codecs.open_model(memory) as model,
        pytest.raises(ValueError, match=r"tensor 'w', chunk w/c\.0\.0: "),
    ):
        model["w"][3]


def test_addresses_that_only_obstore_opens(folder, monkeypatch):
    pytest.importorskip("obstore")

    def unknown(scheme):
        raise ImportError(f"install the file system of {scheme}")

    monkeypatch.setattr(fsspec, "get_filesystem_class", unknown)
    # obstore has no local folders by an address that is not file://, which is a path here.
    with pytest.raises(StoreError, match="install the file system of gopher"):
        bf16codecs.open_model("gopher://bucket/m.zarr")
    monkeypatch.setattr("bf16codecs.store.opening._is_address", lambda text: True)
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
    assert "bf16codecs[remote]" in run_python(code).stdout


def test_a_zip_file_behind_an_address(tmp_path):
    path = write_store(tmp_path / "m.zarr.zip", ARRAYS)
    files = fsspec.filesystem("memory")
    files.pipe_file("/zips/m.zarr.zip", path.read_bytes())
    try:
        for address in ("memory://zips/m.zarr.zip", "zip::memory://zips/m.zarr.zip"):
            with bf16codecs.open_model(address) as model:
                check(model)
    finally:
        files.rm("/zips", recursive=True)


def test_plain_zarr_needs_no_call_of_this_package(s3):
    group = zarr.open_group("s3://bucket/models/m.zarr", storage_options=s3, mode="r")
    assert_same_bits(group["w"][1100], ARRAYS["w"][1100])
