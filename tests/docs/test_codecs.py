"""Documentation of the codecs: the table of zarr's arguments, and the examples."""

import re
from itertools import product

import ml_dtypes
import numpy as np
import pytest
import zarr

import bf16codecs
from bf16codecs.codecs import CODECS, RunLength
from checkout import ROOT
from looping import for_each

CLASSES = {cls.codec_id: cls for cls in (*CODECS.values(), RunLength)}

BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
PLACE = {"shape": (64, 100), "dtype": "bfloat16"}
#: How zarr is called in the page's table, by the first column.
CALLS = {
    "`create_array(compressors=c)`, `compressors=[c]`": [
        lambda c, **to: zarr.create_array(**to, **PLACE, compressors=c),
        lambda c, **to: zarr.create_array(**to, **PLACE, compressors=[c]),
    ],
    "`zarr.open(..., compressor=c)`, `save_array(..., compressor=c)`": [
        lambda c, **to: zarr.open(**to, **PLACE, mode="w", compressor=c),
        lambda c, **to: zarr.save_array(**to, arr=np.zeros((64, 100)), compressor=c),
    ],
    '`zarr.open(..., codecs=[{"name": "bytes", ...}, c])`': [
        lambda c, **to: zarr.open(**to, **PLACE, mode="w", codecs=[BYTES, c]),
    ],
    "`create_array(filters=[c], compressors=None)`": [
        lambda c, **to: zarr.create_array(**to, **PLACE, filters=[c], compressors=None),
    ],
}


@for_each(
    "codec",
    lambda: [*(cls() for cls in CLASSES.values()), bf16codecs.BF16Arithmetic(level="best")],
)
def test_zarr_takes_and_refuses_codecs_as_the_table_says(codec):
    text = (ROOT / "docs" / "codecs.md").read_text()
    (table,) = re.findall(r"^\| call .*\n.*\n((?:\|.*\n)+)", text, re.MULTILINE)
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()]
    assert [call for call, _, _ in rows] == list(CALLS)
    weights = np.random.default_rng(0).normal(0, 0.02, (64, 100)).astype("bfloat16")
    for name, *answers in rows:
        for (zarr_format, answer), call in product(enumerate(answers, start=2), CALLS[name]):
            store = {}
            if not answer.startswith("yes"):
                assert answer.startswith("zarr refuses ")
                with pytest.raises((TypeError, ValueError)):
                    call(codec, store=store, zarr_format=zarr_format)
                continue
            call(codec, store=store, zarr_format=zarr_format)
            array = zarr.open_array(store)
            assert str(codec.codec_id) in str(array.metadata.to_dict())
            if array.dtype == weights.dtype:
                array[:] = weights
                assert zarr.open_array(store)[:].tobytes() == weights.tobytes()


@pytest.mark.parametrize("options", [["--format", "2"], ["--shard"], ["--only", "blocks"]])
def test_measure_zarr(tmp_path, run_example, options):
    few = ["--rows", 64, "--chunk", 1 << 16, "--rounds", 1]
    output = run_example("measure_zarr.py", tmp_path, *few, *options)
    names = re.findall(r"^ *(\w+)  write [\d.]+ .* read [\d.]+ .* row ms", output, re.MULTILINE)
    assert (
        names
        == {
            "--format": ["none", "BF16Arithmetic"],
            "--shard": ["none", "BF16Arithmetic", "default", "blocks"],
            "--only": ["blocks"],
        }[options[0]]
    )


def test_use_codecs(tmp_path, run_example):
    output = run_example("use_codecs.py", tmp_path)
    bits = dict(re.findall(r"^(\w+) +\d+ +\d+ +([\d.]+)$", output, re.MULTILINE))
    assert set(bits) == {"split", "huffman", "arithmetic", "zstd"}
    assert 10 < float(bits["arithmetic"]) < float(bits["zstd"]) < float(bits["split"]) < 16.1
    assert len(list(tmp_path.glob("*.zarr"))) == 9


def test_read_plain_zarr(tmp_path, run_example):
    group = zarr.create_group(tmp_path)
    codec = bf16codecs.BF16Huffman()
    weights = np.arange(12).reshape(3, 4).astype(ml_dtypes.bfloat16)
    group.create_array("layer/weight", data=weights, compressors=codec)
    group.create_array("scale", data=np.array(2.5, "f4"), compressors=codec)
    output = run_example("read_plain_zarr.py", tmp_path)
    assert output.splitlines() == [
        "layer/weight: bfloat16 (3, 4) [0 1 2]",
        "scale: float32 () 2.5",
    ]


def test_keep_checkpoints(run_example):
    output = run_example("keep_checkpoints.py")
    alone, chain, steps = map(float, re.findall(r"\d+\.\d\d", output))
    assert chain < steps < 0.5 * alone
