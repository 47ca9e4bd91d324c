"""The drafts for the registries agree with the package."""

from __future__ import annotations

import re
from glob import glob
from pathlib import Path
from typing import Any

import pytest

from bf16codecs import hdf5
from checkout import ROOT
from native_core import core

REGISTRIES = ROOT / "docs" / "registries"
NATIVE = "bf16codecs/_native"


def entry(name: str, **names: Any) -> Any:
    """Run the block of the page that defines a name, and return the value."""
    page = (REGISTRIES / "hdf5plugin.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (block,) = (b for b in blocks if re.search(rf"^(def|class) {name}\b", b, re.MULTILINE))
    exec("from __future__ import annotations\n" + block, names)
    return names[name]


def cmake_sources() -> set[str]:
    """Return the source files of the core, by CMake."""
    text = (ROOT / NATIVE / "CMakeLists.txt").read_text("utf-8")
    named = re.findall(r"[\w/]+\.cpp", re.sub("#.*", "", text))
    return {f"{NATIVE}/{name}" for name in named}


def test_hdf5plugins_entry_builds_what_cmake_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    """On each processor, and each file with the flags of its instruction set."""
    monkeypatch.chdir(ROOT)
    wanted = cmake_sources() - {f"{NATIVE}/threads/pool.cpp"}
    wanted |= {f"{NATIVE}/c_api/{path.name}" for path in (ROOT / NATIVE / "c_api").glob("*.cpp")}
    for processor, folder in (("X86_64", "x86"), ("ARM_8", "arm"), ("PPC_64", "none")):
        host = type("HostConfig", (), {"ARCH": processor})
        config = entry(
            "_get_bf16codecs_clib",
            HostConfig=host,
            glob=lambda pattern: glob(pattern.removeprefix("lib/bf16codecs/")),
        )()
        sources = [
            *config["sources"],
            *(source for sources, _ in config["source_cflags"] for source in sources),
        ]
        sources = [source.removeprefix("lib/bf16codecs/") for source in sources]
        assert len(sources) == len(set(sources))
        assert set(sources) == {
            source
            for source in wanted
            if not re.search("/kernels/(x86|arm|wasm)/", source) or f"/{folder}/" in source
        }
        for each, flags in config["source_cflags"]:
            for source in each:
                newest = "/avx512bf16" in source
                assert ("-mavx512bf16" in flags) == newest
                assert ("-mavx512vbmi2" in flags) == (newest or "/avx512vbmi2" in source)
                assert ("-mavx512f" in flags) == ("/avx512" in source)
                assert ("-mavx2" in flags) == ("/avx2" in source)


def test_hdf5plugins_entry_asks_for_what_the_filter_takes() -> None:
    base = pytest.importorskip("hdf5plugin._filters")
    options = entry("Bf16Codecs", FilterBase=base.FilterBase, _cname_from_id=base._cname_from_id)
    assert options.filter_id in hdf5.filters.FILTER_IDS
    assert (
        f"libh5{options.filter_name}"
        == Path(next(iter(glob(f"{hdf5.PLUGIN_PATH}/*h5bf16codecs.*")))).name.split(".")[0]
    )
    ours = {"huffman": hdf5.Huffman, "arithmetic": hdf5.Arithmetic, "split": hdf5.Split}
    for codec, cls in ours.items():
        for dtype in (*core.DTYPES, "auto"):
            for level in core.LEVELS if codec == "arithmetic" else ("fast",):
                for checksum in (True, False) if codec != "split" else (True,):
                    more = {"level": level} if codec == "arithmetic" else {}
                    more |= {} if codec == "split" else {"checksum": checksum}
                    values = cls(dtype, **more).filter_options
                    theirs = options(codec, dtype, level, checksum)
                    assert theirs.filter_options == (*values, 0, 0)[:4]
                    assert options._from_filter_options(values) == theirs
    with pytest.raises(NotImplementedError):
        options._from_filter_options(hdf5.Huffman(steps=4).filter_options)


def test_the_mail_says_of_parameters_what_the_documentation_says() -> None:
    mail = (REGISTRIES / "hdf5_filter_number.md").read_text("utf-8")
    page = (ROOT / "docs" / "hdf5_filter.md").read_text("utf-8")
    described = re.findall(r"^> \| `\[(\d)\]` \| (.*) \|$", mail, re.MULTILINE)
    documented = re.findall(r"^\| (\d) \| (.*) \|$", page, re.MULTILINE)
    assert [index for index, _ in described] == [index for index, _ in documented]
    assert len(described) == 7
    for name, number in core.DTYPES.items():
        assert f"{number} {name}" in described[1][1]
    for name, number in (("planes alone", "split"), ("arithmetic", "arithmetic")):
        assert f"{core.CODECS[number]} {name}" in described[0][1].replace(", or 0,", "")
    for name, number in core.LEVELS.items():
        assert f"{number} {name}" in described[3][1]
    assert f"private identifier {hdf5.FILTER_ID}." in mail.replace("\n> ", " ")
    assert str(core.MAX_STEPS) in described[6][1]
