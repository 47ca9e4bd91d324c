"""Tensors and selections without items, beside dimensions that are larger than any memory.

They are read in child processes: a loop over such a dimension never ends.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edit_store import claim_shape, edit_array
from lazy_models import weights, write_store
from models import write_model

SHAPES = [(1 << 40, 0), (0, 1 << 40), (1 << 40, 0, 1 << 12), (0,), (3, 0)]

CONVERTED = """
import sys
from pathlib import Path
import bf16codecs
from bf16codecs.convert import *

source, store = map(Path, sys.argv[1:3])
back, in_hdf5 = store.with_name("back"), store.suffix == ".h5"
shapes = eval(sys.argv[3])
if in_hdf5:
    safetensors_to_hdf5(source, store)
else:
    safetensors_to_zarr(source, store, codec=sys.argv[4], zarr_format=int(sys.argv[5]))
verify_store(store, source)
(hdf5_to_safetensors if in_hdf5 else zarr_to_safetensors)(store, back)
assert back.read_bytes() == source.read_bytes()
for path in (store, source):
    with bf16codecs.open_model(path) as model:
        loaded = model.load()
        for i, shape in enumerate(shapes):
            tensor = model[f"t{i}"]
            assert loaded[f"t{i}"].shape == tensor[...].shape == shape
            assert tensor.dask().compute().shape == shape
"""


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("m.zarr", ("arithmetic", "3")),
        ("m.zarr", ("zstd", "2")),
        ("m.zip", ("none", "3")),
        ("m.h5", ()),
    ],
)
def test_tensors_without_items(
    tmp_path: Path, run_python: Any, name: str, options: tuple[str, ...]
) -> None:
    """They are valid in safetensors."""
    tensors = [(f"t{i}", "BF16", shape) for i, shape in enumerate(SHAPES)]
    source = write_model(tmp_path / "m.safetensors", [*tensors, ("w", "BF16", (4, 3))])
    run_python(CONVERTED, str(source), str(tmp_path / name), repr(SHAPES), *options, timeout=60)


BYTES = {"name": "bytes", "configuration": {"endian": "little"}}

SELECTED = """
import sys
import numpy as np
import bf16codecs

with bf16codecs.open_model(sys.argv[1]) as model:
    w = model["w"]
    assert w.shape == (1 << 40, 4)
    assert w[:, 0:0].shape == w[:, []].shape == w[..., np.zeros(4, bool)].shape == (1 << 40, 0)
    assert w[:, 3:1, None].shape == (1 << 40, 0, 1)
    assert w[1 << 30:, 2:2].shape == ((1 << 40) - (1 << 30), 0)
    assert w[5:5].shape == w[[]].shape == (0, 4)
"""


@pytest.mark.parametrize(
    "codecs",
    [
        [],
        [{"name": "zstd", "configuration": {"level": 1, "checksum": False}}],
        [{"name": "gzip", "configuration": {"level": 1}}],
    ],
    ids=["none", "zstd", "gzip"],
)
def test_selections_without_items(tmp_path: Path, run_python: Any, codecs: list[Any]) -> None:
    store = write_store(tmp_path / "m.zarr", {"w": weights((1, 4))})
    claim_shape(store, [1 << 40, 4], [1, 4])
    edit_array(store, "w", lambda node: node.update(codecs=[BYTES, *codecs]))
    run_python(SELECTED, str(store), timeout=60)
