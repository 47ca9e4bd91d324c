"""`info` of stores at addresses: its requests to servers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from zarr.storage import ObjectStore

from based_models import total_size, write_nearby
from bf16codecs.convert import safetensors_to_run, safetensors_to_zarr
from bf16codecs.store.opening import Opening, open_either
from bf16codecs.store.reader import ModelReader
from bf16codecs.store.remote import storage
from bf16codecs.store.remote.storage import RemoteStorage
from invoked import done
from lazy_models import weights, write_safetensors
from servers import FileServer, serving

pytestmark = pytest.mark.filterwarnings(
    "ignore:datetime.datetime.utcnow:DeprecationWarning", "ignore:Unclosed"
)

NAMES = ["v3.zarr", "v2.zarr", "fine.zarr", "run.zarr", "run.zarr@2"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of stores of 4 tensors in 64 chunks, a run and one with a base."""
    root = tmp_path_factory.mktemp("stores")
    arrays = {f"t{i}": weights((128, 256), seed=i) for i in range(4)}
    source = write_safetensors(root / "step-1.safetensors", arrays)
    near = write_nearby(source, root / "step-2.safetensors", seed=1)
    for zarr_format in (3, 2):
        store = root / f"v{zarr_format}.zarr"
        safetensors_to_zarr(source, store, chunk_size=4096, zarr_format=zarr_format)
    safetensors_to_zarr(near, root / "fine.zarr", base=source, chunk_size=4096)
    safetensors_to_run([source, near], root / "run.zarr", chunk_size=4096)
    return root


@pytest.fixture
def server(root: Path) -> Iterator[FileServer]:
    pytest.importorskip("aiohttp")
    with serving(root) as server:
        yield server


def json_of(*args: Any) -> dict[str, Any]:
    document = json.loads(done("bf16codecs", "info", "--json", *args))
    assert isinstance(document, dict)
    return document


def sizes(about: dict[str, Any]) -> list[int | None]:
    return [tensor["stored_nbytes"] for tensor in about["tensors"]]


@pytest.mark.parametrize("name", NAMES)
def test_web_servers_are_not_asked_for_each_chunk(
    root: Path, server: FileServer, name: str
) -> None:
    here = json_of(root / name)
    server.clear()
    there = json_of(f"{server.url}/{name}")
    # Metadata, of format 2 in two documents, and a header.
    assert len(server.requests) <= 4
    assert (there["stored_nbytes"], there["ratio"]) == (None, None)
    assert set(sizes(there)) == {None}
    assert [t["nbytes"] for t in there["tensors"]] == [t["nbytes"] for t in here["tensors"]]
    lines = done("bf16codecs", "info", f"{server.url}/{name}").splitlines()
    assert any(line.startswith("size: ") and "stored size not asked for" in line for line in lines)
    assert lines[-1].endswith("--sizes asks it for that of each chunk.")
    assert not any("ratio" in line for line in lines)


def kind_of(path: Path) -> str:
    return json.loads(path.read_text())["node_type"] if path.name == "zarr.json" else ""


@pytest.mark.parametrize("name", NAMES)
def test_sizes_are_asked_for_on_demand_and_once(root: Path, server: FileServer, name: str) -> None:
    here = json_of(root / name)
    server.clear()
    there = json_of(f"{server.url}/{name}", "--sizes")
    assert sizes(there) == sizes(here)
    # The sizes of inner groups' metadata are not requested: an empty object each.
    path = root / name
    inner = [p for p in path.rglob("*") if p.name in (".zgroup", ".zattrs", "zarr.json")]
    arrays = {p.parent for p in path.rglob("*") if p.name == ".zarray" or "array" in kind_of(p)}
    groups = sum(p.stat().st_size for p in inner if p.parent not in {path, *arrays})
    assert there["stored_nbytes"] == here["stored_nbytes"] - groups
    asked = [path for method, path, _ in server.requests if method == "HEAD"]
    assert len(asked) == len(set(asked))


slow = pytest.mark.slow


@pytest.fixture(
    params=[
        *("memory", "obstore"),
        pytest.param("S3", marks=slow),
        pytest.param("S3 by obstore", marks=slow),
    ]
)
def copied(root: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[str], ModelReader]]:
    """Copy the stores to where keys can be listed; return a function that opens one."""
    if request.param == "obstore":
        local = pytest.importorskip("obstore.store").LocalStore
        yield lambda name: open_either(ObjectStore(local(root / name), read_only=True), Opening())
        return
    fsspec = pytest.importorskip("fsspec")
    options: dict[str, Any] = {} if request.param == "memory" else request.getfixturevalue("s3")
    scheme, folder = ("memory", "/listed") if not options else ("s3", "bucket/listed")
    files = fsspec.filesystem(scheme, **options)
    files.put(f"{root}/", folder, recursive=True)

    def opened(name: str) -> ModelReader:
        if request.param != "S3 by obstore":
            return open_either(f"{scheme}://{folder.strip('/')}/{name}", Opening(options))
        obstore = pytest.importorskip("obstore.store")
        store = obstore.S3Store(
            "bucket",
            prefix=f"listed/{name}",
            endpoint=options["endpoint_url"],
            access_key_id="k",
            secret_access_key="s",
            region="us-east-1",
            client_options={"allow_http": True},
        )
        return open_either(ObjectStore(store, read_only=True), Opening())

    yield opened
    files.rm(folder, recursive=True)


def test_servers_with_lists_are_not_asked_for_each_chunk(
    root: Path, copied: Callable[[str], ModelReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their lists have the sizes, which equal those on disk."""
    asked: list[str] = []
    monkeypatch.setattr(RemoteStorage, "size", lambda self, key: asked.append(key))
    for name in ("v3.zarr", "v2.zarr", "run.zarr"):
        with closing(copied(name)) as reader:
            assert reader.knows_sizes
            assert reader.total_nbytes() == total_size(root / name)
            for folder in (root / name).glob("t*"):
                assert reader.stored_nbytes(folder.name) == total_size(folder)
    assert asked == []


def test_a_server_that_refuses_to_list(
    copied: Callable[[str], ModelReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for users who may read objects, but not list them."""

    async def refuse(*args: object) -> dict[str, int]:
        raise PermissionError("Access Denied")

    monkeypatch.setattr(storage, "_listed_by_fsspec", refuse)
    monkeypatch.setattr(storage, "_listed_by_obstore", refuse)
    with closing(copied("v3.zarr")) as reader:
        assert not reader.knows_sizes
