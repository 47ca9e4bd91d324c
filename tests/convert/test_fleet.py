"""Many models are found, planned, and converted, each to a store of its own."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from bf16codecs.convert import (
    Conversion,
    convert_fleet,
    parse_plan,
    plan_fleet,
    plan_text,
    safetensors_to_zarr,
    verify_store,
    zarr_to_safetensors,
)
from bf16codecs.convert.fleet.finding import models_among
from bf16codecs.convert.fleet.plan import in_rounds
from bf16codecs.errors import StoreError
from clusters import assert_same_files
from invoked import done, refused, run
from lazy_models import weights, write_safetensors, write_shards

SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["model.safetensors"], [("model.safetensors", "root")]),
        (["x.safetensors"], [("x.safetensors", "x")]),
        (["a/model.safetensors", "a/config.json"], [("a/model.safetensors", "a")]),
        (["a/b.safetensors", "a/c.gguf"], [("a/b.safetensors", "a/b"), ("a/c.gguf", "a/c")]),
        ([f"m/{name}" for name in SHARDS], [("m", "m")]),
        ([*SHARDS, "model.safetensors.index.json"], [("", "root")]),
        (
            [
                *(f"m/{name}" for name in (*SHARDS, "consolidated.safetensors")),
                "m/model.safetensors.index.json",
            ],
            [
                ("m/consolidated.safetensors", "m/consolidated"),
                ("m/model.safetensors.index.json", "m/model"),
            ],
        ),
        (
            ["m/a.safetensors.index.json", "m/a.safetensors.index.fp16.json", f"m/{SHARDS[0]}"],
            [
                ("m/a.safetensors.index.fp16.json", "m/a"),
                ("m/a.safetensors.index.json", "m/a"),
            ],
        ),
        (["m/pytorch_model.bin", "m/training_args.bin"], [("m/pytorch_model.bin", "m")]),
        (["m/pytorch_model.bin", "m/model.safetensors"], [("m/model.safetensors", "m")]),
        (
            ["m/pytorch_model.bin.index.json", "m/pytorch_model-00001-of-00001.bin"],
            [("m/pytorch_model.bin.index.json", "m")],
        ),
        (["c/.metadata", "c/__0_0.distcp", "c/__1_0.distcp"], [("c", "c")]),
        (["m.zarr/zarr.json", "m.zarr/x.safetensors", "m.zarr/a/b/y.safetensors"], []),
        ([".cache/x.safetensors", "a/.git/y.safetensors", "README.md", "._z.safetensors"], []),
        ([*SHARDS, "x.gguf"], [("", "root"), ("x.gguf", "x")]),
        (
            [SHARDS[0], "other.safetensors"],
            [(SHARDS[0], SHARDS[0][:-12]), ("other.safetensors", "other")],
        ),
        (["m/model.safetensors.index.json"], [("m/model.safetensors.index.json", "m")]),
        (
            ["unet/diffusion_pytorch_model.safetensors"],
            [("unet/diffusion_pytorch_model.safetensors", "unet")],
        ),
    ],
)
def test_models_among_files(files: list[str], expected: list[tuple[str, str]]) -> None:
    assert models_among(files, "root") == expected


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Four models, one of them in shards, and a file that is none."""
    folder = tmp_path / "models"
    for name in ("a", "b/c", "d"):
        (folder / name).mkdir(parents=True)
    write_safetensors(folder / "a" / "model.safetensors", values(0))
    write_safetensors(folder / "b" / "c" / "x.safetensors", values(1))
    write_safetensors(folder / "b" / "c" / "y.safetensors", values(2))
    write_shards(folder / "d" / "sharded", [values(3), {"other": weights((9, 4))}])
    (folder / "README.md").write_text("none")
    return folder


def values(seed: int) -> dict[str, Any]:
    return {"w": weights((64, 48), seed=seed), "b": weights((7,), "float32", seed=seed)}


STORES = ["a.zarr", "b/c/x.zarr", "b/c/y.zarr", "d/sharded.zarr"]


def test_each_model_becomes_what_it_becomes_alone(models: Path, tmp_path: Path) -> None:
    plan = plan_fleet([models], tmp_path / "stores")
    results = list(convert_fleet(plan, sha256=True, sync=False))
    assert [result.state for result in results] == ["converted"] * 4
    assert [os.path.relpath(each.store, tmp_path / "stores") for each in plan] == STORES
    for result in results:
        alone = tmp_path / "alone.zarr"
        source = result.conversion.source
        summary = safetensors_to_zarr(source, alone, sha256=True, sync=False, overwrite=True)
        assert_same_files(Path(result.conversion.store), alone)
        assert (result.nbytes, result.stored_nbytes) == (summary.nbytes, summary.stored_nbytes)
    zarr_to_safetensors(tmp_path / "stores" / "d" / "sharded.zarr", tmp_path / "back")
    assert_same_files(tmp_path / "back", models / "d" / "sharded")


def test_what_is_there_stays(models: Path, tmp_path: Path) -> None:
    plan = plan_fleet([models], tmp_path / "stores")
    list(convert_fleet(plan[:2], sync=False))
    before = (tmp_path / "stores" / "a.zarr" / "zarr.json").stat()
    results = list(convert_fleet(plan, sync=False))
    assert [r.state for r in results] == ["there", "there", "converted", "converted"]
    assert all(result.stored_nbytes > 0 for result in results)
    after = (tmp_path / "stores" / "a.zarr" / "zarr.json").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    again = list(convert_fleet(plan, sync=False, overwrite=True))
    assert [r.state for r in again] == ["converted"] * 4


def test_a_store_of_another_model_is_not_taken_for_this_one(models: Path, tmp_path: Path) -> None:
    plan = plan_fleet([models / "a"], tmp_path / "stores")
    (tmp_path / "stores").mkdir()
    write_safetensors(tmp_path / "other.safetensors", {"w": weights((3, 4))})
    safetensors_to_zarr(tmp_path / "other.safetensors", plan[0].store)
    (result,) = convert_fleet(plan)
    assert result.state == "failed"
    assert "holds another model: its header differs" in result.note
    shutil.rmtree(plan[0].store)
    os.mkdir(plan[0].store)
    Path(plan[0].store, "mine").write_text("notes")
    (result,) = convert_fleet(plan, overwrite=True)
    assert result.state == "failed"
    assert Path(plan[0].store, "mine").read_text() == "notes"


def test_one_that_fails_does_not_end_the_others(models: Path, tmp_path: Path) -> None:
    broken = models / "b" / "c" / "x.safetensors"
    os.truncate(broken, broken.stat().st_size - 1)
    results = list(convert_fleet(plan_fleet([models], tmp_path / "stores"), sync=False))
    assert [r.state for r in results] == ["converted", "failed", "converted", "converted"]
    assert "b/c/x.safetensors" in results[1].note
    assert sorted(p.name for p in (tmp_path / "stores" / "b" / "c").iterdir()) == ["y.zarr"]


def test_a_source_that_changed_is_not_taken_for_converted(models: Path, tmp_path: Path) -> None:
    """Its header, which is compared, is the same."""
    plan = plan_fleet([models / "a"], tmp_path / "stores")
    list(convert_fleet(plan))
    path = write_safetensors(models / "a" / "model.safetensors", values(8))
    later = os.stat(plan[0].store).st_mtime + 5
    os.utime(path, (later, later))
    (result,) = convert_fleet(plan)
    assert (result.state, "older than its source" in result.note) == ("failed", True)


def test_bases_that_were_replaced_are_noticed(models: Path, tmp_path: Path) -> None:
    plan = plan_fleet([models / "b"], tmp_path / "stores")
    based = [plan[0], Conversion(plan[1].source, plan[1].store, plan[0].store)]
    list(convert_fleet(based))
    (_, other) = convert_fleet(plan)
    assert (other.state, "as base, not as planned" in other.note) == ("there", True)
    safetensors_to_zarr(models / "a" / "model.safetensors", plan[0].store, overwrite=True)
    (_, other) = convert_fleet(based)
    assert (other.state, "is not its base" in other.note) == ("failed", True)


def test_what_needs_a_model_that_failed(models: Path, tmp_path: Path) -> None:
    first, second = plan_fleet([models / "b"], tmp_path / "stores")
    Path(first.source).write_bytes(b"")
    results = list(convert_fleet([Conversion(second.source, second.store, first.store), first]))
    assert [r.state for r in results] == ["failed", "failed"]
    assert results[1].note == f"its base, {first.store}, failed"


def test_an_empty_folder_is_free(models: Path, tmp_path: Path) -> None:
    plan = plan_fleet([models / "a"], tmp_path / "stores")
    Path(plan[0].store).mkdir(parents=True)
    assert [r.state for r in convert_fleet(plan)] == ["converted"]


def test_bases_come_first(models: Path, tmp_path: Path) -> None:
    tuned = values(0)
    tuned["w"].view("u2")[::5] ^= 1
    write_safetensors(models / "b" / "c" / "x.safetensors", tuned)
    plan = {each.store: each for each in plan_fleet([models], tmp_path / "stores")}
    a, x, y, d = (f"{tmp_path}/stores/{name}" for name in STORES)
    chained = [
        Conversion(plan[y].source, y, x),
        Conversion(plan[x].source, x, a),
        plan[a],
        Conversion(plan[d].source, d, f"{tmp_path}/stores/missing.zarr"),
    ]
    results = {r.conversion.store: r for r in convert_fleet(chained, sync=False)}
    assert list(results) == [a, d, x, y]
    assert [r.state for r in results.values()] == ["converted", "failed", "converted", "converted"]
    assert results[x].stored_nbytes < 0.5 * results[a].stored_nbytes
    assert "differences" in results[y].note
    verify_store(y, plan[y].source)


def test_rounds() -> None:
    def plan(*bases: str) -> list[Conversion]:
        return [Conversion(f"s{i}", f"/t/{i}", base) for i, base in enumerate(bases)]

    assert in_rounds([]) == []
    assert in_rounds(plan("", "", "/x")) == [[0, 1, 2]]
    assert in_rounds(plan("/t/2", "auto:/t", "/t/3/", "")) == [[1, 3], [2], [0]]
    with pytest.raises(ValueError, match=r"bases of each other: .*/t/0, .*/t/1"):
        in_rounds(plan("/t/1", "/t/0", ""))
    with pytest.raises(ValueError, match="bases of each other"):
        in_rounds(plan("/t/0"))


def test_plans_are_read_as_they_were_written(models: Path, tmp_path: Path) -> None:
    plan = plan_fleet([models], tmp_path / "stores", base='base, the "first".zarr')
    assert parse_plan(plan_text(plan), "plan.csv") == plan
    for text in (
        "\ufeffsource,store\r\na,b\r\n\r\n,,\r\n",
        "Source; Store ;base;notes\na;b;;mine\n",
        "base\tstore\tsource\n\tb\ta\n",
    ):
        assert parse_plan(text, "plan.csv") == [Conversion("a", "b")]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "first line does not name the columns source, store, base"),
        ("source,target\na,b\n", "first line does not name"),
        ("source,store,base\n", "it has no models"),
        ("source,store,base\na\n", "line 2: a source and a store are needed"),
        ("source,store,base\n\n,b,\n", "line 3: a source and a store are needed"),
        ('source,store,base\na,"b\n', "not a plan: line "),
        ("source,store\na,x.zarr\nb,x.zarr/in.zarr\n", "would lie in another store"),
        ("source,store,base\na,s/x.zarr,auto:s\n", "--find-bases|find_bases=True"),
        ("source,store,base\na,x.zarr,\nb,./x.zarr,\n", "a, b would become one store"),
    ],
)
def test_what_is_no_plan(text: str, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        parse_plan(text, "plan.csv")


def test_two_models_of_one_name(models: Path, tmp_path: Path) -> None:
    shutil.copytree(models / "a", tmp_path / "more" / "a")
    plan = plan_fleet([models, tmp_path / "more"], tmp_path / "stores")
    assert len(plan) == 5
    with pytest.raises(ValueError, match="would become one store"):
        convert_fleet(plan)
    given = models, tmp_path / "more", tmp_path / "stores", "--plan", tmp_path / "p.csv"
    assert "would become one store" in run("bf16codecs", "fleet", *given).stderr
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 6
    assert "--overwrite" in refused("bf16codecs", "fleet", *given)
    assert plan_fleet([models, models], tmp_path / "stores") == plan[:4]
    one = plan_fleet([models / "a", models / "b"], tmp_path / "stores")
    assert [Path(each.store).name for each in one] == ["a.zarr", "x.zarr", "y.zarr"]


def test_nothing_to_convert(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match="no model is in this folder"):
        plan_fleet([tmp_path / "empty"], tmp_path / "stores")
    with pytest.raises(FileNotFoundError):
        plan_fleet([tmp_path / "nothing"], tmp_path / "stores")
    with pytest.raises(FileNotFoundError, match="create it first"):
        plan_fleet([tmp_path / "empty"], tmp_path / "missing" / "stores")


def test_links_that_lead_back(models: Path, tmp_path: Path) -> None:
    (models / "b" / "loop").symlink_to(models)
    assert len(plan_fleet([models], tmp_path / "stores")) == 4


def test_names_of_addresses() -> None:
    def store(source: str) -> str:
        (found,) = plan_fleet([source], "s3://bucket/stores/")
        assert found.source == source
        return found.store

    assert store("hf://owner/name@main") == "s3://bucket/stores/owner/name.zarr"
    assert store("https://host/a/x.safetensors?q=1") == "s3://bucket/stores/x.zarr"
    assert store("s3://other/x/model.gguf") == "s3://bucket/stores/model.zarr"


def test_from_bucket_to_bucket(models: Path, tmp_path: Path, bucket: str, s3: Any) -> None:
    pytest.importorskip("obstore")
    import fsspec

    fs = fsspec.filesystem("s3", skip_instance_cache=True, **s3)
    fs.put(f"{models}/", f"{bucket}/models/", recursive=True)
    plan = plan_fleet([f"{bucket}/models"], f"{bucket}/stores", storage_options=s3)
    assert [each.store.removeprefix(f"{bucket}/stores/") for each in plan] == STORES
    for state in ("converted", "there"):
        results = list(convert_fleet(plan, storage_options=s3))
        assert [r.state for r in results] == [state] * 4, [r.note for r in results]
    verify_store(plan[-1].store, models / "d" / "sharded", storage_options=s3)


def test_the_command(models: Path, tmp_path: Path) -> None:
    target = tmp_path / "stores"
    text = done("bf16codecs", "fleet", models, target)
    rows = [line.split() for line in text.splitlines()[1:5]]
    assert [row[0] for row in rows] == [f"{target}/{name}" for name in STORES]
    assert {row[-1] for row in rows} == {"converted"}
    assert "4 models: 4 converted; " in text
    document = json.loads(done("bf16codecs", "fleet", models, target, "--json"))
    assert document["there"] == 4
    assert [m["state"] for m in document["models"]] == ["there"] * 4
    assert document["models"][0]["source"] == f"{models}/a/model.safetensors"
    assert done("bf16codecs", "fleet", models, target, "--quiet") == ""


def test_the_command_follows_a_plan(models: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.csv"
    text = done("bf16codecs", "fleet", models, tmp_path / "stores", "--plan", plan)
    assert text == f"{plan}: 4 models\n"
    assert not (tmp_path / "stores").exists()
    lines = plan.read_text().splitlines()
    assert lines[0] == "source,store,base"
    plan.write_text("\n".join(lines[:2]))
    done("bf16codecs", "fleet", plan)
    assert [p.name for p in (tmp_path / "stores").iterdir()] == ["a.zarr"]
    printed = done("bf16codecs", "fleet", models, tmp_path / "stores", "--plan", "-")
    assert printed.splitlines() == lines


def test_the_command_says_what_failed(models: Path, tmp_path: Path) -> None:
    (models / "b" / "c" / "x.safetensors").write_bytes(b"")
    result = run("bf16codecs", "fleet", models, tmp_path / "stores")
    assert result.exit_code == 1
    assert "x.safetensors: " in result.stdout
    assert "4 models: 3 converted, 1 failed" in result.stdout
    (line,) = result.stderr.splitlines()
    assert "1 of 4 models failed, the first: " in line


def test_what_the_command_refuses(models: Path, tmp_path: Path) -> None:
    missing = run("bf16codecs", "fleet", models)
    assert missing.exit_code == 2
    assert "Missing argument 'DST'" in missing.stderr
    refused("bf16codecs", "fleet", tmp_path / "no.csv")
    refused("bf16codecs", "fleet", tmp_path / "nothing", tmp_path / "stores")
    victim = models / "a" / "model.safetensors"
    before = victim.read_bytes()
    for given in (
        (models, tmp_path / "s", "--plan", victim),
        (tmp_path / "p.csv", tmp_path / "s"),
        (tmp_path / "p.csv", "--base", victim),
    ):
        assert run("bf16codecs", "fleet", *given, "--overwrite").exit_code == 2
    assert victim.read_bytes() == before
    (tmp_path / "file").write_text("")
    assert "not a folder for stores" in refused("bf16codecs", "fleet", models, tmp_path / "file")
    for name in ("base", "lossy"):
        with pytest.raises(ValueError, match="is not for fleets"):
            convert_fleet([], **{name: "float16"})
