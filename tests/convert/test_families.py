"""Models that come from one another are found by sketches, and share what is equal."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bf16codecs.convert import (
    convert_fleet,
    plan_fleet,
    safetensors_to_zarr,
    verify_store,
    zarr_to_safetensors,
)
from bf16codecs.convert.fleet.families import choose_bases
from bf16codecs.convert.fleet.sharing import POOL, prune_pool, share_chunks
from bf16codecs.convert.samples import coded_nbytes, take_samples
from bf16codecs.convert.sketches import Sketch, sketch_of
from bf16codecs.store.choice import CodecChoice
from bf16codecs.store.opening import open_any
from clusters import assert_same_files
from invoked import done, run
from lazy_models import write_safetensors

NAMES = ["embed", *(f"layers.{i}.up" for i in range(20)), "head"]


def model(seed: int, dtype: str = "bfloat16") -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(0, 0.02, (96, 64)).astype("f4").astype(dtype) for name in NAMES}


def tuned(arrays: dict[str, Any], seed: int, scale: float = 1e-4) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        name: (a.astype("f4") + rng.normal(0, scale, a.shape).astype("f4")).astype(a.dtype)
        for name, a in arrays.items()
    }


def sketch(path: Path, arrays: dict[str, Any]) -> Sketch:
    return sketch_of(open_any(write_safetensors(path, arrays)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float16"])
@pytest.mark.parametrize("scale", [1e-6, 1e-4, 1e-3])
def test_estimates_are_near_what_samples_take(tmp_path: Path, dtype: str, scale: float) -> None:
    first = open_any(write_safetensors(tmp_path / "a.safetensors", model(0, dtype)))
    other = tuned(model(0, dtype), 1, scale)
    second = open_any(write_safetensors(tmp_path / "b.safetensors", other))
    samples, choice = take_samples(second), CodecChoice()
    values = sum(sample.data.size for sample in samples) // np.dtype(dtype).itemsize
    for base in (None, first):
        coded = 8 * (coded_nbytes(samples, choice, base) or 0) / values
        estimate = sketch_of(second).bits(None if base is None else sketch_of(base))
        assert estimate == pytest.approx(coded, rel=0.15, abs=0.8), (base, coded)


def test_sketches_of_every_kind_are_alike(tmp_path: Path) -> None:
    source = write_safetensors(tmp_path / "a.safetensors", model(0))
    safetensors_to_zarr(source, tmp_path / "a.zarr")
    one, other = sketch_of(open_any(source)), sketch_of(open_any(tmp_path / "a.zarr"))
    assert one.parts.keys() == other.parts.keys()
    assert one.bits(other) == other.bits(one) == 0
    assert one.agreement(other) == 1


def test_masters_and_their_roundings_are_of_one_family(tmp_path: Path) -> None:
    master = model(0, "float32")
    rounded = sketch(
        tmp_path / "b.safetensors", {n: a.astype("bfloat16") for n, a in master.items()}
    )
    assert rounded.bits(sketch(tmp_path / "a.safetensors", master)) == 0


def test_what_has_no_weights(tmp_path: Path) -> None:
    nothing = sketch(
        tmp_path / "a.safetensors", {"ids": np.arange(9), "empty": np.empty((0, 4), "f4")}
    )
    some = sketch(tmp_path / "b.safetensors", model(0))
    small = sketch(tmp_path / "c.safetensors", {"w": np.ones(5, "f4"), "scalar": np.ones((), "f4")})
    assert nothing.bits() == 0
    assert (nothing.bits(some), some.bits(nothing)) == (None, None)
    assert small.bits(small) == 0
    assert choose_bases([nothing, some, None, small, nothing]) == [None] * 5


def test_each_family_has_one_base(tmp_path: Path) -> None:
    """The base is the model that others come from, wherever it stands."""
    first, second, alone = model(0), model(1), model(2)
    models = [
        tuned(first, 10), tuned(second, 11), tuned(first, 12), first, alone,
        tuned(second, 13), second, {**tuned(first, 14), "more": model(5)["head"]},
    ]  # fmt: skip
    sketches = [sketch(tmp_path / f"{i}.safetensors", each) for i, each in enumerate(models)]
    assert choose_bases(sketches) == [3, 6, 3, None, None, 6, None, 3]


def test_a_fleet_finds_its_bases(tmp_path: Path) -> None:
    first = model(0)
    (tmp_path / "models").mkdir()
    for name, arrays in {
        "a": tuned(first, 1), "base": first, "c": tuned(first, 2), "other": model(7),
    }.items():  # fmt: skip
        write_safetensors(tmp_path / "models" / f"{name}.safetensors", arrays)
    (tmp_path / "models" / "broken.safetensors").write_bytes(b"no model")
    plan = plan_fleet([tmp_path / "models"], tmp_path / "stores", find_bases=True)
    base = f"{tmp_path}/stores/base.zarr"
    assert [each.base for each in plan] == [base, "", "", base, ""]
    results = list(convert_fleet(plan, sync=False))
    assert [Path(r.conversion.source).stem for r in results][:3] == ["base", "broken", "other"]
    assert [r.state for r in results] == ["converted", "failed", *["converted"] * 3]
    for result in results[-2:]:
        assert result.stored_nbytes < 0.6 * results[0].stored_nbytes
        verify_store(result.conversion.store, result.conversion.source)
    text = done(
        "bf16codecs", "fleet", tmp_path / "models", tmp_path / "s", "--find-bases", "--plan", "-"
    )
    assert text.count("s/base.zarr\n") == 2
    refused = run(
        "bf16codecs", "fleet", tmp_path, tmp_path / "s", "--find-bases", "--codec", "none"
    )
    assert refused.exit_code == 2
    assert "'none'" in refused.stderr


# --- shared chunks --------------------------------------------------------------------------------


@pytest.fixture
def alike(tmp_path: Path) -> Path:
    """Return a folder of three models; two have tensors in common, by different names."""
    first = model(0)
    folder = tmp_path / "models"
    folder.mkdir()
    write_safetensors(folder / "a.safetensors", first)
    write_safetensors(folder / "b.safetensors", {**model(1), **{n: first[n] for n in NAMES[:5]}})
    write_safetensors(folder / "c.safetensors", {"vision." + NAMES[1]: first[NAMES[1]]})
    return folder


def disk_nbytes(folder: Path) -> int:
    files = [p.stat() for p in folder.rglob("*") if p.is_file()]
    return sum({each.st_ino: each.st_size for each in files}.values())


def test_equal_chunks_are_stored_once(alike: Path, tmp_path: Path) -> None:
    plan = plan_fleet([alike], tmp_path / "stores")
    list(convert_fleet(plan, sync=False))
    before = disk_nbytes(tmp_path / "stores")
    results = list(convert_fleet(plan, sync=False, share=True))
    assert [r.state for r in results] == ["there"] * 3
    chunk = next(p for p in Path(plan[0].store, "head").rglob("c*") if p.is_file()).stat().st_size
    assert [round(r.shared_nbytes / chunk) for r in results] == [0, 5, 1]
    saved = sum(r.shared_nbytes for r in results)
    assert disk_nbytes(tmp_path / "stores") == before - saved
    for each in plan:
        safetensors_to_zarr(each.source, tmp_path / "alone.zarr", overwrite=True)
        assert_same_files(Path(each.store), tmp_path / "alone.zarr")
    again = list(convert_fleet(plan, sync=False, share=True))
    assert disk_nbytes(tmp_path / "stores") == before - saved
    assert sum(r.shared_nbytes for r in again) >= saved


def test_a_store_that_is_removed_takes_nothing_from_others(alike: Path, tmp_path: Path) -> None:
    import shutil

    plan = plan_fleet([alike], tmp_path / "stores")
    list(convert_fleet(plan, sync=False, share=True))
    shutil.rmtree(plan[0].store)
    for each in plan[1:]:
        verify_store(each.store, each.source)
        zarr_to_safetensors(each.store, tmp_path / "back.safetensors", overwrite=True)
    for each in plan[1:]:
        shutil.rmtree(each.store)
    prune_pool(tmp_path / "stores" / POOL)
    assert not list((tmp_path / "stores").iterdir())


def test_overwriting_a_store_does_not_change_others(alike: Path, tmp_path: Path) -> None:
    plan = plan_fleet([alike], tmp_path / "stores")
    list(convert_fleet(plan, sync=False, share=True))
    write_safetensors(alike / "a.safetensors", model(9))
    results = list(convert_fleet(plan[:1], sync=False, share=True, overwrite=True))
    assert (results[0].state, results[0].shared_nbytes) == ("converted", 0)
    for each in plan:
        verify_store(each.store, each.source)


def test_a_pool_that_somebody_changed_is_not_used(alike: Path, tmp_path: Path) -> None:
    plan = plan_fleet([alike], tmp_path / "stores")
    list(convert_fleet(plan[:1], sync=False, share=True))
    pool = tmp_path / "stores" / POOL
    for entry in pool.rglob("*"):
        if entry.is_file():
            content = entry.read_bytes()
            entry.unlink()
            entry.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    (pool / "ab").mkdir(exist_ok=True)
    (pool / "ab" / ("0" * 64 + ".left")).write_text("by a killed process")
    (other, _) = convert_fleet(plan[1:], sync=False, share=True)
    assert other.shared_nbytes == 0
    for each in plan:
        verify_store(each.store, each.source)
    assert not list(pool.rglob("*.left"))


def test_disks_without_links_say_so(alike: Path, tmp_path: Path, monkeypatch: Any) -> None:
    plan = plan_fleet([alike], tmp_path / "stores")
    list(convert_fleet(plan, sync=False))

    def refuse(*args: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(OSError, match="no hard link can be made here"):
        share_chunks(Path(plan[0].store), tmp_path / "pool")
    for store in ("s3://bucket/stores", tmp_path / "zips"):
        others = plan_fleet([alike], store)
        if store != "s3://bucket/stores":
            others = [each.__class__(each.source, f"{each.store}.zip") for each in others]
        with pytest.raises(ValueError, match="is for stores in folders of a disk"):
            convert_fleet(others, share=True)


def test_the_command_shares(alike: Path, tmp_path: Path) -> None:
    text = done("bf16codecs", "fleet", alike, tmp_path / "stores", "--share", "--no-sync")
    assert "of it in shared files" in text
