"""Folders with links, pipes and odd names are packed; untrusted packed folders are restored."""

from __future__ import annotations

import errno
import os
import socket
from io import FileIO
from pathlib import Path

import numpy as np
import pytest

from bf16codecs.convert import pack_hugging_face, unpack_hugging_face
from bf16codecs.convert.hugging_face.folders import list_tree
from bf16codecs.errors import LimitError, StoreError
from lazy_models import weights, write_safetensors
from looping import noted
from model_folders import contents, edit_manifest, manifest_of, write_folder

pytestmark = pytest.mark.skipif(os.name != "posix", reason="pipes and links of POSIX systems")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "model")


@pytest.fixture
def packed(folder: Path, tmp_path: Path) -> Path:
    pack_hugging_face(folder, tmp_path / "packed")
    return tmp_path / "packed"


def refuse_packing(folder: Path, match: str, error: type[Exception] = ValueError) -> None:
    with pytest.raises(error, match=match):
        pack_hugging_face(folder, folder.with_name("new"))
    assert not folder.with_name("new").exists()


def refuse_restoring(packed: Path, match: str) -> None:
    for verify in (True, False):
        with pytest.raises(StoreError, match=match):
            unpack_hugging_face(packed, packed.with_name("back"), verify=verify)
        assert not packed.with_name("back").exists()


def write_maze(top: Path, levels: int) -> None:
    """Make folders of which each has two links to the next: 2 ** levels paths."""
    for level in range(levels):
        (top / f"{level}").mkdir(parents=True)
        for name in "ab":
            (top / f"{level}" / name).symlink_to(f"../{level + 1}")
    (top / f"{levels}").mkdir()


# --- packing --------------------------------------------------------------------------------------


def test_links_to_folders_are_not_packed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    for target in (".", "..", "../unet", tmp_path / "elsewhere", "/"):
        (folder / "empty" / "link").symlink_to(target)
        with noted(target):
            refuse_packing(folder, r"link: a symbolic link to a folder, .*\(cp -RL\) .*, or remove")
        (folder / "empty" / "link").unlink()
    write_maze(folder / "maze", 64)
    refuse_packing(folder, "maze/0/a: a symbolic link to a folder")


def test_pipes_and_sockets_are_not_packed(folder: Path, tmp_path: Path, monkeypatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(folder)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("odd")
        refuse_packing(folder, "odd: neither a file nor a folder")
        (folder / "odd").unlink()
    for target in (tmp_path / "pipe", os.devnull):
        (folder / "odd").symlink_to(target)
        refuse_packing(folder, "odd: neither a file nor a folder")
        (folder / "odd").unlink()
    (folder / "odd").symlink_to("nothing")
    refuse_packing(folder, "leads nowhere", FileNotFoundError)


def test_pipes_that_take_the_place_of_files(folder: Path) -> None:
    tree = list_tree(folder, follow=True)
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    with pytest.raises(StoreError, match=r"config\.json: it is not a regular file"):
        tree.open("config.json")


def test_hard_links_and_odd_names(folder: Path, tmp_path: Path) -> None:
    for name in ("new\nline", "a:b\\c", "\udcff", "-rf", ".bf16codecs-", "unet/bf16codecs.json"):
        os.link(folder / "config.json", folder / name)
    os.link(folder / "adapter_model.safetensors", folder / "again.safetensors")
    pack_hugging_face(folder, tmp_path / "packed")
    unpack_hugging_face(tmp_path / "packed", tmp_path / "back")
    assert contents(tmp_path / "back") == contents(folder)


def test_deep_folders(folder: Path, packed: Path) -> None:
    """A model has a few levels; very many would exhaust Python's stack."""
    deep = Path(*["d"] * 64)
    (folder / deep).mkdir(parents=True)
    pack_hugging_face(folder, packed, overwrite=True)
    unpack_hugging_face(packed, packed.with_name("back"))
    assert (packed.with_name("back") / deep).is_dir()
    (packed.with_name("back") / deep / "file").touch()
    refuse_packing(packed.with_name("back"), "file: in more than 64 levels of folders")
    (packed / deep / "d").mkdir()
    (packed / deep / "d" / "secret").symlink_to("/")
    with pytest.raises(StoreError, match="d: in more than 64 levels of folders"):
        unpack_hugging_face(packed, packed.with_name("other"))


LEAVE = """
import os, sys
from pathlib import Path
from bf16codecs._files.publish import WorkingFolder
working = WorkingFolder.make(Path(sys.argv[1]), durable=False)
working.new.write_text("half of a store")
os._exit(0)
"""


def test_leftovers_of_a_killed_conversion(folder: Path, tmp_path: Path, run_python) -> None:
    """It is not part of the model, and making stores beside a copy would remove the copy."""
    before = contents(folder)
    run_python(LEAVE, str(folder))
    assert contents(folder) != before
    pack_hugging_face(folder, tmp_path / "packed")
    unpack_hugging_face(tmp_path / "packed", tmp_path / "back")
    assert contents(tmp_path / "back") == before


# --- restoring ------------------------------------------------------------------------------------


def test_links_are_not_restored(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "secrets").mkdir()
    for name in ("config.json", "unet/modeling_own.py", "new"):
        path = packed / name
        if path.exists():
            path.rename(tmp_path / "kept")
        for target in (tmp_path / "secret", tmp_path / "secrets", "nothing", "."):
            path.symlink_to(target)
            with noted(name, target):
                refuse_restoring(packed, f"{name}: a symbolic link, .* is not followed: if")
            path.unlink()
        if (tmp_path / "kept").exists():
            (tmp_path / "kept").rename(path)
    write_maze(packed / "maze", 64)
    refuse_restoring(packed, "maze/0/a: a symbolic link")


def test_stores_that_are_links_are_not_restored(packed: Path, tmp_path: Path) -> None:
    (packed / "model.zarr").rename(tmp_path / "elsewhere.zarr")
    (packed / "model.zarr").symlink_to(tmp_path / "elsewhere.zarr")
    refuse_restoring(packed, r"model\.zarr: a symbolic link")
    # In another store, nothing looks for it.
    (packed / "model.zarr").rename(packed / "adapter_model.zarr" / "m.zarr")
    stores = manifest_of(packed)["stores"]
    files = {f"adapter_model.zarr/{n}": noted for n, noted in stores.pop("model.zarr").items()}
    edit_manifest(packed, stores={**stores, "adapter_model.zarr/m.zarr": files})
    refuse_restoring(packed, r"adapter_model\.zarr/m\.zarr is, or is in, a symbolic link")


def test_the_manifest_is_a_file(packed: Path, tmp_path: Path) -> None:
    manifest = packed / "bf16codecs.json"
    manifest.rename(tmp_path / "elsewhere")
    manifest.symlink_to(tmp_path / "elsewhere")
    refuse_restoring(packed, r"bf16codecs\.json: .*symbolic link")
    manifest.unlink()
    os.mkfifo(manifest)
    refuse_restoring(packed, r"bf16codecs\.json: it is not a regular file")
    manifest.unlink()
    with open(manifest, "wb") as file:
        file.truncate(1 << 40)
    refuse_restoring(packed, r"bf16codecs\.json: \d+ bytes of metadata, more than")


def test_pipes_are_not_waited_for(packed: Path) -> None:
    os.mkfifo(packed / "pipe")
    refuse_restoring(packed, "pipe: neither a file nor a folder")


def test_links_that_take_the_place_of_files(packed: Path, tmp_path: Path) -> None:
    """Even in the place of parent folders: someone who shares the disk could do that meanwhile."""
    tree = list_tree(packed, follow=False)
    with tree.open("unet/modeling_own.py") as file:
        assert file.read() == b"x = 1\n"
    (packed / "unet").rename(tmp_path / "unet")
    (packed / "unet").symlink_to(tmp_path / "unet")
    with pytest.raises(StoreError, match=r"modeling_own\.py: .* symbolic link"):
        tree.open("unet/modeling_own.py")
    (packed / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        tree.open("config.json")


def test_files_that_cannot_be_read_are_named(folder: Path, packed: Path, monkeypatch) -> None:
    class Failing(FileIO):
        def read(self, size: int = -1) -> bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("bf16codecs.convert.hugging_face.folders.FileIO", Failing)
    for work, source in ((pack_hugging_face, folder), (unpack_hugging_face, packed)):
        with pytest.raises(OSError, match="Input/output error") as caught:
            work(source, packed.with_name("new"))
        assert caught.value.filename == str(source / ".gitattributes")

    def closed(path: str, *args: object, **kwargs: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    trees = list_tree(folder, follow=True), list_tree(packed, follow=False)
    monkeypatch.setattr(os, "open", closed)
    for tree, top in zip(trees, (folder, packed), strict=True):
        with pytest.raises(PermissionError) as denied:
            tree.open("unet/modeling_own.py")
        assert denied.value.filename == str(top / "unet" / "modeling_own.py")


def test_links_in_a_target_are_not_followed(folder: Path, packed: Path) -> None:
    write_maze(packed / "maze", 64)
    with pytest.raises(FileExistsError, match="maze/0/a: a symbolic link"):
        pack_hugging_face(folder, packed, overwrite=True)


def test_what_all_stores_expand_to_is_limited(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "model").mkdir()
    for name in "ab":
        array = np.zeros((512, 512), "float32")
        write_safetensors(tmp_path / "model" / f"{name}.safetensors", {"w": array})
    pack_hugging_face(tmp_path / "model", tmp_path / "packed")
    monkeypatch.setattr("bf16codecs._base.limits._SMALL", 3 << 19)
    monkeypatch.setattr("bf16codecs._base.limits._RATIO", 16)
    with pytest.raises(LimitError, match=r"the files in its stores: .* no model shrinks so much"):
        unpack_hugging_face(tmp_path / "packed", tmp_path / "back")
    unpack_hugging_face(tmp_path / "packed", tmp_path / "back", max_bytes=1 << 21)


def test_links_above_the_folders_are_followed(folder: Path, tmp_path: Path) -> None:
    """The caller chose that path."""
    (tmp_path / "link").symlink_to(folder)
    write_safetensors(folder / "other.safetensors", {"w": weights((3, 4))})
    pack_hugging_face(tmp_path / "link", tmp_path / "packed")
    (tmp_path / "other").symlink_to(tmp_path / "packed")
    unpack_hugging_face(tmp_path / "other", tmp_path / "back")
    assert contents(tmp_path / "back") == contents(folder)
