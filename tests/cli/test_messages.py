"""Messages of commands about wrong usage, and warnings, in one line."""

from __future__ import annotations

import errno
import os
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import click
import pytest

import bf16codecs
from bf16codecs.cli.group import main
from bf16codecs.cli.options import command
from bf16codecs.convert import safetensors_to_zarr
from bf16codecs.errors import StoreError
from bf16codecs.model import open_model
from invoked import done, refused, run
from lazy_models import weights, write_safetensors
from looping import for_each

PLUGIN_PATH = """
import runpy, sys
sys.argv[1:] = ["plugin-path"]
runpy.run_module("bf16codecs", run_name="__main__")
"""


def misused(name: str, *args: Any) -> str:
    """Return the last line of a command that is used wrongly."""
    result = run(name, *args)
    assert result.exit_code == 2
    return result.stderr.splitlines()[-1]


@pytest.mark.parametrize(("name", "target"), [("st2zarr", "STORE"), ("st2h5", "FILE")])
def test_missing_target(demo_model: Path, name: str, target: str) -> None:
    for options in ([], ["--series"], ["--append"]):
        assert f"Missing arguments 'SRC...' and '{target}'" in misused(name, *options)
        line = misused(name, *options, "a.safetensors")
        assert f"Missing argument '{target}': where to convert a.safetensors to" in line
        line = misused(name, *options, "a.safetensors", demo_model)
        assert f"Missing argument '{target}'" in line
        assert f"the last one, {demo_model}, is a safetensors model" in line


def test_mistakes_of_newcomers(demo_model: Path, tmp_path: Path) -> None:
    store = tmp_path / "m.zarr"
    line = misused("st2zarr", store, demo_model)
    assert line == f"Error: {demo_model} is a source: put it before {store}."
    shards = tmp_path / "shards"
    shards.mkdir()
    shutil.copy(demo_model, shards)
    line = misused("st2zarr", store, shards)
    assert line == f"Error: {shards} is a source: put it before {store}."
    assert "Missing argument 'SRC...': what to convert" in misused("st2zarr", store)
    done("st2zarr", demo_model, store)
    assert "Missing argument 'SRC...': what to convert" in misused("st2zarr", store)
    line = misused("bf16codecs", "verify", demo_model, store)
    assert line == f"Error: {store} is the store: put it before {demo_model}."
    empty = tmp_path / "empty"
    empty.mkdir()
    line = refused("bf16codecs", "verify", demo_model, empty)
    assert line.endswith("no model in this folder: no safetensors, PyTorch or GGUF file")
    shutil.copytree(store, tmp_path / "x.safetensors")
    line = misused("st2zarr", demo_model, tmp_path / "x.safetensors", "--overwrite")
    assert "Missing argument 'STORE'" in line
    line = misused("zarr2st", tmp_path / "out.safetensors", store)
    assert line == f"Error: {store} is the store: put it before {tmp_path / 'out.safetensors'}."
    line = misused("zarr2st", demo_model, store)
    assert line == f"Error: {store} is the store: put it before {demo_model}."
    line = misused("bf16codecs", "st2zarr", demo_model, store)
    assert line == "Error: st2zarr is a command of its own: leave out bf16codecs."
    assert "Name one step of a run as RUN@600" in misused("bf16codecs", "info", store, "--step", 6)
    line = refused("bf16codecs", "info", f"{store}@600")
    assert line.endswith("one model, not a run with a step 600: leave out @600")
    line = refused("zarr2st", store, tmp_path / "all", "--all")
    assert line.endswith("one model, not a run: leave out --all")
    line = refused("bf16codecs", "undo-append", store)
    assert line.endswith("one model, not a run: only appends to runs can be undone")
    line = misused("st2zarr", demo_model, store, "--level", 3)
    assert line.endswith("not '3' (numbers are levels of zstd)")
    text = tmp_path / "notes.txt"
    text.write_text("mine")
    line = refused("zarr2st", store, text, "--overwrite")
    assert line.endswith("exists and is not a safetensors file: choose another name")
    assert text.read_text() == "mine"
    assert misused("bf16codecs", "info", store, "--tensors", "x").endswith("'--tensor'?")
    assert misused("bf16codecs", "info", store, "--threads") == "Error: No such option '--threads'."
    for value in ("x", "1.5"):
        line = misused("zarr2st", store, tmp_path / "d", "--step", value)
        assert line == f"Error: Invalid value for '--step': '{value}' is not a whole number."


@pytest.mark.parametrize(
    ("content", "like"),
    [
        (b"These are no weights\n", "it looks like text"),
        (b"hello\n", "it looks like text"),
        (b"PK\x03\x04\x00\x00\x08\x08\x00\x00", "a ZIP file, as torch.save writes"),
        (b"\xff" * 20, "its header would have 18446744073709551615 bytes"),
    ],
)
def test_files_that_are_not_safetensors(tmp_path: Path, content: bytes, like: str) -> None:
    source = tmp_path / "m.weights"
    source.write_bytes(content)
    line = refused("st2zarr", source, tmp_path / "m.zarr")
    assert line.startswith(f"st2zarr: {source}: not a safetensors file")
    assert like in line


_LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"


@pytest.mark.parametrize(
    ("content", "like"),
    [
        (b"", ": it is empty"),
        (b"\xff" * 20, "{kind}"),
        (_LFS, "{kind} (it looks like a pointer of Git LFS: get the file with git lfs pull)"),
    ],
)
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("m.gguf", ": not a GGUF file"),
        ("m.bin", ": not a file of torch.save"),
        ("shard", ": not a file of torch.save"),
        (".metadata", ": not a file of torch.save"),
    ],
)
def test_files_that_are_not_what_their_names_say(
    tmp_path: Path, name: str, kind: str, content: bytes, like: str
) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    file = source = folder / name
    if name == "shard":
        source = folder / "pytorch_model.bin.index.json"
        source.write_text('{"weight_map": {"w": "shard"}}')
    elif name == ".metadata":
        source = folder
        (folder / "__0_0.distcp").write_bytes(b"")
    file.write_bytes(content)
    line = refused("st2zarr", source, tmp_path / "m.zarr")
    assert line.endswith(f"{file}{like.format(kind=kind)}")


def test_a_checkpoint_without_metadata(tmp_path: Path) -> None:
    (tmp_path / "__0_0.distcp").write_bytes(b"")
    line = refused("st2zarr", tmp_path, tmp_path / "m.zarr")
    assert f"{tmp_path / '.metadata'}: No such file" in line


def test_safetensors_files_may_have_other_names(demo_model: Path, tmp_path: Path) -> None:
    for name in ("m.bin", "m.gguf"):
        shutil.copy(demo_model, tmp_path / name)
        done("st2zarr", tmp_path / name, tmp_path / f"{name}.zarr")


def test_help_explains_the_figures_of_level_best() -> None:
    help_text = " ".join(run("st2zarr", "--help").stdout.split())
    assert "Converting a large model on a disk takes 1.25 times as long" in help_text


def test_no_target_is_standard_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("st2zarr", "zarr2st", "st2h5", "h52st"):
        assert "at a path, not on standard output" in misused(name, "m", "-"), name
        assert not list(tmp_path.iterdir()), name


def test_missing_target_of_restoring() -> None:
    for name, store in {"zarr2st": "STORE", "h52st": "FILE"}.items():
        line = misused(name, "--overwrite", "m")
        assert line == "Error: Missing argument 'DST': where to restore m to.", name
        assert misused(name) == f"Error: Missing argument '{store}'.", name


def test_subcommands_show_the_version() -> None:
    for name in main.commands:
        assert bf16codecs.__version__ in done("bf16codecs", name, "--version"), name


def test_warnings_take_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python would show the line of code as well."""

    @click.command()
    @command
    def strange() -> None:
        warnings.warn("two\nlines", FutureWarning, stacklevel=1)

    monkeypatch.setitem(main.commands, "strange", strange)
    result = run("bf16codecs", "strange")
    assert result.exit_code == 0
    assert result.stderr == "bf16codecs strange: warning: two\\nlines\n"


@pytest.mark.parametrize("name", ["BF16CODECS_ISA", "BF16CODECS_NUM_THREADS"])
def test_warnings_of_the_environment(run_python, name: str) -> None:
    """They come while the command is being imported."""
    (line,) = run_python(PLUGIN_PATH, **{name: "many"}).stderr.splitlines()
    assert line.startswith(f"python -m bf16codecs: warning: {name} is 'many'")


PYTHON = re.compile(
    r"bf16codecs\.|\bopen_|storage_options|max_bytes|chunk_size|keyframe_every|zarr_format"
    r"|safetensors_to_|_to_safetensors|\w=(\.\.\.|True|\w)"
)


def test_commands_name_their_options(demo_model: Path, tmp_path: Path) -> None:
    """Functions name their parameters, and refuse the same."""
    store, run, lonely = (tmp_path / name for name in ("m.zarr", "run.zarr", "lonely.zarr"))
    base = tmp_path / "base.safetensors"
    shutil.copy(demo_model, base)
    done("st2zarr", demo_model, store)
    done("st2zarr", "--append", demo_model, run, "--step", 1)
    done("st2zarr", demo_model, lonely, "--base", base)
    base.unlink()
    append = ("st2zarr", demo_model, run, "--append")
    refusals = {
        "--overwrite": ("st2zarr", demo_model, store),
        "--storage-options": ("bf16codecs", "info", store, "--storage-options", '{"a": 1}'),
        "--max-bytes": ("bf16codecs", "verify", store, "--max-bytes", 10),
        "--base": ("bf16codecs", "verify", lonely),
        "--step": ("zarr2st", run, tmp_path / "back"),
        "--all": ("zarr2st", run, tmp_path / "back"),
        "--all$": ("zarr2st", store, tmp_path / "back", "--all"),
        "--step N": append,
        "--codec": (*append, "--step", 2, "--codec", "huffman"),
        "--keyframe-every": (*append, "--step", 2, "--keyframe-every", 3),
    }
    for option, arguments in refusals.items():
        line = refused(*arguments).replace(str(tmp_path), "")
        assert re.search(option, line)
        assert not PYTHON.search(line)
    with pytest.raises(FileExistsError, match="overwrite=True replaces it"):
        safetensors_to_zarr(demo_model, store)
    with pytest.raises(ValueError, match="storage_options apply to addresses only"):
        open_model(store, storage_options={"a": 1})
    with pytest.raises(StoreError, match=r"more than max_bytes allows \(10\)"):
        open_model(store, max_bytes=10).load()


def test_checkpoints_runs_and_stores_in_each_others_place(demo_model: Path, tmp_path: Path) -> None:
    checkpoints, run, stores = (tmp_path / name for name in ("ckpt", "run.zarr", "stores"))
    checkpoints.mkdir()
    for step in (1, 2):
        shutil.copy(demo_model, checkpoints / f"step-{step}.safetensors")
    done("st2zarr", "--series", *sorted(checkpoints.iterdir()), run)
    stores.mkdir()
    done("st2zarr", demo_model, stores / "m.zarr")
    series = f"run of all with st2zarr --series {checkpoints}/*.safetensors"
    refusals = [
        (("bf16codecs", "info", checkpoints), series),
        (("st2zarr", "--series", checkpoints, tmp_path / "x"), series),
        (("zarr2st", checkpoints, tmp_path / "x", "--all"), series),
        (("st2zarr", run, tmp_path / "x"), "a Zarr store, not a safetensors model: zarr2st"),
        (("st2zarr", f"{run}@2", tmp_path / "x"), "a Zarr store, not a safetensors model: zarr2st"),
        (
            ("zarr2st", run, tmp_path / "x"),
            f"a run, with steps 1, 2: name one of them, as in {run}@2",
        ),
        (("st2zarr", demo_model, tmp_path / "x", "--base", run), f"as in {run}@2"),
        (("st2zarr", checkpoints / "step-2.safetensors", f"{run}@3", "--append"), "leave out @3"),
        (("st2zarr", demo_model, stores / "m.zarr", "--append"), "one model, not a run"),
        (("bf16codecs", "rebase", run), "a run: neither it nor its steps can be rewritten"),
        (("bf16codecs", "rebase", f"{run}@2"), "neither it nor its steps can be rewritten"),
        (("bf16codecs", "info", stores), "name what is in it, such as 'm.zarr'"),
        (("bf16codecs", "bench", run), f"as in {run}@2"),
    ]
    for arguments, text in refusals:
        assert text in refused(*arguments)
    assert not (tmp_path / "x").exists()


@for_each(
    "line",
    [
        "bf16codecs info LOOP",
        "bf16codecs verify LOOP",
        "bf16codecs analyze LOOP",
        "bf16codecs rebase LOOP",
        "bf16codecs pack-hf LOOP packed",
        "bf16codecs orbax LOOP other.zarr",
        "zarr2st LOOP model",
        "st2zarr LOOP other.zarr",
        "st2zarr SOURCE LOOP",
        "st2zarr --overwrite SOURCE LOOP",
        "st2zarr --append --step 1 SOURCE LOOP",
        "st2zarr --base LOOP SOURCE other.zarr",
        "st2zarr --base auto:LOOP SOURCE other.zarr",
        "st2zarr SOURCE LOOP/in.zarr",
        "st2h5 SOURCE LOOP",
        "h52st LOOP model",
    ],
)
def test_links_that_go_round_in_a_circle(tmp_path, demo_model, line):
    loop = tmp_path / "loop.zarr"
    if not loop.is_symlink():
        loop.symlink_to("loop.zarr")
    command, *words = line.split()
    places = {"LOOP": loop, "SOURCE": demo_model}
    arguments = []
    for word in words:
        for name, place in places.items():
            word = word.replace(name, str(place))
        is_new = word in ("packed", "model", "other.zarr")
        arguments.append(tmp_path / word if is_new else word)
    assert "loop.zarr" in refused(command, *arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["loop.zarr"]


def test_a_missing_path_is_no_model(tmp_path, demo_model):
    """Even if its name ends like a store's, and the target is one."""
    for maker, restorer, store in (("st2zarr", "zarr2st", "m.zarr"), ("st2h5", "h52st", "m.h5")):
        assert done(maker, demo_model, tmp_path / store)
        for end in (".safetensors", ".safetensors.index.json"):
            line = misused(restorer, tmp_path / f"absent{end}", tmp_path / store)
            assert line.endswith(f"is the store: put it before {tmp_path / f'absent{end}'}.")
            line = refused(restorer, tmp_path / f"absent{end}", tmp_path / "back")
            assert line.endswith(f"absent{end}: No such file or directory")
        for end in (".zarr", ".h5"):
            line = refused(restorer, tmp_path / f"absent{end}", tmp_path / store)
            assert line.endswith(f"absent{end}: No such file or directory")


@pytest.mark.parametrize(
    ("line", "near"),
    [
        ("bf16codecs info modle.zarr", "model.zarr"),
        ("bf16codecs info modle.zarr@600", "model.zarr"),
        ("bf16codecs verify modle.zarr", "model.zarr"),
        ("bf16codecs verify model.zarr modle.safetensors", "model.safetensors"),
        ("bf16codecs analyze modle.zarr", "model.zarr"),
        ("bf16codecs bench modle.safetensors", "model.safetensors"),
        ("bf16codecs view modle.zarr", "model.zarr"),
        ("bf16codecs rebase modle.zarr", "model.zarr"),
        ("bf16codecs undo-append modle.zarr", "model.zarr"),
        ("bf16codecs drop-steps modle.zarr --keep-last 1", "model.zarr"),
        ("bf16codecs orbax foldre x.zarr", "folder"),
        ("bf16codecs pack-hf foldre x", "folder"),
        ("st2zarr modle.safetensors x.zarr", "model.safetensors"),
        ("st2zarr --series modle.safetensors x.zarr", "model.safetensors"),
        ("st2zarr modle.safetensors x.zarr --append", "model.safetensors"),
        ("st2zarr model.safetensors x.zarr --base modle.zarr", "model.zarr"),
        ("st2zarr model.safetensors x.zarr --base auto:foldre", "folder"),
        ("st2zarr model.safetensors foldre/x.zarr", "folder"),
        ("st2h5 modle.safetensors x.h5", "model.safetensors"),
        ("zarr2st modle.zarr x", "model.zarr"),
        ("zarr2st --all modle.zarr x", "model.zarr"),
        ("h52st modle.h5 x", "model.h5"),
    ],
)
def test_a_missing_path_is_compared_with_its_folder(
    line: str, near: str, demo_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("model.safetensors", ".modle.zarr", "other.zarr"):
        shutil.copy(demo_model, name)
    for name in ("model.h5", "folder"):
        os.mkdir(name)
    safetensors_to_zarr("model.safetensors", "model.zarr", verify=False)
    command, *arguments = line.split()
    assert refused(command, *arguments).endswith(f" (did you mean '{near}'?)")


def test_a_missing_base_of_a_store_is_only_named(demo_model: Path, tmp_path: Path) -> None:
    for name in ("base", "base-2"):
        safetensors_to_zarr(demo_model, tmp_path / f"{name}.zarr")
    safetensors_to_zarr(demo_model, tmp_path / "m.zarr", base=tmp_path / "base.zarr")
    (tmp_path / "base.zarr").rename(tmp_path / "base-1.zarr")
    line = refused("zarr2st", tmp_path / "m.zarr", tmp_path / "back")
    assert line.endswith("base.zarr: No such file or directory; name its base with --base")
    line = refused("bf16codecs", "verify", tmp_path / "m.zarr", "--base", tmp_path / "base-3.zarr")
    assert " (did you mean 'base-2.zarr' or 'base-1.zarr'?)" in line


def test_names_of_a_folder_that_are_compared(tmp_path: Path) -> None:
    def hint(path: Path) -> str:
        with pytest.raises(FileNotFoundError) as caught:
            open_model(path)
        assert caught.value.filename == str(path)
        return caught.value.strerror.removeprefix(os.strerror(errno.ENOENT))

    for name in ("m.h5", "m.zarr", "model-2.zarr", "model-3.zarr"):
        (tmp_path / name).touch()
    assert hint(tmp_path / "model-1.zarr") == " (did you mean 'model-3.zarr' or 'model-2.zarr'?)"
    assert hint(tmp_path / "m.zar") == " (did you mean 'm.zarr' or 'm.h5'?)"
    for name in ("demo.h5", "demo.safetensors", "demo.zarr"):
        (tmp_path / name).touch()
    three = "'demo.safetensors', 'demo.zarr' or 'demo.h5'"
    assert hint(tmp_path / "demo.safetenors") == f" (did you mean {three}?)"
    assert hint(tmp_path / "absent.zarr") == ""
    assert hint(tmp_path / "absent" / "m.zarr") == ""
    (tmp_path / "broken.zarr").symlink_to("absent")
    assert hint(tmp_path / "broken.zarr") == ""
    with pytest.raises(FileNotFoundError, match=r"did you mean 'm\.zarr'\?"):
        bf16codecs.open_run(tmp_path / "mm.zarr")


def test_names_and_metadata_are_shown_escaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No control character of a tensor's name reaches a terminal."""
    monkeypatch.chdir(tmp_path)
    strange = "a\x1b[31m\x07\x9b\u202e\nb"
    for number in (1, 2):
        write_safetensors(
            Path(f"m-step{number}.safetensors"),
            {strange: weights((64, 32), seed=number)},
            {strange: strange},
        )
    first, second = "m-step1.safetensors", "m-step2.safetensors"
    commands: list[tuple[Any, ...]] = [
        ("st2zarr", first, "m.zarr"),
        ("st2h5", first, "m.h5"),
        ("st2zarr", second, "fine.zarr", "--base", "m.zarr"),
        ("st2zarr", "--series", first, second, "run.zarr"),
        *(("bf16codecs", "info", name) for name in ("m.zarr", "m.h5", "fine.zarr", "run.zarr")),
        ("bf16codecs", "info", "m.zarr", "--json"),
        ("bf16codecs", "verify", "m.zarr", second),
        ("bf16codecs", "analyze", "m.zarr"),
        ("bf16codecs", "bench", first, "--only", "split", "--seconds", "0.01"),
    ]
    for name, *arguments in commands:
        shown = run(name, *arguments).output
        assert all(c.isprintable() for c in shown.replace("\n", "")), (arguments, shown)
    assert "\\x1b[31m" in done("bf16codecs", "info", "m.zarr")
    (chunk,) = (path for path in Path("m.zarr").rglob("c.0.0") if "31m" in str(path))
    chunk.unlink()
    for arguments in (("zarr2st", "m.zarr", "back"), ("bf16codecs", "verify", "m.zarr")):
        assert "\\x1b[31m" in refused(*arguments)
