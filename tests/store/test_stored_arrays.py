"""A store's arrays, and the models on them, are two things."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from bf16codecs._arrays.array import ChunkedArray, Located, UnitArray
from bf16codecs._arrays.formats import RAW
from bf16codecs._arrays.storage import InMemory
from bf16codecs._base.limits import DEFAULT_LIMITS
from bf16codecs._files.digests import Digests
from bf16codecs.convert import safetensors_to_run
from bf16codecs.errors import StoreError
from bf16codecs.safetensors import make_header
from bf16codecs.store.arrays import CheckSize, StoredArrays
from bf16codecs.store.attributes import Difference, StoredFile
from bf16codecs.store.layout import StoreInfo
from bf16codecs.store.opening import open_run_store
from bf16codecs.store.reader import ModelReader
from lazy_models import write_safetensors

VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)
HEADER = make_header({"a.b": ("F32", (3, 4))}, None, "m.safetensors")


class ArraysInMemory(StoredArrays):
    """The arrays of a store that is in no container at all."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        file = StoredFile("m.safetensors", HEADER.file_size, Digests(), "header")
        super().__init__("memory", StoreInfo((file,), None, {"a.b": "a/b"}), DEFAULT_LIMITS)
        self.arrays, self.is_closed = arrays, False

    def open(self, path: str, check_size: CheckSize) -> UnitArray:
        if path not in self.arrays:
            raise StoreError(f"{self.label(path)}: is missing")
        array = self.arrays[path]
        found = Located(RAW, InMemory(array.tobytes()), None)
        return ChunkedArray(
            self.label(path), array.shape, array.dtype, array.shape, lambda index: found, True
        )

    def attributes(self, path: str) -> Mapping[str, Any]:
        return {"tensor": "a.b", "dtype": "F32"} if path == "a/b" else {}

    def open_zarr(self, path: str, check_size: CheckSize) -> NoReturn:
        raise ValueError("no Zarr array")

    def stored_nbytes(self, path: str) -> int:
        return self.arrays[path].nbytes

    def total_nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())

    def codec_name(self, path: str) -> str:
        return "none"

    def close(self) -> None:
        self.is_closed = True


def arrays(values: np.ndarray = VALUES) -> ArraysInMemory:
    return ArraysInMemory({"a/b": values, "header": np.frombuffer(HEADER.raw, np.uint8)})


def test_a_model_is_read_on_any_arrays() -> None:
    stored = arrays()
    model = ModelReader(stored)
    assert model.names == ["a.b"]
    out = np.empty(20, np.uint8)
    model.read_range(0, HEADER.data_start + 4, out)
    assert out.view(np.float32).tolist() == VALUES.reshape(-1)[1:6].tolist()
    assert model.headers[0].raw == HEADER.raw
    assert model.total_nbytes() == VALUES.nbytes + len(HEADER.raw)
    assert tuple(model.codec_label("a/b")) == ("none", "")
    model.close()
    assert stored.is_closed


def test_the_model_compares_arrays_with_headers() -> None:
    model = ModelReader(arrays(VALUES[:2]))
    model.tensor("a.b")
    with pytest.raises(StoreError, match=r"memory: tensor 'a\.b': .*shape \(2, 4\)"):
        model.check_header("a.b")


def test_differences_are_of_containers_that_have_them() -> None:
    difference = Difference("a.b", "F32", (3, 4), (3, 4))
    with pytest.raises(StoreError, match="only Zarr and HDF5 have"):
        arrays().open_difference("a/b", difference, lambda: pytest.fail("not read"))


@pytest.mark.parametrize("suffix", [".zarr", ".h5"])
def test_a_run_and_its_steps_are_models_on_the_same_arrays(tmp_path: Path, suffix: str) -> None:
    files = [tmp_path / f"step-{i}.safetensors" for i in range(2)]
    for i, file in enumerate(files):
        write_safetensors(file, {"w": VALUES + i})
    target = tmp_path / f"run{suffix}"
    safetensors_to_run(files, target, as_hdf5=suffix == ".h5", sync=False)
    run = open_run_store(target)
    step = run.step(1)
    assert step.stored is run.stored
    assert step.array(step.info.paths["w"]).shape == (3, 4)
    assert run.tensor("w").array.shape == (2, 3, 4)
    step.close()
    assert run.step(0).tensor("w").array.shape == (3, 4)
    run.close()
