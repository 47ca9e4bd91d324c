"""What needs a package that is not installed says which extra has it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from bf16codecs.convert import safetensors_to_zarr
from checkout import ROOT

CODE = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1].split()))
import bf16codecs
model = bf16codecs.open_model("m.zarr")
try:
    {}
except (ImportError, ValueError) as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("missing", "needed_by", "extra"),
    [
        ("torch", "import bf16codecs.torch", "torch"),
        ("torch", "model.load(framework='torch')", "torch"),
        ("torch", "model['model.norm.weight'].torch()", "torch"),
        ("torch", "model.get_tensor('model.norm.weight', framework='pt')", "torch"),
        ("dask.array", "model['model.norm.weight'].dask()", "dask"),
        ("distributed", "import bf16codecs.dask", "dask"),
        ("cuda.core", "import bf16codecs.cuda.device", "cuda13"),
        ("tensorstore", "import bf16codecs.convert.orbax", "orbax"),
        ("fsspec obstore.store", "bf16codecs.open_model('s3://bucket/m.zarr')", "remote"),
        ("aiohttp obstore.store", "bf16codecs.open_model('http://host/m.zarr')", "remote"),
        ("s3fs obstore.store", "bf16codecs.open_model('s3://bucket/m.zarr')", "remote"),
    ],
)
def test_missing_packages(
    run_python, demo_model: Path, tmp_path: Path, missing: str, needed_by: str, extra: str
) -> None:
    safetensors_to_zarr(demo_model, tmp_path / "m.zarr")
    (line,) = run_python(CODE.format(needed_by), missing).stdout.splitlines()
    assert f"pip install 'bf16codecs[{extra}]'" in line
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert extra in project["optional-dependencies"]


def test_the_missing_module_is_still_told(run_python) -> None:
    """By name, as whoever skips what needs it looks at."""
    code = """
import sys
sys.modules["torch"] = None
try:
    import bf16codecs.torch
except ModuleNotFoundError as error:
    print(error.name)
"""
    assert run_python(code).stdout == "torch\n"
