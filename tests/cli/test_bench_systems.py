"""The earlier systems in the bench: lossless round trips, and correct figures."""

from __future__ import annotations

import csv
import json

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

from bf16codecs import bench
from bf16codecs.bench.contenders import of_codec
from bf16codecs.bench.data import payload_of
from bf16codecs.bench.systems import split_stream
from bf16codecs.bench.systems.blocks import in_blocks
from bf16codecs.cli import main
from bf16codecs.codecs import BF16Zstd
from lazy_models import write_safetensors
from tiers import by_tier

BF16 = ml_dtypes.bfloat16
ITEMS = by_tier(30_000, 100_000)


@pytest.fixture(scope="module")
def models(demo_model, tmp_path_factory):
    """Trained weights in bfloat16, an earlier step of them, and the same in FP32."""
    bits = np.concatenate(bench.sample_of(demo_model, 1 << 30).tensors).view("<u2")[:ITEMS]
    rng = np.random.default_rng(0)
    single = bits.astype("<u4") << 16 | rng.integers(0, 1 << 16, ITEMS, "<u4")
    arrays = {
        "now": bits.view(BF16),
        "then": (bits ^ (rng.random(ITEMS) < 0.1)).astype("<u2").view(BF16),
        "fp32": single.astype("<u4").view("<f4"),
    }
    paths = {name: tmp_path_factory.mktemp("models") / f"{name}.safetensors" for name in arrays}
    for name, array in arrays.items():
        write_safetensors(paths[name], {"a": array[:1000], "b": array[1000:].reshape(10, -1)})
    return paths


def study_of(system, models, source=None, names=(), **options):
    source = models[source or ("fp32" if system == "C" else "now")]
    study, _ = bench.study_system(system, source, **options)
    return study.only(names) if names else study


def results_of(*args, **options):
    return list(study_of(*args, **options).results(repeats=1))


@pytest.mark.parametrize(
    "system",
    [s if s == "A" else pytest.param(s, marks=pytest.mark.slow) for s in bench.SYSTEM_TITLES],
)
def test_everything_comes_back(models, system):
    results = results_of(system, models, threads=2)
    assert results[0].name == "memcpy"
    assert all(r.exact for r in results)
    assert {r.threads for r in results} == {1, 2}
    item_size = 4 if system == "C" else 2
    assert {r.nbytes for r in results} == {ITEMS * item_size}
    for r in results:
        assert r.ratio == pytest.approx(8 * item_size / r.bits_per_value)
    alone = {(r.name, r.encoded_nbytes) for r in results if r.threads == 1}
    assert {(r.name, r.encoded_nbytes) for r in results if r.threads == 2} <= alone


@pytest.mark.slow
def test_a_is_no_larger_than_by_hand(models):
    sizes = {r.name: r.encoded_nbytes for r in results_of("A", models, names=["zstd"])}
    for level in (1, 4, 7, 11, 15, 19, 22):
        assert sizes[f"BF16Zstd {level}"] <= sizes[f"shuffle + zstd {level}"]


def test_b_reports_entropies_memory_and_damage(models):
    figures = study_of("B", models).figures()
    bits = {k: float(v.split()[0]) for k, v in figures.items() if k.startswith("entropy, ")}
    assert 2 < bits["entropy, exponents"] < bits["entropy, high bytes"] < 3.5
    assert by_tier(7.8, 7.9) < bits["entropy, low bytes"] <= 8
    assert bits["entropy, payload given the byte before"] < bits["entropy, payload"]
    noticed = {v for k, v in figures.items() if k.startswith("flipped bits")}
    assert noticed == {"200 of 200"}


def test_entropies_of_what_is_known():
    data = np.tile(np.array([0, 1, 0, 3], np.uint8), 1000)
    bits = dict(split_stream._entropies(data))
    assert bits["payload"] == pytest.approx(1.5)
    assert bits["payload given the byte before"] == pytest.approx(0.5, abs=1e-3)
    assert bits["high bytes"] == pytest.approx(1)
    assert bits["low bytes"] == 0
    assert bits["high bytes, XOR"] == 0


def test_c_is_lossy_and_reports_the_loss(models):
    results, figures = results_of("C", models), study_of("C", models).figures()
    lossless = [r for r in results if r.name.startswith(("memcpy", "without loss"))]
    assert [r for r in results if not r.lossy] == lossless
    values = payload_of(models["fp32"], ["F32"], 1 << 30).data.view("<f4")
    errors = np.abs(values - values.astype("f2").astype("f4"))
    assert figures["largest absolute error"] == f"{errors.max():.4g}"
    assert figures["numbers that became infinite"] == f"0 of {ITEMS}"


@pytest.mark.slow
def test_d_takes_another_checkpoint(models):
    sizes = {r.name: r.encoded_nbytes for r in results_of("D", models, base=models["then"])}
    figures = study_of("D", models, base=models["then"]).figures()
    differences = [name for name in sizes if name.startswith(("XOR", "encode_delta"))]
    assert len(differences) == 13
    for name in differences:
        assert sizes[name] < sizes[name.partition(", ")[2]]
    assert figures["constant blocks, XOR"] != figures["constant blocks, alone"]


def test_d_takes_32_bits(models):
    results = results_of("D", models, "fp32", names=["groups"])
    assert results[1].bits_per_value == pytest.approx(32 / results[1].ratio)
    assert all(r.exact for r in results)


@pytest.mark.parametrize("workers", [1, 2])
def test_blocks_are_encoded_alone(workers):
    data = np.random.default_rng(0).integers(0, 256, 1000, np.uint8)
    contender = in_blocks(of_codec("", BF16Zstd()), 300, workers)
    encoded = contender.encode(data)
    assert [bytes(e) for e in encoded] == [
        BF16Zstd().encode(data[i : i + 300]) for i in range(0, 1000, 300)
    ]
    out = np.zeros_like(data)
    assert contender.decode(encoded, out) is out
    assert (out == data).all()


def test_large_models_are_cut(models):
    for nbytes, taken in ((1, 4), (1001, 1000), (1 << 30, 4 * ITEMS)):
        payload = payload_of(models["fp32"], ["BF16", "F32"], nbytes)
        assert (payload.dtype, payload.item_size, payload.data.size) == ("float32", 4, taken)


def test_impossible_options_are_refused_in_one_line(models, tmp_path):
    other = tmp_path / "other.safetensors"
    write_safetensors(other, {"a": np.zeros(1000, BF16), "b": np.zeros((10, 9), BF16)})
    now = str(models["now"])
    for arguments, error in (
        ([now, "--system", "C"], f"{now}: no F32 tensors to measure"),
        (
            [now, "--system", "a", "--base", now],
            "system A cannot encode differences to a base: system D can",
        ),
        (
            [now, "--system", "D", "--base", str(other)],
            f"{other}: no BF16 tensor 'b' of {2 * ITEMS - 2000} bytes",
        ),
        (
            [now, "--system", "D", "--base", str(models["fp32"])],
            f"{models['fp32']}: no BF16 tensor 'a' of 2000 bytes",
        ),
    ):
        done = CliRunner().invoke(main, ["bench", *arguments])
        assert done.exit_code == 1
        assert error in done.stderr
        assert done.stderr.count("\n") == 1
    for arguments in (["--base", now], ["--system", "E"], ["--system", "B", "--only", "bset"]):
        assert CliRunner().invoke(main, ["bench", now, *arguments]).exit_code == 2


def test_command_prints_tables_and_writes_files(models, tmp_path):
    done = CliRunner().invoke(
        main,
        ["bench", str(models["fp32"]), "--system", "c", "--repeats", "1", "--only", "base",
         "--csv", str(tmp_path / "t.csv"), "--json", str(tmp_path / "t.json")],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert f"float32 tensors as one piece of {4 * ITEMS / 1000:.2f} kB\n" in done.output
    assert "as rounded" in done.output
    assert "\nlargest absolute error: " in done.output
    rows = list(csv.DictReader((tmp_path / "t.csv").open()))
    assert [(row["name"], row["lossy"]) for row in rows] == [
        ("memcpy", "False"),
        ("base: run lengths", "True"),
    ]
    assert "largest relative error" in json.loads((tmp_path / "t.json").read_text())["figures"]
