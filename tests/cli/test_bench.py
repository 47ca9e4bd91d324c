"""The bench: what it measures is exact, and what it writes can be read."""

from __future__ import annotations

import csv
import importlib.resources
import io
import json

import numpy as np
import pytest
from click.testing import CliRunner

from bf16codecs import _core, bench
from bf16codecs._threads import MAX_THREADS, codec_threads
from bf16codecs.cli import main

DEMO = str(importlib.resources.files("bf16codecs") / "data" / "demo.safetensors")


@pytest.fixture(scope="module")
def results() -> list[bench.Result]:
    return bench.run(bench.tensors_of(DEMO), nbytes=1 << 20, repeats=2, names=["BF16", "Zstd 1"])


def test_every_codec_of_ours_is_there_and_exact(results: list[bench.Result]) -> None:
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
        assert r.ratio == pytest.approx(16 / r.bits_per_value)
        assert 0 < r.encode_gbps_min <= r.encode_gbps <= r.encode_gbps_max
        assert 0 < r.decode_gbps_min <= r.decode_gbps <= r.decode_gbps_max
    by_name = {r.name: r for r in results}
    assert by_name["BF16Arithmetic best"].encoded_nbytes < by_name["BF16Huffman"].encoded_nbytes
    assert by_name["BF16Huffman"].ratio > 1.45


def test_small_models_are_not_copied_without_an_end() -> None:
    """One item, a hundred million times, took 6 GB before it was first encoded."""
    results = bench.run([np.zeros(2, np.uint8)], repeats=1, names=["split"])
    assert [r.nbytes for r in results] == [20_000] * 2
    assert all(r.exact for r in results)


def test_threads_are_put_back() -> None:
    before = _core.get_num_threads()
    bench.run([np.zeros(1000, np.uint8)], nbytes=1, repeats=1, threads=before + 1, names=["split"])
    assert _core.get_num_threads() == before


def test_as_many_threads_as_the_core_takes() -> None:
    for threads in (0, MAX_THREADS + 1, 10**20):
        with pytest.raises(ValueError, match=f"^threads must be 1 to 1024, not {threads}$"):
            bench.run([np.zeros(1000, np.uint8)], nbytes=1, threads=threads)
    with codec_threads(MAX_THREADS), pytest.raises(ValueError, match="1 to 1024"):
        _core.set_num_threads(MAX_THREADS + 1)


def test_csv_and_json_have_every_row(results: list[bench.Result]) -> None:
    rows = list(csv.DictReader(io.StringIO(bench.to_csv(results))))
    assert [row["name"] for row in rows] == [r.name for r in results]
    document = json.loads(bench.to_json(results, bench.machine()))
    assert document["machine"]["isa"] == _core.active_isa()
    assert [row["ratio"] for row in document["results"]] == [r.ratio for r in results]


def test_command_prints_a_table_and_writes_files(tmp_path) -> None:
    done = CliRunner().invoke(
        main,
        ["bench", DEMO, "--size", "1M", "--repeats", "1", "--only", "huffman",
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


def test_what_cannot_be_is_said_before_it_is_measured(tmp_path) -> None:
    for arguments, error in (
        (["--only", "bset"], "no codec has 'bset' in its name; there are BF16Split, BF16Huffman, "),
        (["--csv", str(tmp_path / "no" / "t.csv")], f"{tmp_path / 'no'}: No such folder"),
        (["--json", str(tmp_path / "no" / "t.json")], f"{tmp_path / 'no'}: No such folder"),
    ):
        done = CliRunner().invoke(main, ["bench", DEMO, "--size", "1M", *arguments])
        assert done.exit_code == 1
        assert error in done.stderr
        assert done.stdout == ""
