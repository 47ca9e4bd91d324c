"""A sample of this folder's other tests, which the full tier alone runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

from bf16codecs import BF16Arithmetic, BF16Huffman
from bf16codecs.convert import safetensors_to_zarr
from bf16codecs.errors import CorruptDataError
from bf16codecs.model import open_model
from bf16codecs.model.gpu import Target, read_onto
from invoked import done
from lazy_models import weights, write_safetensors
from zarr_on_gpu import host_bytes, made


def test_a_model_is_decoded_on_the_gpu(gpu, tmp_path: Path) -> None:
    """Damage is noticed there."""
    from bf16codecs.cuda.device import Device
    from bf16codecs.cuda.loading import Loader

    arrays = {"a": weights((300, 301)), "b": weights((100, 77), "float32", 1), "n": np.arange(50)}
    source = write_safetensors(tmp_path / "m.safetensors", arrays)
    safetensors_to_zarr(source, tmp_path / "m.zarr")
    device = Device.of(0)
    memory = {name: device.allocate(array.nbytes) for name, array in arrays.items()}

    def load() -> None:
        with open_model(tmp_path / "m.zarr") as model:
            targets = [Target(tensor, memory[name].address) for name, tensor in model.items()]
            read_onto(device, targets)

    load()
    with Loader(device) as loader:
        for name, array in arrays.items():
            found = loader.memory(memory[name].address, array.nbytes, name).host()
            assert found.tobytes() == array.tobytes(), name
    (chunk,) = (tmp_path / "m.zarr" / "a").glob("c.*")
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 1
    chunk.write_bytes(content)
    with pytest.raises(CorruptDataError, match="tensor 'a', chunk"):
        load()


@pytest.mark.filterwarnings("ignore:Creating a zarr.buffer.gpu:UserWarning")
def test_zarr_reads_to_the_gpu(cupy) -> None:
    data = weights((300, 301), "float32", 3)
    for codec in (BF16Huffman("auto"), BF16Arithmetic("auto")):
        for kind in ("compressor", "blocks"):
            content = zarr.open_array(made(data, codec, kind), mode="r")[10:200]
            assert host_bytes(cupy, content) == data[10:200].tobytes(), (codec, kind)


def test_the_bench_on_a_gpu(gpu, tmp_path: Path) -> None:
    source = write_safetensors(tmp_path / "m.safetensors", {"a": weights((150, 101))})
    options = ("--device", "cuda", "--repeats", 1, "--size", 30_000, "--only", "huffman")
    assert "BF16Huffman" in done("bf16codecs", "bench", source, *options)
