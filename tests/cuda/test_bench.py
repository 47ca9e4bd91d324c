"""The bench on a GPU or its stand-in: results are exact, and reported completely.

The stand-in has no speed: only relations between rates are checked.
"""

from __future__ import annotations

import csv
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bf16codecs import codecs
from bf16codecs._base import interrupt as _interrupt
from bf16codecs._base.tables import Layout
from bf16codecs.bench import sample_of
from bf16codecs.bench.gpu import study, variants
from bf16codecs.bench.gpu.decoders import FrameDecoder
from bf16codecs.bench.gpu.peers import AbsentPeer, Peer
from bf16codecs.bench.gpu.study import GpuStudy
from bf16codecs.bench.gpu.work import Work
from bf16codecs.cli.bench_gpu import _columns
from bf16codecs.cuda.device import Device
from bf16codecs.cuda.sources import kernel_names
from invoked import done, refused, run
from lazy_models import weights, write_safetensors

pytestmark = pytest.mark.slow

BENCH = ("bf16codecs", "bench")
ON_GPU = ("--device", "cuda", "--repeats", 2)
# The model below, once.
WHOLE = 31_000
ON_HOST = {"BF16Arithmetic best", "BF16Zstd 3"}
OWN = {
    "BF16Split",
    "BF16Huffman",
    "BF16Arithmetic fast",
    "BF16Arithmetic wide",
    "BF16Arithmetic constant",
    "encode_delta fast",
    "encode_delta best",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    arrays = {"a": weights((150, 101)), "b": weights((33,), seed=1), "c": weights((1,), seed=2)}
    return write_safetensors(tmp_path_factory.mktemp("model") / "m.safetensors", arrays)


def model_nbytes(model: Path) -> int:
    return sum(tensor.nbytes for tensor in sample_of(model, 1 << 20).tensors)


def test_all_tables_come_in_one_run(gpu, model: Path, tmp_path: Path) -> None:
    files = ("--json", tmp_path / "t.json", "--csv", tmp_path / "t.csv")
    nbytes = model_nbytes(model)
    text = done(*BENCH, model, *ON_GPU, "--size", 2 * nbytes, *files)
    for title in ("Device to device", "Host to device, from pinned memory", "Model files in"):
        assert f"\n{title}" in text
    for name in ON_HOST:
        assert f"\nNot measured: {name}; " in text
    document = json.loads((tmp_path / "t.json").read_text())
    rows = document["results"]
    by_table = {kind: {r["name"] for r in rows if r["table"] == kind} for kind in study.TABLES}
    assert by_table["decode"] >= {"memcpy", *OWN}
    assert by_table["send"] == {"raw", *OWN}
    assert by_table["load"] >= {"safetensors file", "arithmetic store", "huffman store"}
    for row in rows:
        assert row["exact"]
        assert (row["nbytes"], row["rounds"]) == (2 * nbytes, 2)
        assert 0 < row["gbps_min"] <= row["gbps"] <= row["gbps_max"]
        assert row["ratio"] == row["nbytes"] / row["encoded_nbytes"]
        if row["name"] in ("memcpy", "raw", "safetensors file"):
            assert row["to_reference"] == 1
    assert {f["name"] for f in document["left_out"]} >= ON_HOST
    assert document["failures"] == []
    assert document["gpu"]["name"] == Device.of(0).name
    assert set(document["gpu"]["kernels"]) == set(kernel_names())
    assert document["gpu"]["kernels"]["bf16codecs_decode_any"].keys() == {
        "registers", "shared", "local",
    }  # fmt: skip
    written = list(csv.DictReader((tmp_path / "t.csv").open()))
    assert [(r["table"], r["name"]) for r in written] == [(r["table"], r["name"]) for r in rows]


def test_ratios_are_those_of_a_larger_model(gpu, tmp_path: Path) -> None:
    """Copies of the tensors differ: stores would keep equal ones once."""
    arrays = {"a": weights((150, 300)), "b": weights((99_000,), seed=1)}
    sample = sample_of(write_safetensors(tmp_path / "m.safetensors", arrays), 1 << 20)
    nbytes = sum(tensor.nbytes for tensor in sample.tensors)
    ratios = []
    for copies in (1, 5):
        measured = GpuStudy(Device.of(0), sample, copies * nbytes, 1, ["store"])
        with measured.tables() as tables:
            (_, *stores) = tables["load"]()
        assert all(found.exact and found.nbytes == copies * nbytes for found in stores)
        ratios.append([found.ratio for found in stores])
    assert np.allclose(*ratios, rtol=0.03)
    assert 1.2 < min(ratios[1]) < max(ratios[1]) < 1.6


def test_a_signal_that_came_while_modules_were_imported(gpu, model: Path, monkeypatch) -> None:
    sample = sample_of(model, 1 << 20)
    with GpuStudy(Device.of(0), sample, WHOLE, 1).tables() as tables:
        monkeypatch.setattr(_interrupt, "_noted", 2)
        for table in tables.values():
            with pytest.raises(_interrupt.Interrupted):
                list(table())


def test_important_columns_fit_80_columns() -> None:
    for reference in ("memcpy", "raw", "file"):
        (titles,) = Layout(_columns(reference), [(name,) for name in OWN], 80).titles()
        assert "GB/s" in titles
        assert f"to {reference}" in titles
        assert "round trip" in titles


def test_frames_are_those_of_the_host(gpu, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    done(
        *BENCH,
        model,
        *ON_GPU,
        "--size",
        WHOLE,
        "--json",
        file,
        "--only",
        "bf16a",
        "--only",
        "encode",
    )
    rows = {(r["table"], r["name"]): r for r in json.loads(file.read_text())["results"]}
    tensors = sample_of(model, 1 << 20).tensors
    size = sum(len(codecs.BF16Arithmetic().encode(tensor)) for tensor in tensors)
    assert rows["decode", "BF16Arithmetic fast"]["encoded_nbytes"] == size
    assert rows["send", "BF16Arithmetic fast"]["encoded_nbytes"] == size
    planes = {name: row["planes"] for (table, name), row in rows.items() if table == "decode"}
    assert planes["BF16Arithmetic fast"].startswith(("rans_pairs + stored", "stored"))
    assert "rans_wide" in planes["BF16Arithmetic wide"]
    assert planes["BF16Arithmetic constant"] == "constant + constant"
    assert "difference" in planes["encode_delta fast"]


def test_standard_output_has_one_report(gpu, model: Path) -> None:
    once = ("--device", "cuda", "--repeats", 1, "--size", WHOLE, "--only", "split")
    document = json.loads(done(*BENCH, model, *once, "--json", "-"))
    assert [r["name"] for r in document["results"]] == ["memcpy", "BF16Split", "raw", "BF16Split"]
    text = done(*BENCH, model, *once, "--csv", "-")
    assert text.startswith("table,name,nbytes,")


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "float8_e4m3fn"])
def test_other_numbers(gpu, tmp_path: Path, dtype: str) -> None:
    """Some blocks have several coded planes, which need extra memory."""
    model = write_safetensors(tmp_path / "m.safetensors", {"a": weights((90, 101), dtype)})
    file = tmp_path / "t.json"
    only = ("--only", "bf16huff", "--only", "bf16arithmetic", "--only", "encode")
    done(*BENCH, model, *ON_GPU, "--size", "80K", *only, "--json", file)
    document = json.loads(file.read_text())
    assert document["dtype"] == dtype
    assert all(row["exact"] for row in document["results"])
    assert document["failures"] == []


def test_the_synthetic_tensors_are_measured_without_a_source(gpu) -> None:
    text = done(*BENCH, *ON_GPU, "--size", "64K", "--only", "bf16huff")
    assert "65.54 kB in 1 of 4 bfloat16 tensors of 134.22 MB" in text
    assert "Model files" not in text
    assert "BF16Split" not in text


def test_another_gpu(stand_in, model: Path) -> None:
    text = done(*BENCH, model, "--device", "cuda:1", "--size", WHOLE, "--only", "memcpy")
    assert "\nGPU 1: Stand-in 1, compute capability 9.0, " in text


def test_each_copy_has_its_own_places(gpu, model: Path) -> None:
    sample = sample_of(model, 1 << 20)
    nbytes = sum(tensor.nbytes for tensor in sample.tensors)
    with Work(Device.of(0), sample, 5 * nbytes + 1) as work:
        assert work.nbytes == 5 * nbytes
        assert len(work.copies) == 15
        ends = [copy.offset + copy.nbytes for copy in work.copies]
        starts = [copy.offset for copy in work.copies]
        assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))
        assert ends[-1] <= work.out.nbytes
        assert work.first(2 * nbytes) == work.copies[:6]
        assert work.first(1) == work.copies[:1]
        work.set_source(sample.tensors)
        work.copy()
        assert work.holds(sample.tensors)
        work.stream.fill(work.out.address + ends[10] - 1, 1, 1)
        assert not work.holds(sample.tensors)
        work.spoil()
        assert not work.holds(sample.tensors)


def few(model: Path, only: str = "BF16Huffman") -> tuple[Any, ...]:
    return (*BENCH, model, *ON_GPU, "--size", WHOLE, "--only", only)


def test_other_data_are_noticed(gpu, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = FrameDecoder.decode

    def wrong(self: FrameDecoder) -> None:
        real(self)
        work = self._work
        work.stream.fill(work.out.address + work.copies[-1].offset, 0, 1)

    monkeypatch.setattr(FrameDecoder, "decode", wrong)
    result = run(*few(model))
    assert result.exit_code == 1
    assert result.stderr == "bf16codecs bench: the GPU returned wrong data\n"
    (row,) = [line for line in result.stdout.splitlines() if "DIFFERS" in line]
    assert row.startswith("BF16Huffman")


def test_blocks_that_are_not_decoded_are_noticed(
    gpu, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bf16codecs.bench.gpu.decoders.launch", lambda *_: None)
    monkeypatch.setattr("bf16codecs.bench.gpu.sending.launch", lambda *_: None)
    file = tmp_path / "t.json"
    result = run(*few(model), "--json", file)
    assert result.exit_code == 1
    assert result.stderr == "bf16codecs bench: not measured because they failed: BF16Huffman\n"
    assert "\nBF16Huffman failed: 3 of 3 blocks were not decoded\n" in result.stdout
    document = json.loads(file.read_text())
    assert [(f["table"], f["name"]) for f in document["failures"]] == [
        ("decode", "BF16Huffman"), ("send", "BF16Huffman"),
    ]  # fmt: skip
    assert [row["name"] for row in document["results"]] == ["memcpy", "raw"]


def test_a_peer_that_is_not_installed_is_reported(gpu, model: Path, monkeypatch) -> None:
    peers = [], [AbsentPeer("Other ANS", "not installed: pip install other")]
    monkeypatch.setattr(study, "gpu_peers", lambda *_: peers)
    line = run(*few(model, "other")).stderr.splitlines()[-1]
    assert "there are memcpy, BF16Split, " in line
    assert line.endswith("; Other ANS: not installed: pip install other")
    told = done(*few(model), "--only", "other")
    assert "\nNot measured: Other ANS; not installed: pip install other\n" in told


def test_who_fails_does_not_stop_others(gpu, model: Path, monkeypatch) -> None:
    def broken(work: Work) -> Any:
        raise RuntimeError("no kernel image\nis there")

    peers = [Peer("Other ANS", broken)], []
    monkeypatch.setattr(study, "gpu_peers", lambda *_: peers)
    result = run(*few(model), "--only", "other")
    assert result.exit_code == 1
    assert "\nOther ANS failed: RuntimeError: no kernel image is there\n" in result.stdout
    assert "\nHost to device" in result.stdout
    assert result.stderr == "bf16codecs bench: not measured because they failed: Other ANS\n"


def test_no_place_for_stores(gpu, model: Path, monkeypatch) -> None:
    def full(*arguments: Any) -> Iterator[Any]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(study, "loaders", full)
    result = run(*few(model, "store"))
    assert result.exit_code == 1
    told = f"No space left on device; the files are in {tempfile.gettempdir()}; set TMPDIR"
    assert f"\nstores failed: {told} to use another folder\n" in result.stdout


def test_no_room_on_the_gpu(stand_in, model: Path) -> None:
    stand_in.set_memory(1 << 15)
    result = run(*few(model))
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("bf16codecs bench: GPU 0 (Stand-in 0) has no 30,")
    assert line.endswith(" are free; a smaller --size may fit")


def test_what_a_gpu_has_room_for_is_the_default(stand_in, model: Path) -> None:
    from bf16codecs.bench.gpu.work import default_nbytes

    stand_in.set_memory(1 << 20)
    assert default_nbytes(Device.of(0)) == int(0.6 * (1 << 20) / 3)
    stand_in.set_memory(1 << 40)
    assert default_nbytes(Device.of(0)) == 1 << 32


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--device", "cpu"], "'cpu' is not a GPU, such as cuda or cuda:1"),
        (["--device", "cuda:"], "'cuda:' is not a GPU"),
        (["--device", "cuda:x"], "'cuda:x' is not a GPU"),
        (["--device", "cuda", "--system", "A"], "--system does not go with --device"),
        (["--device", "cuda", "--threads", "2"], "--threads does not go with --device"),
        (["--device", "cuda", "--base", "x"], "--base does not go with --device"),
        (["--device", "cuda", "--plot", "x.svg"], "--plot does not go with --device"),
        (["--device", "cuda", "--only", "bset"], "begins with 'bset'; there are memcpy, BF16Spl"),
        (["--device", "cuda", "--only", ""], "the name of a codec is empty"),
        ([], "Missing argument 'SRC'."),
    ],
)
def test_wrong_usage(gpu, options: list[str], told: str) -> None:
    result = run(*BENCH, *options)
    assert result.exit_code == 2
    assert told in result.stderr
    assert result.stdout == ""


def test_gpus_that_are_not_there(stand_in, model: Path) -> None:
    line = refused(*BENCH, model, "--device", "cuda:7")
    assert line == "bf16codecs bench: GPU 7 does not exist: found 2 GPUs"


COMMAND = """
import ctypes, sys
if sys.argv[1]:
    ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
else:
    sys.modules["cuda.core"] = None
from bf16codecs.cli import main
from click.testing import CliRunner
result = CliRunner().invoke(main, ["bench", "--device", "cuda"], prog_name="bf16codecs")
print(result.exit_code, result.stderr)
"""


def test_no_gpu(run_python, driver) -> None:
    if driver is None:
        pytest.skip("there is a GPU")
    said = run_python(COMMAND, driver.path, BF16CODECS_STAND_IN_DEVICES="0").stdout
    assert said.startswith("1 bf16codecs bench: no NVIDIA GPU can be used: cuInit: CUDA_ERROR_NO_")


def test_without_the_extra(run_python) -> None:
    said = run_python(COMMAND, "").stdout
    assert said.startswith("1 bf16codecs bench: decoding on GPUs needs more packages: ")
    assert "pip install 'bf16codecs[cuda13]', or cuda12, " in said


def test_large_frames_are_sent_in_several_batches(gpu, tmp_path: Path, monkeypatch) -> None:
    """Each batch has its own jobs, even from the middle of a frame."""
    monkeypatch.setattr("bf16codecs.bench.gpu.sending.BATCH_BYTES", 1 << 18)
    arrays = {"a": weights((1 << 19) + 5), "b": weights((100,), seed=1)}
    sample = sample_of(write_safetensors(tmp_path / "m.safetensors", arrays), 1 << 22)
    measured = GpuStudy(Device.of(0), sample, 1 << 20, 1, ["bf16huff", "encode_delta fast"])
    with measured.tables() as tables:
        found = list(tables["send"]())
    assert [result.name for result in found] == ["raw", "BF16Huffman", "encode_delta fast"]
    assert all(result.exact for result in found)


def test_bases_differ_a_little(gpu, model: Path) -> None:
    """With any numbers, NaNs and infinities included."""
    for dtype in ("bfloat16", "float64", "float8_e5m2"):
        numbers = weights((1000,), dtype)
        numbers[:3] = [np.inf, np.nan, 0]
        content = numbers.view(np.uint8)
        base = variants._step_before(content, dtype)
        assert base.size == content.size
        assert not np.array_equal(base, content)
        nothing = np.full(10, np.nan).astype(dtype).view(np.uint8)
        assert variants._step_before(nothing, dtype).size == nothing.size
