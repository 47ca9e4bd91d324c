"""Stores that other Zarr libraries read: bit for bit, or not at all."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from numpy.typing import NDArray

import bf16codecs
from bf16codecs.cli import st2h5, st2zarr
from bf16codecs.convert import (
    safetensors_to_hdf5,
    safetensors_to_zarr,
    verify_store,
    zarr_to_safetensors,
)
from looping import for_each
from models import write_model

#: Names of tensors, and their dtypes and shapes: several chunks of 4 KiB, one with a part of a row
#: at its end, scalars, and arrays without items.
TENSORS = [
    ("layer.weight", "BF16", (300, 70)),
    ("scalar", "BF16", ()),
    ("empty", "BF16", (0, 4)),
    ("half", "F16", (80, 9)),
    ("float", "F32", (30, 9)),
    ("double", "F64", (7,)),
    ("wide", "F8_E5M2", (40, 8)),
    ("narrow", "F8_E4M3", (40, 8)),
    ("steps", "I64", (9,)),
    ("mask", "BOOL", (9,)),
]
BFLOAT16 = ["layer.weight", "scalar", "empty"]
FLOATS = ["half", "float", "double"]
FLOAT8 = ["wide", "narrow"]
OTHERS = ["steps", "mask"]
EVERY = [*BFLOAT16, *FLOATS, *FLOAT8, *OTHERS]
#: Zeros of both signs, a subnormal number, infinities, and NaNs of several payloads and signs.
AWKWARD = [0x0000, 0x8000, 0x0001, 0x7F80, 0xFF80, 0x7FC0, 0xFFC0, 0x7F81, 0x7FFF, 0xFFFF]
SELECTIONS = [np.s_[:], np.s_[3], np.s_[10:20, 5], np.s_[::7, ::3], np.s_[40:260:11, 60:]]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model with awkward numbers, and whole chunks of zeros of one sign."""
    path = write_model(tmp_path_factory.mktemp("source") / "m.safetensors", TENSORS)
    content = bytearray(path.read_bytes())
    weight = np.array(bf16codecs.open_model(path)["layer.weight"][:]).view(np.uint16)
    awkward = weight.copy()
    awkward[: len(AWKWARD), 0] = AWKWARD
    awkward[100:180] = 0x8000
    awkward[180:230] = 0x7FC0
    start = content.index(weight.tobytes())
    content[start : start + weight.nbytes] = awkward.tobytes()
    path.write_bytes(content)
    return path


@pytest.fixture(scope="module")
def stores(source: Path) -> Callable[[str, int], Path]:
    """Return a function that makes a store of that model once, for a codec and a Zarr format."""

    def make(codec: str, zarr_format: int) -> Path:
        store = source.with_name(f"{codec}-{zarr_format}.zarr")
        if not store.exists():
            safetensors_to_zarr(
                source, store, codec=codec, zarr_format=zarr_format, chunk_size=4096
            )
        return store

    return make


def place_of(store: Path, tensor: str) -> Path:
    with bf16codecs.open_model(store) as model:
        return store / model[tensor].zarr.path


def of_tensorstore(array: Path, zarr_format: int) -> Any:
    tensorstore = pytest.importorskip("tensorstore")
    driver = {3: "zarr3", 2: "zarr"}[zarr_format]
    kvstore = {"driver": "file", "path": str(array)}
    return tensorstore.open({"driver": driver, "kvstore": kvstore}).result()


def read_by_tensorstore(array: Path, zarr_format: int, selection: Any = ...) -> NDArray[Any]:
    return np.asarray(of_tensorstore(array, zarr_format)[selection].read().result())


def read_by_zarrs(array: Path, zarr_format: int, selection: Any = ...) -> NDArray[Any]:
    """Read through the codecs of zarrs: those of Python would take their place with a warning."""
    pytest.importorskip("zarrs")
    with (
        zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("error", "Array is unsupported by ZarrsCodecPipeline")
        opened = zarr.open_array(array, mode="r", zarr_format=zarr_format)
        return np.asarray(opened[selection])


def check(store: Path, source: Path, read: Callable[..., NDArray[Any]], tensor: str) -> None:
    """Compare a tensor, whole and in parts, with the source."""
    zarr_format = 3 if (store / "zarr.json").exists() else 2
    array = place_of(store, tensor)
    with bf16codecs.open_model(source) as model:
        wanted = np.asarray(model[tensor])
    found = read(array, zarr_format)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    assert found.tobytes() == wanted.tobytes()
    for selection in SELECTIONS if wanted.ndim == 2 and wanted.size > 1000 else []:
        found = read(array, zarr_format, selection)
        assert found.tobytes() == wanted[selection].tobytes(), selection


PLAIN = for_each("codec", ["none", "plain-zstd"])
FORMATS = for_each("zarr_format", [3, 2])


@FORMATS
@PLAIN
@for_each("tensor", EVERY)
def test_tensorstore_reads_plain_stores(stores, source, codec, zarr_format, tensor):
    check(stores(codec, zarr_format), source, read_by_tensorstore, tensor)


@PLAIN
@for_each("tensor", [*BFLOAT16, *FLOATS, *OTHERS])
def test_zarrs_reads_plain_stores(stores, source, codec, tensor):
    check(stores(codec, 3), source, read_by_zarrs, tensor)


@PLAIN
@for_each("tensor", [*FLOATS, *OTHERS])
def test_zarrs_reads_plain_stores_of_format_2(stores, source, codec, tensor):
    """All dtypes but bfloat16, which it cannot name there."""
    check(stores(codec, 2), source, read_by_zarrs, tensor)


@for_each(
    "codec, zarr_format, tensor",
    [
        ("none", 2, "layer.weight"),
        ("none", 3, "narrow"),
        ("none", 3, "wide"),
        ("arithmetic", 3, "layer.weight"),
        ("zstd", 3, "float"),
        ("huffman", 2, "float"),
    ],
)
def test_zarrs_leaves_the_rest_to_zarr_python(stores, source, codec, zarr_format, tensor):
    """Which has this package's codecs and data types: the pipeline may always be chosen."""
    pytest.importorskip("zarrs")
    store = stores(codec, zarr_format)
    with pytest.raises(UserWarning, match="unsupported by ZarrsCodecPipeline"):
        check(store, source, read_by_zarrs, tensor)

    def read(array: Path, zarr_format: int, selection: Any = ...) -> NDArray[Any]:
        pipeline = {"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}
        with zarr.config.set(pipeline), pytest.warns(UserWarning, match="is unsupported by"):
            return np.asarray(zarr.open_array(array, mode="r", zarr_format=zarr_format)[selection])

    check(store, source, read, tensor)


@FORMATS
@for_each("codec", ["arithmetic", "huffman", "split", "zstd"])
def test_tensorstore_refuses_codecs_that_it_does_not_know(stores, codec, zarr_format):
    pytest.importorskip("tensorstore")
    array = place_of(stores(codec, zarr_format), "layer.weight")
    with pytest.raises(ValueError, match=r"bf16codecs|codec"):
        read_by_tensorstore(array, zarr_format)


@FORMATS
def test_integers_beside_them_are_read_where_their_codec_is_known(stores, source, zarr_format):
    """Numcodecs' checksum of Zstandard is unknown to others, in format 2: hence plain-zstd."""
    pytest.importorskip("tensorstore")
    store = stores("arithmetic", zarr_format)
    if zarr_format == 3:
        check(store, source, read_by_tensorstore, "steps")
    else:
        with pytest.raises(ValueError, match="checksum"):
            check(store, source, read_by_tensorstore, "steps")


@pytest.mark.parametrize(
    ("read", "zarr_format"),
    [(read_by_tensorstore, 3), (read_by_tensorstore, 2), (read_by_zarrs, 3)],
)
def test_what_is_missing_is_the_nan_that_is_the_fill_value(stores, tmp_path, read, zarr_format):
    store = tmp_path / "m.zarr"
    shutil.copytree(stores("none", zarr_format), store)
    array = place_of(store, "layer.weight")
    for chunk in array.glob("*0.0"):
        chunk.unlink()
    found = read(array, zarr_format, np.s_[:25])
    assert found.dtype == ml_dtypes.bfloat16
    assert (found.view(np.uint16) == 0x7FC0).all()


@FORMATS
@PLAIN
def test_dask_and_xarray_read_plain_stores(stores, source, codec, zarr_format):
    dask_array, xarray = map(pytest.importorskip, ("dask.array", "xarray"))
    store = stores(codec, zarr_format)
    with bf16codecs.open_model(source) as model:
        wanted = model["layer.weight"][:]
    array = dask_array.from_zarr(str(place_of(store, "layer.weight")))
    assert array[40:90].compute(scheduler="sync").tobytes() == wanted[40:90].tobytes()
    # In format 2, it masks by the fill value, and knows none for these dtypes.
    options = {"chunks": None, "mask_and_scale": zarr_format == 3}
    dataset = xarray.open_zarr(store, group="layer", **options)
    assert dataset["weight"].dtype == ml_dtypes.bfloat16
    assert dataset["weight"][3:200, 5].values.tobytes() == wanted[3:200, 5].tobytes()


@pytest.mark.parametrize("make", [safetensors_to_hdf5, safetensors_to_zarr])
def test_there_are_no_plain_stores_elsewhere(source, tmp_path, make):
    """HDF5 has a Zstandard filter of its own, and differences are frames."""
    options = {} if make is safetensors_to_hdf5 else {"base": source}
    with pytest.raises(ValueError, match="'plain-zstd'"):
        make(source, tmp_path / "store", codec="plain-zstd", **options)
    assert not any(tmp_path.iterdir())
    runner = CliRunner()
    assert runner.invoke(st2h5, ["a", "b.h5", "--codec", "plain-zstd"]).exit_code == 2
    assert runner.invoke(st2zarr, ["--series", "a", "b", "--codec", "plain-zstd"]).exit_code == 2


@FORMATS
@for_each("level", [None, 1, 19])
def test_plain_stores_are_model_stores(source, new_folder, zarr_format, level):
    folder = new_folder()
    store = folder / "m.zarr"
    safetensors_to_zarr(source, store, codec="plain-zstd", level=level, zarr_format=zarr_format)
    verify_store(store, source)
    zarr_to_safetensors(store, folder / "back")
    assert (folder / "back").read_bytes() == source.read_bytes()
    with bf16codecs.open_model(store) as model, bf16codecs.open_model(source) as original:
        for name in EVERY:
            assert model[name][...].tobytes() == original[name][...].tobytes()
        assert (model["layer.weight"].zarr[3] == original["layer.weight"][3]).sum() > 50
