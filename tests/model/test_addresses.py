"""Messages about addresses that lead to no model: in plain words, each with the address once."""

from __future__ import annotations

import os
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import zarr.storage

import bf16codecs
from bf16codecs._base.messages import named_errors
from bf16codecs.errors import ServerError, StoreError
from bits import assert_same_bits
from invoked import refused
from lazy_models import weights, write_safetensors, write_store
from servers import FileServer, serving

pytestmark = [pytest.mark.usefixtures("aiohttp"), pytest.mark.filterwarnings("ignore:Unclosed")]

ARRAYS = {"w": weights((500, 512)), "n": np.arange(100)}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("served")
    write_safetensors(root / "m.safetensors", ARRAYS)
    for name in ("m.zarr", "m.zarr.zip"):
        write_store(root / name, ARRAYS)
    with zipfile.ZipFile(root / "outer.zip", "w") as file:
        for path in sorted((root / "m.zarr").rglob("*")):
            file.write(path, f"a/m.zarr/{path.relative_to(root / 'm.zarr')}")
    return root


@pytest.fixture
def server(root: Path):
    with serving(root) as server:
        yield server


def message_of(address: str, *args: str) -> str:
    """Return the message of `info`, which has the address once."""
    line = refused("bf16codecs", "info", address, *args)
    assert line.count(address) == 1
    return line.partition(f"{address}: ")[2]


def test_a_zip_file_with_the_store_in_a_folder(root: Path, server: FileServer) -> None:
    with zarr.storage.ZipStore(root / "outer.zip", mode="r") as store:
        for place in (root / "outer.zip", f"{server.url}/outer.zip", store):
            with pytest.raises(StoreError, match=r"in the folder 'a/m\.zarr' of the ZIP file: zip"):
                bf16codecs.open_model(place)


def test_a_zip_file_on_a_server_without_ranges(server: FileServer) -> None:
    server.ignore_ranges = True
    url = f"{server.url}/m.zarr.zip"
    with pytest.raises(ServerError, match="by which ZIP files are read: download it") as caught:
        bf16codecs.open_model(url)
    assert str(caught.value).startswith(f"{url}: the server ignores ranges, ")


def test_a_zip_file_that_is_cut_off(root: Path, tmp_path: Path) -> None:
    """A zarr store, an address and a path: the same words."""
    cut = tmp_path / "cut.zip"
    cut.write_bytes((root / "m.zarr.zip").read_bytes()[:-1000])
    with serving(tmp_path) as server:
        for place in (cut, f"{server.url}/cut.zip", zarr.storage.ZipStore(cut, mode="r")):
            with pytest.raises(StoreError, match="damaged or cut off: its directory, which is at"):
                bf16codecs.open_model(place)


def test_a_query_behind_the_address_of_a_folder(server: FileServer) -> None:
    assert "queries (?...) go with addresses of files" in message_of(f"{server.url}/m.zarr?x=1")


@pytest.mark.parametrize("address", ["http://", "S3://", "s3:///", "gcs://", "zip::http://"])
def test_an_address_of_nothing(address: str) -> None:
    assert message_of(address) == "an address of nothing: no host or bucket is named"


@pytest.mark.parametrize("address", ["memory://", "memory:///", "reference://"])
def test_an_address_that_is_whole_without_a_host(root: Path, address: str) -> None:
    files = {
        path.relative_to(root / "m.zarr").as_posix(): path.read_bytes()
        for path in (root / "m.zarr").rglob("*")
        if path.is_file()
    }
    memory = pytest.importorskip("fsspec").filesystem("memory")
    memory.pipe({f"/{name}": data for name, data in files.items()})
    options = {"fo": files, "remote_protocol": "memory"} if address == "reference://" else None
    try:
        with bf16codecs.open_model(address, options) as model:
            assert_same_bits(model["w"][:], ARRAYS["w"])
    finally:
        memory.rm("/", recursive=True)


def test_an_address_without_a_host() -> None:
    assert message_of("http:///m.zarr") == "zarr.json: not a valid address"


@pytest.mark.parametrize("name", ["m.zarr", "m.zarr.zip", "m.safetensors"])
def test_an_unknown_option(server: FileServer, name: str) -> None:
    url = f"{server.url}/{name}"
    expected = "--storage-options: its file system takes no 'foo'"
    assert message_of(url, "--storage-options", '{"foo": 1}') == expected
    with pytest.raises(ValueError, match="storage_options: its file system takes no 'foo'"):
        bf16codecs.open_model(url, {"foo": 1})
    with pytest.raises(ValueError, match="storage_options: its file system takes no 'bar'"):
        bf16codecs.open_model(url, {"client_kwargs": {"bar": 1}})


def test_an_option_that_the_caller_did_not_give(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with incompatible versions of packages."""

    def refuse(*_args: object, **_kwargs: object) -> None:
        raise TypeError("f() got an unexpected keyword argument 'foo'")

    monkeypatch.setattr("fsspec.implementations.http.HTTPFileSystem._cat_file", refuse)
    with pytest.raises(OSError, match="unexpected keyword argument 'foo'"):
        bf16codecs.open_model(f"{server.url}/m.zarr", {"block_size": 1})


@pytest.mark.parametrize("name", ["m.zarr", "m.zarr.zip", "m.safetensors"])
def test_a_bucket_without_credentials(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    pytest.importorskip("s3fs")
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(variable, raising=False)
    for variable in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(variable, os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    url = f"s3://nobucket/{name}"
    assert """a public bucket is read with --storage-options '{"anon": true}'""" in message_of(url)
    with pytest.raises(OSError, match=r'read with storage_options=\{"anon": True\}'):
        bf16codecs.open_model(url)


@pytest.mark.parametrize("name", ["m.zarr", "m.zarr.zip", "m.safetensors"])
def test_a_port_without_a_server(name: str) -> None:
    assert re.fullmatch(
        r"(zarr.json: )?Cannot connect to host 127.0.0.1:9: Connection refused",
        message_of(f"http://127.0.0.1:9/{name}"),
    )


def test_errors_about_names_need_no_request(server: FileServer, tmp_path: Path) -> None:
    """No server is asked."""
    assert message_of(f"{server.url}/no.h5").startswith(
        "an address that ends in .h5: HDF5 files are"
    )
    line = refused("zarr2st", f"{server.url}/no.safetensors", tmp_path / "x")
    assert "not a Zarr store, but by its name a safetensors model: it needs no" in line
    assert server.requests == []


def test_system_errors_name_a_file_once(tmp_path: Path) -> None:
    missing = tmp_path / "zarr.json"
    for what in (f"{tmp_path}: {missing}", str(missing)):
        with pytest.raises(OSError, match="file") as caught, named_errors(what, OSError):
            missing.read_bytes()
        assert str(caught.value) == f"{what}: No such file or directory"
    with pytest.raises(OSError, match="file") as caught, named_errors("m.zarr", OSError):
        missing.read_bytes()
    assert str(caught.value) == f"m.zarr: {missing}: No such file or directory"
