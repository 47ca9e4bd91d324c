"""Tensors and selections without items, beside dimensions that are larger than any memory.

They are read in child processes: a loop over such a dimension never ends.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import tiers
from edit_store import claim_shape, edit_array
from lazy_models import weights, write_store
from models import write_model

SHAPES = [(1 << 40, 0), (0, 1 << 40), (1 << 40, 0, 1 << 12), (0,), (3, 0)]

CONVERTED = """
import sys
from pathlib import Path
import bf16codecs
from bf16codecs.convert import *

source, shapes, has_dask = Path(sys.argv[1]), eval(sys.argv[2]), eval(sys.argv[3])
back = source.with_name("back")
for name, options in {
    "m.zarr": {"codec": "arithmetic"},
    "m2.zarr": {"codec": "zstd", "zarr_format": 2},
    "m.zip": {"codec": "none"},
    "m.h5": {},
}.items():
    store, in_hdf5 = source.with_name(name), name == "m.h5"
    (safetensors_to_hdf5 if in_hdf5 else safetensors_to_zarr)(source, store, **options)
    verify_store(store, source)
    (hdf5_to_safetensors if in_hdf5 else zarr_to_safetensors)(store, back, overwrite=True)
    assert back.read_bytes() == source.read_bytes(), name
    for path in (store, source):
        with bf16codecs.open_model(path) as model:
            loaded = model.load()
            for i, shape in enumerate(shapes):
                tensor = model[f"t{i}"]
                assert loaded[f"t{i}"].shape == tensor[...].shape == shape, path
                if has_dask:
                    assert tensor.dask().compute().shape == shape, path
"""


def test_tensors_without_items(tmp_path: Path, run_python: Any) -> None:
    """They are valid in safetensors."""
    tensors = [(f"t{i}", "BF16", shape) for i, shape in enumerate(SHAPES)]
    source = write_model(tmp_path / "m.safetensors", [*tensors, ("w", "BF16", (4, 3))])
    has_dask = tiers.IS_FULL and importlib.util.find_spec("dask") is not None
    run_python(CONVERTED, str(source), repr(SHAPES), str(has_dask), timeout=60)


BYTES = {"name": "bytes", "configuration": {"endian": "little"}}

SELECTED = """
import sys
import numpy as np
import bf16codecs

for path in sys.argv[1:]:
    with bf16codecs.open_model(path) as model:
        w = model["w"]
        assert w.shape == (1 << 40, 4)
        assert w[:, 0:0].shape == w[:, []].shape == w[..., np.zeros(4, bool)].shape == (1 << 40, 0)
        assert w[:, 3:1, None].shape == (1 << 40, 0, 1)
        assert w[1 << 30:, 2:2].shape == ((1 << 40) - (1 << 30), 0)
        assert w[5:5].shape == w[[]].shape == (0, 4)
"""


def test_selections_without_items(tmp_path: Path, run_python: Any) -> None:
    stores = []
    for name, codecs in {
        "none": [],
        "zstd": [{"name": "zstd", "configuration": {"level": 1, "checksum": False}}],
        "gzip": [{"name": "gzip", "configuration": {"level": 1}}],
    }.items():
        store = write_store(tmp_path / f"{name}.zarr", {"w": weights((1, 4))})
        claim_shape(store, [1 << 40, 4], [1, 4])
        edit_array(store, "w", lambda node, codecs=codecs: node.update(codecs=[BYTES, *codecs]))
        stores.append(str(store))
    run_python(SELECTED, *stores, timeout=60)
