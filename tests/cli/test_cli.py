"""The commands as users run them: output and exit status."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
import zarr
from blake3 import blake3

import bf16codecs
from bf16codecs import cli, hdf5
from bf16codecs._base.tables import format_size, printable
from bf16codecs.cli.options import ByteSize
from bf16codecs.store.choice import CodecChoice
from checkout import package_environment
from edit_store import edit_json
from folders import files_in
from invoked import COMMANDS, CONVERTERS, done, info_table, refused, run
from models import TRICKY_NAMES, write_model
from tiers import by_tier


@pytest.fixture
def store(model: Path) -> Path:
    done("st2zarr", model, model.with_name("m.zarr"), "--quiet")
    return model.with_name("m.zarr")


ZSTD = ("--codec", "zstd", "--level", "1")
OPTIONS = [
    (),
    ("--codec", "huffman"),
    ("--codec", "arithmetic", "--level", "fast"),
    ZSTD,
    ("--codec", "split"),
    ("--codec", "none", "--no-verify"),
    ("--threads", "1", "--chunk-size", "4K"),
]
FORMAT_2 = ("--zarr-format", "2", "--threads", "1", "--chunk-size", "4K")


@pytest.mark.parametrize("target", CONVERTERS)
def test_round_trip(demo_model: Path, tmp_path: Path, target: str) -> None:
    """The quick tier tries all options with a Zarr store, and two with others."""
    to, back = CONVERTERS[target]
    store, file = tmp_path / target, tmp_path / "m.safetensors"
    all_options = [*OPTIONS, *([FORMAT_2] if target != "m.h5" else [])]
    if target == "m.h5" and importlib.util.find_spec("hdf5plugin") is None:
        all_options.remove(ZSTD)
    for options in by_tier(all_options if target == "m.zarr" else all_options[:2], all_options):
        text = done(to, demo_model, store, *options, "--overwrite")
        assert re.search(r"39 tensors, 988\.81 kB -> .* \(ratio \d\.\d+\), .*B/s", text), options
        assert ("verified" in text) == ("--no-verify" not in options), options
        assert "restored" in done(back, store, file, "--overwrite"), options
        assert file.read_bytes() == demo_model.read_bytes(), options
        text = done("bf16codecs", "verify", store, demo_model)
        assert "39 tensors, 988.81 kB, intact, identical to" in text, options
        if "huffman" in options:
            assert "huffman" in info_table(store)[1], options


@pytest.mark.parametrize("target", CONVERTERS)
def test_quiet_prints_nothing(model: Path, tmp_path: Path, target: str) -> None:
    to, back = CONVERTERS[target]
    assert done(to, model, tmp_path / target, "--quiet") == ""
    assert done(back, tmp_path / target, tmp_path / "back", "--quiet") == ""
    assert done("bf16codecs", "verify", tmp_path / target, "--quiet") == ""


@pytest.mark.parametrize("target", CONVERTERS)
def test_one_tensor_is_not_called_tensors(tmp_path: Path, target: str) -> None:
    model, store = write_model(tmp_path / "m", [("a", "BF16", (64, 8))]), tmp_path / target
    to, back = CONVERTERS[target]
    assert ": 1 tensor, " in done(to, model, store)
    assert "\n1 tensor  " in done("bf16codecs", "info", store)
    assert ": 1 tensor, " in done("bf16codecs", "verify", store)
    assert ": 1 tensor, " in done(back, store, tmp_path / "back")
    with model.open("ab") as file:
        file.write(b"!")
    assert refused(to, model, tmp_path / f"new-{target}").endswith(" 1 byte after the last tensor")


@pytest.mark.parametrize("target", CONVERTERS)
def test_existing_targets(model: Path, tmp_path: Path, target: str) -> None:
    to, back = CONVERTERS[target]
    store = tmp_path / target
    done(to, model, store)
    assert "exists" in refused(to, model, store).lower()
    assert "exists" in refused(back, store, model).lower()
    done(to, model, store, "--overwrite")
    done(back, store, model, "--overwrite")


def test_errors_of_users_are_one_line(model: Path, store: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert "missing" in refused("st2zarr", missing, tmp_path / "x")
    assert "missing" in refused("zarr2st", missing, tmp_path / "x")
    assert "missing" in refused("st2zarr", model, missing / "x")
    assert "missing" in refused("bf16codecs", "info", missing)
    assert "missing" in refused("bf16codecs", "verify", missing)
    assert "missing" in refused("bf16codecs", "verify", store, missing)
    assert "not a Zarr store" in refused("zarr2st", model, tmp_path / "x")
    assert "on local disks" in refused("st2zarr", model, "http://host/m.zarr")
    model.write_bytes(model.read_bytes()[:-1])
    assert "truncated" in refused("st2zarr", model, tmp_path / "x")
    (tmp_path / "new\nline").write_bytes(b"")
    assert "new\\nline" in refused("st2zarr", tmp_path / "new\nline", tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_an_empty_path_is_not_the_current_folder(
    model: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`"$UNSET"` in a script must not replace a store in the current folder."""
    before = files_in(model.parent)
    monkeypatch.chdir(model.parent)
    assert "path of the source is empty" in refused("st2zarr", "", "x")
    assert "path of the source is empty" in refused("st2h5", "", "x")
    assert "path of the source is empty" in refused("bf16codecs", "verify", store, "")
    assert "path of the source is empty" in refused("bf16codecs", "bench", "")
    monkeypatch.chdir(store)
    for overwrite in ((), ("--overwrite",)):
        assert "path of the target is empty" in refused("st2zarr", model, "", *overwrite)
        assert "path of the target is empty" in refused("zarr2st", store, "", *overwrite)
    for command in (
        ("zarr2st", "", "../x"),
        ("bf16codecs", "info", ""),
        ("bf16codecs", "verify", ""),
    ):
        assert re.search("path of the (store|model) is empty", refused(*command))
    for path in ("", "file://"):
        with pytest.raises(ValueError, match="is empty"):
            bf16codecs.open_model(path)
    assert files_in(model.parent) == before
    assert "identical" in done("bf16codecs", "verify", ".", "../m.safetensors")


def test_damaged_store(model: Path, store: Path) -> None:
    (store / "a" / "c.0.0").unlink()
    for args in (("verify", store), ("verify", store, model)):
        assert "chunk a/c.0.0: it is missing" in refused("bf16codecs", *args)
    refused("zarr2st", store, store.with_name("back"))
    edit_json(store, "zarr.json", lambda root: root["attributes"]["bf16codecs"].update(layout=4))
    assert "upgrade" in refused("bf16codecs", "info", store)


def test_usage() -> None:
    for args in (
        (),
        ("one",),
        ("a", "b", "--codec", "lzma"),
        ("a", "b", "--codec", "zstd", "--level", "23"),
        ("a", "b", "--codec", "zstd", "--level", "best"),
        ("a", "b", "--codec", "huffman", "--level", "3"),
        ("a", "b", "--codec", "arithmetic", "--level", "3"),
        ("a", "b", "--threads", "0"),
        ("a", "b", "--threads", "1025"),
        ("a", "b", "--threads", "9" * 20),
        ("a", "b", "--zarr-format", "4"),
        ("a", "b", "--chunk-size", "0"),
        ("a", "b", "--chunk-size", "-1"),
        ("a", "b", "--chunk-size", "many"),
        ("a", "b", "--chunk-size", "1P"),
        ("a", "b", "--chunk-size", "1.5"),
        ("a", "b", "--chunk-size", "1.M"),
        ("a", "b", "--chunk-size", "1e6"),
        ("a", "b", "--chunk-size", "0.0001K"),
        ("a", "b", "--chunk-size", "\N{FULLWIDTH DIGIT THREE}2M"),
        ("a", "b", "--chunk-size", "1\N{KELVIN SIGN}"),
        ("a", "b", "--chunk-size", "9" * 5000),
        ("a", "b", "--unknown"),
    ):
        result = run("st2zarr", *args)
        assert result.exit_code == 2, args
        assert result.stderr.startswith("Usage: "), args


def test_sizes() -> None:
    for text, size in (
        ("1000", 1000),
        ("8B", 8),
        ("4k", 4096),
        ("32M", 32 << 20),
        ("32 MiB", 32 << 20),
        ("1GB", 1 << 30),
        ("1T", 1 << 40),
        ("1.5G", 3 << 29),
        ("1.5 TiB", 3 << 39),
        ("0.3K", 307),
        # Not as a float, which would round it.
        ("9007199254740993", 2**53 + 1),
        ("8796093022208.0009765625K", 2**53 + 1),
    ):
        assert ByteSize().convert(text, None, None) == size, text


def test_sizes_beyond_every_model(model: Path, tmp_path: Path) -> None:
    done("st2zarr", model, tmp_path / "m.zarr", "--chunk-size", "99999999999999999999T")
    done("zarr2st", tmp_path / "m.zarr", tmp_path / "back", "--max-bytes", "1.5T")
    assert (tmp_path / "back").read_bytes() == model.read_bytes()


def test_sizes_are_shown_in_decimal_units() -> None:
    sizes = [999, 1000, 1.5e6, 2e9, 3e12]
    assert [format_size(n) for n in sizes] == ["999 B", "1.00 kB", "1.50 MB", "2.00 GB", "3.00 TB"]


def test_version_and_help() -> None:
    for name in ("bf16codecs", "st2zarr", "zarr2st", "st2h5", "h52st"):
        assert bf16codecs.__version__ in done(name, "--version")
    for command in COMMANDS:
        assert done(command, "--help").startswith(f"Usage: {command}")
    assert isinstance(cli.main, click.Group)
    for name in cli.main.commands:
        assert done("bf16codecs", name, "--help").startswith("Usage: bf16codecs " + name)


@pytest.mark.parametrize("command", ["st2zarr", "st2h5"])
def test_help_shows_default_levels_and_the_cost_of_best(command: str) -> None:
    text = " ".join(done(command, "--help").split())
    assert f"for zstd (default: {CodecChoice('zstd').for_dtype('bfloat16').level})" in text
    assert f"for arithmetic (default: {CodecChoice().for_dtype('bfloat16').level})" in text
    assert all(cost in text for cost in ("1 % smaller", "1.25 times as long", "format version 1"))


def test_info(store: Path, model: Path) -> None:
    lines = done("bf16codecs", "info", store).splitlines()
    assert lines[:2] == [
        f"{store}: a model in a Zarr store, format 3",
        "parameters: 562 in 2 tensors: BF16 (1), I32 (1)",
    ]
    assert re.fullmatch(r"size: .*B, stored in .*B \(ratio \d\.\d{3}\), lossless", lines[2])
    assert lines[3] == "codecs: arithmetic fast (1 tensor), plain-zstd (1 tensor)"
    header, a, b = info_table(store)
    assert header.split() == ["tensor", "dtype", "shape", "codec", "size", "stored", "ratio"]
    assert a.split()[:6] == ["a", "BF16", "64x8", "arithmetic", "1.02", "kB"]
    assert b.split()[:6] == ["b", "I32", "50", "plain-zstd", "200", "B"]
    assert [line.split("  ")[0] for line in lines[-5:-2]] == [
        "2 tensors",
        "headers, metadata",
        "total",
    ]
    assert lines[-2:] == [
        f"m.safetensors: {model.stat().st_size} bytes",
        f"  BLAKE3 {blake3(model.read_bytes()).hexdigest()}",
    ]
    assert max(map(len, lines[-2:])) < 80


@pytest.mark.parametrize(
    "target",
    [
        "m.zarr",
        pytest.param("2.zarr", marks=pytest.mark.slow),
        pytest.param("m.zip", marks=pytest.mark.slow),
        "m.h5",
    ],
)
def test_info_shows_the_levels_of_arithmetic_coding(
    demo_model: Path, tmp_path: Path, target: str
) -> None:
    to, store = CONVERTERS.get(target, ("st2zarr",))[0], tmp_path / target
    zarr_format = ("--zarr-format", "2") if target == "2.zarr" else ()
    for level in ("fast", "best"):
        done(to, demo_model, store, "--overwrite", "--level", level, *zarr_format)
        lines = done("bf16codecs", "info", store).splitlines()
        assert f"codecs: arithmetic {level} (39 tensors)" in lines
    done(to, demo_model, store, "--overwrite", "--codec", "huffman", *zarr_format)
    assert "\ncodecs: huffman (39 tensors)\n" in done("bf16codecs", "info", store)


def test_info_of_a_store_of_both_levels(demo_model: Path, tmp_path: Path) -> None:
    """The metadata state the level of each array, which another writer may have chosen."""
    store = tmp_path / "m.zarr"
    done("st2zarr", demo_model, store)
    group = zarr.open_group(store)
    path = group.attrs["bf16codecs"]["tensors"]["lm_head.weight"]

    def change(root: Any, level: object) -> None:
        (blocks,) = root["consolidated_metadata"]["metadata"][path]["codecs"]
        blocks["configuration"]["codec"]["configuration"]["level"] = level

    for level, codec in (("best", "arithmetic best"), ("no", "arithmetic"), (["x"], "arithmetic")):
        edit_json(store, "zarr.json", partial(change, level=level))
        text = done("bf16codecs", "info", store)
        assert f"\ncodecs: {codec} (1 tensor), arithmetic fast (38 tensors)\n" in text


def test_info_shows_any_name_whole(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m", [(name, "F64", ()) for name in TRICKY_NAMES])
    done("st2zarr", model, tmp_path / "m.zarr")
    rows = info_table(tmp_path / "m.zarr")[1:]
    shown = {line[: line.rindex("F64")].rstrip() for line in rows}
    assert shown == {printable(name) for name in TRICKY_NAMES}


def test_plugin_path() -> None:
    assert done("bf16codecs", "plugin-path").strip() == hdf5.PLUGIN_PATH


@pytest.mark.slow
def test_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = done("bf16codecs", "demo")
    assert not list(tmp_path.iterdir())
    for codec in ("arithmetic fast", "arithmetic best", "huffman", "zstd", "split", "none"):
        assert re.search(rf"^{codec} .* bit-exact", text, re.MULTILINE)


def test_options_of_the_document_exist(root: Path) -> None:
    text = (root / "docs/cli.md").read_text()
    commands = [cli.st2zarr, cli.zarr2st, cli.st2h5, cli.h52st, *cli.main.commands.values()]
    known = {o for c in commands for p in c.params for o in (*p.opts, *p.secondary_opts)}
    assert set(re.findall(r"`(--[a-z0-9-]+)`", text)) <= {*known, "--help"}


@pytest.mark.slow
def test_example_runs(root: Path) -> None:
    done = subprocess.run(
        [sys.executable, root / "examples" / "convert_model.py"],
        capture_output=True,
        text=True,
        env=package_environment(),
    )
    assert done.stdout.endswith("identical: True\n"), done.stderr


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_store_that_cannot_be_read(store: Path, tmp_path: Path) -> None:
    for mode in (0o000, 0o444, 0o111):
        store.chmod(mode)
        if os.access(store, os.R_OK | os.X_OK):
            pytest.skip("permissions do not bind this user")
        try:
            assert "Permission denied" in refused("bf16codecs", "info", store)
            assert "Permission denied" in refused("zarr2st", store, tmp_path / "x")
        finally:
            store.chmod(0o755)


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_target_folder_that_cannot_be_written(model: Path, store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o500)
    if os.access(folder, os.W_OK):
        pytest.skip("permissions do not bind this user")
    assert "Permission denied" in refused("st2zarr", model, folder / "x")
    assert "Permission denied" in refused("zarr2st", store, folder / "x")
