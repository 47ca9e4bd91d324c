"""The bench as a whole: all tables in one run, contenders left out and why, pictures."""

from __future__ import annotations

import csv
import json
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

from based_models import write_steps
from bf16codecs import bench
from bf16codecs._base import memory as _memory
from bf16codecs.bench import peers, plan
from bf16codecs.bench.contenders import Contender
from bf16codecs.bench.data import payload_of, sample_of
from bf16codecs.bench.isolated import in_a_process
from bf16codecs.convert import safetensors_to_hdf5, safetensors_to_run, safetensors_to_zarr
from commands import ended, start
from folders import names_in
from invoked import done, refused, run
from lazy_models import weights, write_safetensors
from tiers import by_tier

BENCH = ("bf16codecs", "bench")
# One contender of each table.
FEW = ("--only", "bf16huff", "--only", "shuffle + zstd 1", "--only", "byte groups + LZ4")
ONCE = ("--repeats", 1, "--size", 4096)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    half, single = weights((60, 70)), weights((60, 70), "float32")
    return {
        "bf16": write_safetensors(folder / "bf16.safetensors", {"a": half, "b": half[:9]}),
        "both": write_safetensors(folder / "both.safetensors", {"a": half, "s": single[:9]}),
        "fp32": write_safetensors(folder / "fp32.safetensors", {"a": single}),
    }


@pytest.fixture
def without_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("pcodec", "blosc2", "zipnn", "openzl"):
        monkeypatch.setitem(sys.modules, package, None)


def titles(text: str) -> list[str]:
    return [line.partition(":")[0] for line in text.splitlines() if " tensors as one " in line]


def test_all_tables_come_in_one_run(models, tmp_path: Path) -> None:
    files = ("--csv", tmp_path / "t.csv", "--json", tmp_path / "t.json")
    text = done(*BENCH, models["both"], "--system", "all", *ONCE, *FEW, *files)
    assert (
        "\nCodecs and peers: 4.06 kB in 1 of 1 bfloat16 tensor of 8.40 kB; not measured: 1 F32"
        in text
    )
    assert titles(text) == [
        "System A, shuffled bytes and Zstandard",
        "System B, split streams",
        "System D, LMC",
    ], "C has none of these contenders"
    document = json.loads((tmp_path / "t.json").read_text())
    found = [(row["system"], row["name"]) for row in document["results"]]
    assert found.count((None, "memcpy")) == found.count(("A", "memcpy")) == 1
    assert {("A", "shuffle + zstd 1"), ("D", "byte groups + LZ4"), (None, "BF16Huffman")} <= {
        *found
    }
    assert {"entropy, payload", "constant blocks, alone"} <= document["figures"].keys()
    rows = list(csv.DictReader((tmp_path / "t.csv").open()))
    assert [(row["system"] or None, row["name"]) for row in rows] == found


def test_systems_without_tensors_are_named(models) -> None:
    text = done(*BENCH, models["fp32"], "--system", "all", *ONCE, "--only", "memcpy")
    assert titles(text) == ["System C, half precision, lossy", "System D, LMC"]
    assert f"Not measured: system A; {models['fp32']}: no BF16 tensors to measure" in text
    text = done(*BENCH, models["bf16"], "--system", "c", "--system", "d", *ONCE, *FEW)
    assert titles(text) == ["System D, LMC"]
    assert "Not measured: system C; " in text


def test_systems_may_be_repeated_and_share_a_base(models, tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    arguments = ("--system", "d", "--system", "B", "--system", "D", "--base", models["bf16"])
    done(*BENCH, models["bf16"], *arguments, *ONCE, "--only", "encode", "--json", out)
    rows = json.loads(out.read_text())["results"]
    assert [row["system"] for row in rows] == ["D"] * 4
    text = refused(*BENCH, models["bf16"], "--system", "A", "--system", "B", "--base", "x")
    assert "system A and B cannot encode differences to a base: system D can" in text


def test_lmc_is_measured_with_and_without_differences(models) -> None:
    found = plan.plan_of(models["bf16"], ["D"], base=models["bf16"]).studies[0].study.names
    for engine in ("Huffman, 64 KiB", "BF16Arithmetic", "LZ4", "DEFLATE 6", "BZ2 9", "zstd 3"):
        assert {f"byte groups + {engine}", f"XOR, byte groups + {engine}"} <= set(found)
    for codec in ("BF16Huffman", "BF16Arithmetic fast", "BF16Arithmetic best"):
        assert {codec, f"encode_delta, {codec}"} <= set(found)


def test_quick_leaves_out_slow_contenders(models) -> None:
    whole = bench.plan_of(models["bf16"], [None, "A", "B"])
    quick = bench.plan_of(models["bf16"], [None, "A", "B"], quick=True)
    assert {"LZMA 1", "BZ2 1", "xz -9e", "xz -9", "gzip -9", "BF16Zstd 22"} <= set(quick.slow)
    for before, after in zip(whole.studies, quick.studies, strict=True):
        left = [name for name in before.study.names if name not in quick.slow]
        assert after.study.names == left
    text = done(*BENCH, models["bf16"], "--quick", *ONCE, "--only", "bf16zstd", "--only", "bz")
    result = run(*BENCH, models["bf16"], "--quick", "--only", "lzma")
    assert result.exit_code == 2
    assert "; too slow for a quick look: LZMA 1" in result.stderr
    assert "\nLeft out by --quick, since they take minutes for a large model: BZ2 1\n" in text


def test_tables_share_the_time(models, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(plan.time, "perf_counter", lambda: clock[0])
    found = bench.plan_of(models["bf16"], [None, "A", "B"])
    sizes = [len(planned.study.contenders) for planned in found.studies]
    shares = []
    for _, share in found.timed(100):
        shares.append(share)
        clock[0] += share / 2
    assert shares[0] == pytest.approx(100 * sizes[0] / sum(sizes))
    assert shares[1] > 100 * sizes[1] / sum(sizes), "what the first one left"
    assert shares[2] == pytest.approx(100 - clock[0] + shares[2] / 2)
    assert [share for _, share in found.timed(-1)] == [0, 0, 0]


@pytest.mark.usefixtures("without_peers")
def test_missing_packages_are_named(models, tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    line = "Not measured, since not installed: pip install"
    text = done(*BENCH, models["bf16"], *ONCE, "--json", out)
    assert f"\n{line} pcodec blosc2 zipnn openzl\n" in text
    assert json.loads(out.read_text())["not_installed"] == ["pcodec", "blosc2", "zipnn", "openzl"]
    assert line not in done(*BENCH, models["bf16"], *ONCE, "--only", "bf16split")
    assert line not in done(*BENCH, models["bf16"], *ONCE, "--system", "D", *FEW)
    result = run(*BENCH, models["bf16"], "--only", "zipnn")
    assert result.exit_code == 2
    assert "; zipnn is not installed: pip install zipnn" in result.stderr


def test_a_peer_that_is_broken_is_named(models, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(threads: int, dtype: str):
        raise AttributeError("module 'zipnn' has no attribute 'ZipNN'")

    monkeypatch.setitem(peers._PEERS, "zipnn", ((), make))
    text = done(*BENCH, models["bf16"], *ONCE, "--only", "zipnn", "--only", "bf16split")
    assert "\nzipnn cannot be used: AttributeError: module 'zipnn' has no attribute" in text


def test_a_failing_contender_does_not_stop_the_others(models, tmp_path, monkeypatch) -> None:
    def fail(data):
        raise RuntimeError("no luck\ntoday")

    def make(threads: int, dtype: str):
        return [Contender("zipnn", fail, fail), *numcodecs(threads, dtype)]

    numcodecs = peers._PEERS["numcodecs"][1]
    monkeypatch.setitem(peers._PEERS, "numcodecs", ((), make))
    out = tmp_path / "t.json"
    names = ("--only", "zipnn", "--only", "blosc lz4")
    result = run(*BENCH, models["bf16"], *ONCE, *names, "--json", out)
    assert result.exit_code == 1
    assert result.stderr == "bf16codecs bench: not measured because they failed: zipnn\n"
    assert "\nzipnn failed: RuntimeError: no luck today\n" in result.stdout
    document = json.loads(out.read_text())
    assert {row["name"] for row in document["results"]} >= {"memcpy", "Blosc lz4 bitshuffle"}
    (failure,) = document["failures"]
    assert failure == {
        "system": None,
        "name": "zipnn",
        "threads": 1,
        "message": "RuntimeError: no luck today",
    }


class Unportable(Exception):
    def __reduce__(self):
        raise pickle.PicklingError


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="no processes of their own")
@pytest.mark.parametrize("error", [Unportable("no luck"), BaseException("no luck")])
def test_errors_that_cannot_be_pickled_are_reported(error: BaseException) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(RuntimeError, match=f"^{type(error).__name__}: no luck$"):
        in_a_process("it", fail)


def test_why_memory_is_not_measured(models, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise PermissionError(13, "Permission denied", "clear_refs")

    monkeypatch.setattr(_memory, "_forget_peak", refuse)
    monkeypatch.setattr(sys, "platform", "linux")
    text = done(*BENCH, models["bf16"], *ONCE, "--only", "bf16split")
    assert text.count(" unknown ") == 2
    assert "Peak memory: not measured; this system does not report it: [Errno 13]" in text
    monkeypatch.setattr(sys, "platform", "darwin")
    assert _memory.no_peak_because() == "only Linux has a peak that can be reset"


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_openzl_if_it_is_installed(tmp_path: Path, dtype: str) -> None:
    pytest.importorskip("openzl")
    model = write_safetensors(tmp_path / "m.safetensors", {"a": weights((300, 100), dtype)})
    (planned,) = bench.plan_of(model).only(["openzl"]).studies
    assert planned.study.names == ["memcpy", f"OpenZL {dtype} FSE", f"OpenZL {dtype} Huffman"]
    _, small, fast = planned.study.results(repeats=2)
    assert small.exact
    assert fast.exact
    assert small.ratio > 1.1


def test_stores_are_measured(tmp_path: Path, demo_model: Path) -> None:
    steps = write_steps(tmp_path, demo_model)
    safetensors_to_zarr(steps[400], tmp_path / "m.zarr")
    safetensors_to_hdf5(steps[400], tmp_path / "m.h5")
    safetensors_to_run(list(steps.values()), tmp_path / "r.zarr")
    wanted, payload = sample_of(steps[400], 100_000), payload_of(steps[400], ["BF16"], 100_000)
    based = payload_of(steps[400], ["BF16"], 99_000, steps[399])
    for path in (tmp_path / "m.zarr", tmp_path / "m.h5", f"{tmp_path}/r.zarr@400"):
        found = sample_of(path, 100_000)
        assert len(found.tensors) == len(wanted.tensors)
        assert all((a == b).all() for a, b in zip(found.tensors, wanted.tensors, strict=True))
        assert (payload_of(path, ["BF16"], 100_000).data == payload.data).all()
        assert (
            payload_of(path, ["BF16"], 99_000, f"{tmp_path}/r.zarr@399").base == based.base
        ).all()
    assert refused(*BENCH, tmp_path / "r.zarr").endswith(f"as in {tmp_path}/r.zarr@400")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_models_of_nothing_but_nan(tmp_path: Path, dtype: str) -> None:
    arrays = {"a": np.full((40, 50), np.nan, dtype), "b": np.full(1, np.nan, dtype)}
    model = write_safetensors(tmp_path / "m.safetensors", arrays)
    for planned in bench.plan_of(model, [None, "A", "B", "C", "D"], base=model).studies:
        for contender in planned.study.contenders:
            for data in planned.study.work.tensors:
                decoded = contender.decode(contender.encode(data), np.zeros_like(data))
                expected = data if contender.restored is None else contender.restored(data)
                assert bytes(decoded) == bytes(expected), contender.name
        for value in planned.study.figures().values():
            assert "nan" not in value
            assert not value.startswith("-")


@pytest.mark.slow
def test_pictures(models, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    systems = by_tier((), ("--system", "all"))
    done(*BENCH, models["bf16"], *systems, *ONCE, *FEW, "--plot", tmp_path / "p.svg")
    text = (tmp_path / "p.svg").read_text("utf-8")
    for title in ("Codecs and peers: ratio against the speed to", "BF16Huffman"):
        assert title in text
    assert ("System D, LMC" in text) == bool(systems)
    if systems:
        done(*BENCH, models["bf16"], *ONCE, "--only", "bf16", "--plot", tmp_path / "p.PNG")
        assert (tmp_path / "p.PNG").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_no_display_is_needed(models, tmp_path: Path) -> None:
    picture = tmp_path / "p.svg"
    arguments = (models["bf16"], *ONCE, "--only", "split", "--plot", picture)
    environment = {"MPLBACKEND": "nonsense", "DISPLAY": "", "WAYLAND_DISPLAY": ""}
    _, err = ended(start(*BENCH, *arguments, **environment))
    assert err == ""
    assert "<svg" in picture.read_text("utf-8")


def test_pictures_that_cannot_be_are_refused_before(models, tmp_path, monkeypatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(bench.Study, "results", None)
    (tmp_path / "mine.png").symlink_to("notes.txt")
    (tmp_path / "notes.txt").write_text("mine")
    monkeypatch.chdir(tmp_path)
    before = names_in(tmp_path)
    for file, error in (
        ("p.txt", "p.txt: --plot takes a picture: name one that ends in one of "),
        ("picture", "--plot takes a picture"),
        ("p.pgf", "--plot takes a picture"),
        ("-", "-: --plot takes a picture"),
        ("", "the path of the report is empty"),
        (tmp_path / "no" / "p.png", "No such folder"),
        (models["bf16"], "this command already reads or writes it"),
        (tmp_path / "m.zarr", "the name of a model, but --plot takes"),
        (tmp_path / "mine.png", "exists, and its name is not that of a report"),
    ):
        assert error in refused(*BENCH, models["bf16"], "--plot", file)
    assert names_in(tmp_path) == before


def test_without_matplotlib(run_python, models) -> None:
    code = """
import sys
sys.modules["matplotlib"] = None
sys.argv[0] = "bf16codecs"
from bf16codecs.cli import main
main()
"""
    ended = run_python(
        f"try:\n    exec({code!r})\nexcept SystemExit as e:\n    print('status', e.code)",
        "bench", str(models["bf16"]), "--plot", "p.png",
    )  # fmt: skip
    assert ended.stdout.splitlines() == ["status 1"]
    assert "pip install 'bf16codecs[plot]'" in ended.stderr
    assert ended.stderr.count("\n") == 1
