"""zarr's buffers on a GPU (`zarr.config.enable_gpu`): chunks are decoded where zarr puts them."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.core.buffer import cpu

from bf16codecs import BF16Arithmetic, BF16Huffman, BF16Zstd
from bf16codecs.codecs.frames import encode_delta
from bf16codecs.codecs.growing import Version, new_growing_frame
from bf16codecs.cuda import batches
from bf16codecs.cuda.device import Device
from bf16codecs.errors import CodecError, DeviceError
from bits import PIPELINES
from lazy_models import weights
from zarr_on_gpu import CODECS, ON_THE_HOST, WEIGHTS, host_bytes, made

# Zarr has no other way from the host to a GPU where it is given arrays of NumPy's.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Creating a zarr.buffer.gpu:UserWarning"),
]

#: Codecs of which the host decodes everything.
ON_HOST = {"best", "zstd"}
KINDS = ["compressor", "blocks"]


class Noted:
    """Counts of the GPU's launches and of copies to the host."""

    launches = 0
    #: The bytes copied to the host, array by array.
    to_host: list[int]


@pytest.fixture
def noted(cupy, monkeypatch) -> Noted:
    noted, launch, copy = Noted(), Device.launch, cupy.asnumpy
    noted.to_host = []

    def noted_launch(self: Device, *args: Any) -> None:
        noted.launches += 1
        launch(self, *args)

    def noted_copy(array: Any, *args: Any, **kwargs: Any) -> Any:
        noted.to_host.append(array.nbytes)
        return copy(array, *args, **kwargs)

    monkeypatch.setattr(Device, "launch", noted_launch)
    monkeypatch.setattr(cupy, "asnumpy", noted_copy)
    return noted


def chunk_of(store: dict[str, Any]) -> str:
    (key,) = (key for key in store if "json" not in key)
    return key


@pytest.mark.parametrize("kind", KINDS)
def test_every_codec(cupy, noted: Noted, kind: str) -> None:
    for name, codec in CODECS.items():
        store = made(WEIGHTS, codec, kind)
        noted.launches, noted.to_host = 0, []
        content = zarr.open_array(store, mode="r")[...]
        assert noted.launches > 0, name
        chunk = len(store[chunk_of(store)].to_bytes())
        assert noted.to_host == ([chunk] if name in ON_HOST else []), name
        assert content.dtype == WEIGHTS.dtype, name
        assert host_bytes(cupy, content) == WEIGHTS.tobytes(), name


def test_many_blocks_of_huffman(cupy, noted: Noted, monkeypatch) -> None:
    """They have their own kernel, for four at a time, from one for each processor on."""
    data = weights((1500, 1000), seed=4)
    store = made(data, CODECS["huffman"], "compressor")
    monkeypatch.setattr(batches, "_MANY_BLOCKS", 1)
    for processors, launches in ((100, 4), (5, 5)):
        monkeypatch.setattr(Device.of(0), "multiprocessors", processors)
        noted.launches, noted.to_host = 0, []
        content = zarr.open_array(store, mode="r")[...]
        assert noted.launches == launches
        assert noted.to_host == []
        assert host_bytes(cupy, content) == data.tobytes()


DTYPES = ["bfloat16", "float16", "float32", "float64", "int8", "uint16", "int32", "uint64"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("codec", ["huffman", "arithmetic"])
def test_every_dtype(cupy, noted: Noted, kind: str, codec: str) -> None:
    for dtype in DTYPES:
        data = (weights((300, 301), "float32", 3) * 900).astype(dtype)
        array = zarr.open_array(made(data, CODECS[codec], kind, chunks=(100, 301)), mode="r")
        noted.launches, noted.to_host = 0, []
        content = array[...]
        assert noted.launches > 0, dtype
        assert noted.to_host == [], dtype
        assert host_bytes(cupy, content) == data.tobytes(), dtype


def test_dtypes_that_cupy_has_not(cupy) -> None:
    array = zarr.open_array(made(WEIGHTS.astype("float8_e4m3fn"), CODECS["huffman"], "blocks"))
    with pytest.raises((TypeError, ValueError), match="float8_e4m3fn"):
        array[...]


@pytest.mark.parametrize("by", ["field", "byte"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_several_coded_planes(cupy, noted: Noted, dtype: str, by: str) -> None:
    """Some planes are decoded to extra memory."""
    data = np.random.default_rng(0).normal(0, 1, (300, 300)).astype("bfloat16").astype(dtype)
    data[::7] *= 1 + np.finfo("float32").eps
    store = made(data, BF16Huffman("auto"), "compressor")
    content = zarr.open_array(store, mode="r")[...]
    assert noted.to_host == []
    assert host_bytes(cupy, content) == data.tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_every_shape(cupy, kind: str) -> None:
    for shape in ((0, 3), (1,), (3, 1), (77, 100)):
        data = weights(shape, "float32", 1)
        content = zarr.open_array(made(data, CODECS["arithmetic"], kind), mode="r")[...]
        assert host_bytes(cupy, content) == data.tobytes(), shape


@pytest.mark.parametrize("kind", KINDS)
def test_scalars(cupy, kind: str) -> None:
    """zarr copies them to the host."""
    array = zarr.open_array(made(weights((), "float32", 1), CODECS["arithmetic"], kind), mode="r")
    assert array[()] == weights((), "float32", 1)


SELECTIONS = {
    "row": np.s_[1000],
    "rows": np.s_[10:20],
    "columns": np.s_[:, 3:9],
    "steps": np.s_[::300, ::7],
    "item": np.s_[5, 7],
    "all": np.s_[:],
}
LARGE = weights((2000, 1024), seed=5)


@pytest.fixture(scope="module")
def large() -> dict[str, dict[str, Any]]:
    """Return stores of an array of one chunk with eight blocks, by kind."""
    kinds = {"compressor": {}, "blocks": {}, "shards": {"shards": (2000, 1024)}}
    return {
        kind: made(
            LARGE,
            BF16Arithmetic("auto"),
            "blocks" if kind == "shards" else kind,
            chunks=(1000, 1024) if kind == "shards" else LARGE.shape,
            **options,
        )
        for kind, options in kinds.items()
    }


@pytest.mark.parametrize("kind", ["compressor", "blocks", "shards"])
def test_parts(cupy, noted: Noted, large, kind: str) -> None:
    for name, selection in SELECTIONS.items():
        noted.launches, noted.to_host = 0, []
        content = zarr.open_array(large[kind], mode="r")[selection]
        is_whole = kind == "compressor" or name in ("columns", "steps", "all")
        assert (noted.launches > 0) == is_whole, name
        if kind != "shards":
            assert noted.to_host == [], name
        assert host_bytes(cupy, content) == LARGE[selection].tobytes(), name


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_every_pipeline(cupy, noted: Noted, large, pipeline: str) -> None:
    """The one that is in zarr 3.4 calls codecs from threads of its own."""
    with zarr.config.set({"codec_pipeline.path": pipeline}):
        for kind, store in large.items():
            noted.launches = 0
            content = zarr.open_array(store)[...]
            assert noted.launches > 0, kind
            assert host_bytes(cupy, content) == LARGE.tobytes()
            row = zarr.open_array(store)[1000]
            assert host_bytes(cupy, row) == LARGE[1000].tobytes()
        array = zarr.open_array(made(LARGE, BF16Arithmetic("auto"), "blocks"))
        array[7:9] = cupy.asarray(LARGE[:2])
        assert host_bytes(cupy, array[6:9]) == LARGE[[6, 0, 1]].tobytes()


def test_orthogonal_parts(cupy, large) -> None:
    array = zarr.open_array(large["blocks"], mode="r")
    content = array.oindex[[3, 1999], 10:20]
    assert host_bytes(cupy, content) == LARGE[[3, 1999], 10:20].tobytes()


def test_shards(cupy, noted: Noted) -> None:
    data = weights((400, 400), seed=2)
    for kind in ("compressor", "blocks"):
        store = made(data, CODECS["arithmetic"], kind, chunks=(100, 200), shards=(200, 400))
        content = zarr.open_array(store, mode="r")[...]
        assert noted.launches > 0
        assert host_bytes(cupy, content) == data.tobytes()


def test_steps(cupy, noted: Noted) -> None:
    """Versions in one chunk, each coded against the one before."""
    random = np.random.default_rng(0)
    data = random.normal(0, 0.001, (24, 5000)).cumsum(axis=0).astype("float32") + np.float32(9)
    for codec in (BF16Arithmetic("auto", steps=24), BF16Huffman("auto", steps=24)):
        for kind in ("compressor", "blocks"):
            noted.to_host.clear()
            content = zarr.open_array(made(data, codec, kind), mode="r")[...]
            assert noted.launches > 0
            assert noted.to_host == []
            assert host_bytes(cupy, content) == data.tobytes()


def test_many_steps(cupy, noted: Noted) -> None:
    data = np.linspace(0, 1, 300 * 400, dtype="float32").reshape(300, 400)
    store = made(data, BF16Arithmetic("auto", steps=300), "compressor")
    content = zarr.open_array(store, mode="r")[...]
    assert 0 < noted.launches < 300
    assert host_bytes(cupy, content) == data.tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_growing_frames_are_the_hosts(cupy, noted: Noted, kind: str) -> None:
    data = weights((4, 3000), seed=3)
    codec = BF16Arithmetic("bfloat16", steps=4)
    store = made(data, codec, kind)
    frame = new_growing_frame(codec, [Version(row) for row in data[:3]])
    store[chunk_of(store)] = cpu.Buffer.from_bytes(frame)
    content = zarr.open_array(store, mode="r")[:3]
    assert noted.launches == 0
    assert host_bytes(cupy, content) == data[:3].tobytes()


@pytest.mark.parametrize("per_thread", [False, True])
def test_each_thread_has_a_stream(cupy, stand_in, noted: Noted, large, per_thread: bool) -> None:
    """Late data are waited for, and other threads have nothing left to wait for."""
    cupy.ndarray.streams.are_per_thread = per_thread
    for kind, store in large.items():
        noted.launches, noted.to_host = 0, []
        content = zarr.open_array(store, mode="r")[...]
        assert noted.launches > 0
        assert sum(noted.to_host) < 1000, kind  # zarr's: the index of a shard
        assert host_bytes(cupy, content) == LARGE.tobytes()
    chunked = made(LARGE, BF16Zstd(dtype="auto"), "compressor", chunks=(300, 1024))
    assert host_bytes(cupy, zarr.open_array(chunked, mode="r")[...]) == LARGE.tobytes()


class Damage:
    """Ways to damage a chunk."""

    @staticmethod
    def flipped(frame: bytearray) -> bytes:
        frame[len(frame) // 2] ^= 1
        return bytes(frame)

    @staticmethod
    def shorter(frame: bytearray) -> bytes:
        return bytes(frame[:-9])

    @staticmethod
    def longer(frame: bytearray) -> bytes:
        return bytes(frame + b"x")

    @staticmethod
    def only_a_head(frame: bytearray) -> bytes:
        return bytes(frame[:21])

    @staticmethod
    def empty(frame: bytearray) -> bytes:
        return b""

    @staticmethod
    def other(frame: bytearray) -> bytes:
        return b"no frame" * 9

    @staticmethod
    def of_a_larger_chunk(frame: bytearray) -> bytes:
        return BF16Arithmetic().encode(weights((701, 512)))

    @staticmethod
    def of_a_base(frame: bytearray) -> bytes:
        return encode_delta(BF16Arithmetic(), WEIGHTS, WEIGHTS)


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_reported_as_on_the_host(cupy, kind: str) -> None:
    damages = {name for name in vars(Damage) if name[0] != "_"}
    # Of a compressor, zarr alone knows that it gave a chunk of another size.
    for damage in sorted(damages - ({"of_a_larger_chunk"} if kind == "compressor" else set())):
        store = made(WEIGHTS, CODECS["arithmetic"], kind)
        key = chunk_of(store)
        damaged = getattr(Damage, damage)(bytearray(store[key].to_bytes()))
        store[key] = cpu.Buffer.from_bytes(damaged)
        with zarr.config.set(ON_THE_HOST), pytest.raises(CodecError) as on_the_host:
            zarr.open_array(store, mode="r")[...]
        with pytest.raises(CodecError) as there:
            zarr.open_array(store, mode="r")[...]
        assert type(there.value) is type(on_the_host.value), damage
        assert str(there.value) == str(on_the_host.value), damage


@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_that_finds_damage_where_there_is_none(cupy, kind: str, monkeypatch) -> None:
    array = zarr.open_array(made(WEIGHTS, CODECS["arithmetic"], kind), mode="r")

    def run(jobs: Any, with_scratch: bool) -> Any:
        jobs._stream.synchronize()
        return np.array([1, 2], np.uint8)

    monkeypatch.setattr("bf16codecs.cuda.decoding._Jobs.run", run)
    with pytest.raises(DeviceError, match=r"chunk.*: GPU 0 .* could not decode it, but the host"):
        array[...]


@pytest.mark.parametrize("kind", KINDS)
def test_without_cuda_core(cupy, noted: Noted, monkeypatch, kind: str) -> None:
    store = made(WEIGHTS, CODECS["arithmetic"], kind)
    monkeypatch.setitem(sys.modules, "bf16codecs.cuda.device", None)
    content = zarr.open_array(store, mode="r")[...]
    assert noted.launches == 0
    assert host_bytes(cupy, content) == WEIGHTS.tobytes()


def test_a_driver_of_no_use(cupy, noted: Noted, monkeypatch) -> None:
    array = zarr.open_array(made(WEIGHTS, CODECS["arithmetic"], "compressor"), mode="r")

    class Useless:
        @staticmethod
        def of(ordinal: int) -> Device:
            raise DeviceError("the driver is too old")

    monkeypatch.setattr("bf16codecs.cuda.device.Device", Useless)
    with pytest.warns(UserWarning, match="too old; chunks are decoded on the host"):
        content = array[...]
    assert noted.launches == 0
    assert host_bytes(cupy, content) == WEIGHTS.tobytes()
