"""Readers see complete steps, and the next writer goes on, whatever happens to a writer."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bf16codecs
from bf16codecs.errors import StoreError
from object_store import Faults, Killed, dying
from published import bits_in, bits_of, published, states

torch = pytest.importorskip("torch")
publish = pytest.importorskip("bf16codecs.torch").publish

# Python announces these before it asks the system for them.
EVENTS = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree", "os.scandir"}


def steps_in(path: Any, some: list[Any], **options: Any) -> list[int]:
    """Check all steps of a run, and return their numbers."""
    with bf16codecs.open_run(path, **options) as run:
        for number in run.steps:
            assert bits_in(run[number]) == bits_of(some[number // 10]), number
        return list(run.steps)


def killed_at(event: int, path: Path, work: Callable[[], object]) -> bool:
    """Do work in a process that dies at an event in a folder; tell whether it did."""
    child = os.fork()
    if not child:
        count = 0

        def hook(name: str, arguments: Any) -> None:
            nonlocal count
            if name in EVENTS and str(path) in str(arguments) + os.getcwd():
                count += 1
                if count == event:
                    os.kill(os.getpid(), signal.SIGKILL)

        os.chdir(path)
        sys.addaudithook(hook)
        try:
            work()
        except BaseException as e:  # a forked test must not go on
            print(repr(e))
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL)
    return bool(status)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked processes")
def test_a_writer_may_be_killed_at_any_time(tmp_path: Path) -> None:
    some = states(5)
    path = tmp_path / "policy.zarr"
    list(published(path, some[:2], keyframe_every=1))
    seen = set()
    for event in range(1, 200):
        copy = tmp_path / f"{event}" / "policy.zarr"
        os.makedirs(copy.parent)
        os.system(f"cp -r {path} {copy}")
        # The step drops the first one, and is whole.
        if not killed_at(event, copy, lambda c=copy: publish(c, some[2], 20, keep_last=1)):
            break
        found = tuple(steps_in(copy, some))
        seen.add(found)
        first = 20 if found[-1] != 20 else 30
        for number in range(first, 50, 10):
            publish(copy, some[number // 10], number, keep_last=1)
        assert steps_in(copy, some) == [30, 40]
        assert len(os.listdir(copy / "steps")) == 2
    assert event > 8
    assert seen == {(0, 10), (10, 20)}


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bf16codecs.store.zarr import folder

    path, some = tmp_path / "policy.zarr", states(3)
    list(published(path, some[:2]))
    before = sorted(p for p in path.rglob("*") if p.is_file())

    def full(file: Any, data: Any) -> None:
        os.write(file.fileno(), bytes(data[:10]))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(folder, "write_all", full)
        with pytest.raises(OSError, match="No space left on device") as caught:
            publish(path, some[2], 20)
    assert "policy.zarr" in str(caught.value)
    assert sorted(p for p in path.rglob("*") if p.is_file()) == before
    publish(path, some[2], 20)
    assert steps_in(path, some) == [0, 10, 20]


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bf16codecs.torch.publishing import encoding

    path, some = tmp_path / "policy.zarr", states(2)
    publish(path, some[0], 0)

    def interrupted(frames: Any) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(encoding, "pack_of", interrupted)
        with pytest.raises(KeyboardInterrupt):
            publish(path, some[1], 10)
    assert len(os.listdir(path / "steps")) == 1
    publish(path, some[1], 10)
    assert steps_in(path, some) == [0, 10]


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, Any]]:
    """Return the place of a run, and the options for it."""
    if request.param == "folder":
        return str(tmp_path / "policy.zarr"), {}
    bucket, s3 = map(request.getfixturevalue, ("bucket", "s3"))
    return f"{bucket}/policy.zarr", {"storage_options": s3}


def while_packing(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> None:
    """Let the next job that publishes do something else before its first pack is made."""
    from bf16codecs.torch.publishing import encoding

    original = encoding.pack_of

    def pack(frames: Any) -> bytes:
        monkeypatch.setattr(encoding, "pack_of", original)
        work()
        return original(frames)

    monkeypatch.setattr(encoding, "pack_of", pack)


@pytest.mark.parametrize("begins", [True, False])
def test_of_two_writers_the_first_one_wins(
    place: tuple[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch, begins: bool
) -> None:
    (path, options), some = place, states(3)
    if not begins:
        publish(path, some[0], 0, **options)
    while_packing(monkeypatch, lambda: publish(path, some[2], 20, keep_copy=False, **options))
    with pytest.raises(StoreError, match="another process has published to it meanwhile") as caught:
        publish(path, some[1], 10, **options)
    assert str(caught.value).count("meanwhile") == 1
    assert steps_in(path, some, **options) == ([20] if begins else [0, 20])
    if not options:
        assert len(os.listdir(f"{path}/steps")) == (1 if begins else 2)
        assert len(os.listdir(f"{path}/plan")) == 1
        assert sorted(os.listdir(path)) == ["plan", "steps", "zarr.json"]


def test_a_writer_whose_folder_another_one_removes_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bf16codecs.store.published import places

    path, some, original = tmp_path / "policy.zarr", states(3), places.sync_files
    publish(path, some[0], 0)

    def sync(files: Any) -> None:
        monkeypatch.setattr(places, "sync_files", original)
        publish(path, some[2], 20, keep_copy=False)
        original(files)

    monkeypatch.setattr(places, "sync_files", sync)
    with pytest.raises(StoreError, match="another process has published to it meanwhile"):
        publish(path, some[1], 10)
    assert steps_in(path, some) == [0, 20]


def test_whoever_replaces_the_root_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bf16codecs._files.folders import Folder
    from bf16codecs._files.locks import take_lock
    from bf16codecs.store.published import places
    from bf16codecs.store.published.roots import LOCK

    path, some = tmp_path / "policy.zarr", states(2)
    publish(path, some[0], 0)
    lock = take_lock(Folder(path), LOCK, str(path))
    threading.Timer(0.2, lock.remove).start()
    publish(path, some[1], 10)
    assert steps_in(path, some) == [0, 10]
    monkeypatch.setattr(places, "_PATIENCE_SECONDS", 0.1)
    lock = take_lock(Folder(path), LOCK, str(path))
    with pytest.raises(BlockingIOError, match=r"another process is writing to it.*policy\.zarr"):
        publish(path, some[1], 20)
    lock.remove()
    assert len(os.listdir(path / "steps")) == 2


def test_a_first_step_that_fails_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bf16codecs.torch.publishing import encoding

    def fail(frames: Any) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(encoding, "pack_of", fail)
    with pytest.raises(OSError, match="Input/output error"):
        publish(tmp_path / "policy.zarr", states(1)[0], 0)
    assert os.listdir(tmp_path) == []


def test_other_things_are_not_mixed_with_a_run(
    tmp_path: Path, bucket: str, s3: dict[str, str]
) -> None:
    from bf16codecs.store.remote.object_folder import ObjectFolder

    path, state = tmp_path / "policy.zarr", states(1)[0]
    publish(path, state, 0)
    for inner in (path / "steps" / "policy.zarr", path / "more" / "policy.zarr"):
        with pytest.raises(StoreError, match=r"in a published run, .*policy\.zarr: publish to"):
            publish(inner, state, 0)
    assert sorted(os.listdir(path)) == ["plan", "steps", "zarr.json"]
    with pytest.raises(ValueError, match="names a step"):
        publish(f"{path}@5", state, 5)
    ObjectFolder(f"{bucket}/mine", s3).create("notes.txt", b"mine")
    with pytest.raises(StoreError, match="a folder with no published run"):
        publish(f"{bucket}/mine", state, 0, storage_options=s3)


def test_a_writer_to_a_bucket_may_be_killed_at_any_request(bucket: str, s3: dict[str, str]) -> None:
    some, options = states(4), {"storage_options": s3}
    seen = set()
    for number in range(1, 100):
        path = f"{bucket}/{number}/policy.zarr"
        list(published(path, some[:2], keyframe_every=1, **options))
        for sent in (False, True):
            try:
                with dying(number, sent):
                    publish(path, some[2], 20, keep_last=1, **options)
            except Killed:
                found = tuple(steps_in(path, some, **options))
                seen.add(found)
                if found[-1] == 20:
                    break
                continue
            break
        if steps_in(path, some, **options)[-1] != 20:
            publish(path, some[2], 20, keep_last=1, **options)
        publish(path, some[3], 30, keep_last=1, **options)
        assert steps_in(path, some, **options) == [20, 30]
        if number > 3 and found == (10, 20):
            break
    assert seen == {(0, 10), (10, 20)}


def test_a_busy_server_is_asked_again(bucket: str, s3: dict[str, str], s3_faults: Faults) -> None:
    path, some = f"{bucket}/policy.zarr", states(3)
    kinds = ("busy", "cut", "lost")
    for number, state in enumerate(some):
        s3_faults.clear()
        s3_faults.fault = lambda at, *_: kinds[at] if at < len(kinds) else ""
        publish(path, state, 10 * number, storage_options=s3)
    s3_faults.clear()
    assert steps_in(path, some, storage_options=s3) == [0, 10, 20]


def test_a_server_without_conditions_is_refused(
    bucket: str, s3: dict[str, str], s3_faults: Faults
) -> None:
    s3_faults.ignores = {"If-None-Match", "If-Match"}
    with pytest.raises(StoreError, match="has no conditional requests"):
        publish(f"{bucket}/policy.zarr", states(1)[0], 0, storage_options=s3)


def test_a_failure_after_the_root_was_replaced_removes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bf16codecs.store.published import places
    from bf16codecs.torch.publishing import writer

    path, some = tmp_path / "policy.zarr", states(4)
    publish(path, some[0], 0)

    def fail(folder: Any) -> None:
        if Path(folder) == path:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(places, "sync", fail)
        with pytest.raises(OSError, match="Input/output error"):
            publish(path, some[1], 10)
    assert steps_in(path, some) == [0, 10]

    def interrupted(place: Any, keys: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(writer, "remove_keys", interrupted)
        with pytest.raises(KeyboardInterrupt):
            publish(path, some[2], 20)
    assert steps_in(path, some) == [0, 10, 20]
    publish(path, some[3], 30)
    assert steps_in(path, some) == [0, 10, 20, 30]


@pytest.mark.parametrize("begins", [True, False])
def test_a_full_disk_for_the_root_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begins: bool
) -> None:
    from bf16codecs.store.zarr import folder

    path, some, original = tmp_path / "policy.zarr", states(3), folder.write_all
    if not begins:
        list(published(path, some[:2]))
    before = sorted(tmp_path.rglob("*"))

    def full(file: Any, data: Any) -> None:
        if bytes(data[:14]) == b'{"attributes":':
            os.write(file.fileno(), bytes(data[:10]))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(file, data)

    with monkeypatch.context() as patch:
        patch.setattr(folder, "write_all", full)
        with pytest.raises(OSError, match="No space left on device"):
            publish(path, some[2], 20)
    assert sorted(tmp_path.rglob("*")) == before
    publish(path, some[2], 20)
    assert steps_in(path, some) == ([20] if begins else [0, 10, 20])


@pytest.mark.parametrize("publishes", [True, False])
def test_a_reply_that_is_lost_before_another_writer_comes_removes_nothing(
    bucket: str, s3: dict[str, str], monkeypatch: pytest.MonkeyPatch, publishes: bool
) -> None:
    """The request is repeated, and refused, since the root is another one by then."""
    from bf16codecs.convert import drop_steps
    from bf16codecs.store.remote import object_folder

    path, some, options = f"{bucket}/policy.zarr", states(6), {"storage_options": s3}
    list(published(path, some[:4], keyframe_every=1, **options))
    put = object_folder.ObjectFolder._put_once

    def lost(self: Any, key: str, data: Any, mode: Any) -> Any:
        if key != "zarr.json":
            return put(self, key, data, mode)
        monkeypatch.setattr(object_folder.ObjectFolder, "_put_once", put)
        put(self, key, data, mode)
        if publishes:
            publish(path, some[5], 50, keep_copy=False, **options)
        else:
            drop_steps(path, 2, **options)
        return put(self, key, data, mode)

    monkeypatch.setattr(object_folder.ObjectFolder, "_put_once", lost)
    assert publish(path, some[4], 40, **options).step == 40
    expected = [0, 10, 20, 30, 40, 50] if publishes else [30, 40]
    assert steps_in(path, some, **options) == expected


def test_what_a_lost_reply_has_dropped_is_removed(
    bucket: str, s3: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from bf16codecs.convert import drop_steps
    from bf16codecs.store.remote import object_folder

    path, some, options = f"{bucket}/policy.zarr", states(6), {"storage_options": s3}
    list(published(path, some[:4], keyframe_every=2, **options))
    put = object_folder.ObjectFolder._put_once

    def lost(self: Any, key: str, data: Any, mode: Any) -> Any:
        monkeypatch.setattr(object_folder.ObjectFolder, "_put_once", put)
        put(self, key, data, mode)
        publish(path, some[4], 40, **options)
        return put(self, key, data, mode)

    monkeypatch.setattr(object_folder.ObjectFolder, "_put_once", lost)
    assert drop_steps(path, 2, **options).dropped == (0, 10)
    folder = object_folder.ObjectFolder(path, s3)
    assert {key.split("/")[1].split("-")[0] for key in folder.listed("steps")} == {"20", "30", "40"}
    assert steps_in(path, some, **options) == [20, 30, 40]


@pytest.mark.parametrize("error", [OSError("busy"), KeyboardInterrupt()])
def test_a_root_that_cannot_be_read_after_a_conflict_keeps_its_packs(
    bucket: str, s3: dict[str, str], monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    from bf16codecs.store.published import buckets
    from bf16codecs.store.remote import object_folder

    path, some, options = f"{bucket}/policy.zarr", states(3), {"storage_options": s3}
    publish(path, some[0], 0, **options)
    put = object_folder.ObjectFolder._put_once

    def lost(self: Any, key: str, data: Any, mode: Any) -> Any:
        if key == "zarr.json":
            patch.setattr(object_folder.ObjectFolder, "_put_once", put)
            put(self, key, data, mode)
            publish(path, some[2], 20, keep_copy=False, **options)
            patch.setattr(buckets.BucketPlace, "read_again", fail)
        return put(self, key, data, mode)

    def fail(place: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(object_folder.ObjectFolder, "_put_once", lost)
        with pytest.raises(type(error)):
            publish(path, some[1], 10, **options)
    assert steps_in(path, some, **options) == [0, 10, 20]


def test_a_folder_that_was_there_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bf16codecs.torch.publishing import encoding

    def fail(frames: Any) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    path = tmp_path / "policy.zarr"
    path.mkdir(0o750)
    monkeypatch.setattr(encoding, "pack_of", fail)
    with pytest.raises(OSError, match="Input/output error"):
        publish(path, states(1)[0], 0)
    assert os.listdir(path) == []


def test_beginning_anew_while_steps_are_dropped_is_refused(
    place: tuple[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from bf16codecs.convert import drop_steps

    (path, options), some = place, states(5)
    list(published(path, some[:4], keyframe_every=1, **options))

    while_packing(monkeypatch, lambda: drop_steps(path, 2, **options))
    with pytest.raises(StoreError, match="or dropped steps: let one job publish"):
        publish(path, some[0], 0, restart=True, **options)
    assert steps_in(path, some, **options) == [20, 30]
    publish(path, some[0], 0, restart=True, **options)
    assert steps_in(path, some, **options) == [0]


def test_a_reply_that_is_lost_for_good_removes_nothing(
    bucket: str, s3: dict[str, str], s3_faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bf16codecs.store.remote import object_folder

    path, some, options = f"{bucket}/policy.zarr", states(3), {"storage_options": s3}
    publish(path, some[0], 0, **options)
    replace = object_folder.ObjectFolder.replace

    def lost(self: Any, *arguments: Any) -> None:
        replace(self, *arguments)
        raise OSError("no reply")

    with monkeypatch.context() as patch:
        patch.setattr(object_folder.ObjectFolder, "replace", lost)
        with pytest.raises(OSError, match="no reply"):
            publish(path, some[1], 10, **options)
    assert steps_in(path, some, **options) == [0, 10]
    publish(path, some[2], 20, **options)
    assert steps_in(path, some, **options) == [0, 10, 20]


def test_steps_are_dropped_while_a_job_publishes(
    place: tuple[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from bf16codecs.convert import drop_steps

    (path, options), some = place, states(5)
    list(published(path, some[:4], keyframe_every=1, **options))

    dropped: list[Any] = []
    while_packing(monkeypatch, lambda: dropped.append(drop_steps(path, 2, **options).dropped))
    publish(path, some[4], 40, **options)
    assert dropped == [(0, 10)]
    assert steps_in(path, some, **options) == [20, 30, 40]


@pytest.mark.parametrize("kind", ["change", "whole"])
def test_without_a_pack_the_steps_before_can_be_read(tmp_path: Path, kind: str) -> None:
    path, some = tmp_path / "policy.zarr", states(5)
    list(published(path, some, keyframe_every=3))
    number = 20 if kind == "change" else 30
    (pack,) = path.glob(f"steps/{number}-*/{kind}.0.0")
    pack.unlink()
    with bf16codecs.open_run(path) as run:
        for index in range(number // 10):
            assert bits_in(run[10 * index]) == bits_of(some[index])
        with pytest.raises((StoreError, OSError), match=f"steps/{number}-.*{kind}"):
            bits_in(run[number])
    with pytest.raises((StoreError, OSError), match=f"steps/{number}-.*{kind}"):
        bf16codecs.convert.verify_store(path)
