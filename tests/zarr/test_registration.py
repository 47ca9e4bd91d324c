"""When zarr knows this package's codecs and data types, and what `import bf16codecs` costs."""

from __future__ import annotations

import pytest

BOTH = ["import bf16codecs, zarr", "import zarr, bf16codecs", "import bf16codecs.zarr"]

USE = """
import numcodecs
import zarr
array = zarr.create_array(
    {}, shape=(300,), dtype="bfloat16", zarr_format=int(sys.argv[1]), compressors=compressors
)
array[:] = range(300)
assert array[7] == 7
assert numcodecs.get_codec({"id": "bf16codecs.huffman"})
print("fine")
"""


@pytest.mark.parametrize("imports", BOTH)
@pytest.mark.parametrize("zarr_format", ["2", "3"])
def test_the_order_of_imports(run_python, imports, zarr_format):
    code = f"import sys\n{imports}\ncompressors = bf16codecs.BF16Huffman()\n{USE}"
    if imports.endswith("bf16codecs.zarr"):
        code = code.replace("compressors = ", "import bf16codecs\ncompressors = ")
    assert run_python(code, zarr_format).stdout == "fine\n"


@pytest.mark.parametrize("module", ["zarr.core.dtype", "zarr.storage", "zarr.registry"])
def test_a_module_of_zarr_is_imported_first(run_python, module):
    code = f"""
import bf16codecs
import {module}
from zarr.dtype import data_type_registry
print("bfloat16" in data_type_registry.contents)
"""
    assert run_python(code).stdout == "True\n"


def test_without_zarr(run_python):
    """An import that fails, fails as it would; what is installed later is found."""
    code = """
import sys
import bf16codecs
path, sys.path[:] = sys.path[:], []
try:
    import zarr
except ModuleNotFoundError as error:
    print(error)
sys.path[:] = path
import zarr
print(zarr.__spec__.name, "bfloat16" in zarr.dtype.data_type_registry.contents)
"""
    assert run_python(code).stdout == "No module named 'zarr'\nzarr True\n"


def test_names_of_the_package(run_python):
    code = """
import bf16codecs
assert set(bf16codecs.__all__) <= set(dir(bf16codecs))
for name in dir(bf16codecs):
    if name not in ("dask", "torch"):  # which need packages that may be missing
        getattr(bf16codecs, name)
for name in "bench convert hdf5 model safetensors store zarr".split():
    assert name in dir(bf16codecs), name
try:
    bf16codecs.nonsense
except AttributeError as error:
    print(error)
"""
    assert run_python(code).stdout == "module 'bf16codecs' has no attribute 'nonsense'\n"
