"""Names of targets, empty folders as targets, and correct advice in messages."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from bf16codecs.convert import (
    append_to_run,
    hdf5_to_safetensors,
    rebase_store,
    run_to_safetensors,
    safetensors_to_hdf5,
    safetensors_to_run,
    safetensors_to_zarr,
    verify_store,
    zarr_to_safetensors,
)
from bf16codecs.errors import SafetensorsError, StoreError
from folders import content_of, names_in
from invoked import done, refused
from models import write_model

TENSORS = [("a", "BF16", (64, 8)), ("b", "I32", (50,))]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "m.safetensors", TENSORS)


@pytest.fixture
def store(model: Path) -> Path:
    safetensors_to_zarr(model, model.with_suffix(".zarr"))
    return model.with_suffix(".zarr")


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    folder = tmp_path / "shards"
    folder.mkdir()
    for name in ("x", "y"):
        write_model(folder / f"{name}.safetensors", [(name, "BF16", (5, 5))])
    return folder


# Command, wrong name of the target, the right command or the error, and a right name.
OTHER_KINDS = [
    ("st2zarr", "out.h5", "st2h5", "out.zarr"),
    ("st2zarr", "out.hdf5", "st2h5", "out.zarr"),
    ("st2zarr", "out.safetensors", "zarr2st", "out.zarr"),
    ("st2h5", "out.zarr", "st2zarr", "out.h5"),
    ("st2h5", "out.zarr.zip", "st2zarr", "out.h5"),
    ("st2h5", "out.ZIP", "st2zarr", "out.h5"),
    ("st2h5", "out.safetensors", "h52st", "out.h5"),
    ("st2zarr", "out.tar", ".tar, and a Zarr store is to be made", "out.zarr"),
    ("st2zarr", "out.zarr.GZ", ".GZ, and a Zarr store", "out.zarr"),
    ("st2h5", "out.pt", ".pt, and an HDF5 file", "out.h5"),
]


@pytest.mark.parametrize("job", [(), ("--append", "--step", "1")])
def test_stores_have_no_name_of_another_kind(model: Path, job: tuple[str, ...]) -> None:
    for command, name, maker, example in OTHER_KINDS:
        line = refused(command, model, model.with_name(name), *job)
        assert maker in line, (command, name)
        assert line.endswith(f"such as {example}"), (command, name)
        assert names_in(model.parent) == {model.name}


@pytest.mark.parametrize("job", [(), ("--append", "--step", "1")])
def test_a_slash_means_a_folder(model: Path, job: tuple[str, ...]) -> None:
    target = model.with_name("out")
    for command, name in (("st2h5", "out/"), ("st2zarr", "out.zip/")):
        line = refused(command, model, f"{model.parent}/{name}", *job)
        assert "leave out the slash" in line or "cannot grow" in line
    assert "a file: leave out the slash" in refused("st2zarr", f"{model}/", target, *job)
    assert names_in(model.parent) == {model.name}
    done("st2zarr", model, f"{target}/", *job)
    done("bf16codecs", "info", f"{target}/")
    done("st2h5", model, f"{target}.h5")
    assert "leave out the slash" in refused("bf16codecs", "info", f"{target}.h5/")
    for last in ([f"{target}.h5/", "--overwrite"], [f"{target}.h5/", "--append"]):
        assert "leave out the slash" in refused("st2h5", model, *last)


def test_restored_files_have_no_name_of_a_store(store: Path) -> None:
    """Not even over an existing store: a store is not replaced by a file."""
    for name in ("back.zarr", "back.zip", "back.h5", "back.tar", "back.bin"):
        target = store.with_name(name)
        for options in ((), ("--overwrite",)):
            line = refused("zarr2st", store, target, *options)
            assert line.endswith("such as back.safetensors"), name
            target.write_bytes(b"a store, perhaps")
        assert target.read_bytes() == b"a store, perhaps"


def test_several_files_need_a_folder(shards: Path, tmp_path: Path) -> None:
    safetensors_to_zarr(shards, tmp_path / "s.zarr")
    line = refused("zarr2st", tmp_path / "s.zarr", tmp_path / "one.safetensors")
    assert "holds several files" in line
    assert line.endswith("such as one")
    done("zarr2st", tmp_path / "s.zarr", tmp_path / "one")
    assert content_of(tmp_path / "one") == content_of(shards)


def test_one_file_is_not_restored_to_a_folder(store: Path, tmp_path: Path) -> None:
    line = refused("zarr2st", store, f"{tmp_path}/new/")
    assert line.endswith(f"such as {tmp_path}/new/m.safetensors")
    (tmp_path / "there").mkdir()
    assert "name one in it, there/..." in refused("zarr2st", store, tmp_path / "there")
    assert "has none" in refused("zarr2st", store, tmp_path / "m.safetensors.index.json")


def test_an_existing_store_keeps_its_name(model: Path, store: Path) -> None:
    odd = store.rename(store.with_suffix(".h5"))
    base = shutil.copy(model, model.with_name("base.safetensors"))
    safetensors_to_zarr(model, odd, overwrite=True, base=base)
    rebase_store(odd)
    verify_store(odd, model)


@pytest.mark.parametrize("target", ["zarr", "run", "begun run", "shards", "steps"])
def test_an_empty_folder_is_taken(target: str, model: Path, shards: Path, tmp_path: Path) -> None:
    """As `mktemp -d` makes it; nothing is lost."""
    folder = tmp_path / "empty"
    folder.mkdir()
    if target == "zarr":
        safetensors_to_zarr(model, folder)
        verify_store(folder, model)
    elif target == "run":
        safetensors_to_run([model], folder, steps=[1])
        verify_store(folder, model)
    elif target == "begun run":
        append_to_run(model, folder, 1)
        append_to_run(model, folder, 2)
        verify_store(f"{folder}@2", model)
    elif target == "shards":
        safetensors_to_zarr(shards, tmp_path / "s.zarr")
        zarr_to_safetensors(tmp_path / "s.zarr", folder)
        assert content_of(folder) == content_of(shards)
    else:
        safetensors_to_run([model], tmp_path / "run", steps=[1])
        run_to_safetensors(tmp_path / "run", folder)
        assert names_in(folder) == {model.name}


@pytest.mark.parametrize("job", [(), ("--overwrite",), ("--append", "--step", "1")])
def test_the_working_folder_is_not_replaced(
    job: tuple[str, ...], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process would be left in a folder without a name."""
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in (".", folder):
        line = refused("st2zarr", model, name, *job)
        assert ("not a run" if "--append" in job else "name one in it") in line
    assert folder.samefile(".")
    assert names_in(folder) == set()
    done("st2zarr", model, "./m.zarr", "--quiet")


@pytest.mark.skipif(os.name == "nt", reason="folders have no modes")
def test_an_empty_folder_keeps_its_mode(model: Path, tmp_path: Path) -> None:
    for mode in (0o700, 0o770, 0o2755):
        folder = tmp_path / f"{mode:o}"
        folder.mkdir()
        folder.chmod(mode)
        safetensors_to_zarr(model, folder)
        assert stat.S_IMODE(folder.stat().st_mode) == mode
        verify_store(folder, model)


def test_a_folder_that_is_not_empty_stays(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "used"
    folder.mkdir()
    (folder / "notes").write_text("mine")
    for convert in (safetensors_to_zarr, safetensors_to_hdf5):
        for overwrite in (False, True):
            text = "exists and is (not a Zarr store: choose another|a folder, where a file has)"
            with pytest.raises(FileExistsError, match=text):
                convert(model, folder, overwrite=overwrite)
    assert content_of(folder) == {"notes": b"mine"}


def test_messages_about_a_folder_name_its_files(store: Path, tmp_path: Path) -> None:
    """They may be many: the message names the first one in the way."""
    many = tmp_path / "many"
    many.mkdir()
    for part, name in enumerate("ab"):
        write_model(many / f"part-{part}.safetensors", [(name, "BF16", (4,))])
    done("st2zarr", many, tmp_path / "many.zarr")
    back = tmp_path / "back"
    done("zarr2st", tmp_path / "many.zarr", back)
    line = refused("zarr2st", tmp_path / "many.zarr", back)
    assert line.endswith("(--overwrite replaces it, with 'part-0.safetensors' and 1 other)")
    (back / "notes").write_text("mine")
    line = refused("zarr2st", tmp_path / "many.zarr", back, "--overwrite")
    assert line.endswith("exists and contains 'notes', which is not restored: choose another name")
    with pytest.raises(FileExistsError, match="is a safetensors model, not a Zarr store: choose"):
        safetensors_to_zarr(many, back, overwrite=True)
    (tmp_path / "file").write_text("mine")
    line = refused("zarr2st", tmp_path / "many.zarr", tmp_path / "file", "--overwrite")
    assert line.endswith("is a file, where a folder has to be made: choose another name")


def test_overwriting_is_advised_where_it_is_done(store: Path, model: Path) -> None:
    """A base of the store is refused even with --overwrite."""
    fine = shutil.copy(model, model.with_name("fine.safetensors"))
    delta = model.with_name("delta.zarr")
    safetensors_to_zarr(fine, delta, base=store)
    for options in ((), ("--overwrite",)):
        line = refused("st2zarr", fine, store, "--base", store, *options)
        assert "would replace the base" in line
        line = refused("st2zarr", fine, store, "--base", delta, *options)
        assert "would replace the base that" in line
    safetensors_to_zarr(fine, delta, base=model, overwrite=True)
    for options in ((), ("--overwrite",)):
        line = refused("zarr2st", delta, model, *options)
        assert "would replace the base of" in line
    verify_store(delta, fine)


# The functions of the commands that restore, which messages to Python's callers name.
RESTORERS = {"zarr2st": "zarr_to_safetensors", "h52st": "hdf5_to_safetensors"}


def test_stores_and_addresses_are_no_sources(model: Path, store: Path, tmp_path: Path) -> None:
    safetensors_to_hdf5(model, tmp_path / "m.h5")
    safetensors_to_zarr(model, tmp_path / "m.zarr.zip")
    targets = {"st2zarr": tmp_path / "x.zarr", "st2h5": tmp_path / "x.h5"}
    for command, target in targets.items():
        for name, restorer in {
            "m.zarr": "zarr2st",
            "m.zarr.zip": "zarr2st",
            "m.h5": "h52st",
        }.items():
            assert f"{restorer} restores that" in refused(command, tmp_path / name, target)
            with pytest.raises(SafetensorsError, match=f"{RESTORERS[restorer]} restores that"):
                safetensors_to_zarr(tmp_path / name, target)
    done("st2zarr", f"file://{model}", targets["st2zarr"])


def test_the_other_command_is_named(model: Path, store: Path, tmp_path: Path) -> None:
    safetensors_to_hdf5(model, tmp_path / "m.h5")
    assert "zarr2st restores it" in refused("h52st", store, tmp_path / "x")
    assert "h52st restores it" in refused("zarr2st", tmp_path / "m.h5", tmp_path / "x")
    assert "it needs no restoring" in refused("zarr2st", model, tmp_path / "x")
    with pytest.raises(StoreError, match="zarr_to_safetensors restores it"):
        hdf5_to_safetensors(store, tmp_path / "x")
    with pytest.raises(ValueError, match="an HDF5 file, which safetensors_to_hdf5 makes"):
        safetensors_to_zarr(model, tmp_path / "x.h5")
