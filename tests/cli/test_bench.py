"""The bench: its results are exact, and its reports can be read."""

from __future__ import annotations

import csv
import importlib.resources
import io
import json
import os
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from bf16codecs import active_isa, bench, get_num_threads, set_num_threads
from bf16codecs.bench.isolated import in_a_process
from bf16codecs.bench.synthetic import RECIPES, as_bfloat16
from bf16codecs.cli import main, tables
from bf16codecs.cli.reports import write_json
from bf16codecs.codecs import BF16Arithmetic, BF16Huffman
from folders import names_in
from lazy_models import write_safetensors
from looping import for_each
from models import write_model
from tiers import by_tier

DEMO = str(importlib.resources.files("bf16codecs") / "data" / "demo.safetensors")


def measured(
    sample: bench.Sample,
    *names: str,
    nbytes: int | None = None,
    threads: int = 1,
    **timing: Any,
) -> list[bench.Result]:
    study, _ = bench.study_codecs(sample, nbytes=nbytes, threads=threads)
    if names:
        study = study.only(names)
    return list(study.results(**timing))


def sample(tensors: list[np.ndarray], dtype: str = "bfloat16") -> bench.Sample:
    return bench.Sample(dtype, tensors, len(tensors), sum(t.nbytes for t in tensors), {})


@pytest.fixture(scope="module")
def results() -> list[bench.Result]:
    whole = bench.sample_of(DEMO, 1 << 20)
    return measured(whole, "BF16", "Zstd 1", nbytes=1 << 20, repeats=2)


def test_every_codec_of_this_package_is_measured_and_exact(results: list[bench.Result]) -> None:
    names = [r.name for r in results]
    assert names[0] == "memcpy"
    assert {
        "BF16Split",
        "BF16Huffman",
        "BF16Arithmetic fast",
        "BF16Arithmetic best",
        "BF16Zstd 3",
    } <= set(names)
    assert all(r.exact for r in results)


def test_figures_fit_together(results: list[bench.Result]) -> None:
    for r in results:
        assert r.nbytes >= 1 << 20
        assert r.rounds == 2
        assert r.ratio == pytest.approx(16 / r.bits_per_value)
        assert 0 < r.encode_gbps_min <= r.encode_gbps <= r.encode_gbps_max
        assert 0 < r.decode_gbps_min <= r.decode_gbps <= r.decode_gbps_max
    by_name = {r.name: r for r in results}
    assert by_name["memcpy"].encode_to_memcpy == by_name["memcpy"].decode_to_memcpy == 1
    assert by_name["BF16Arithmetic best"].encoded_nbytes < by_name["BF16Huffman"].encoded_nbytes
    assert by_name["BF16Huffman"].ratio > 1.45


def test_small_models_are_not_copied_without_an_end() -> None:
    """One item, a hundred million times, took 6 GB before it was first encoded."""
    results = measured(sample([np.zeros(2, np.uint8)]), "split", nbytes=1 << 30, repeats=1)
    assert [r.nbytes for r in results] == [20_000] * 2
    assert all(r.exact for r in results)


def test_threads_are_put_back() -> None:
    before = get_num_threads()
    measured(sample([np.zeros(1000, np.uint8)]), "split", nbytes=1, repeats=1, threads=before + 1)
    assert get_num_threads() == before


def test_as_many_threads_as_the_core_takes() -> None:
    for threads in (0, 1025, 10**20):
        with pytest.raises(ValueError, match=f"^threads must be 1 to 1024, not {threads}$"):
            bench.study_codecs(sample([np.zeros(1000, np.uint8)]), threads=threads)
    before = get_num_threads()
    try:
        set_num_threads(1024)
        with pytest.raises(ValueError, match="1024"):
            set_num_threads(1025)
    finally:
        set_num_threads(before)


def test_csv_and_json_have_every_row(results: list[bench.Result]) -> None:
    plan = bench.plan_of(DEMO)
    tables = [bench.Measured(plan.studies[0], results)]
    rows = list(csv.DictReader(io.StringIO(bench.to_csv(tables))))
    assert [row["name"] for row in rows] == [r.name for r in results]
    assert {(row["system"], row["dtype"]) for row in rows} == {("", "bfloat16")}
    document = json.loads(json.dumps(bench.to_json(tables, plan, bench.machine())))
    assert document["machine"]["isa"] == active_isa()
    assert [row["ratio"] for row in document["results"]] == [r.ratio for r in results]


def test_command_prints_a_table_and_writes_files(tmp_path) -> None:
    done = CliRunner().invoke(
        main,
        ["bench", DEMO, "--size", "1M", "--repeats", "1", "--only", "bf16huff",
         "--csv", str(tmp_path / "t.csv"), "--json", str(tmp_path / "t.json")],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "BF16Huffman" in done.output
    assert "BF16Split" not in done.output
    assert (tmp_path / "t.csv").read_text().count("\n") == 3
    assert json.loads((tmp_path / "t.json").read_text())["results"][1]["exact"]


@pytest.mark.parametrize("source", ["no-such-file.safetensors", "empty"])
def test_bad_source_is_one_line(tmp_path, source: str) -> None:
    if source == "empty":
        source = str(tmp_path / "e.safetensors")
        (tmp_path / "e.safetensors").write_bytes((8).to_bytes(8, "little") + b"{}      ")
    done = CliRunner().invoke(main, ["bench", source])
    assert done.exit_code == 1
    assert done.stderr.count("\n") == 1


def test_impossible_options_are_refused_before_measuring(tmp_path, monkeypatch) -> None:
    model = str(shutil.copy(DEMO, tmp_path / "m.safetensors"))
    before = Path(model).read_bytes()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench.Study, "results", None)
    none = str(tmp_path / "no" / "t")
    for arguments, error in (
        (["--csv", none], f"{tmp_path / 'no'}: No such folder"),
        (["--json", none], f"{tmp_path / 'no'}: No such folder"),
        (["--csv", str(tmp_path)], "Is a directory"),
        (["--csv", ""], "the path of the report is empty"),
        (["--json", ""], "the path of the report is empty"),
        (["--system", "D", "--base", ""], "the path of the base is empty"),
        (["--json", model], f"{model}: this command already reads or writes it"),
        (["--csv", "t", "--json", "t"], "t: this command already reads or writes it"),
        (["--csv", "-", "--json", "-"], "standard output takes one report"),
    ):
        done = CliRunner().invoke(main, ["bench", model, "--size", "1M", *arguments])
        assert done.exit_code == 1
        assert error in done.stderr
        assert done.stdout == ""
    assert Path(model).read_bytes() == before
    assert names_in(tmp_path) == {"m.safetensors"}


def test_reports_take_the_place_of_reports_alone(tmp_path, monkeypatch) -> None:
    """With other commands, --json takes no file, and the argument after it is a model."""
    monkeypatch.setattr(bench.Study, "results", None)
    names = (
        "m.safetensors",
        "v.safetensors.index.json",
        "v.h5",
        "m.zarr.zip",
        "notes.txt",
        "x.csv",
    )
    for name in names:
        (tmp_path / name).write_bytes(b"mine")
    (tmp_path / "m.zarr" / "w").mkdir(parents=True)
    (tmp_path / "m.zarr" / "zarr.json").write_bytes(b"mine")
    (tmp_path / "link.json").symlink_to("m.safetensors")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    monkeypatch.chdir(tmp_path)
    for arguments, error in (
        (["bench", DEMO, "--json", "m.safetensors"], "m.safetensors: the name of a model"),
        (["bench", DEMO, "--csv", "m.zarr.zip"], "m.zarr.zip: the name of a model"),
        (["bench", DEMO, "--json", "v.safetensors.index.json"], "the name of a model"),
        (["bench", DEMO, "--json", "link.json"], "link.json: the name of a model"),
        (["bench", DEMO, "--json", "new.h5"], "new.h5: the name of a model"),
        (["bench", DEMO, "--json", "notes.txt"], "exists, and its name is not that of a report"),
        (["bench", DEMO, "--json", "x.csv"], "name one that ends in .json"),
        (["bench", DEMO, "--json", "m.zarr/zarr.json"], "in the Zarr store"),
        (["bench", DEMO, "--csv", "m.zarr/w/new.csv"], "in the Zarr store"),
        (["bench-run", "--json", "v.h5", DEMO], "--json takes the file of a report"),
    ):
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 1
        assert error in done.stderr
        assert done.stderr.count("\n") == 1
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert after == before


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_pipes_and_devices_take_reports(tmp_path: Path) -> None:
    """A pipe that is opened once more than written gives its reader an end of file."""
    arguments = ["bench", DEMO, "--size", "1M", "--repeats", "1", "--only", "BF16Split"]
    done = CliRunner().invoke(main, [*arguments, "--csv", os.devnull, "--json", os.devnull])
    assert done.exit_code == 0, done.stderr
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()), daemon=True)
    reader.start()
    done = CliRunner().invoke(main, [*arguments, "--json", str(pipe)])
    assert done.exit_code == 0, done.stderr
    reader.join(10)
    assert json.loads(found[0])["dtype"] == "bfloat16"


def test_files_have_the_same_json_as_standard_output(tmp_path: Path) -> None:
    """No NaN: JSON has none."""
    with pytest.raises(ValueError, match="JSON"):
        write_json({"ratio": float("nan")}, str(tmp_path / "t.json"))
    assert names_in(tmp_path) == set()
    write_json({"ratio": 1.5}, str(tmp_path / "t.json"))
    assert (tmp_path / "t.json").read_text() == '{\n  "ratio": 1.5\n}\n'


def test_a_name_that_no_codec_has_is_wrong_usage() -> None:
    done = CliRunner().invoke(main, ["bench", DEMO, "--only", "bset"])
    assert done.exit_code == 2
    text = "no word of a codec's name begins with 'bset'; there are BF16Split, BF16Huffman, "
    assert text in done.stderr
    assert done.stdout == ""
    done = CliRunner().invoke(main, ["bench", DEMO, "--only", "", "--only", "huff"])
    assert done.exit_code == 2
    assert "the name of a codec is empty" in done.stderr


def test_words_of_names_by_their_beginnings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words match only at the beginning: "shuffle" contains "huff"."""
    for peer in ("blosc2", "openzl"):
        monkeypatch.setitem(sys.modules, peer, None)
    for names, found in (
        (["Huff"], ["BF16Huffman"]),
        (["bf16h", "SPLIT"], ["BF16Split", "BF16Huffman"]),
        (["arithmetic b"], ["BF16Arithmetic best"]),
        (["shuf"], ["Blosc zstd-1 shuffle"]),
        (["bitshuffle"], ["Blosc lz4 bitshuffle"]),
        (["memcpy"], []),
    ):
        (planned,) = bench.plan_of(DEMO).only(names).studies
        assert planned.study.names == ["memcpy", *found], names


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype"),
    [("F16", "float16"), ("F32", "float32"), ("F64", "float64"), ("F8_E5M2", "float8_e5m2")],
)
def test_other_dtypes_are_measured_by_codecs_of_theirs(tmp_path, name: str, dtype: str) -> None:
    path = write_model(
        tmp_path / "m", [("a", name, (70, 70)), ("b", "BF16", (9,)), ("i", "I64", (4,))]
    )
    taken = bench.sample_of(path, 1 << 30)
    assert (taken.dtype, taken.count) == (dtype, 1)
    assert taken.left_out == {"BF16": 1, "I64": 1}
    results = measured(taken, "Blosc", "Split", "Huffman", nbytes=1, repeats=1)
    assert all(r.exact for r in results)
    assert results[1].bits_per_value == pytest.approx(8 * taken.item_size / results[1].ratio)
    encoded = BF16Huffman(taken.dtype).encode(taken.tensors[0])
    assert {r.name: r.encoded_nbytes for r in results}["BF16Huffman"] == len(encoded)
    done = CliRunner().invoke(
        main, ["bench", str(path), "--size", "1", "--repeats", "1", "--only", "split"]
    )
    assert done.exit_code == 0, done.output
    assert "; not measured: " in done.stdout.splitlines()[1]


def test_nothing_to_measure_is_reported(tmp_path) -> None:
    for shapes, there in (
        ([("i", "I64", (4,)), ("b", "BOOL", (4,))], "I64, BOOL"),
        ([], "no tensors"),
    ):
        path = write_model(tmp_path / "m", shapes)
        done = CliRunner().invoke(main, ["bench", str(path)])
        assert done.exit_code == 1
        assert f"no floating-point tensors to measure: it has {there}" in done.stderr


def test_of_large_models_a_part_is_taken() -> None:
    for nbytes in (1, 2, 1001, 50_000, 300_000, 1 << 30):
        taken = bench.sample_of(DEMO, nbytes)
        total = sum(tensor.nbytes for tensor in taken.tensors)
        wanted = max(2, min(nbytes, taken.nbytes) // 2 * 2)
        # One tensor is cut behind a row.
        assert wanted - max(taken.rows) <= total <= wanted, nbytes
        assert (taken.count, taken.nbytes) == (39, 984_768), nbytes
        again = bench.sample_of(DEMO, nbytes)
        pairs = zip(taken.tensors, again.tensors, strict=True)
        assert all((a == b).all() for a, b in pairs), nbytes


def test_codecs_see_the_rows_of_tensors_and_peers_get_bytes(tmp_path) -> None:
    """Grids of columns are found only in rows."""
    normal = np.random.default_rng(0).normal(0, 0.02, (300, 512)).astype(np.float32)
    values = RECIPES["int8-columns"](normal).astype("bfloat16")
    path = write_safetensors(tmp_path / "m.safetensors", {"w": values, "flat": values.reshape(-1)})
    taken = bench.sample_of(path, 1 << 30)
    assert taken.rows == [1024, 0]
    assert [array.shape for array in taken.arrays] == [(300, 1024), (values.nbytes,)]
    codec = BF16Huffman()
    results = measured(taken, "huffman", "Zstd 1", nbytes=1, repeats=1)
    assert all(r.exact for r in results)
    sizes = {r.name: r.encoded_nbytes for r in results}
    assert sizes["BF16Huffman"] == len(codec.encode(values)) + len(codec.encode(values.reshape(-1)))
    assert len(codec.encode(values)) < 0.75 * len(codec.encode(values.reshape(-1)))
    part = bench.sample_of(path, 200_000)
    assert sum(array.nbytes for array in part.arrays) == pytest.approx(200_000, abs=1024)
    assert part.arrays[0].shape == (195, 1024)


@pytest.mark.slow
def test_what_is_slow_gets_less_data_and_at_least_three_rounds() -> None:
    whole = bench.sample_of(DEMO, 1 << 30)
    results = measured(whole, "Split", "LZMA", seconds=0)
    assert [r.rounds for r in results] == [3] * 3
    assert all(r.nbytes < whole.nbytes * 2 for r in results)
    assert all(r.exact for r in results)
    for options, rounds, nbytes in (
        ({"repeats": 2}, 2, None),
        ({"nbytes": 1 << 21}, 3, 3 * whole.nbytes),
        ({"repeats": 1, "nbytes": 1 << 21}, 1, 3 * whole.nbytes),
    ):
        for r in measured(whole, "Split", seconds=0, **options):
            assert r.rounds == rounds
            assert nbytes is None or r.nbytes == nbytes


def test_rows_come_one_by_one(monkeypatch) -> None:
    printed = []
    monkeypatch.setattr(tables, "show", lambda line: printed.append(line))
    seen = []

    def results(self, **options):
        for result in original(self, **options):
            seen.append(len(printed))
            yield result

    original = bench.Study.results
    monkeypatch.setattr(bench.Study, "results", results)
    done = CliRunner().invoke(
        main, ["bench", DEMO, "--size", "1M", "--repeats", "1", "--only", "bf16"]
    )
    assert done.exit_code == 0
    assert seen == [1, 2, 3, 4, 5, 6]


def test_csv_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(
        main, ["bench", DEMO, "--size", "1", "--repeats", "1", "--only", "split", "--csv", "-"]
    )
    assert done.exit_code == 0, done.stderr
    assert len(list(csv.DictReader(done.stdout.splitlines(), strict=True))) == 2
    assert not done.stdout.endswith("\n\n")
    assert names_in(tmp_path) == set()


def test_json_alone() -> None:
    done = CliRunner().invoke(
        main, ["bench", DEMO, "--size", "1", "--repeats", "1", "--only", "split", "--json", "-"]
    )
    document = json.loads(done.stdout)
    assert [row["name"] for row in document["results"]] == ["memcpy", "BF16Split"]
    assert document["dtype"] == "bfloat16"


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is measured on Linux")
def test_memory_is_that_of_one_codec() -> None:
    rng = np.random.default_rng(0)
    whole = sample([rng.integers(0, 256, by_tier(1 << 20, 1 << 22), np.uint8)])
    results = measured(whole, "Split", "LZMA", nbytes=1, repeats=1)
    peaks = {r.name: r.peak_bytes for r in results}
    assert None not in peaks.values()
    assert peaks["memcpy"] < 1 << 19
    assert peaks["BF16Split"] >= whole.nbytes / 2  # its result is as large as the data
    assert peaks["LZMA 1"] > peaks["BF16Split"]


def test_failures_in_a_process_are_reported() -> None:
    def fail():
        raise ValueError("no luck")

    assert in_a_process("it", lambda: 7) == 7
    with pytest.raises(ValueError, match=r"^no luck$"):
        in_a_process("it", fail)
    if sys.platform.startswith("linux"):
        with pytest.raises(ValueError, match=r"^it: its process ended with -9$"):
            in_a_process("it", lambda: os.kill(os.getpid(), signal.SIGKILL))


#: Bits a value of 512 rows of each matrix, measured: a frame takes at most 0.3 more.
SYNTHETIC_BITS = {
    "gaussian": 10.57, "fp8-tiles": 6.58, "fp8-tiles-pow2": 6.58, "fp8-rows": 6.60,
    "fp8-tensor": 6.58, "fp8-e5m2-rows": 5.60, "int8-rows": 7.31, "int8-columns": 7.44,
    "int8-g128": 7.69, "int8-zero-points": 7.40, "int6-g16": 6.55, "int5-g32": 5.08,
    "int4-g128": 3.50, "int4-g32": 3.90, "int4-zero-points": 3.77, "int3-g128": 2.31, "q4-k": 4.32,
    "q5-k": 5.33, "q2-k": 2.43, "hqq-g64": 4.14, "nf4": 4.11, "mxfp4": 4.00, "nvfp4": 4.32,
    "ternary": 1.60, "pruned-50": 5.69, "pruned-90": 1.31, "pruned-2-4": 5.89,
}  # fmt: skip


@for_each("name", RECIPES)
def test_synthetic_data_are_what_their_names_say(name: str) -> None:
    """Integers times float32 were float64, and their halves were taken for float32."""
    matrix = np.random.default_rng(0).standard_normal((512, 1024), np.float32) * np.float32(0.02)
    made = RECIPES[name](matrix)
    assert (made.dtype, made.shape) == (np.float32, matrix.shape)
    data = as_bfloat16(made)
    assert data.nbytes == 2 * matrix.size
    assert data.tobytes() == made.astype("bfloat16").tobytes()
    frame = BF16Arithmetic().encode(data.view("bfloat16").reshape(matrix.shape))
    assert 8 * len(frame) / matrix.size < SYNTHETIC_BITS[name] + 0.3


def test_a_sample_of_synthetic_data_has_its_size() -> None:
    found = bench.sample_of("INT4-g128", 1 << 30)
    assert (found.dtype, found.count, found.nbytes) == ("bfloat16", 4, 4 * 4096 * 4096 * 2)
    assert found.rows == [2 * 4096] * 4
    assert sum(tensor.nbytes for tensor in found.tensors) == found.nbytes


@for_each("dtype", ["float64", "float16", "int32"])
def test_only_float32_is_rounded(dtype: str) -> None:
    with pytest.raises(TypeError, match=f"^synthetic weights are float32, not {dtype}$"):
        as_bfloat16(np.zeros((2, 2), dtype))


@for_each(
    "name, more",
    [
        ("fp8-tilse", "; did you mean 'fp8-tiles'?"),
        ("FP8-tilse", "; did you mean 'fp8-tiles'?"),
        ("nothing-like-it", ""),
    ],
)
def test_a_wrong_name_of_synthetic_data_is_told(tmp_path, monkeypatch, name, more) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["bench", name])
    assert result.exit_code == 1
    reason = "No such file, and no such synthetic data, which bf16codecs bench --help lists"
    assert result.stderr.splitlines()[-1].endswith(f": {name}: {reason}{more}")


def test_help_names_all_synthetic_data() -> None:
    text = " ".join(CliRunner().invoke(main, ["bench", "--help"]).output.split())
    listed = text[: text.index("Every codec")]
    words = {word.strip("(),.;") for word in listed.split()}
    assert set(RECIPES) <= words
