"""Reading over HTTP: the requests, and servers that misbehave."""

import re

import numpy as np
import pytest
import zarr
from zarr.storage import ObjectStore

import bf16codecs
from bf16codecs.errors import CodecError, CorruptDataError
from bf16codecs.store import StoreError
from bits import assert_same_bits
from lazy_models import weights, write_store
from servers import serving

pytestmark = [
    pytest.mark.usefixtures("aiohttp"),
    pytest.mark.filterwarnings("ignore:Unclosed client session"),
]

# Rows of 4 KiB, blocks of 512 KiB: 8 MiB in chunks of 2 MiB, of 4 blocks each.
ARRAY = weights((2048, 2048))
BLOCK = 1 << 19


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("served")
    arrays = {"w": ARRAY, "norm": ARRAY[0], "n": np.arange(1000)}
    for name, options in {
        "m.zarr": {},
        "plain.zarr": {"codec": "none"},
        "v2.zarr": {"zarr_format": 2},
        "m.zarr.zip": {},
    }.items():
        write_store(root / name, arrays, chunk_size=1 << 21, **options)
    return root


@pytest.fixture
def server(root):
    with serving(root) as server:
        yield server


def ranges(server, key):
    return [asked for method, path, asked in server.requests if key in path and method == "GET"]


def test_opening_is_one_request(server):
    with bf16codecs.open_model(f"{server.url}/m.zarr") as model:
        assert [t.shape for t in model.values()] == [(2048, 2048), (2048,), (1000,)]
    assert server.requests == [("GET", "/m.zarr/zarr.json", None)]


def test_one_row_is_three_requests(server):
    """Metadata, the chunk's index, and one block."""
    for row in (0, 5, 127, 128, 511, 512, 2047, -1):
        server.clear()
        with bf16codecs.open_model(f"{server.url}/m.zarr") as model:
            assert_same_bits(model["w"][row], ARRAY[row])
        assert len(server.requests) == 3, row
        assert sum(server.sent[1:]) < 4096 + BLOCK, row


def test_later_rows_are_one_request(server):
    with bf16codecs.open_model(f"{server.url}/m.zarr") as model:
        tensor = model["w"]
        tensor[5]
        server.clear()
        for rows in (6, slice(127, 129), slice(0, 4)):
            assert_same_bits(tensor[rows], ARRAY[rows])
        assert len(server.requests) == 3
        assert max(server.sent) < 2 * BLOCK
        server.clear()
        assert_same_bits(tensor[[400, 3, 200, 200]], ARRAY[[400, 3, 200, 200]])
        assert len(server.requests) == 2, "two blocks beside each other, and one"


def test_a_whole_tensor_is_a_request_for_each_chunk(server):
    with bf16codecs.open_model(f"{server.url}/m.zarr") as model:
        server.clear()
        assert_same_bits(model["w"][:], ARRAY)
        assert ranges(server, "/w/c.") == [None] * 4
        server.clear()
        loaded = model.load()
        assert_same_bits(loaded["w"], ARRAY)
        assert_same_bits(loaded["norm"], ARRAY[0])
        assert ranges(server, "c.") == [None] * 6


@pytest.mark.parametrize("name", ["plain.zarr", "v2.zarr", "m.zarr.zip"])
def test_other_forms(server, name):
    with bf16codecs.open_model(f"{server.url}/{name}") as model:
        for selection in (np.s_[700], np.s_[100:900:300, ::7], np.s_[::-1], [5, 1000, 5]):
            assert_same_bits(model["w"][selection], ARRAY[selection])
        assert_same_bits(model["w"].zarr[700], ARRAY[700])
        assert_same_bits(model["n"][5:7], np.arange(5, 7))


def test_uncompressed_rows_are_ranges(server):
    with bf16codecs.open_model(f"{server.url}/plain.zarr") as model:
        assert_same_bits(model["w"][513, 5:9], ARRAY[513, 5:9])
    assert ranges(server, "/w/c.") == [f"bytes={4096 + 10}-{4096 + 17}"]


def test_zarr_reads_blocks_as_well(server):
    array = zarr.open_array(f"{server.url}/m.zarr/w", mode="r")
    server.clear()
    assert_same_bits(array[700], ARRAY[700])
    assert len(ranges(server, "/w/c.")) == 2
    assert sum(server.sent) < 4096 + BLOCK


def read_row(model):
    return model["w"][700]


def read_rows(model):
    return model["w"][500:900:2]


def load(model):
    return model.load()


reads = pytest.mark.parametrize("read", [read_row, read_rows, load])


@reads
def test_a_missing_chunk_is_named(root, server, read):
    path = root / "m.zarr" / "w" / "c.1.0"
    aside = path.rename(path.with_name("aside"))
    try:
        with bf16codecs.open_model(f"{server.url}/m.zarr") as model:
            with pytest.raises(StoreError, match=r"tensor 'w', chunk w/c\.1\.0: it is missing"):
                read(model)
            with pytest.raises(StoreError, match=r"chunk w/c\.1\.0: it is missing"):
                model["w"].zarr[700]
    finally:
        aside.rename(path)


@reads
def test_a_damaged_chunk_is_named(root, server, read):
    path = root / "m.zarr" / "w" / "c.1.0"
    good = path.read_bytes()
    bad = bytearray(good)
    bad[len(good) * 3 // 8] ^= 1  # in the second of four blocks, that of row 700
    path.write_bytes(bad)
    try:
        with bf16codecs.open_model(f"{server.url}/m.zarr") as model:
            with pytest.raises(CorruptDataError, match=r"tensor 'w', chunk w/c\.1\.0: "):
                read(model)
            with pytest.raises(CodecError):
                model["w"].zarr[700]
    finally:
        path.write_bytes(good)


@reads
def test_a_dropped_connection_is_an_error(server, read):
    server.drop = "/w/c.1.0"
    with bf16codecs.open_model(f"{server.url}/m.zarr") as model:
        with pytest.raises(OSError, match=r"tensor 'w', chunk w/c\.1\.0: the reply is cut off: "):
            read(model)
        server.drop = None
        read(model)


@reads
def test_a_forbidden_chunk_is_an_error(server, read):
    server.deny = "/w/c.1.0"
    forbidden = pytest.raises(OSError, match=r"tensor 'w', chunk w/c\.1\.0: .*403")
    with bf16codecs.open_model(f"{server.url}/m.zarr") as model, forbidden:
        read(model)


def test_transient_errors_are_retried_as_the_store_does(server):
    """obstore retries, fsspec's HTTP file system does not."""
    obstore = pytest.importorskip("obstore.store")
    options = {"client_options": {"allow_http": True}}
    store = obstore.HTTPStore.from_url(f"{server.url}/m.zarr", **options)
    with bf16codecs.open_model(ObjectStore(store, read_only=True)) as model:
        server.failures = 2
        assert_same_bits(model["w"][700], ARRAY[700])
        assert server.failures == 0
    with bf16codecs.open_model(f"{server.url}/m.zarr") as model:
        server.failures = 1
        with pytest.raises(OSError, match=r"tensor 'w', chunk w/c\.1\.0: .*503"):
            model["w"][700]


def test_errors_of_obstore_are_reported_without_debug_output(server):
    obstore = pytest.importorskip("obstore.store")
    options = {"client_options": {"allow_http": True}, "retry_config": {"max_retries": 0}}
    store = ObjectStore(obstore.HTTPStore.from_url(f"{server.url}/m.zarr", **options))
    with bf16codecs.open_model(store) as model:
        server.deny = "/w/c"
        for read in (read_row, load, lambda model: model["w"].zarr[700]):
            with pytest.raises(OSError, match=r"chunk w/c\.\d\.0: .* 403 Forbidden$"):
                read(model)
    server.deny = "zarr.json"
    with pytest.raises(OSError, match=r": zarr\.json: .* 403 Forbidden; S3 gives"):
        bf16codecs.open_model(store)


def test_a_connection_that_drops_while_opening_is_an_error(server):
    server.drop = "zarr.json"
    with pytest.raises(OSError, match=re.escape(f"{server.url}/m.zarr: zarr.json: ")):
        bf16codecs.open_model(f"{server.url}/m.zarr")


def test_a_server_that_ignores_ranges_is_reported(server):
    server.ignore_ranges = True
    with bf16codecs.open_model(f"{server.url}/m.zarr") as model:
        for read in (read_row, read_rows):
            with pytest.raises(StoreError, match=r"tensor 'w', chunk w/c\.\d\.0: .* ignores range"):
                read(model)
        with pytest.raises(StoreError, match=r"chunk w/c\.1\.0: .* ignores range"):
            model["w"].zarr[700]
        assert_same_bits(load(model)["w"], ARRAY)  # takes no ranges
    with pytest.raises(CorruptDataError, match="ignores ranges"):
        zarr.open_array(f"{server.url}/m.zarr/w", mode="r")[700]


def test_an_address_without_a_model(server):
    with pytest.raises(StoreError, match="not a model store"):
        bf16codecs.open_model(f"{server.url}/nothing.zarr")
    with pytest.raises(OSError, match=r"127\.0\.0\.1:9/m.zarr: "):
        bf16codecs.open_model("http://127.0.0.1:9/m.zarr")


def test_options_reach_the_file_system(server):
    options = {"headers": {"X-Token": "secret"}}
    seen = []
    server.note_headers = seen.append
    with bf16codecs.open_model(f"{server.url}/m.zarr", storage_options=options):
        pass
    assert [headers["X-Token"] for headers in seen] == ["secret"]
