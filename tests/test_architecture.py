"""The order of imports and includes, the modules that an import loads, and forbidden words."""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from checkout import ROOT

T = TypeVar("T")

PACKAGE = ROOT / "bf16codecs"
NATIVE = PACKAGE / "_native"

#: A unit, a folder or a file, imports itself and units before a `<` to its left, never its
#: neighbours.
ORDER = (
    "_base < _files < safetensors, codecs, cuda < _arrays < zarr, hdf5 < store < convert, model"
    " < analysis, bench, dask, gguf, torch < mount, view < cli, __init__"
)
#: Modules that belong to another module's unit.
UNIT_OF = {"_core": "_base", "errors": "_base", "__main__": "cli"}
#: The same for the native core, whose units are folders and single files.
NATIVE_ORDER = (
    "format/constants, format/errors, format/layout, format/little_endian, format/names"
    " < kernels, huge_pages, workspace < format, options"
    " < copy, planes, histogram, scattered, huffman, rans, run_length, threads"
    " < grid, quantized, sparse, undo_log < scale, tiles < delta < block, cuda < codec"
    " < bindings, c_api < hdf5 < netcdf"
)


def layers(order: str) -> dict[str, int]:
    """Return the layer of each unit, counted from below."""
    named = [layer.split(", ") for layer in order.split(" < ")]
    return {unit: number for number, layer in enumerate(named) for unit in layer}


LAYER, NATIVE_LAYER = layers(ORDER), layers(NATIVE_ORDER)

# Written in two parts so that this file passes its own test.
MACHINE_PATHS = re.compile(
    "|".join(["/wo" + "rk/", "/ro" + "ot/", "/ho" + "me/", r"(?<!\w)/tm" + "p/"])
)
# What npm installs, and what it and cargo build.
NOT_OURS = {"node_modules", "dist", "build", ".cases", "target"}
TEXT = {
    *(".py", ".pyi", ".cpp", ".h", ".rs", ".js", ".css", ".html", ".svg", ".md", ".ipynb", ""),
    *(".toml", ".txt", ".cmake", ".yml", ".yaml", ".json"),
}


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


@functools.cache
def imports() -> dict[str, set[str]]:
    """Return the package's own modules that each of them imports anywhere, functions included."""
    own = {module_name(p) for p in python_modules()} | {"_core"}
    return {module_name(path): imported_modules(path, own) for path in python_modules()}


def imported_modules(path: Path, own: set[str]) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports name the whole path"
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


def unit_of(module: str) -> str:
    """Return a module's unit, which `ORDER` has to name."""
    first = module.partition(".")[0]
    unit = UNIT_OF.get(first, first)
    assert unit in LAYER, f"give {unit} a place in ORDER"
    return unit


def assert_no_cycles(edges: Mapping[T, set[T]]) -> None:
    left = dict(edges)
    while left:
        leaves = {name for name, wanted in left.items() if not wanted & left.keys()}
        assert leaves, f"these need each other: {sorted(map(str, left))}"
        left = {name: wanted for name, wanted in left.items() if name not in leaves}


def test_python_imports_go_downwards() -> None:
    for module, imported in imports().items():
        unit = unit_of(module)
        for other in imported:
            is_lower = LAYER[unit_of(other)] < LAYER[unit]
            assert is_lower or unit_of(other) == unit, f"{module} imports {other}"


def test_python_modules_have_no_cycles() -> None:
    assert_no_cycles(imports())


def native_unit(path: Path) -> str:
    return path.relative_to(NATIVE).with_suffix("").parts[0]


def native_layer(path: Path) -> int:
    name = path.relative_to(NATIVE).with_suffix("").as_posix()
    return NATIVE_LAYER[name if name in NATIVE_LAYER else native_unit(path)]


def own_includes(path: Path) -> Iterator[Path]:
    for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text("utf-8"), re.MULTILINE):
        assert (NATIVE / name).exists(), f"{path.name} includes {name}, which does not exist"
        yield NATIVE / name


def test_native_includes_go_downwards() -> None:
    for path in native_files():
        for included in own_includes(path):
            is_lower = native_layer(included) < native_layer(path)
            is_own = native_unit(included) == native_unit(path)
            assert is_lower or is_own, f"{path.name} includes {included.name}"


def test_native_headers_have_no_cycles() -> None:
    assert_no_cycles({p: set(own_includes(p)) for p in native_files() if p.suffix == ".h"})


def test_native_headers_define_each_name_once() -> None:
    """Two inline constants of one name and namespace break the one-definition rule unseen."""
    owners: dict[tuple[str, str], str] = {}
    for path in (p for p in native_files() if p.suffix == ".h"):
        text = path.read_text("utf-8")
        namespace = (re.findall(r"^namespace ([\w:]+) {", text, re.MULTILINE) or [""])[0]
        names = set(re.findall(r"^(?:struct|class|enum class) (\w+)\b(?!;)", text, re.MULTILINE))
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
    """`registration` lets those follow the import of zarr: they must not lead back to it."""
    for path in python_modules():
        if LAYER[unit_of(module_name(path))] < LAYER["zarr"]:
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
    light = ["_base", *(f"_base.{name}" for name in ("lazy", "names", "registration", "version"))]
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


def test_no_path_of_one_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in source_files()
        for line in path.read_text("utf-8").splitlines()
        if MACHINE_PATHS.search(line)
    ]
    assert not found


def test_no_docstring_begins_with_what() -> None:
    """A first line is an imperative, a noun phrase, or a sentence whose subject is named."""
    begins_with_what = re.compile(r'^\s*"{3}What', re.MULTILINE)
    found = [
        str(path.relative_to(ROOT))
        for path in [*python_modules(), *sorted((ROOT / "tests").rglob("*.py"))]
        if begins_with_what.search(path.read_text("utf-8"))
    ]
    assert found == []
