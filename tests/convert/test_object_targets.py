"""Stores that are written to an object store: they appear complete, whatever happens meanwhile."""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bf16codecs import open_model
from bf16codecs.convert import (
    rebase_store,
    safetensors_to_hdf5,
    safetensors_to_run,
    safetensors_to_zarr,
    verify_store,
    zarr_to_safetensors,
)
from bf16codecs.errors import LeftoverWarning, StoreError
from bf16codecs.store.opening import Opening, open_any
from folders import files_in
from invoked import done, refused
from lazy_models import weights, write_safetensors
from looping import noted
from object_store import Faults

obstore = pytest.importorskip("obstore.store")
zarr = pytest.importorskip("zarr")
claim = pytest.importorskip("bf16codecs.store.remote.claim")
object_folder = pytest.importorskip("bf16codecs.store.remote.object_folder")

pytestmark = pytest.mark.filterwarnings("ignore::bf16codecs.errors.LeftoverWarning")

#: The requests of one conversion are far fewer.
MANY = 300


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim, "_RENEW_SECONDS", 0.2)
    monkeypatch.setattr(claim, "_DEAD_SECONDS", 0.5)
    monkeypatch.setattr(claim, "_LOOK_SECONDS", 0.1)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return write_safetensors(tmp_path / "old.safetensors", values(1))


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return write_safetensors(tmp_path / "new.safetensors", values(2))


def values(seed: int) -> dict[str, Any]:
    return {"a.w": weights((90, 40), seed=seed), "b": weights((7,), "float32", seed=seed)}


@pytest.fixture
def store(bucket: str) -> str:
    return f"{bucket}/m.zarr"


Make = Callable[..., Any]


@pytest.fixture
def make(store: str, s3: dict[str, str]) -> Make:
    """Convert a model to the store in the bucket."""

    def convert(source: Path, **options: Any) -> Any:
        return safetensors_to_zarr(source, store, storage_options=s3, **options)

    return convert


@pytest.fixture
def content(store: str, s3: dict[str, str], fsspec: Any) -> Callable[[], dict[str, bytes]]:
    """Return the keys of the store and what they hold."""
    root = store.removeprefix("s3://")

    def get() -> dict[str, bytes]:
        fs = fsspec.filesystem("s3", skip_instance_cache=True, **s3)
        return {key.removeprefix(f"{root}/"): fs.cat_file(key) for key in fs.find(root)}

    return get


Content = Callable[[], dict[str, bytes]]


def local(source: Path, folder: Path, **options: Any) -> dict[str, bytes]:
    """Return the files of a store in a folder."""
    path = folder / "local.zarr"
    safetensors_to_zarr(source, path, overwrite=True, **options)
    return {name: data for name, data in files_in(path).items() if data is not None}


def held(store: str, s3: dict[str, str], tmp_path: Path) -> bytes | None:
    """Return the file that a store restores; None if there is no complete store."""
    try:
        zarr_to_safetensors(store, tmp_path / "restored", storage_options=s3, overwrite=True)
    except StoreError as e:
        if not any(text in str(e) for text in ("not complete", "no Zarr group")):
            raise
        return None
    return (tmp_path / "restored").read_bytes()


def test_the_store_is_that_of_a_folder(
    old: Path, new: Path, make: Make, content: Content, store: str, s3: Any, tmp_path: Path
) -> None:
    summary = make(old)
    assert content() == local(old, tmp_path)
    assert summary.stored_nbytes == sum(map(len, content().values()))
    verify_store(store, old, storage_options=s3)
    with pytest.raises(FileExistsError, match=r"overwrite=True replaces it\): '.*/m\.zarr'"):
        make(new)
    assert content() == local(old, tmp_path)


def test_a_store_is_replaced(
    old: Path, new: Path, make: Make, content: Content, store: str, s3: Any, tmp_path: Path
) -> None:
    """Its chunks have keys of another encoding, and the third store's have the first one's."""
    tensors = {"a.w": weights((50,)), "c": weights(())}
    other = write_safetensors(tmp_path / "other.safetensors", tensors)
    make(other)
    make(new, overwrite=True)
    assert held(store, s3, tmp_path) == new.read_bytes()
    verify_store(store, new, storage_options=s3)
    assert content().keys() == {name.replace("/c.", "/") for name in local(new, tmp_path)}
    options = {"mode": "r", "storage_options": s3}
    array = zarr.open_array(f"{store}/a/w", **options)
    assert array[...].tobytes() == values(2)["a.w"].tobytes()
    assert zarr.open_group(store, **options)["b"][...].tobytes() == values(2)["b"].tobytes()
    make(old, overwrite=True, lossy="float16", sha256=True)
    assert content() == local(old, tmp_path, lossy="float16", sha256=True)
    make(other, overwrite=True)
    assert content().keys() == {
        *("zarr.json", "a/zarr.json", "a/w/zarr.json", "a/w/0", "c/zarr.json", "c/0"),
        *("safetensors/zarr.json", "safetensors/header/zarr.json"),
        *("safetensors/header/0/zarr.json", "safetensors/header/0/0"),
    }


def test_differences_are_replaced(
    old: Path, new: Path, bucket: str, store: str, s3: dict[str, str], tmp_path: Path
) -> None:
    """Their chunks have keys of their own as well, and in turn the first ones again."""
    base = f"{bucket}/base.zarr"
    safetensors_to_zarr(old, base, storage_options=s3)
    for source, given in ((old, None), (new, base), (old, base), (new, base), (old, None)):
        safetensors_to_zarr(source, store, base=given, overwrite=True, storage_options=s3)
        assert held(store, s3, tmp_path) == source.read_bytes()
        verify_store(store, source, storage_options=s3)


def test_commands(old: Path, store: str, s3: dict[str, str], tmp_path: Path) -> None:
    options = "--storage-options", json.dumps(s3)
    assert "2 tensors" in done("st2zarr", old, store, *options)
    assert "--overwrite replaces it" in refused("st2zarr", old, store, *options)
    done("bf16codecs", "verify", store, old, *options)
    done("zarr2st", store, tmp_path / "again", *options)
    assert (tmp_path / "again").read_bytes() == old.read_bytes()
    target = store.replace("m.zarr", "n.zarr")
    done("st2zarr", old, target, "--target-options", json.dumps(s3))


def test_from_bucket_to_bucket(
    old: Path, bucket: str, store: str, s3: dict[str, str], fsspec: Any, tmp_path: Path
) -> None:
    fsspec.filesystem("s3", **s3).put(str(old), f"{bucket}/old.safetensors")
    safetensors_to_zarr(f"{bucket}/old.safetensors", store, storage_options=s3)
    assert held(store, s3, tmp_path) == old.read_bytes()
    with pytest.raises(ValueError, match="would replace the source"):
        safetensors_to_zarr(f"{bucket}/old.safetensors", bucket, storage_options=s3)


def test_bases(
    old: Path, new: Path, bucket: str, store: str, s3: dict[str, str], tmp_path: Path
) -> None:
    base = f"{bucket}/base.zarr"
    safetensors_to_zarr(old, base, storage_options=s3)
    safetensors_to_zarr(new, store, base=base, storage_options=s3)
    with closing(open_any(store, Opening(s3))) as reader:
        assert reader.info.base is not None
        assert reader.info.base.location == "base.zarr"
    assert held(store, s3, tmp_path) == new.read_bytes()
    with pytest.raises(ValueError, match="would replace the base"):
        safetensors_to_zarr(new, base, base=store, overwrite=True, storage_options=s3)
    assert held(base, s3, tmp_path) == old.read_bytes()
    with pytest.raises(StoreError, match="a local path, which a store at an address cannot name"):
        safetensors_to_zarr(new, store, base=old, overwrite=True, storage_options=s3)
    assert held(store, s3, tmp_path) == new.read_bytes()
    with pytest.raises(ValueError, match="cannot have a local base"):
        safetensors_to_zarr(new, store, base=f"auto:{tmp_path}", overwrite=True, storage_options=s3)


def test_stores_are_rebased(
    old: Path, new: Path, bucket: str, store: str, s3: dict[str, str], fsspec: Any, tmp_path: Path
) -> None:
    base = f"{bucket}/base.zarr"
    safetensors_to_zarr(old, base, storage_options=s3)
    safetensors_to_zarr(new, store, base=base, storage_options=s3)
    summary = rebase_store(store, storage_options=s3)
    assert not summary.is_unchanged
    assert rebase_store(store, storage_options=s3).is_unchanged
    rebase_store(store, base, storage_options=s3)
    assert rebase_store(store, base, storage_options=s3).is_unchanged
    assert held(store, s3, tmp_path) == new.read_bytes()
    done("bf16codecs", "rebase", store, "--storage-options", json.dumps(s3))
    fsspec.filesystem("s3", **s3).rm(base, recursive=True)
    assert held(store, s3, tmp_path) == new.read_bytes()
    with fsspec.filesystem("s3", **s3).open(f"{store}/zarr.json", "rb") as file:
        document = json.load(file)
    document["attributes"]["mine"] = 1
    with fsspec.filesystem("s3", **s3).open(f"{store}/zarr.json", "wb") as file:
        file.write(json.dumps(document).encode())
    safetensors_to_zarr(old, base, storage_options=s3)
    with pytest.raises(StoreError, match="would lose the attribute 'mine' of '/'"):
        rebase_store(store, base, storage_options=s3)


@pytest.mark.parametrize(
    ("target", "options", "why"),
    [
        ("s3://bucket", {}, "a whole bucket"),
        ("s3://bucket/", {}, "a whole bucket"),
        ("s3://bucket/m.zarr.zip", {}, "stores are folders"),
        ("s3://bucket/m.safetensors", {}, "stores are folders"),
        ("s3://bucket/m.h5", {}, "stores are folders"),
        ("s3://bucket/m.zarr", {"zarr_format": 2}, "Zarr format 3"),
        ("zip::s3://bucket/m.zarr", {}, "on local disks, or in object stores"),
        ("https://host/m.zarr", {}, "on local disks, or in object stores"),
        ("hf://owner/name/m.zarr", {}, "on local disks, or in object stores"),
    ],
)
def test_targets_that_cannot_be(old: Path, target: str, options: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        safetensors_to_zarr(old, target, **options)


def test_other_targets(old: Path, store: str, s3: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="in object stores, stores are folders"):
        safetensors_to_hdf5(old, store, storage_options=s3)
    with pytest.raises(ValueError, match="on local disks, or in object stores: at s3://"):
        safetensors_to_hdf5(old, "https://host/m.h5")
    with pytest.raises(ValueError, match="target_options are for addresses"):
        safetensors_to_zarr(old, tmp_path / "m.zarr", target_options=s3)
    with pytest.raises(FileNotFoundError, match="there is no such bucket"):
        safetensors_to_zarr(old, "s3://nowhere/m.zarr", storage_options=s3)


def test_what_others_have_put_there(
    old: Path, new: Path, make: Make, content: Content, store: str, s3: Any, fsspec: Any
) -> None:
    fs = fsspec.filesystem("s3", **s3)
    fs.pipe(f"{store}/notes.txt", b"mine")
    with pytest.raises(FileExistsError, match=r"exists and has 'notes.txt', and is no store"):
        make(old, overwrite=True)
    fs.rm(f"{store}/notes.txt")
    make(old)
    fs.pipe(f"{store}/notes.txt", b"mine")
    with pytest.raises(FileExistsError, match=r"contains 'notes.txt', which is not the store's"):
        make(new, overwrite=True)
    fs.rm(f"{store}/notes.txt")
    for document in (b"{}", b"no JSON", b'{"zarr_format": 3, "node_type": "array"}'):
        fs.pipe(f"{store}/zarr.json", document)
        with pytest.raises(FileExistsError, match="exists and is not a store of a model"):
            make(new, overwrite=True)
    assert content()["zarr.json"] == document


def test_a_run_is_not_replaced(
    old: Path, make: Make, store: str, s3: dict[str, str], fsspec: Any, tmp_path: Path
) -> None:
    safetensors_to_run([old], tmp_path / "r.zarr", steps=[1])
    fsspec.filesystem("s3", **s3).put(f"{tmp_path / 'r.zarr'}/", f"{store}/", recursive=True)
    with pytest.raises(FileExistsError, match="is a run: to replace it by one model"):
        make(old, overwrite=True)


def test_services_without_conditions(
    old: Path, make: Make, content: Content, s3_faults: Faults
) -> None:
    for header in ("If-None-Match", "If-Match"):
        s3_faults.ignores = {header}
        with pytest.raises(StoreError, match="has no conditional requests"):
            make(old)
        assert content() == {}


@pytest.mark.parametrize("fault", ["busy", "cut", "lost"])
def test_requests_that_fail_are_repeated(
    fault: str, old: Path, make: Make, content: Content, s3_faults: Faults, tmp_path: Path
) -> None:
    """Each request fails the first time; of a lost one, only the answer is missing."""
    seen: set[tuple[str, str]] = set()

    def at_first(number: int, method: str, path: str) -> str:
        is_first = (method, path) not in seen
        seen.add((method, path))
        return fault if is_first else ""

    s3_faults.fault = at_first
    make(old)
    assert content() == local(old, tmp_path)


def test_servers_that_refuse(
    old: Path,
    new: Path,
    make: Make,
    content: Content,
    s3_faults: Faults,
    store: str,
    s3: dict[str, str],
    tmp_path: Path,
) -> None:
    """One that lets nothing be written, and one whose credentials expire in the middle."""
    s3_faults.fault = lambda number, method, path: "denied" if method == "PUT" else ""
    with pytest.raises(PermissionError, match="Access Denied"):
        make(old)
    s3_faults.clear()
    assert content() == {}
    make(old)
    before = content()
    s3_faults.clear()
    for last in range(12):
        s3_faults.clear()
        s3_faults.fault = lambda number, method, path: "denied" if number > last else ""  # noqa: B023
        with pytest.raises(OSError, match="Access Denied"):
            make(new, overwrite=True)
        s3_faults.clear()
        assert held(store, s3, tmp_path) == old.read_bytes()
    make(old, overwrite=True)
    make(old, overwrite=True)
    assert content() == before


class _Killed(BaseException):
    """This process is gone."""


@contextmanager
def dying(at: int, is_sent: bool) -> Iterator[None]:
    """Let this process die at a request, before or after it is sent: it sends no others."""
    original, lock, numbers = object_folder.ask, threading.Lock(), itertools.count(1)

    def ask(*args: Any) -> Any:
        with lock:
            number = next(numbers)
        if number > at or (number == at and not is_sent):
            raise _Killed
        result = original(*args)
        if number == at:
            raise _Killed
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(object_folder, "ask", ask)
        # Threads end with the process.
        patch.setattr(claim.Claim, "_keep", lambda self: None)
        yield


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return an object store in memory, which takes the place of the one with the bucket."""
    found = obstore.MemoryStore()
    monkeypatch.setattr(object_folder, "object_store", lambda url, options: found)
    return found


def tensors_in(memory: Any) -> dict[str, bytes] | None:
    """Return the tensors of the model in a store; None if there is no complete one."""
    try:
        with open_model(zarr.storage.ObjectStore(memory, read_only=True)) as model:
            return {name: np.asarray(tensor[...]).tobytes() for name, tensor in model.items()}
    except StoreError as e:
        if not any(text in str(e) for text in ("not complete", "no Zarr group")):
            raise
        return None


def keys_in(memory: Any) -> list[str]:
    return [meta["path"] for batch in memory.list() for meta in batch]


@pytest.mark.parametrize("is_sent", [False, True])
@pytest.mark.parametrize("replaces", [False, True])
def test_a_writer_that_is_killed_at_any_request(
    is_sent: bool,
    replaces: bool,
    old: Path,
    new: Path,
    memory: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Readers see the old store, none or the new one; the next writer takes over."""
    monkeypatch.setattr(claim, "_DEAD_SECONDS", 0)
    make = partial(safetensors_to_zarr, store="s3://bucket/m.zarr", overwrite=True)
    states = {}
    for name, source in (("old", old), ("new", new)):
        make(source)
        states[name] = tensors_in(memory)
    count = len(keys_in(memory))
    allowed = [states["old"] if replaces else None, states["new"]]
    seen = []
    for number in range(1, MANY):
        memory.delete(keys_in(memory))
        if replaces:
            make(old)
        is_done = False
        with noted(f"request {number}"):
            with suppress(_Killed), dying(number, is_sent):
                make(new)
                is_done = True
            seen.append(tensors_in(memory))
            assert seen[-1] in allowed
            make(new)
            assert tensors_in(memory) == states["new"]
            assert len(keys_in(memory)) == count
        if is_done:
            assert all(state in seen for state in allowed)
            return
    raise AssertionError("it was never done")


def test_two_writers(
    old: Path, new: Path, make: Make, store: str, s3: dict[str, str], tmp_path: Path
) -> None:
    refusals = []

    def meanwhile(phase: str, done: int, total: int) -> None:
        if not refusals:
            with pytest.raises(BlockingIOError, match="another process is writing it") as caught:
                make(new, overwrite=True)
            refusals.append(str(caught.value))

    make(old, progress=meanwhile)
    assert f"process {os.getpid()} on" in refusals[0]
    assert held(store, s3, tmp_path) == old.read_bytes()


@pytest.mark.parametrize("phase", ["convert", "verify"])
def test_a_writer_that_was_taken_for_dead(
    phase: str,
    old: Path,
    new: Path,
    make: Make,
    content: Content,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Another has written the store meanwhile; the first fails, and harms nothing."""
    monkeypatch.setattr(claim.Claim, "_keep", lambda self: None)
    written = []

    def meanwhile(now: str, done: int, total: int) -> None:
        if now == phase and not written:
            written.append(now)
            with pytest.warns(LeftoverWarning, match="process .* was writing it: what it left"):
                make(new)

    with pytest.raises(StoreError, match=r"another process (has taken|took) over"):
        make(old, progress=meanwhile)
    assert content() == local(new, tmp_path)


def test_a_writer_that_goes_on_while_another_writes(
    old: Path, new: Path, make: Make, content: Content, fsspec: Any, store: str, s3: Any
) -> None:
    """The other one removes what it still writes."""
    expected = None
    fs = fsspec.filesystem("s3", **s3)
    original = object_folder.ObjectFolder.create

    def create(self: Any, key: str, data: Any) -> Any:
        if key == "b/c.0":
            fs.pipe(f"{store}/{key}", b"another's")
        return original(self, key, data)

    written = []

    def once(self: Any, key: str, data: Any) -> Any:
        if key == "b/c.0" and not written:
            written.append(key)
            fs.pipe(f"{store}/{key}", b"another's")
        return original(self, key, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(object_folder.ObjectFolder, "create", once)
        make(old)
        expected = content()
        assert expected["b/c.0"] != b"another's"
        fs.rm(store, recursive=True)
        patch.setattr(object_folder.ObjectFolder, "create", create)
        with pytest.raises(StoreError, match="another process writes it again and again"):
            make(new)
    assert content() == {}


def test_lists_that_lag(old: Path, new: Path, make: Make, content: Content, tmp_path: Path) -> None:
    """Keys of a dead writer are not listed yet, and are replaced nevertheless."""
    with suppress(_Killed), dying(12, True):
        make(old)
    assert len(content()) > 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(object_folder.ObjectFolder, "listed", lambda self, below="": [])
        make(new, overwrite=True)
    assert content() == local(new, tmp_path)
