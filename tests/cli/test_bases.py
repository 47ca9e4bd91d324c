"""The commands with bases: output and exit status."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

import bf16codecs
from based_models import write_nearby
from bf16codecs.convert import safetensors_to_zarr
from edit_store import edit_attributes
from folders import names_in
from invoked import CONVERTERS, done, info_table, refused
from lazy_models import weights, write_safetensors, write_shards

stores = pytest.mark.parametrize("name", CONVERTERS)


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    arrays = {"embed": weights((64, 40)), "norm": weights((40,), "float32"), "ids": np.arange(900)}
    return write_safetensors(Path("base.safetensors"), arrays)


@pytest.fixture
def fine(base: Path) -> Path:
    return write_nearby(base, Path("fine.safetensors"))


@stores
def test_there_and_back(name: str, base: Path, fine: Path) -> None:
    to, back = CONVERTERS[name]
    for codec in ((), ("--codec", "huffman"), ("--level", "best")):
        done("st2zarr", base, "base.zarr", *codec, "--overwrite")
        options = ("--base", "base.zarr", "--overwrite")
        lines = done(to, fine, name, *options, *codec).splitlines()
        assert re.match(
            rf"fine\.safetensors -> {name}: 3 tensors, .* \(ratio \S+\), .*verified$", lines[0]
        ), codec
        assert lines[1:] == ["base base.zarr: 3 of 3 tensors as differences"], codec
        done(back, name, "back.safetensors", "--overwrite")
        assert Path("back.safetensors").read_bytes() == fine.read_bytes(), codec
        assert "intact, identical to fine.safetensors" in done("bf16codecs", "verify", name, fine)
        assert done(to, fine, name, *options, "--quiet") == "", codec


@stores
def test_a_base_that_is_named(name: str, base: Path, fine: Path) -> None:
    to, back = CONVERTERS[name]
    done("st2zarr", base, "base.zarr")
    done(to, fine, name, "--base", "base.zarr")
    os.rename("base.zarr", "moved.zarr")
    commands = {back: (name, "back"), "bf16codecs verify": (name,), "bf16codecs rebase": (name,)}
    for command, arguments in commands.items():
        assert re.fullmatch(
            rf"{command}: {name}: its base cannot be opened: \S+/base\.zarr: No such file or"
            r" directory; name its base with --base",
            refused(*command.split(), *arguments),
        )
    done(back, name, "back", "--base", "moved.zarr")
    assert Path("back").read_bytes() == fine.read_bytes()
    assert "intact" in done("bf16codecs", "verify", name, "--base", "moved.zarr")
    assert "form a cycle" in refused("bf16codecs", "verify", name, "--base", name)
    write_nearby(base, Path("other.safetensors"), seed=9)
    done("st2zarr", "other.safetensors", "other.zarr")
    assert re.search(
        r"other\.zarr is not its base: the BLAKE3 of other\.safetensors is \w+, not \w+; name",
        refused("bf16codecs", "verify", name, "--base", "other.zarr"),
    )
    assert "has no base: leave out --base" in refused(
        "bf16codecs", "verify", "other.zarr", "--base", base
    )


@stores
def test_info_opens_no_base(name: str, base: Path, fine: Path) -> None:
    done(CONVERTERS[name][0], fine, name, "--base", base, "--level", "best")
    digest = blake3(base.read_bytes()).hexdigest()
    base.unlink()
    lines = done("bf16codecs", "info", name).splitlines()
    rows = info_table(name)[1:]
    assert [line.split()[3] for line in rows] == ["difference+arithmetic"] * 3
    assert any(re.fullmatch(r"tensors: 3 as differences to the base \(.*B\)", li) for li in lines)
    assert "codecs: difference+arithmetic best (3 tensors)" in lines
    at = lines.index("base: base.safetensors")
    assert lines[at + 1] == f"base BLAKE3: {digest}"
    assert len(lines[at + 1]) <= 80
    assert re.fullmatch(r"fine\.safetensors: \d+ bytes\n  BLAKE3 \w{64}", "\n".join(lines[-2:]))


def test_info_names_the_shards_of_a_base(tmp_path: Path, fine: Path) -> None:
    with bf16codecs.open_model(fine) as model:
        arrays = model.load()
    shards = write_shards(tmp_path / "base", [{name: arrays[name]} for name in arrays])
    done("st2zarr", fine, "m.zarr", "--base", shards)
    lines = done("bf16codecs", "info", "m.zarr").splitlines()
    shown = [line.split() for line in lines if "base BLAKE3" in line]
    assert shown == [
        ["base", "BLAKE3:", blake3(path.read_bytes()).hexdigest(), path.name]
        for path in sorted(shards.glob("*.safetensors"))
    ]


def test_info_counts_what_is_shared_once(tmp_path: Path) -> None:
    tied, master = weights((256, 64)), weights((256, 64), "float32", seed=1)
    arrays = {"embed": tied, "head": tied, "master": master, "low": master.astype("bfloat16")}
    source = write_safetensors(tmp_path / "m.safetensors", arrays)
    for name in CONVERTERS:
        done(CONVERTERS[name][0], source, tmp_path / name)
        lines = done("bf16codecs", "info", tmp_path / name).splitlines()
        rows = {line.split()[0]: line.split()[3:] for line in info_table(tmp_path / name)[1:]}
        assert rows["head"][0] == "shared"
        assert rows["low"][0] == "rounded"
        assert rows["head"][3:5] == rows["low"][3:5] == ["0", "B"]
        assert "codecs: arithmetic fast (2 tensors), shared (1 tensor), rounded (1 tensor)" in lines
        assert any(
            re.fullmatch(r"tensors: 2 whole \(.*B\), 1 equal to others .*, 1 rounded .*", line)
            for line in lines
        )
        ratio = float(next(line for line in lines if line.startswith("4 tensors")).split()[-1])
        assert ratio > 1.9


def test_auto_reports_its_pick(base: Path, fine: Path) -> None:
    os.mkdir("bases")
    done("st2zarr", base, "bases/base.zarr")
    out = done("st2zarr", fine, "m.zarr", "--base", "auto:bases")
    assert re.search(
        r"\nbase bases/base\.zarr: 3 of 3 tensors as differences; by a sample: \S+ bits per value"
        r" alone, as a difference to base\.zarr \S+\n$",
        out,
    )
    os.rename("bases/base.zarr", "elsewhere.zarr")
    line = refused("st2zarr", fine, "x.zarr", "--base", "auto:absent")
    assert line == "st2zarr: absent: No such file or directory"
    line = refused("st2zarr", fine, "x.zarr", "--base", "auto:bases")
    assert line == "st2zarr: auto:bases: no model in this folder can be the base"


def test_rebase(base: Path, fine: Path) -> None:
    done("st2zarr", base, "base.zarr")
    done("st2zarr", fine, "m.zarr", "--base", "base.zarr")
    lines = done("bf16codecs", "rebase", "m.zarr").splitlines()
    assert len(lines) == 1
    assert re.match(r"m\.zarr -> m\.zarr: 3 tensors, .*, whole, verified$", lines[0])
    assert done("bf16codecs", "rebase", "m.zarr") == "m.zarr: already whole, left unchanged\n"
    os.mkdir("bases")
    os.rename("base.zarr", "bases/base.zarr")
    text = done("bf16codecs", "rebase", "m.zarr", "--onto", "auto:bases", "--no-verify")
    lines = text.splitlines()
    assert lines[0].endswith(", rewritten")
    assert lines[1].startswith("base bases/base.zarr: 3 of 3 tensors as differences; by a sample")
    onto = ("rebase", "m.zarr", "--onto", "bases/base.zarr")
    text = "m.zarr: already based on bases/base.zarr, left unchanged\n"
    assert done("bf16codecs", *onto) == text
    found = json.loads(done("bf16codecs", *onto, "--json"))
    assert (found["done"], found["verified"]) == ("unchanged", False)
    options = ("--threads", 1, "--quiet", "--no-sync")
    assert done("bf16codecs", "rebase", "m.zarr", "--onto", base, *options) == ""
    assert "intact" in done("bf16codecs", "verify", "m.zarr", fine)
    assert "would replace the base" in refused("bf16codecs", "rebase", "m.zarr", "--onto", "m.zarr")
    assert "a safetensors model" in refused("bf16codecs", "rebase", base)
    assert "more than --max-bytes allows" in refused(
        "bf16codecs", "rebase", "m.zarr", "--max-bytes", 1000
    )


def test_errors_are_one_line(base: Path, fine: Path) -> None:
    done("st2zarr", base, "base.zarr")
    stranger = write_safetensors(Path("x.safetensors"), {"x": weights((30, 40))})
    cases = {
        "missing.zarr": "missing.zarr: No such file or directory",
        "": "the path of the base is empty",
        stranger: "has no tensor in common with its base, x.safetensors",
        "x.txt": "x.txt: not a model store",
    }
    Path("x.txt").write_text("x")
    for place, message in cases.items():
        line = refused("st2zarr", fine, "m.zarr", "--base", place)
        assert message in line
    assert "m.zarr" not in names_in(Path())
    done("st2zarr", fine, "m.zarr", "--base", "base.zarr")
    done("st2zarr", base, "b.zarr", "--base", "m.zarr")
    edit_attributes(Path("m.zarr"), lambda a: a["base"].update(path="\u202ebase.zarr"))
    assert "damaged store attributes: '\\u202ebase.zarr'" in refused(
        "bf16codecs", "verify", "b.zarr"
    )


def test_a_dask_cluster_makes_copies_and_roundings(base: Path, fine: Path) -> None:
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=1, processes=False, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        from bf16codecs.dask import safetensors_to_zarr as convert

        convert(fine, "fine.zarr", client, base=base)
        arrays = {"a": weights((64, 40)), "b": weights((64, 40)), "m": weights((64, 40), "float32")}
        arrays["low"] = arrays["m"].astype("bfloat16")
        source = write_safetensors(Path("twice.safetensors"), arrays)
        convert(source, "m.zarr", client)
        safetensors_to_zarr(source, "n.zarr")
    assert Path("m.zarr/zarr.json").read_bytes() == Path("n.zarr/zarr.json").read_bytes()
    assert "intact" in done("bf16codecs", "verify", "m.zarr", source)
    assert "intact" in done("bf16codecs", "verify", "fine.zarr", fine)
