"""A folder that is held open, which every reader and writer of folders and every lock uses."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from bf16codecs._files.folders import Folder, walk, walk_tree
from bf16codecs._files.locks import LifeLock, take_lock
from bf16codecs.errors import StoreError

posix = pytest.mark.skipif(os.name == "nt", reason="pipes and links of POSIX")


@pytest.fixture
def top(tmp_path: Path) -> Path:
    (tmp_path / "top" / "inner").mkdir(parents=True)
    (tmp_path / "top" / "inner" / "file").write_bytes(b"content")
    return tmp_path / "top"


def read(folder: Folder, key: str) -> bytes:
    with open(folder.open(key), "rb") as file:
        return file.read()


def test_a_file_is_opened_by_its_path(top: Path) -> None:
    folder = Folder(top)
    assert read(folder, "inner/file") == b"content"
    for missing in ("other", "inner/other", "inner/file/other"):
        assert folder.find(missing) is None
    with pytest.raises(FileNotFoundError) as caught:
        folder.open("inner/other")
    assert caught.value.filename == str(top / "inner" / "other")
    for odd in ("inner/../inner/file", "/inner/file", "inner//file", ".", ""):
        with pytest.raises(StoreError, match="not a path in the store"):
            folder.find(odd)


@posix
def test_another_folder_that_took_the_path_is_not_read(top: Path) -> None:
    folder = Folder(top)
    top.rename(top.with_name("old"))
    top.mkdir()
    assert not folder.is_current()
    assert read(folder, "inner/file") == b"content"
    with pytest.raises(StoreError, match="replaced or removed while it was open: open it again"):
        folder.find("missing")
    with pytest.raises(FileNotFoundError, match="It was replaced or removed"):
        folder.check()


@posix
def test_links_lead_nowhere(top: Path) -> None:
    (top / "file").symlink_to("inner/file")
    (top / "folder").symlink_to("inner")
    folder = Folder(top)
    for key in ("file", "folder/file"):
        with pytest.raises(StoreError, match=f"{key} is, or is in, a symbolic link"):
            folder.find(key)
    with pytest.raises(OSError, match=re.escape(str(top / "folder"))):
        Folder(top / "folder")
    assert read(Folder(top / "folder", follow=True), "file") == b"content"
    folder.remove("folder")
    assert (top / "inner" / "file").exists()


@posix
def test_links_of_huggingface_hub_are_files(tmp_path: Path) -> None:
    """Files of a snapshot are links to files beside all snapshots, and no other links are."""
    blobs, inner = tmp_path / "blobs", tmp_path / "snapshots" / ("0" * 40) / "m.zarr" / "w"
    inner.mkdir(parents=True)
    blobs.mkdir()
    good, name = "../../../../blobs/", "1a" * 20
    (blobs / name).write_bytes(b"content")
    (blobs / ("2b" * 32)).symlink_to(tmp_path / "secret")
    (blobs / "plain").write_bytes(b"plain")
    (tmp_path / "secret").write_bytes(b"secret")
    (inner / "linked").symlink_to(good + name)
    (inner.parent / "zarr.json").symlink_to(f"../../../blobs/{name}")
    links = {
        "deeper": f"../{good}{name}",
        "other": "../../../../secret",
        "absolute": str(blobs / name),
        "a link again": good + "2b" * 32,
        "no digest": good + "plain",
        "missing": good + "3c" * 20,
        "round": f"../w/{good}{name}",
    }
    for link, target in links.items():
        (inner / link).symlink_to(target)
    for top in (inner.parent, inner.parent.parent):
        folder, prefix = Folder(top), "w/" if top == inner.parent else "m.zarr/w/"
        assert read(folder, f"{prefix}linked") == b"content"
        assert read(folder, prefix.replace("w/", "zarr.json")) == b"content"
        assert folder.size_below("") == 14
        for link in links:
            with pytest.raises((StoreError, FileNotFoundError)):
                folder.open(prefix + link)
        with pytest.raises(StoreError, match="symbolic link"):
            folder.open(f"{prefix}linked", os.O_RDWR)
    (inner.parent.parent / "again").symlink_to("m.zarr")
    with pytest.raises(StoreError, match="symbolic link"):
        Folder(inner.parent.parent).open("again/w/linked")
    (tmp_path / "named.zarr").symlink_to(inner.parent)
    assert read(Folder(tmp_path / "named.zarr", follow=True), "w/linked") == b"content"


@posix
def test_a_tree_in_the_cache_of_huggingface_hub(tmp_path: Path) -> None:
    blobs, top = tmp_path / "blobs", tmp_path / "snapshots" / ("0" * 40)
    top.mkdir(parents=True)
    blobs.mkdir()
    (blobs / ("1a" * 20)).write_bytes(b"content")
    (top / "a").symlink_to(f"../../blobs/{'1a' * 20}")
    (tmp_path / "named").symlink_to(top)
    for named in (top, tmp_path / "named", top / ".." / top.name):
        assert [name for name, _ in walk_tree(named, follow=False)] == ["a"]
    (top / "b").symlink_to("../../secret")
    (tmp_path / "secret").write_bytes(b"secret")
    with pytest.raises(StoreError, match="symbolic link"):
        list(walk_tree(top, follow=False))


@posix
@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_what_is_no_lock(top: Path, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(top / "lock")
    else:
        (top / "lock").symlink_to("inner/file")
    with pytest.raises(FileExistsError, match=re.escape("Not a regular file: remove it")) as caught:
        take_lock(Folder(top), "lock", str(top))
    assert caught.value.filename == str(top / "lock")


@posix
def test_who_appends_is_told_of_what(top: Path) -> None:
    lock = take_lock(Folder(top), "lock", "target")
    assert isinstance(lock, LifeLock)
    with pytest.raises(BlockingIOError, match="try again when that is done: 'target'"):
        take_lock(Folder(top), "lock", "target")
    lock.remove()
    assert not (top / "lock").exists()


@posix
def test_a_lock_removes_no_folder(top: Path) -> None:
    lock = take_lock(Folder(top), "lock", "target")
    (top / "lock").rename(top / "moved")
    (top / "inner").rename(top / "lock")
    with pytest.raises(OSError):  # noqa: PT011 (systems have other classes and texts)
        lock.remove()
    assert (top / "lock" / "file").read_bytes() == b"content"


@pytest.mark.skipif(not hasattr(os, "O_PATH"), reason="needs O_PATH")
@pytest.mark.skipif(getattr(os, "geteuid", int)() == 0, reason="root may list anything")
def test_files_are_made_in_a_folder_that_may_not_be_listed(top: Path) -> None:
    top.chmod(0o300)
    try:
        take_lock(Folder(top, lists=False), "lock", "target").remove()
    finally:
        top.chmod(0o700)


@posix
@pytest.mark.skipif(getattr(os, "geteuid", int)() == 0, reason="root may remove anything")
def test_what_is_not_removed_is_named_whole(top: Path) -> None:
    (top / "inner").chmod(0o500)
    try:
        with pytest.raises(PermissionError) as caught:
            Folder(top).remove("inner")
    finally:
        (top / "inner").chmod(0o700)
    assert caught.value.filename == str(top / "inner" / "file")


def test_a_walk_leaves_out_no_folder(top: Path) -> None:
    found = {path: (folders, files) for path, folders, files in walk(top)}
    assert found == {str(top): (["inner"], []), str(top / "inner"): ([], ["file"])}
    with pytest.raises(FileNotFoundError) as caught:
        list(walk(top / "missing"))
    assert caught.value.filename == str(top / "missing")
