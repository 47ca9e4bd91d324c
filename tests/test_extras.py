"""Errors about missing packages name the extra that installs them."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import tiers
from bf16codecs.convert import safetensors_to_zarr
from checkout import ROOT

#: Missing modules, code that needs them, and the extra.
CASES = [
    ("torch", "import bf16codecs.torch", "torch"),
    ("torch", "model.load(framework='torch')", "torch"),
    ("torch", "model['model.norm.weight'].torch()", "torch"),
    ("torch", "model.get_tensor('model.norm.weight', framework='pt')", "torch"),
    ("dask.array", "model['model.norm.weight'].dask()", "dask"),
    ("distributed", "import bf16codecs.dask", "dask"),
    ("gguf", "import bf16codecs.gguf", "gguf"),
    ("cuda.core", "import bf16codecs.cuda.device", "cuda13"),
    ("tensorstore", "import bf16codecs.convert.orbax", "orbax"),
    ("huggingface_hub", "safetensors_to_zarr('hf://owner/name', 'x.zarr')", "hub"),
    ("huggingface_hub", "bf16codecs.open_model('hf://owner/name/m.zarr')", "hub"),
    ("fsspec obstore.store", "bf16codecs.open_model('s3://bucket/m.zarr')", "remote"),
    ("aiohttp obstore.store", "bf16codecs.open_model('http://host/m.zarr')", "remote"),
    ("s3fs obstore.store", "bf16codecs.open_model('s3://bucket/m.zarr')", "remote"),
]
CODE = """
import json, sys
import bf16codecs
from bf16codecs.convert import safetensors_to_zarr
model = bf16codecs.open_model("m.zarr")
for missing, needed_by, _ in json.loads(sys.argv[1]):
    blocked = dict.fromkeys(missing.split())
    before = {name: sys.modules[name] for name in blocked if name in sys.modules}
    sys.modules.update(blocked)
    try:
        exec(needed_by)
    except (ImportError, ValueError) as error:
        print(error)
    for name in blocked:
        del sys.modules[name]
    sys.modules.update(before)
"""


def test_missing_packages(run_python, demo_model: Path, tmp_path: Path) -> None:
    """One process tries all in the quick tier; each has its own in the full tier."""
    safetensors_to_zarr(demo_model, tmp_path / "m.zarr")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for cases in tiers.by_tier([CASES], [[case] for case in CASES]):
        lines = run_python(CODE, json.dumps(cases)).stdout.splitlines()
        for (missing, needed_by, extra), line in zip(cases, lines, strict=True):
            assert f"pip install 'bf16codecs[{extra}]'" in line, (missing, needed_by)
            assert extra in project["optional-dependencies"]


def test_the_missing_module_is_still_named(run_python) -> None:
    """Callers that skip optional parts check the name."""
    code = """
import sys
sys.modules["torch"] = None
try:
    import bf16codecs.torch
except ModuleNotFoundError as error:
    print(error.name)
"""
    assert run_python(code).stdout == "torch\n"
