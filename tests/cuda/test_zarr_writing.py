"""Writing from a GPU's buffers by zarr, and reading to them through the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zarr

from bf16codecs import BF16Arithmetic, RunLength, decode
from bf16codecs.convert import safetensors_to_zarr
from bf16codecs.model import open_model
from bf16codecs.zarr import BF16BlocksCodec, DeltaCodec
from lazy_models import weights, write_safetensors
from zarr_on_gpu import CODECS, ON_THE_HOST, WEIGHTS, host_bytes, made

# Zarr has no other way from the host to a GPU where it is given arrays of NumPy's.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Creating a zarr.buffer.gpu:UserWarning"),
    pytest.mark.filterwarnings("ignore:Consolidated metadata:UserWarning"),
]


@pytest.mark.parametrize("kind", ["compressor", "blocks"])
@pytest.mark.parametrize("name", CODECS)
def test_writing(cupy, name: str, kind: str) -> None:
    """The stored bytes equal the host's."""
    expected = made(WEIGHTS, CODECS[name], kind, chunks=(350, 512))
    store: dict[str, Any] = {}
    array = zarr.create_array(
        store,
        shape=WEIGHTS.shape,
        chunks=(350, 512),
        dtype=WEIGHTS.dtype,
        fill_value=1,
        **(
            {"serializer": BF16BlocksCodec(CODECS[name]), "compressors": None}
            if kind == "blocks"
            else {"compressors": CODECS[name]}
        ),
    )
    array[...] = cupy.asarray(WEIGHTS)
    assert {k: v.to_bytes() for k, v in store.items()} == {
        k: v.to_bytes() for k, v in expected.items()
    }
    assert host_bytes(cupy, array[...]) == WEIGHTS.tobytes()


@pytest.mark.parametrize("kind", ["compressor", "blocks"])
def test_writing_parts(cupy, kind: str) -> None:
    array = zarr.open_array(made(WEIGHTS, CODECS["arithmetic"], kind), mode="r+")
    array[3:5, 7:9] = cupy.asarray(np.zeros((2, 2), "bfloat16"))
    expected = WEIGHTS.copy()
    expected[3:5, 7:9] = 0
    assert host_bytes(cupy, array[...]) == expected.tobytes()


@pytest.mark.parametrize("compressors", [[RunLength()], [DeltaCodec("<u2"), RunLength()]])
def test_codecs_of_the_host(cupy, compressors: list[Any]) -> None:
    data = np.repeat(np.arange(100, dtype="uint16"), 50)
    array = zarr.open_array(made(data, compressors, "compressor"), mode="r+")
    assert host_bytes(cupy, array[...]) == data.tobytes()
    array[:] = cupy.asarray(data[::-1].copy())
    assert host_bytes(cupy, array[...]) == data[::-1].tobytes()


@pytest.mark.parametrize("order", ["C", "F"])
def test_format_2(cupy, order: str) -> None:
    """Codecs get CuPy's arrays there, and give the host's memory, which zarr copies."""
    data, codec = weights((60, 70)), BF16Arithmetic()
    store = made(data, codec, "compressor", zarr_format=2, order=order)
    array = zarr.open_array(store, mode="r+")
    assert host_bytes(cupy, array[...]) == data.tobytes()
    before = {key: value.to_bytes() for key, value in store.items()}
    array[...] = cupy.asarray(data)
    assert {key: value.to_bytes() for key, value in store.items()} == before


def test_codecs_take_arrays_of_a_gpu(cupy) -> None:
    codec = BF16Arithmetic("auto", level="best")
    frame = codec.encode(cupy.asarray(WEIGHTS))
    assert frame == codec.encode(WEIGHTS)
    assert decode(cupy.frombuffer(frame, "u1")) == WEIGHTS.tobytes()
    with pytest.raises(ValueError, match="memory is not the CPU's"):
        decode(frame, out=cupy.empty(WEIGHTS.nbytes, "u1"))


def test_models_are_read_on_the_host(cupy, tmp_path) -> None:
    """Even arrays in forms that zarr reads."""
    source = write_safetensors(tmp_path / "m.safetensors", {"w": WEIGHTS, "v": WEIGHTS[:9]})
    safetensors_to_zarr(source, tmp_path / "m.zarr")
    attributes = dict(zarr.open_array(tmp_path / "m.zarr" / "w").attrs)
    with zarr.config.set(ON_THE_HOST):
        zarr.create_array(
            tmp_path / "m.zarr" / "w",
            data=WEIGHTS,
            chunks=(100, 512),
            shards=(700, 512),
            compressors=BF16Arithmetic(),
            attributes=attributes,
            fill_value=float("nan"),
            overwrite=True,
        )
        zarr.consolidate_metadata(tmp_path / "m.zarr")
    with open_model(tmp_path / "m.zarr") as model:
        assert np.asarray(model["v"][...]).tobytes() == WEIGHTS[:9].tobytes()
        assert np.asarray(model["w"][...]).tobytes() == WEIGHTS.tobytes()
        selection = np.array([1, 699]), np.array([3, 4])
        assert model["w"][selection].tobytes() == WEIGHTS[selection].tobytes()
        assert host_bytes(cupy, model["v"].zarr[...]) == WEIGHTS[:9].tobytes()
