"""Registration of codecs and data types with zarr, and the cost of `import bf16codecs`."""

from __future__ import annotations

import pytest

from looping import for_each
from tiers import by_tier

BOTH = ["import bf16codecs, zarr", "import zarr, bf16codecs", "import bf16codecs.zarr"]

USE = """
import numcodecs
import zarr
for zarr_format in map(int, sys.argv[1:]):
    array = zarr.create_array(
        {}, shape=(300,), dtype="bfloat16", zarr_format=zarr_format, compressors=compressors
    )
    array[:] = range(300)
    assert array[7] == 7
assert numcodecs.get_codec({"id": "bf16codecs.huffman"})
print("fine")
"""


@pytest.mark.parametrize("imports", BOTH)
@for_each("formats", by_tier([["2", "3"]], [["2"], ["3"], ["3", "2"]]))
def test_the_order_of_imports(run_python, imports, formats):
    code = f"import sys\n{imports}\ncompressors = bf16codecs.BF16Huffman()\n{USE}"
    if imports.endswith("bf16codecs.zarr"):
        code = code.replace("compressors = ", "import bf16codecs\ncompressors = ")
    assert run_python(code, *formats).stdout == "fine\n"


@for_each("module", by_tier(["zarr.storage"], ["zarr.core.dtype", "zarr.storage", "zarr.registry"]))
def test_a_module_of_zarr_is_imported_first(run_python, module):
    code = f"""
import bf16codecs
import {module}
from zarr.dtype import data_type_registry
print("bfloat16" in data_type_registry.contents)
"""
    assert run_python(code).stdout == "True\n"


def test_without_zarr(run_python):
    """A failing import fails as without the package; a later installation is found."""
    code = """
import importlib.util  # of the standard library, which is gone for a while, too
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
    if name not in ("dask", "gguf", "torch"):  # which need packages that may be missing
        getattr(bf16codecs, name)
for name in "bench convert hdf5 model safetensors store zarr".split():
    assert name in dir(bf16codecs), name
try:
    bf16codecs.nonsense
except AttributeError as error:
    print(error)
"""
    assert run_python(code).stdout == "module 'bf16codecs' has no attribute 'nonsense'\n"


@for_each("order", ["numcodecs.registry, bf16codecs", "bf16codecs, numcodecs"])
def test_codecs_where_there_are_no_entry_points(run_python, order):
    """In a checkout on the path, and in frozen programs."""
    code = f"""
import importlib.metadata
importlib.metadata.entry_points = lambda **_: importlib.metadata.EntryPoints()
import {order}
print(*(numcodecs.get_codec(dict(id="bf16codecs." + name)) for name in ("rle", "zstd")))
"""
    expected = "RunLength() BF16Zstd(level=3, dtype='bfloat16', checksum=True)\n"
    assert run_python(code).stdout == expected


def test_the_package_is_imported_twice(run_python):
    """As autoreload does: zarr can still be imported, and gets the codecs."""
    code = """
import importlib, sys
import bf16codecs
importlib.reload(bf16codecs)
for name in [n for n in sys.modules if n.startswith("bf16codecs")]:
    del sys.modules[name]
import bf16codecs
import zarr
print("bfloat16" in zarr.dtype.data_type_registry.contents, zarr.__spec__.loader is zarr.__loader__)
"""
    assert run_python(code).stdout == "True True\n"


def test_first_used_by_several_threads(run_python, tmp_path):
    """Each imports zarr, by one road or another."""
    code = """
import sys, threading
import bf16codecs
start, wrong = threading.Barrier(6), []

def use(i):
    start.wait()
    try:
        if i % 3 == 0:
            bf16codecs.open_model({})
        elif i % 3 == 1:
            import zarr
            zarr.open
        else:
            bf16codecs.zarr.BF16BlocksCodec
    except TypeError:
        pass  # it is no store
    except BaseException as error:
        wrong.append(error)

threads = [threading.Thread(target=use, args=[i]) for i in range(6)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(wrong)
"""
    for _ in range(by_tier(1, 3)):
        assert run_python(code).stdout == "[]\n"


def test_finding_zarr_imports_nothing(run_python):
    """Python holds the lock of all imports meanwhile: another import might wait for ever."""
    code = """
import sys
import bf16codecs
before = set(sys.modules)
spec = sys.meta_path[0].find_spec("zarr", None)
print(type(spec.loader).__module__, set(sys.modules) - before)
"""
    assert run_python(code).stdout == "bf16codecs._base.registration set()\n"


def test_an_import_that_is_under_way_goes_on(run_python):
    """A finder that goes away meanwhile makes it skip another one, in whichever thread it is."""
    code = """
import sys
from importlib.machinery import PathFinder
import bf16codecs

class Between:
    def find_spec(self, name, path=None, target=None):
        if name == "tabnanny":
            import zarr

sys.meta_path.insert(sys.meta_path.index(PathFinder), Between())
import tabnanny
print(tabnanny.__name__)
"""
    assert run_python(code).stdout == "tabnanny\n"


def test_finding_zarr_without_importing_it(run_python):
    """As libraries do to learn whether it is installed."""
    code = """
import bf16codecs
from importlib.util import find_spec
spec = find_spec("zarr")
print(spec.loader.get_filename("zarr") == spec.origin, spec.submodule_search_locations is not None)
import zarr
print("bfloat16" in zarr.dtype.data_type_registry.contents, zarr.__spec__.loader is zarr.__loader__)
print(find_spec("zarr") is zarr.__spec__, type(zarr.__loader__).__name__)
"""
    expected = "True True\nTrue True\nTrue SourceFileLoader\n"
    assert run_python(code).stdout == expected
