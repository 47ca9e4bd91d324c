"""The installed files: entry points, version and data, and files that are left out."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import bf16codecs
import tiers
from checkout import ROOT
from looping import for_each

NAMES = ["split", "huffman", "arithmetic", "zstd", "rle"]
#: Groups of entry points whose modules need PyTorch.
NEED_TORCH = {"vllm.general_plugins"}
CODECS = [f"bf16codecs.{name}" for name in NAMES]


@pytest.fixture
def project() -> dict[str, Any]:
    """Return the project's table of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_entry_points_are_installed_and_resolve(project: dict[str, Any]) -> None:
    installed = importlib.metadata.distribution("bf16codecs").entry_points
    groups = {**project["entry-points"], "console_scripts": project["scripts"]}
    assert len(groups) > 2
    for group, targets in groups.items():
        for name, target in targets.items():
            matching = [e for e in installed if e.group == group and e.name == name]
            assert [e.value for e in matching] == [target], (group, name)
            if group not in NEED_TORCH or find_spec("torch") is not None:
                assert callable(matching[0].load()), (group, name)


def test_version_has_one_source(project: dict[str, Any]) -> None:
    assert importlib.metadata.version("bf16codecs") == bf16codecs.__version__
    assert project["dynamic"] == ["version"]


def test_changelog_knows_the_version() -> None:
    text = (ROOT / "docs" / "changelog.md").read_text("utf-8")
    assert re.search(rf"^## \[?{re.escape(bf16codecs.__version__)}\b", text, re.MULTILINE)


def test_numcodecs_finds_codecs_without_import(run_python) -> None:
    """The import of one brings the others, so the full tier looks for each in its own process."""
    code = """
import sys
import numcodecs
assert "bf16codecs" not in sys.modules
for name in sys.argv[1:]:
    print(type(numcodecs.get_codec({"id": name})).codec_id)
"""
    for names in tiers.by_tier([CODECS], [[name] for name in CODECS]):
        assert run_python(code, *names).stdout.split() == names


def test_zarr_finds_codecs_without_import(run_python) -> None:
    code = """
import sys
from zarr.registry import get_codec_class
assert "bf16codecs" not in sys.modules
for name in sys.argv[1:]:
    print(get_codec_class(name).__module__)
"""
    every = [*CODECS, "bf16codecs.blocks", "bf16codecs.delta"]
    for names in tiers.by_tier([every], [[name] for name in every]):
        modules = run_python(code, *names).stdout.split()
        assert [module.partition(".")[0] for module in modules] == ["bf16codecs"] * len(names)


def test_installed_package_has_data_and_types_but_no_sources() -> None:
    package = Path(bf16codecs.__file__).resolve().parent
    assert (package / "py.typed").exists()
    assert (package / "data" / "demo.safetensors").stat().st_size < 2_000_000
    for name in ("report.css", "report.js"):
        assert (package / "analysis" / name).stat().st_size
    if package.parent == ROOT:
        pytest.skip("the package runs from its source tree")
    assert not (package / "_native").exists()
    assert len([p for p in package.glob("_core*") if p.suffix in {".so", ".pyd"}]) == 1


def test_source_of_cuda_kernels_is_installed() -> None:
    """With all includes: it is compiled where it runs."""
    package = Path(bf16codecs.__file__).resolve().parent
    is_checkout = package.parent == ROOT
    folder = package / "_native" if is_checkout else package / "cuda" / "source"
    kernels = (
        "copy_rows", "decode_any", "decode_fused", "decode_fused_delta", "decode_huffman",
        "merge_planes", "multiply_levels",
    )  # fmt: skip
    todo, seen = [f"cuda/{name}.cu" for name in kernels], set()
    while todo:
        name = todo.pop()
        text = (folder / name).read_text("utf-8")
        seen.add(name)
        todo += {*re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, re.MULTILINE)} - seen
    installed = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    if not is_checkout:
        assert {name for name in installed if not name.startswith("cuda/nvrtc/")} == seen


def test_hdf5_plugin_is_beside_the_package() -> None:
    """It depends on nothing but the C++ runtime, and so do the small libraries for netCDF."""
    plugins = list((Path(bf16codecs.__file__).resolve().parent / "plugins").iterdir())
    netcdf = [f"ncbf16codecs_{codec}" for codec in ("arithmetic", "split", "zstd")]
    assert sorted(p.stem.removeprefix("lib") for p in plugins) == ["h5bf16codecs", *netcdf]
    for path in plugins:
        content = path.read_bytes()
        for library in (b"libhdf5", b"libnetcdf", b"libpython", b"libzstd"):
            assert library not in content


def binaries() -> list[Path]:
    package = Path(bf16codecs.__file__).resolve().parent
    return [*package.glob("_core*.so"), *package.glob("plugins/*.so")]


@pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("readelf") is None,
    reason="reads files of Linux with readelf (Debian: binutils)",
)
@for_each("path", binaries)
def test_binaries_are_hardened(path: Path) -> None:
    """As `_native/hardening.cmake` says: a bug in a decoder should be hard to use."""

    def readelf(option: str) -> str:
        command = ["readelf", "--wide", option, str(path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    segments = readelf("--program-headers")
    assert "GNU_RELRO" in segments
    (stack,) = re.findall(r"GNU_STACK .*", segments)
    assert " RWE " not in stack
    assert "BIND_NOW" in readelf("--dynamic")
    symbols = readelf("--dyn-syms")
    assert "__stack_chk_fail" in symbols
    is_small = path.name.startswith("ncbf16")  # for netCDF, of a few functions, which copy nothing
    if platform.libc_ver()[0] == "glibc" and not is_small:
        assert re.search(r"__mem(cpy|set|move)_chk", symbols)
    if platform.machine() == "x86_64":
        assert "SHSTK" in readelf("--notes")
        # The C library's start files have no marks for branches in Debian, so the file has no note
        # of them. But its functions begin with one: endbr64.
        assert path.read_bytes().count(b"\xf3\x0f\x1e\xfa") > (5 if is_small else 100)
