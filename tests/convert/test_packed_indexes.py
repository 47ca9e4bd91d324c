"""Folders whose index contradicts its files are packed, and restored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bf16codecs.convert import pack_hugging_face, unpack_hugging_face
from bf16codecs.errors import SafetensorsError
from invoked import done, refused
from lazy_models import weights, write_safetensors
from looping import noted
from model_folders import contents

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
OVER, WHOLE, INDEX = "z.safetensors", "model.safetensors", "model.safetensors.index.json"
SHARDS = {ONE: "ab", TWO: "c"}
EACH = "kept as it is, and each of its files has a store of its own: "
GONE = "kept as it is, since none of the files that it names is there"

#: Files with their tensors, the index, and the message of packing.
CASES: dict[str, tuple[dict[str, str], dict[str, object], str]] = {
    "superseded": (
        {**SHARDS, OVER: "b"},
        {"a": ONE, "b": OVER, "c": TWO},
        f"{EACH}tensor 'b' is in {ONE}, and also in {OVER}",
    ),
    "a tensor too many": (
        SHARDS,
        {"a": ONE, "b": ONE, "c": TWO, "mtp": TWO},
        f"{EACH}tensor 'mtp' is not in {TWO}",
    ),
    "left behind": ({WHOLE: "abc"}, {"a": ONE, "b": ONE, "c": TWO}, GONE),
    "half left behind": (
        {WHOLE: "abc", ONE: "ab"},
        {"a": ONE, "b": ONE, "c": TWO},
        f"{EACH}{TWO} is not there",
    ),
    "of nothing": (SHARDS, {}, GONE),
    "with folders": (
        {ONE: "ab", f"sub/{TWO}": "c"},
        {"a": ONE, "b": ONE, "c": f"sub/{TWO}"},
        f"{EACH}tensor 'c' is in 'sub/{TWO}', not a plain file name",
    ),
    "with numbers": (SHARDS, {"a": ONE, "b": 5}, f"{EACH}tensor 'b' is in 5, not a plain"),
}


def write_case(folder: Path, files: dict[str, str], where: object) -> Path:
    for number, (name, tensors) in enumerate(files.items()):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_safetensors(folder / name, {t: weights((5, 4), seed=number) for t in tensors})
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}, indent=1) + " ")
    return folder


def test_each_file_has_a_store(tmp_path: Path) -> None:
    for case, (files, where, told) in CASES.items():
        folder, packed = write_case(tmp_path / case, files, where), tmp_path / f"{case} packed"
        with noted(case):
            summary = pack_hugging_face(folder, packed)
            stores = sorted(name.replace(".safetensors", ".zarr") for name in files)
            assert list(summary.stores) == stores
            assert summary.kept == (INDEX,)
            assert list(summary.apart) == [INDEX]
            assert summary.apart[INDEX].startswith(told)
            unpack_hugging_face(packed, tmp_path / f"{case} back")
            assert contents(tmp_path / f"{case} back") == contents(folder)


def test_the_command_says_so(tmp_path: Path) -> None:
    files, where, told = CASES["superseded"]
    folder = write_case(tmp_path / "m", files, where)
    lines = done("bf16codecs", "pack-hf", folder, tmp_path / "p").splitlines()
    assert lines[1].startswith("3 stores: ")
    assert lines[2:] == [f"{INDEX}: {told}"]
    out = done("bf16codecs", "pack-hf", folder, tmp_path / "p", "--overwrite", "--json")
    assert json.loads(out)["apart"] == {INDEX: told}


def test_a_download_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    folder = write_case(tmp_path / "m", {ONE: "ab"}, {"a": ONE, "b": ONE, "c": TWO})
    with pytest.raises(FileNotFoundError, match=f"It names {TWO}, not there: get the rest, or rem"):
        pack_hugging_face(folder, tmp_path / "packed")
    line = refused("bf16codecs", "pack-hf", folder, tmp_path / "packed")
    assert f"{INDEX}: It names {TWO}" in line


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    files, where, _ = CASES["superseded"]
    folder = write_case(tmp_path / "m", files, where)
    for name in (INDEX, OVER):
        whole = (folder / name).read_bytes()
        for damaged in (whole[:-20], b"version https://git-lfs.github.com/spec/v1\n"):
            (folder / name).write_bytes(damaged)
            with noted(name, damaged), pytest.raises(SafetensorsError, match=f"{name}: "):
                pack_hugging_face(folder, tmp_path / "packed")
        (folder / name).write_bytes(whole)


def test_a_damaged_index_beside_the_file_that_goes_first(tmp_path: Path) -> None:
    """It is copied like a leftover file: libraries do not read it."""
    pointer = "version https://git-lfs.github.com/spec/v1\n"
    for number, text in enumerate(("{", "[]", "", '{"weight_map": 5}', "[" * 10**5, pointer)):
        for index, whole in (
            (INDEX, WHOLE),
            ("model.safetensors.index.fp16.json", "model.fp16.safetensors"),
        ):
            folder = tmp_path / f"{number} {index}"
            write_case(folder, {whole: "abc"}, {})
            (folder / INDEX).unlink()
            (folder / index).write_text(text)
            packed = tmp_path / f"{number} {index} packed"
            summary = pack_hugging_face(folder, packed)
            assert summary.kept == (index,)
            assert summary.apart[index].startswith("kept as it is, since it is damaged: ")
            unpack_hugging_face(packed, tmp_path / f"{number} {index} back")
            assert contents(tmp_path / f"{number} {index} back") == contents(folder)


def test_the_index_that_libraries_look_for_goes_first(tmp_path: Path) -> None:
    """Of several that name the same files: their store is the one that is loaded."""
    folder = write_case(tmp_path / "m", SHARDS, {"a": ONE, "b": ONE, "c": TWO})
    other = "consolidated.safetensors.index.json"
    (folder / other).write_bytes((folder / INDEX).read_bytes())
    summary = pack_hugging_face(folder, tmp_path / "packed")
    assert summary.stores == ("model.zarr",)
    assert summary.apart == {other: "kept as it is, since another index names its files"}
    unpack_hugging_face(tmp_path / "packed", tmp_path / "back")
    assert contents(tmp_path / "back") == contents(folder)


def test_files_of_an_index_that_contradicts_them_are_in_no_other_store(tmp_path: Path) -> None:
    """Each would be looked for by its name."""
    files, where, _ = CASES["superseded"]
    folder = write_case(tmp_path / "m", files, where)
    old = json.dumps({"weight_map": {"a": ONE, "b": ONE, "c": TWO}})
    (folder / "old.safetensors.index.json").write_text(old)
    summary = pack_hugging_face(folder, tmp_path / "packed")
    assert summary.stores == tuple(file.replace("safetensors", "zarr") for file in (ONE, TWO, OVER))
    assert list(summary.apart) == [INDEX, "old.safetensors.index.json"]
    unpack_hugging_face(tmp_path / "packed", tmp_path / "back")
    assert contents(tmp_path / "back") == contents(folder)


def test_stores_that_would_be_loaded_in_their_place(tmp_path: Path) -> None:
    files, where, _ = CASES["superseded"]
    folder = write_case(tmp_path / "m", files, where)
    (folder / "model.zarr").mkdir()
    with pytest.raises(ValueError, match=r"model\.zarr: is in the folder already"):
        pack_hugging_face(folder, tmp_path / "packed")
    for name in files:
        (folder / name).unlink()
    write_safetensors(folder / "adapter_model.safetensors", {"w": weights((5, 4))})
    assert pack_hugging_face(folder, tmp_path / "packed").stores == ("adapter_model.zarr",)
