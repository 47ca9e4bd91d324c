"""Looks into what was built for release: `look_into.py FILE...`, wheels and HDF5 plugins.

A wheel has the package, compiled, the source of its CUDA kernels, with all that this includes, and
nothing else of this repository. A plugin exports the
functions that libraries ask for, and links what the system has; so do the small ones beside it,
which netCDF alone loads.
"""

from __future__ import annotations

import re
import sys
import zipfile
from pathlib import Path

import lief

NATIVE = Path(__file__).parents[2] / "bf16codecs" / "_native"
PLUGINS = {"h5bf16codecs", *(f"ncbf16codecs_{name}" for name in ("arithmetic", "split", "zstd"))}
KERNELS = "bf16codecs/cuda/source/"
# What every machine of the platform has; of Linux, that manylinux allows.
SYSTEM = {
    "ELF": r"lib(c|m|pthread|dl|gcc_s|stdc\+\+)\.so(\.\d+)?|ld-.*\.so\.\d",
    "PE": r"(?i:kernel32|ntdll|api-ms-win-crt-.*)\.dll",
    "MachO": r"/usr/lib/lib(System\.B|c\+\+\.1)\.dylib",
}
# Of the linker; and of a C++ library that Zig links into the file, whose linker for macOS knows no
# list of exports: operators new and delete, and the type information of functions.
ALSO_EXPORTED = re.compile(r"_?_mh_\w+_header|_?__dso_handle|_?_Z[nd][alw]\w*|_?_ZT[IS]P?F\w+")


def expect(holds: bool, what: str) -> None:
    """End with a message unless something holds."""
    if not holds:
        raise SystemExit(what)


def entries_of(name: str) -> set[str]:
    """Return what a plugin has to export."""
    folder = "netcdf" if Path(name).name.startswith("nc") else "hdf5"
    exports = (NATIVE / folder / "exports.map").read_text("utf-8")
    (listed,) = re.findall(r"global:([^:]*)local:", exports)
    return set(re.findall(r"\w+", listed))


def look_into_plugin(name: str, content: bytes) -> None:
    """Check what a plugin exports and links."""
    binary = lief.parse(list(content))
    expect(binary is not None, f"{name} is no program library")
    if isinstance(binary, lief.MachO.FatBinary):
        binary = binary.at(0)
    kind = type(binary).__module__.rpartition(".")[2]
    exported = {str(f.name) for f in binary.exported_functions}
    if kind == "MachO":
        exported = {symbol.removeprefix("_") for symbol in exported}
    entries = entries_of(name)
    others = {symbol for symbol in exported - entries if not ALSO_EXPORTED.fullmatch(symbol)}
    expect(exported >= entries, f"{name} exports {sorted(exported)}")
    expect(not others, f"{name} exports {sorted(others)}")
    libraries = [str(getattr(library, "name", library)) for library in binary.libraries]
    if kind == "MachO":
        # The first is the library's own name.
        libraries = [other for other in libraries if Path(other).name != Path(name).name]
    foreign = [other for other in libraries if not re.fullmatch(SYSTEM[kind], other)]
    expect(not foreign, f"{name} links {foreign}")
    links = ", ".join(libraries)
    print(f"{Path(name).name}: {kind}, exports {len(entries)} functions, links {links}")


def look_into_kernels(files: dict[str, bytes]) -> None:
    """Check that the kernels' source is what it includes, and headers that NVRTC lacks."""
    included = {name for name in files if re.fullmatch(rf"{KERNELS}cuda/\w+\.cu", name)}
    expect(len(included) > 1, f"the wheel has {included}")
    for content in files.values():
        names = re.findall(rb'^\s*#\s*include\s+"([^"]+)"', content, re.MULTILINE)
        included |= {f"{KERNELS}{name.decode()}" for name in names}
    installed = {name for name in files if not name.startswith(f"{KERNELS}cuda/nvrtc/")}
    expect(installed == included, f"kernels: {sorted(installed ^ included)}")
    expect(len(files) > len(installed), f"the wheel lacks {KERNELS}cuda/nvrtc")


def look_into_wheel(path: str) -> None:
    """Check what a wheel has."""
    with zipfile.ZipFile(path) as wheel:
        names = [name for name in wheel.namelist() if not name.endswith("/")]
        (info,) = {name.split("/")[0] for name in names if ".dist-info/" in name}
        places = {name.split("/")[0] for name in names}
        expect(places == {"bf16codecs", info}, f"{path} has {sorted(places)}")
        sources = [n for n in names if re.search(r"\.(cpp|h|c|cmake|txt|map)$|/_native/", n)]
        sources = [n for n in sources if not n.startswith((info, KERNELS))]
        expect(not sources, f"{path} has sources: {sources}")
        look_into_kernels({n: wheel.read(n) for n in names if n.startswith(KERNELS)})
        for needed in ("licenses/LICENSE", "RECORD", "METADATA", "entry_points.txt"):
            expect(f"{info}/{needed}" in names, f"{path} lacks {needed}")
        recorded = {line.split(",")[0] for line in wheel.read(f"{info}/RECORD").decode().split()}
        expect(recorded == set(names), f"RECORD and content: {recorded ^ set(names)}")
        modules = [n for n in names if re.fullmatch(r"bf16codecs/_core[^/]*\.(so|pyd)", n)]
        plugins = [n for n in names if n.startswith("bf16codecs/plugins/")]
        stems = {Path(name).stem.removeprefix("lib") for name in plugins}
        expect(len(modules) == 1 and stems == PLUGINS, f"{path} has {modules} and {plugins}")
        is_stable = "-abi3-" in Path(path).name
        expect(is_stable == (".abi3." in modules[0]), f"{path} has {modules[0]}")
        for name in (*modules, *plugins):
            expect(b"libhdf5" not in wheel.read(name), f"{name} names libhdf5")
        for name in plugins:
            look_into_plugin(name, wheel.read(name))
    size = Path(path).stat().st_size / 1e6
    print(f"{Path(path).name}: {size:.1f} MB, {len(names)} files, {modules[0]}")


lief.logging.disable()
for argument in sys.argv[1:]:
    if argument.endswith(".whl"):
        look_into_wheel(argument)
    else:
        look_into_plugin(argument, Path(argument).read_bytes())
