"""The order of imports and includes, what importing the package loads, the size of files."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "bf16codecs"
NATIVE = PACKAGE / "_native"

# A module imports from its own package and from lower layers, never from its neighbours. Errors,
# which everybody raises, and the native core lie below all.
LAYERS = [
    {
        "_arguments",
        "_core",
        "_entropy",
        "_fields",
        "_interrupt",
        "_lazy",
        "_names",
        "_shown",
        "_version",
        "errors",
    },
    {"_bfloat16", "_half", "_limits", "_paths", "_registration", "_tables"},
    {
        "_buffers",
        "_configured",
        "_digests",
        "_dtypes",
        "_files",
        "_held",
        "_memory",
        "_messages",
        "_threads",
    },
    {"_device_memory", "_lock", "_rename", "_sync", "_torch_tensors"},
    {"_journal", "_replace", "_safetensors_header", "cuda"},
    {"_journaled", "safetensors"},
    {"_frames", "_run_length"},
    {"_growing", "codecs"},
    {"_chunks"},
    {"zarr", "hdf5"},
    {"store"},
    {"convert", "model"},
    {"analysis", "bench", "dask", "torch"},
    {"view"},
    {"cli"},
    {"__init__", "_commands"},
    {"__main__"},
]
LAYER = {name: i for i, layer in enumerate(LAYERS) for name in layer}

# The same for the native core, whose units are folders, single files, and a file with its parts
# (block.h, block_encode.cpp). A unit includes itself and lower layers only.
NATIVE_LAYERS = [
    {f"format/{name}" for name in ("constants", "errors", "layout", "little_endian", "names")},
    {"kernels", "huge_pages", "workspace"},
    {"format", "options"},
    {"planes", "histogram", "huffman", "rans", "run_length", "threads"},
    {"grid"},
    {"scale", "tiles"},
    {"delta"},
    {"block", "cuda"},
    {"codec"},
    {"bindings", "c_api"},
    {"hdf5"},
    {"netcdf"},
]
NATIVE_LAYER = {unit: i for i, layer in enumerate(NATIVE_LAYERS) for unit in layer}

# Written in two parts so that this file passes its own test.
MACHINE_PATHS = re.compile(
    "|".join(["/wo" + "rk/", "/ro" + "ot/", "/ho" + "me/", r"(?<!\w)/tm" + "p/"])
)
CODE = {".py", ".pyi", ".cpp", ".h", ".rs", ".js", ".css", ".html"}
# What npm installs, and what it and cargo build.
NOT_OURS = {"node_modules", "dist", "build", ".cases", "target"}
TEXT = {*CODE, ".md", ".toml", ".txt", ".cmake", ".yml", ".yaml", ".json", ".ipynb", ".svg", ""}


def python_modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def native_files() -> list[Path]:
    return sorted([*NATIVE.rglob("*.cpp"), *NATIVE.rglob("*.h")])


def source_files() -> Iterator[Path]:
    yield from (p for p in ROOT.iterdir() if p.is_file() and p.suffix in TEXT)
    for folder in (".ci", "bf16codecs", "tests", "examples", "docs"):
        for path in sorted((ROOT / folder).rglob("*")):
            is_data = not {"goldens", "corpus", *NOT_OURS}.isdisjoint(path.parts)
            if path.is_file() and path.suffix in TEXT and not is_data:
                yield path


def module_name(path: Path) -> str:
    """Return a module's name below the package: ``store.layout``, and ``store`` of a package."""
    name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    return name if name == "__init__" else name.removesuffix(".__init__")


def imported_modules(path: Path) -> set[str]:
    """Return the package's own modules that a file imports anywhere, functions included."""
    own = {module_name(p) for p in python_modules()} | {"_core"}
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports name the whole path"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            top, _, rest = name.partition(".")
            if top == "bf16codecs":
                while rest and rest not in own:
                    rest = rest.rpartition(".")[0]
                found.add(rest or "__init__")
    return found


@pytest.mark.parametrize("path", python_modules(), ids=module_name)
def test_python_imports_go_downwards(path: Path) -> None:
    unit = module_name(path).partition(".")[0]
    assert unit in LAYER, f"give {unit} a place in LAYERS"
    for imported in imported_modules(path):
        other = imported.partition(".")[0]
        assert other == unit or LAYER[other] < LAYER[unit], f"{path.name} imports {imported}"


def test_python_modules_have_no_cycles() -> None:
    edges = {module_name(p): imported_modules(p) for p in python_modules()}
    while edges:
        leaves = {name for name, imported in edges.items() if not imported & edges.keys()}
        assert leaves, f"modules import each other: {sorted(edges)}"
        edges = {name: imported for name, imported in edges.items() if name not in leaves}


def native_unit(path: Path) -> str:
    first = path.relative_to(NATIVE).with_suffix("").parts[0]
    return first if first in NATIVE_LAYER else first.split("_")[0]


def native_layer(path: Path) -> int:
    name = path.relative_to(NATIVE).with_suffix("").as_posix()
    return NATIVE_LAYER[name if name in NATIVE_LAYER else native_unit(path)]


def own_includes(path: Path) -> Iterator[Path]:
    for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text("utf-8"), re.MULTILINE):
        assert (NATIVE / name).exists(), f"{path.name} includes {name}, which does not exist"
        yield NATIVE / name


@pytest.mark.parametrize("path", native_files(), ids=lambda p: str(p.relative_to(NATIVE)))
def test_native_includes_go_downwards(path: Path) -> None:
    for included in own_includes(path):
        is_lower = native_layer(included) < native_layer(path)
        is_own = native_unit(included) == native_unit(path)
        assert is_lower or is_own, f"{path.name} includes {included.name}"


def test_native_headers_have_no_cycles() -> None:
    edges = {p: set(own_includes(p)) for p in native_files() if p.suffix == ".h"}
    while edges:
        leaves = {p for p, included in edges.items() if not included & edges.keys()}
        assert leaves, f"headers include each other: {sorted(p.name for p in edges)}"
        edges = {p: included for p, included in edges.items() if p not in leaves}


def test_native_headers_define_each_name_once() -> None:
    """Two inline constants of one name and namespace break the one-definition rule unseen."""
    owners: dict[tuple[str, str], str] = {}
    for path in (p for p in native_files() if p.suffix == ".h"):
        text = path.read_text("utf-8")
        namespace = (re.findall(r"^namespace ([\w:]+) {", text, re.MULTILINE) or [""])[0]
        names = set(re.findall(r"^(?:struct|class|enum class) (\w+)", text, re.MULTILINE))
        for constants in re.findall(r"^inline constexpr .*?;", text, re.MULTILINE | re.DOTALL):
            names.update(re.findall(r"\b(k[A-Z]\w*)(?:\[\w*\])? =", constants))
        for name in names:
            owner = owners.setdefault((namespace, name), path.name)
            assert owner == path.name, f"{namespace}::{name} is in {owner} and in {path.name}"


def test_kernels_stand_alone() -> None:
    """A kernel sees its own headers and the format's constants: nothing to allocate with."""
    kernels = NATIVE / "kernels"
    constants = {NATIVE / "format" / "constants.h", NATIVE / "format" / "little_endian.h"}
    files = [p for p in native_files() if kernels in p.parents]
    assert files
    for path in files:
        for included in own_includes(path):
            allowed = kernels in included.parents or included in constants
            assert allowed, f"{path.name} includes {included.name}"
        if path.stem != "dispatch":  # which names the instruction sets, and runs once
            assert not re.search(r"#\s*include\s*<(vector|string|memory|map)>", path.read_text())


def test_core_needs_neither_python_nor_hdf5() -> None:
    """The HDF5 plugin is loaded by programs without Python, and works with any libhdf5."""
    for path in native_files():
        text = path.read_text("utf-8")
        if path.parent.name != "bindings":
            assert not re.search(r"#\s*include\s*<(Python\.h|nanobind)", text), path.name
        assert not re.search(r'#\s*include\s*[<"](hdf5|H5\w+)\.h', text), path.name


def test_nothing_below_the_codecs_for_zarr_imports_zarr() -> None:
    """`_registration` lets those follow the import of zarr: they must not lead back to it."""
    for path in python_modules():
        if LAYER[module_name(path).partition(".")[0]] < LAYER["zarr"]:
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                names = [alias.name for alias in getattr(node, "names", [])]
                imported = [getattr(node, "module", None) or "", *names]
                assert not {name.split(".")[0] for name in imported} & {"zarr"}, path.name


def test_importing_the_package_loads_nothing_of_others(run_python) -> None:
    code = """
import sys
before = set(sys.modules)
import bf16codecs
print(*set(sys.modules) - before)
"""
    loaded = run_python(code).stdout.split()
    assert {m.split(".")[0] for m in loaded} - sys.stdlib_module_names == {"bf16codecs"}
    own = {m for m in loaded if m.startswith("bf16codecs.")}
    light = ["_lazy", "_names", "_registration", "_version"]
    assert own == {f"bf16codecs.{name}" for name in light}


def test_importing_zarr_then_loads_little(run_python) -> None:
    """It adds the codecs and what zarr asks for."""
    code = """
import sys
import numcodecs, numpy, ml_dtypes, zarr
before = set(sys.modules)
import bf16codecs
print(*set(sys.modules) - before)
"""
    loaded = run_python(code).stdout.split()
    others = {m.split(".")[0] for m in loaded} - {"bf16codecs"} - sys.stdlib_module_names
    assert others == set()
    own = {m.split(".")[1] for m in loaded if m.startswith("bf16codecs.")}
    assert "zarr" in own
    not_needed = "analysis bench cli convert dask hdf5 model safetensors store torch view"
    assert own.isdisjoint(not_needed.split())


def test_files_stay_small() -> None:
    long = {}
    for path in source_files():
        if path.suffix in CODE:
            lines = len(path.read_text("utf-8").splitlines())
            if lines > 400:
                long[str(path.relative_to(ROOT))] = lines
    assert not long


def test_no_path_of_one_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in source_files()
        for line in path.read_text("utf-8").splitlines()
        if MACHINE_PATHS.search(line)
    ]
    assert not found
