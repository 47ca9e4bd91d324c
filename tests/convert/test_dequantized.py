"""`bf16codecs.gguf`: quantised tensors of stores are what the package gguf makes of the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bf16codecs
from bf16codecs.convert import safetensors_to_zarr
from bf16codecs.errors import StoreError
from invoked import done
from lazy_models import weights, write_store

gguf = pytest.importorskip("gguf", reason="needs gguf")

FILE = Path(__file__).parent / "goldens" / "gguf_files" / "little.gguf"


def expected(path: Path) -> dict[str, Any]:
    """Return the quantised tensors of a file, multiplied out by the package."""
    plain = {"F32", "F16", "BF16", "I32"}
    return {
        tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type)
        for tensor in gguf.GGUFReader(path).tensors
        if tensor.tensor_type.name not in plain
    }


@pytest.mark.parametrize("command", ["st2zarr", "st2h5"])
def test_numbers_are_those_of_the_file(tmp_path: Path, command: str) -> None:
    store = tmp_path / ("m.h5" if command == "st2h5" else "m.zarr")
    done(command, FILE, store)
    with bf16codecs.open_model(store) as model:
        found = bf16codecs.gguf.dequantized(model)
        assert found.keys() == (numbers := expected(FILE)).keys()
        for name, tensor in found.items():
            assert tensor.type in name
            assert (tensor.shape, tensor.dtype) == ((6, 256), np.float32)
            assert np.asarray(tensor).tobytes() == numbers[name].tobytes()


def test_parts(tmp_path: Path) -> None:
    safetensors_to_zarr(FILE, tmp_path / "m.zarr")
    name = "blk.0.Q8_0.weight"
    numbers = expected(FILE)[name]
    with bf16codecs.open_model(tmp_path / "m.zarr") as model:
        tensor = bf16codecs.gguf.dequantized(model)[name]
        for key in (
            *(0, -1, slice(2, 4), slice(None, None, 2), ..., (3, 7), (..., 5), (1, slice(3, 40))),
            *((slice(1, 3), ...), (slice(None), slice(None, 9)), (..., slice(0, 3), 1)),
            *(slice(0, 0), slice(3, 1), (slice(0, 0), 4), (2, slice(0, 0))),
        ):
            assert np.array_equal(tensor[key], numbers[key]), key
        assert repr(tensor) == f"QuantizedTensor('{name}', Q8_0, shape=(6, 256))"
        for odd in ((0, 0, 0), (..., ...), [1, 2], None, (0, "a")):
            with pytest.raises(IndexError):
                tensor[odd]
        with pytest.raises(ValueError, match="copy"):
            np.array(tensor, copy=False)
        for other in bf16codecs.gguf.dequantized(model).values():
            assert other[:0].shape == (0, 256)


def test_long_metadata_and_one_dimension(tmp_path: Path) -> None:
    """Metadata of 4 KiB and more are an array of the store."""
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("tokenizer.ggml.tokens", [f"token {i}" for i in range(1000)])
    form = gguf.GGMLQuantizationType.Q4_0
    data = gguf.quantize(np.linspace(-1, 1, 96, dtype=np.float32), form)
    writer.add_tensor("vector", data, raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    safetensors_to_zarr(path, tmp_path / "m.zarr")
    with bf16codecs.open_model(tmp_path / "m.zarr") as model:
        tensor = bf16codecs.gguf.dequantized(model)["vector"]
        assert np.array_equal(tensor[...], expected(path)["vector"])
        assert np.array_equal(tensor[5:7], expected(path)["vector"][5:7])


def test_types_and_offsets_that_contradict(tmp_path: Path) -> None:
    """A tensor of an unknown type is bytes, and one that another begins with is not shown."""
    raw = bytearray(FILE.read_bytes())
    at = raw.index(b"blk.0.Q4_1.weight") + len("blk.0.Q4_1.weight") + 4 + 2 * 8
    raw[at : at + 4] = (99).to_bytes(4, "little")
    first = raw.index(b"blk.0.Q5_0.weight") + len("blk.0.Q5_0.weight") + 4 + 2 * 8
    other = raw.index(b"blk.0.Q4_0.weight") + len("blk.0.Q4_0.weight") + 4 + 2 * 8
    raw[first + 4 : first + 12] = raw[other + 4 : other + 12]
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    safetensors_to_zarr(path, tmp_path / "m.zarr")
    numbers = expected(FILE)
    with bf16codecs.open_model(tmp_path / "m.zarr") as model:
        found = bf16codecs.gguf.dequantized(model)
        assert "blk.0.Q4_1.weight" not in found
        assert not {"blk.0.Q4_0.weight", "blk.0.Q5_0.weight"} <= found.keys()
        assert np.array_equal(found["blk.0.Q8_0.weight"][...], numbers["blk.0.Q8_0.weight"])
        for name, tensor in found.items():
            assert tensor.type in name


def test_other_stores_have_none(tmp_path: Path) -> None:
    store = write_store(tmp_path / "m.zarr", {"w": weights((8, 8))})
    with bf16codecs.open_model(store) as model, pytest.raises(StoreError, match="no GGUF file"):
        bf16codecs.gguf.dequantized(model)
