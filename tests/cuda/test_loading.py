"""Models loaded onto a GPU: sent as stored, and decoded there to the host's values."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bf16codecs._arrays import on_device
from bf16codecs._arrays.array import ChunkedArray
from bf16codecs.bench.synthetic import RECIPES
from bf16codecs.convert import (
    safetensors_to_hdf5,
    safetensors_to_run,
    safetensors_to_zarr,
)
from bf16codecs.cuda.device import Device
from bf16codecs.cuda.loading import GpuBytes, Loader
from bf16codecs.errors import CorruptDataError, DeviceError
from bf16codecs.model import gpu as model_gpu
from bf16codecs.model import open_model
from bf16codecs.model.gpu import LOADING_THREADS, Target, read_onto
from bf16codecs.zarr import BF16ArithmeticCodec
from lazy_models import weights, write_safetensors
from models import every_dtype

pytestmark = pytest.mark.slow

ARRAYS = {
    # Blocks of one, two and four groups of lanes; the last ones with a remainder.
    "large": weights((700, 512)),
    "medium": weights((300, 301), seed=1),
    "small": weights((100, 77), seed=2),
    "one": weights((1,), seed=3),
    "scalar": weights((), seed=4),
    "empty": weights((0, 3)),
    "zeros": np.zeros((1000, 40), "bfloat16"),
    "ones": np.ones((333,), "bfloat16"),
    "noise": np.random.default_rng(5).integers(0, 1 << 16, 70_000, np.uint16).view("bfloat16"),
    "half": weights((200, 200), "float16", 6),
    "single": weights((300, 300), "float32", 7),
    "rounded": weights((300, 300), "bfloat16", 8).astype("float32"),
    "double": weights((100, 200), "float64", 9),
    "byte": weights((300, 300), "float8_e4m3fn", 10),
    "steps": np.arange(5000),
}


def on_gpu(model: Any) -> dict[str, bytes]:
    """Load a model's tensors onto the GPU; return their bytes there."""
    device = Device.of(0)
    memory = {name: device.allocate(tensor.nbytes) for name, tensor in model.items()}
    read_onto(device, [Target(tensor, memory[name].address) for name, tensor in model.items()])
    with Loader(device) as loader:
        return {
            n: loader.memory(m.address, m.nbytes, n).host().tobytes() for n, m in memory.items()
        }


def boxes_on_gpu(boxes: list[tuple[Any, list[range]]]) -> list[bytes]:
    """Load boxes of tensors onto the GPU; return their bytes there."""
    device, targets, memory = Device.of(0), [], []
    for tensor, axes in boxes:
        target = Target(tensor, 0, axes)
        memory.append(device.allocate(target.nbytes))
        targets.append(target._replace(address=memory[-1].address))
    read_onto(device, targets)
    with Loader(device) as loader:
        return [loader.memory(m.address, m.nbytes, None).host().tobytes() for m in memory]


def on_host(model: Any) -> dict[str, bytes]:
    return {name: np.asarray(tensor[...]).tobytes() for name, tensor in model.items()}


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return write_safetensors(tmp_path_factory.mktemp("source") / "m.safetensors", ARRAYS)


@pytest.mark.parametrize(
    ("codec", "level"),
    [
        ("arithmetic", "fast"),
        ("arithmetic", "best"),
        ("huffman", None),
        ("split", None),
        ("zstd", None),
        ("plain-zstd", None),
        ("none", None),
    ],
)
def test_every_codec(gpu, source: Path, tmp_path: Path, codec: str, level: str | None) -> None:
    safetensors_to_zarr(source, tmp_path / "m.zarr", codec=codec, level=level, chunk_size=1 << 19)
    with open_model(tmp_path / "m.zarr") as model:
        assert on_gpu(model) == on_host(model)


@pytest.fixture
def decoded_on_host(monkeypatch) -> list[int]:
    """Return a list of the sizes of what the host decodes."""
    sizes: list[int] = []
    real = GpuBytes._decode_on_host

    def noted(self: GpuBytes, *arguments: Any) -> None:
        sizes.append(self.size)
        real(self, *arguments)

    monkeypatch.setattr(GpuBytes, "_decode_on_host", noted)
    return sizes


def quantized(recipe: str, dtype: str) -> np.ndarray:
    random = np.random.default_rng(len(recipe))
    return RECIPES[recipe](random.normal(0, 0.02, (128, 1024)).astype("float32")).astype(dtype)


@pytest.mark.parametrize("codec", ["arithmetic", "huffman"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_weights_that_were_quantized(
    gpu, tmp_path: Path, codec: str, dtype: str, decoded_on_host: list[int]
) -> None:
    recipes = [recipe for recipe in RECIPES if not recipe.startswith("pruned")]
    arrays = {recipe: quantized(recipe, dtype) for recipe in recipes}
    source = write_safetensors(tmp_path / "m.safetensors", arrays)
    safetensors_to_zarr(source, tmp_path / "m.zarr", codec=codec, chunk_size=1 << 16)
    with open_model(tmp_path / "m.zarr") as model:
        assert on_gpu(model) == on_host(model)
    assert decoded_on_host == []


def test_groups_that_are_plain(gpu, tmp_path: Path, decoded_on_host: list[int]) -> None:
    arrays = {"mixed": quantized("int4-g128", "bfloat16"), "same": quantized("nf4", "bfloat16")}
    arrays["mixed"][:30, :500] = weights((30, 500))
    source = write_safetensors(tmp_path / "m.safetensors", arrays)
    safetensors_to_zarr(source, tmp_path / "m.zarr")
    with open_model(tmp_path / "m.zarr") as model:
        assert on_gpu(model) == on_host(model)
    assert decoded_on_host == []


@pytest.mark.parametrize("kind", ["h5", "zip", "format 2", "safetensors"])
def test_every_kind_of_store(gpu, source: Path, tmp_path: Path, kind: str) -> None:
    path = source
    if kind == "h5":
        path = tmp_path / "m.h5"
        safetensors_to_hdf5(source, path, chunk_size=1 << 18)
    elif kind != "safetensors":
        path = tmp_path / ("m.zarr.zip" if kind == "zip" else "m.zarr")
        safetensors_to_zarr(source, path, zarr_format=2 if kind == "format 2" else 3)
    with open_model(path) as model:
        assert on_gpu(model) == on_host(model)


def test_every_dtype(gpu, tmp_path: Path) -> None:
    safetensors_to_zarr(every_dtype(tmp_path / "m.safetensors"), tmp_path / "m.zarr")
    with open_model(tmp_path / "m.zarr") as model:
        assert on_gpu(model) == on_host(model)


def changed(arrays: dict[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """Return a model after some training, a part of which has not changed."""
    random, later = np.random.default_rng(seed), {}
    for name, array in arrays.items():
        if array.dtype.kind in "iu" or name in ("zeros", "small", "noise"):
            later[name] = array
            continue
        wide = array.astype("float64")
        later[name] = (wide + random.normal(0, 1e-4, wide.shape)).astype(array.dtype)
    return later


@pytest.mark.parametrize("level", ["fast", "best"])
def test_differences(gpu, source: Path, tmp_path: Path, level: str) -> None:
    later = write_safetensors(tmp_path / "later.safetensors", changed(ARRAYS, 1))
    safetensors_to_zarr(source, tmp_path / "base.zarr", chunk_size=1 << 18)
    safetensors_to_zarr(
        later, tmp_path / "m.zarr", base=tmp_path / "base.zarr", chunk_size=1 << 19, level=level
    )
    with open_model(tmp_path / "m.zarr") as model:
        assert on_gpu(model) == on_host(model)


@pytest.mark.parametrize("as_hdf5", [False, True])
def test_a_step_of_a_run(gpu, tmp_path: Path, as_hdf5: bool) -> None:
    arrays, sources = dict(ARRAYS), []
    for step in range(5):
        folder = tmp_path / f"step-{step}"
        folder.mkdir()
        sources.append(write_safetensors(folder / "model.safetensors", arrays))
        arrays = changed(arrays, step)
    path = tmp_path / ("run.h5" if as_hdf5 else "run.zarr")
    safetensors_to_run(sources, path, steps=range(5), as_hdf5=as_hdf5, chunk_size=1 << 18)
    for step in (0, 3, 4):
        with open_model(f"{path}@{step}") as model:
            assert on_gpu(model) == on_host(model)


def in_other_chunks(store: Path, chunks: dict[str, tuple[int, ...]], codec: Any = None) -> None:
    """Write a store's arrays again, in chunks that conversions do not make."""
    codec = BF16ArithmeticCodec() if codec is None else codec
    zarr: Any = pytest.importorskip("zarr")
    group = zarr.open_group(store)
    for name, shape in chunks.items():
        values, attributes = group[name][...], dict(group[name].attrs)
        options = {"chunks": shape, "compressors": codec, "attributes": attributes}
        zarr.create_array(group.store, name=name, data=values, overwrite=True, **options)
    zarr.consolidate_metadata(group.store)


@pytest.mark.parametrize("codec", ["arithmetic", "gzip"])
def test_chunks_that_are_no_runs_of_the_array(gpu, tmp_path: Path, codec: str, monkeypatch) -> None:
    """Of squares, columns and boxes, with edges; and more than a thread's memory has room for."""
    if codec != "arithmetic":  # the host decodes it, in larger parts
        monkeypatch.setattr(on_device, "_DETOUR_BYTES", 1 << 19)
    random = np.random.default_rng(3)
    chunks = {
        "squares": ((300, 301), (64, 64)),
        "columns": ((200, 300), (200, 7)),
        "rows": ((30, 301), (1, 100)),
        "boxes": ((20, 30, 40), (7, 30, 9)),
        "kernels": ((12, 10, 3, 3), (5, 4, 3, 3)),
        "line": ((1000,), (33,)),
        "large": ((1100, 2200), (1100, 2100)),
    }
    arrays = {n: weights(shape, seed=random.integers(99)) for n, (shape, _) in chunks.items()}
    store = tmp_path / "m.zarr"
    safetensors_to_zarr(write_safetensors(tmp_path / "m.safetensors", arrays), store)
    zarr: Any = pytest.importorskip("zarr")
    codecs = {"gzip": zarr.codecs.GzipCodec(), "arithmetic": BF16ArithmeticCodec()}
    in_other_chunks(store, {name: shape for name, (_, shape) in chunks.items()}, codecs[codec])
    with open_model(store) as model:
        there = on_gpu(model)
        assert there == {name: array.tobytes() for name, array in arrays.items()}
        for name, tensor in model.items():
            for _ in range(6):
                axes = [range(*sorted(random.integers(0, n + 1, 2))) for n in tensor.shape]
                (found,) = boxes_on_gpu([(tensor, axes)])
                place = tuple(slice(axis.start, axis.stop) for axis in axes)
                assert found == arrays[name][place].tobytes()


def test_the_host_decodes_each_chunk_once(gpu, tmp_path: Path, monkeypatch) -> None:
    """With chunks of any size."""
    source = write_safetensors(tmp_path / "m.safetensors", {"a": weights((400, 500))})
    safetensors_to_zarr(source, tmp_path / "m.zarr", codec="plain-zstd", chunk_size=150_000)
    monkeypatch.setattr(on_device, "SLAB_BYTES", 10_000)
    read: list[Any] = []
    real = ChunkedArray._read

    def noted(self: ChunkedArray, index: Any, *rest: Any) -> None:
        read.append(index)
        real(self, index, *rest)

    monkeypatch.setattr(ChunkedArray, "_read", noted)
    with open_model(tmp_path / "m.zarr") as model:
        there, chunks = on_gpu(model), len(read)
        assert there == on_host(model)
    assert chunks == len(set(read)) > 2


def test_threads(gpu, source: Path, tmp_path: Path, monkeypatch) -> None:
    """Reads through libhdf5 use the caller's thread; all others still use several."""
    safetensors_to_hdf5(source, tmp_path / "m.h5")
    runs: list[int] = []
    real = model_gpu.run_all

    def noted(jobs: Any, concurrency: int, nbytes: int) -> None:
        runs.append(concurrency)
        real(jobs, concurrency, nbytes)

    monkeypatch.setattr(model_gpu, "run_all", noted)
    with open_model(tmp_path / "m.h5") as model:
        assert on_gpu(model) == on_host(model)
        array = model["large"]._array
        array.concurrency = 3
        assert on_gpu({"large": model["large"]}) == {"large": ARRAYS["large"].tobytes()}
    assert runs == [0, model_gpu.LOADING_THREADS, 0, 3]


LOCKED = """
import ctypes, sys
if len(sys.argv) > 2:
    ctypes.CDLL(sys.argv[2], ctypes.RTLD_GLOBAL)
import bf16codecs
from bf16codecs.cuda.device import Device
from bf16codecs.hdf5 import direct
from bf16codecs.model.gpu import Target, read_onto
from h5py._hl.base import phil
direct.HAS_PREADV = False
with bf16codecs.open_model(sys.argv[1]) as model, phil:
    tensor, gpu = model["large"], Device.of(0)
    memory = gpu.allocate(tensor.nbytes)
    read_onto(gpu, [Target(tensor, memory.address)])
    print("done")
"""


def test_while_hdf5s_lock_is_held(gpu, source: Path, tmp_path: Path, run_python) -> None:
    """As in h5py's loops over values: no other thread can ask HDF5 where a chunk is."""
    safetensors_to_hdf5(source, tmp_path / "m.h5", chunk_size=1 << 17)
    stand_in = [] if gpu is None else [gpu.path]
    assert run_python(LOCKED, str(tmp_path / "m.h5"), *stand_in, timeout=60).stdout == "done\n"


def test_boxes_of_a_step(gpu, tmp_path: Path) -> None:
    arrays, sources = {"a": weights((100, 333)), "b": weights((0, 7))}, []
    for step in range(4):
        folder = tmp_path / f"step-{step}"
        folder.mkdir()
        sources.append(write_safetensors(folder / "model.safetensors", arrays))
        arrays = changed(arrays, step)
    safetensors_to_run(sources, tmp_path / "run.zarr", steps=range(4), chunk_size=1 << 14)
    with open_model(f"{tmp_path / 'run.zarr'}@2") as model:
        tensor, axes = model["a"], [range(11, 90), range(5, 300)]
        assert boxes_on_gpu([(tensor, axes)]) == [tensor[11:90, 5:300].tobytes()]
        assert boxes_on_gpu([(model["b"], [range(0), range(2, 5)])]) == [b""]


def damage(store: Path) -> None:
    """Change a byte in the middle of the largest chunk."""
    chunk = max((p for p in store.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 1
    chunk.write_bytes(content)


def test_damage_is_reported_as_on_the_host(gpu, tmp_path: Path) -> None:
    source = write_safetensors(
        tmp_path / "m.safetensors", {"a": weights((300, 300)), "b": ARRAYS["small"]}
    )
    safetensors_to_zarr(source, tmp_path / "m.zarr")
    damage(tmp_path / "m.zarr")
    with open_model(tmp_path / "m.zarr") as model:
        with pytest.raises(CorruptDataError) as on_the_host:
            model["a"][...]
        with pytest.raises(CorruptDataError) as there:
            on_gpu(model)
    assert str(there.value) == str(on_the_host.value)


def test_a_gpu_that_decodes_something_else(gpu, source: Path, tmp_path: Path, monkeypatch) -> None:
    safetensors_to_zarr(source, tmp_path / "m.zarr")
    with open_model(tmp_path / "m.zarr") as model:
        names = model.keys()
        monkeypatch.setattr(Loader, "finish", lambda self: {len(names) - 1, names.index("large")})
        told = pytest.raises(DeviceError, match=r"tensor 'large': GPU 0 .* could not decode it")
        with told:
            on_gpu(model)


def test_no_room_on_the_gpu(stand_in, source: Path, tmp_path: Path) -> None:
    safetensors_to_zarr(source, tmp_path / "m.zarr")
    with open_model(tmp_path / "m.zarr") as model:
        stand_in.fail("cuMemAlloc", len(model) + 1)
        with pytest.raises(MemoryError, match="in one piece"):
            on_gpu(model)


def test_memory_goes_with_the_load(stand_in, source: Path, tmp_path: Path) -> None:
    """At once, after success or failure, not only when Python collects garbage."""
    safetensors_to_zarr(source, tmp_path / "m.zarr", chunk_size=1 << 16)
    gc.collect()
    before = [stand_in.live(kind) for kind in ("blocks", "streams")]
    gc.disable()
    try:
        with open_model(tmp_path / "m.zarr") as model:
            on_gpu(model)
            assert [stand_in.live(kind) for kind in ("blocks", "streams")] == before
            damage(tmp_path / "m.zarr")
            with pytest.raises(CorruptDataError):
                on_gpu(model)
            assert [stand_in.live(kind) for kind in ("blocks", "streams")] == before
    finally:
        gc.enable()


def taken(targets: list[Target]) -> dict[str, int]:
    """Read; return how much memory of either kind that took in all."""
    made = dict.fromkeys(("allocate", "pinned"), 0)

    def counted(method: str) -> Any:
        real = getattr(Device, method)

        def noted(self: Device, nbytes: int) -> Any:
            made[method] += nbytes
            return real(self, nbytes)

        return noted

    with pytest.MonkeyPatch.context() as patch:
        for method in made:
            patch.setattr(Device, method, counted(method))
        read_onto(Device.of(0), targets)
    return made


def test_memory_on_either_side(gpu, tmp_path: Path, monkeypatch) -> None:
    """No more than 256 MB, however large the model."""
    arrays = {f"{i}": weights((750, 1000), seed=i) for i in range(8)}
    safetensors_to_zarr(
        write_safetensors(tmp_path / "m.safetensors", arrays),
        tmp_path / "m.zarr",
        chunk_size=1 << 19,
    )
    in_other_chunks(tmp_path / "m.zarr", {"0": (750, 250), "1": (150, 550)})
    with open_model(tmp_path / "m.zarr") as model:
        memory = {name: Device.of(0).allocate(tensor.nbytes) for name, tensor in model.items()}
        targets = [Target(tensor, memory[name].address) for name, tensor in model.items()]
        assert all(0 < n < 256e6 for n in taken(targets).values())
        # A model of many batches takes what threads have.
        for module in ("batches", "loading"):
            monkeypatch.setattr(f"bf16codecs.cuda.{module}.BATCH_BYTES", 1 << 17)
        many = taken(targets[2:])
        assert many["pinned"] < sum(target.tensor.nbytes for target in targets[2:]) / 3
        assert many["pinned"] <= (2 * LOADING_THREADS + 1) << 17


def test_parts_of_memory(gpu) -> None:
    device = Device.of(0)
    memory = device.allocate(1000)
    content = np.arange(1000).astype(np.uint8)
    with Loader(device) as loader:
        place: GpuBytes = loader.memory(memory.address, 1000, "x")
        place[:] = content
        place[10:20] = 7
        place[500:600] = place[100:200]
        other = place.new(50)
        other[:] = place[:50]
        expected = content.copy()
        expected[10:20] = 7
        expected[500:600] = expected[100:200]
        assert (place.host() == expected).all()
        assert (other.host() == expected[:50]).all()
        assert place[5:1].size == 0
        assert loader.finish() == set()
