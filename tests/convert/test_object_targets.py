"""Stores that are written to an object store: they appear complete, whatever happens meanwhile."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import closing, suppress
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
from object_store import Faults, Killed, dying, keys_in

obstore = pytest.importorskip("obstore.store")
zarr = pytest.importorskip("zarr")
lease = pytest.importorskip("bf16codecs.store.remote.lease")
object_folder = pytest.importorskip("bf16codecs.store.remote.object_folder")

pytestmark = [
    pytest.mark.filterwarnings("ignore::bf16codecs.errors.LeftoverWarning"),
    pytest.mark.usefixtures("impatient"),
]

#: The requests of one conversion are far fewer.
MANY = 300


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return write_safetensors(tmp_path / "old.safetensors", values(1))


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return write_safetensors(tmp_path / "new.safetensors", values(2))


def values(seed: int) -> dict[str, Any]:
    # The first and the second model have a tensor that the other has not.
    own = {f"only{seed}": weights((3,), seed=seed)}
    return {"a.w": weights((90, 40), seed=seed), "b": weights((7,), "float32", seed=seed), **own}


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
    assert "3 tensors" in done("st2zarr", old, store, *options)
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
        *(
            (f"s3://bucket/{name}/m.zarr", {}, "programs write differently")
            for name in ("a?b", "a#b", "a%20b", "a~b", "a\\b", "a\nb", "", "..", "x/./y")
        ),
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
    with pytest.raises(FileExistsError, match="is a run: remove it first"):
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
    for last in range(0, 12, 3):
        s3_faults.clear()
        s3_faults.fault = lambda number, method, path: "denied" if number > last else ""  # noqa: B023
        with pytest.raises(OSError, match="Access Denied"):
            make(new, overwrite=True)
        s3_faults.clear()
        assert held(store, s3, tmp_path) == old.read_bytes()
    make(old, overwrite=True)
    make(old, overwrite=True)
    assert content() == before


def tensors_in(memory: Any) -> dict[str, bytes] | None:
    """Return the tensors of the model in a store; None if there is no complete one."""
    try:
        with open_model(zarr.storage.ObjectStore(memory, read_only=True)) as model:
            return {name: np.asarray(tensor[...]).tobytes() for name, tensor in model.items()}
    except StoreError as e:
        if not any(text in str(e) for text in ("not complete", "no Zarr group")):
            raise
        return None


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
    monkeypatch.setattr(lease, "DEAD_SECONDS", 0)
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
            with suppress(Killed), dying(number, is_sent):
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
    monkeypatch.setattr(lease.Lease, "_keep", lambda self: None)
    written = []

    def meanwhile(now: str, done: int, total: int) -> None:
        if now == phase and not written:
            written.append(now)
            with pytest.warns(
                LeftoverWarning, match="process .* was writing it: if it does not go on"
            ):
                make(new)

    with pytest.raises(StoreError, match=r"another process (has taken|took) over"):
        make(old, progress=meanwhile)
    assert content() == local(new, tmp_path)


def test_a_writer_that_goes_on_while_another_writes(
    old: Path, make: Make, content: Content, fsspec: Any, store: str, s3: Any, tmp_path: Path
) -> None:
    """The other one replaces what it still writes."""
    fs = fsspec.filesystem("s3", **s3)
    folder = object_folder.ObjectFolder
    create, replace = folder.create, folder.replace

    def created(self: Any, key: str, data: Any) -> Any:
        if key == "b/c.0":
            fs.pipe(f"{store}/{key}", b"another's")
        return create(self, key, data)

    def replaced(self: Any, key: str, data: Any, version: Any) -> Any:
        if key == "b/c.0":
            fs.pipe(f"{store}/{key}", os.urandom(8))
        return replace(self, key, data, version)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder, "create", created)
        make(old)
        assert content() == local(old, tmp_path)
        fs.rm(store, recursive=True)
        patch.setattr(folder, "replace", replaced)
        with pytest.raises(StoreError, match="another process writes it again and again"):
            make(old)
    assert content() == {}


@pytest.mark.parametrize("refusals", [1, MANY])
def test_publishing_is_refused(
    refusals: int,
    old: Path,
    new: Path,
    make: Make,
    content: Content,
    s3_faults: Faults,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The store stays the old one; what was written is removed, at once or by the next writer."""
    for name in ("_RENEW_SECONDS", "_FRESH_SECONDS"):
        monkeypatch.setattr(lease, name, 60)
    make(old)
    before = content()
    is_last = []

    def verified(phase: str, done: int, total: int) -> None:
        if phase == "verify" and done == total:
            is_last.append(1)

    def fault(number: int, method: str, path: str) -> str:
        is_root = method == "PUT" and path.endswith("m.zarr/zarr.json")
        if is_last and is_root and len(is_last) <= refusals:
            is_last.append(1)
            return "denied"
        return ""

    s3_faults.fault = fault
    with pytest.raises(PermissionError):
        make(new, overwrite=True, progress=verified)
    assert len(is_last) > 1
    s3_faults.clear()
    if refusals == 1:
        after = content()
        assert json.loads(after.pop("zarr.json")) == json.loads(before.pop("zarr.json"))
        assert after == before
    make(new, overwrite=True)
    make(new, overwrite=True)
    assert content() == local(new, tmp_path)


def test_removing_is_refused(
    old: Path, new: Path, make: Make, content: Content, s3_faults: Faults, tmp_path: Path
) -> None:
    """The new store is there, and the next writer removes the rest of the old one."""
    make(old)
    s3_faults.fault = lambda number, method, path: "denied" if method in ("POST", "DELETE") else ""
    with pytest.warns(LeftoverWarning, match="objects are left that the next writer removes"):
        make(new, overwrite=True)
    s3_faults.clear()
    assert set(content()) > {"only1/c.0", "only2/0"}
    make(old, overwrite=True)
    assert content() == local(old, tmp_path)


def test_stores_in_stores_and_other_programs_stay(
    old: Path, new: Path, make: Make, content: Content, store: str, s3: Any, fsspec: Any
) -> None:
    """A dead writer's keys are known by its note; those of others are not removed."""
    with suppress(Killed), dying(12, True):
        make(old)
    fs = fsspec.filesystem("s3", skip_instance_cache=True, **s3)
    safetensors_to_zarr(new, f"{store}/inner.zarr", storage_options=s3)
    before = content()
    with pytest.raises(FileExistsError, match=r"contains 'inner\.zarr/"):
        make(new)
    assert content() == before
    fs.rm(store, recursive=True)
    make(old)
    document = json.loads(fs.cat_file(f"{store}/zarr.json"))
    for array in document["consolidated_metadata"]["metadata"].values():
        if array["node_type"] == "array":
            array["chunk_key_encoding"]["configuration"]["separator"] = "/"
    changed = json.dumps(document).encode()
    del document["consolidated_metadata"]
    for root in (changed, json.dumps(document).encode()):
        fs.pipe(f"{store}/zarr.json", root)
        before = content()
        with pytest.raises(FileExistsError, match="is not a store of a model that can be replaced"):
            make(new, overwrite=True)
        assert content() == before


def test_lists_that_lag(old: Path, new: Path, make: Make, content: Content, tmp_path: Path) -> None:
    """Keys of a dead writer are not listed yet, and are replaced nevertheless."""
    with suppress(Killed), dying(12, True):
        make(old)
    assert len(content()) > 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(object_folder.ObjectFolder, "listed", lambda self, below="": [])
        make(new, overwrite=True)
    assert content().items() >= local(new, tmp_path).items()


def test_folders_that_a_console_has_made(
    old: Path, make: Make, store: str, s3: dict[str, str], fsspec: Any, tmp_path: Path
) -> None:
    """Their objects are empty, and have names that end in a slash."""
    fs = fsspec.filesystem("s3", skip_instance_cache=True, **s3)
    bucket, _, key = store.removeprefix("s3://").partition("/")
    fs.call_s3("put_object", Bucket=bucket, Key=f"{key}/", Body=b"")
    make(old)
    make(old, overwrite=True)
    assert held(store, s3, tmp_path) == old.read_bytes()
