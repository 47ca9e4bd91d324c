"""Kernels are compiled without a GPU, and kept."""

from __future__ import annotations

import io
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bf16codecs.cuda import compiling, sources
from bf16codecs.cuda.compiling import (
    architectures,
    cache_folder,
    compile_source,
    compiled,
    expect_compiler,
)
from bf16codecs.cuda.found import found_gpu
from bf16codecs.cuda.nvidia import nvrtc
from bf16codecs.cuda.sources import kernel_names, kernel_sources, read_sources
from bf16codecs.errors import DeviceError
from cuda_driver import SOURCES

pytestmark = pytest.mark.slow

CAPABILITY, KERNEL = (9, 0), "copy_bytes"
KERNELS = read_sources("test_kernels.cu", SOURCES)


@pytest.fixture(autouse=True)
def has_compiler() -> None:
    """Skip where NVRTC is not installed, or too old for these GPUs."""
    try:
        known = architectures()
    except DeviceError as error:
        pytest.skip(str(error))
    if 90 not in known:
        pytest.skip("needs a newer NVRTC")


@pytest.fixture(autouse=True)
def takes_little(monkeypatch) -> None:
    """Replace the package's kernels, which take seconds to compile, by the tests'."""
    monkeypatch.setattr(compiling, "kernel_sources", lambda _: KERNELS)


@pytest.fixture
def times_compiled(monkeypatch) -> list[int]:
    """Return a list with the count of compilations, and forget compiled kernels."""
    times = [0]

    def counted(*arguments):
        times[0] += 1
        return compile_source(*arguments)

    monkeypatch.setattr(compiling, "compile_source", counted)
    monkeypatch.setattr(compiling, "_compiled", {})
    return times


def forget(monkeypatch) -> None:
    """Forget compiled kernels, as in another process."""
    monkeypatch.setattr(compiling, "_compiled", {})


def entries(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_cubin_is_made_without_a_gpu() -> None:
    code = compile_source(CAPABILITY, KERNELS)
    assert code.code.startswith(b"\x7fELF")
    assert not code.is_ptx


def test_the_package_has_kernels() -> None:
    """`.ci/steps/look_into_kernels.py` tries them on more kinds of GPUs."""
    names = ["copy_rows", "decode_any", "decode_fused", "decode_fused_delta", "decode_huffman"]
    names += ["merge_planes", "multiply_levels"]
    assert kernel_names() == [f"bf16codecs_{name}" for name in names]
    for name in kernel_names():
        assert name.encode() in compile_source(CAPABILITY, kernel_sources(name)).code


def test_without_a_compiler_the_host_decodes(gpu, monkeypatch) -> None:
    monkeypatch.setattr("bf16codecs.cuda.compiling.architectures", lambda: [1200])
    expect_compiler.cache_clear()
    with pytest.warns(UserWarning, match=r"compiles for GPUs .*; tensors are decoded on the host"):
        assert found_gpu(0, "tensors") is None


def test_a_kernel_that_there_is_not() -> None:
    with pytest.raises(DeviceError, match="bf16codecs_encode: the package has no such kernel"):
        kernel_sources("bf16codecs_encode")


def test_the_assembler_reports() -> None:
    report = io.StringIO()
    compile_source(CAPABILITY, KERNELS, report)
    assert "copy_bytes" in report.getvalue()
    assert "spill stores" in report.getvalue()


def test_newer_gpus_are_given_ptx(gpu) -> None:
    code = compile_source((99, 0), KERNELS)
    assert code.is_ptx
    assert b".entry copy_bytes(" in code.code


def test_the_driver_takes_ptx(stand_in, monkeypatch) -> None:
    from bf16codecs.cuda.device import Device

    monkeypatch.setattr("bf16codecs.cuda.device.compiled", lambda _, c: compile_source(c, KERNELS))
    device = Device(0)
    device.compute_capability = 99, 0
    memory, stream = device.allocate(4), device.stream()
    device.launch("count_warps", 1, stream, memory.address)
    stream.synchronize()


def test_code_for_another_gpu_is_not_run(stand_in, monkeypatch) -> None:
    from bf16codecs.cuda.device import Device

    monkeypatch.setattr(
        "bf16codecs.cuda.device.compiled", lambda _, c: compile_source((8, 0), KERNELS)
    )
    device = Device(0)
    with pytest.raises(DeviceError, match=r"count_warps: CUDA_ERROR_NO_BINARY_FOR_GPU .*[)]$"):
        device.launch("count_warps", 1, device.stream(), 0)
    monkeypatch.setenv("BF16CODECS_STAND_IN_VERSION", "11040")
    with pytest.raises(DeviceError, match=r"NVRTC 1\d\.\d+ made it, and .* CUDA 11\.4; .*cuda12\]"):
        device.launch("count_warps", 1, device.stream(), 0)


def test_gpus_that_are_too_old() -> None:
    with pytest.raises(DeviceError, match=r"NVRTC 1\d\.\d+ compiles for .*, not 3\.5$"):
        compile_source((3, 5), KERNELS)
    if 70 not in architectures():
        with pytest.raises(DeviceError, match=r"not 7\.0; the compiler of CUDA 12 .*cuda12\]'$"):
            compile_source((7, 0), KERNELS)


def test_errors_of_the_source_are_reported(tmp_path: Path) -> None:
    (tmp_path / "wrong.cu").write_text('#include "wrong.h"\n')
    (tmp_path / "wrong.h").write_text("int nothing;\nnonsense f();\n")
    with pytest.raises(DeviceError, match=r"^wrong\.cu for .* 9\.0: ") as raised:
        compile_source(CAPABILITY, read_sources("wrong.cu", tmp_path))
    assert 'wrong.h(2): error: identifier "nonsense" is undefined' in str(raised.value)
    assert str(raised.value).endswith(".")


def test_a_compiler_that_is_not_there(monkeypatch) -> None:
    """With cuda-pathfinder's message."""

    def missing():
        kind = type("DynamicLibNotFoundError", (RuntimeError,), {"__module__": "cuda.pathfinder"})
        raise kind('Failure finding "libnvrtc.so": no such file')

    monkeypatch.setattr(nvrtc, "nvrtcGetSupportedArchs", missing)
    with pytest.raises(
        DeviceError, match=r"run-time compiler was not found: .*bf16codecs\[cuda13\]"
    ):
        architectures()


def test_compiled_kernels_are_kept(times_compiled: list[int], kept_kernels, monkeypatch) -> None:
    first = compiled(KERNEL, CAPABILITY)
    assert compiled(KERNEL, CAPABILITY) is first
    assert len(entries(kept_kernels)) == 1
    forget(monkeypatch)
    assert compiled(KERNEL, CAPABILITY) == first
    assert times_compiled == [1]
    assert compiled(KERNEL, (8, 0)) != first
    assert times_compiled == [2]


@pytest.fixture
def small(tmp_path: Path, monkeypatch) -> Path:
    """Return a folder with a source file, its includes, and the headers that NVRTC lacks."""
    folder = tmp_path / "small"
    (folder / "parts").mkdir(parents=True)
    (folder / "main.cu").write_text(
        '#include <cstdint>\n#include "parts/part.h"\n'
        'extern "C" __global__ void kernel(uint32_t* out) { *out = kPart; }\n'
    )
    (folder / "parts" / "part.h").write_text("constexpr uint32_t kPart = 1;\n")
    shutil.copytree(sources.NVRTC_HEADERS, folder / "nvrtc")
    for module in (sources, compiling):
        monkeypatch.setattr(module, "NVRTC_HEADERS", folder / "nvrtc")
    monkeypatch.setattr(compiling, "kernel_sources", lambda _: read_sources("main.cu", folder))
    return folder


@pytest.mark.parametrize("changed", ["main.cu", "parts/part.h", "nvrtc/cstdint"])
def test_other_sources_are_compiled_anew(
    times_compiled: list[int], small: Path, changed: str
) -> None:
    compiled(KERNEL, CAPABILITY)
    with (small / changed).open("a") as file:
        file.write("\n// other\n")
    compiled(KERNEL, CAPABILITY)
    assert times_compiled == [2]


def test_the_same_sources_elsewhere_are_not(
    times_compiled: list[int], small: Path, monkeypatch
) -> None:
    compiled(KERNEL, CAPABILITY)
    forget(monkeypatch)
    elsewhere = small.with_name("elsewhere")
    small.rename(elsewhere)
    for module in (sources, compiling):
        monkeypatch.setattr(module, "NVRTC_HEADERS", elsewhere / "nvrtc")
    monkeypatch.setattr(compiling, "kernel_sources", lambda _: read_sources("main.cu", elsewhere))
    compiled(KERNEL, CAPABILITY)
    assert times_compiled == [1]


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "longer"])
def test_damaged_kernels_are_compiled_anew(
    times_compiled: list[int], kept_kernels: Path, monkeypatch, damage: str
) -> None:
    first = compiled(KERNEL, CAPABILITY)
    (entry,) = entries(kept_kernels)
    content = bytearray(entry.read_bytes())
    content[len(content) // 2] ^= 1
    damaged = {"flipped": content, "cut": content[:1000], "empty": b"", "longer": content + b"\0"}
    entry.write_bytes(damaged[damage])
    for _ in range(2):
        forget(monkeypatch)
        assert compiled(KERNEL, CAPABILITY) == first
    assert times_compiled == [2]


def test_no_place_for_kernels(times_compiled: list[int], tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("BF16CODECS_CACHE_DIR", str(tmp_path / "file"))
    first = compiled(KERNEL, CAPABILITY)
    monkeypatch.setattr(compiling, "cache_folder", lambda: None)
    forget(monkeypatch)
    assert compiled(KERNEL, CAPABILITY) == first
    assert times_compiled == [2]


def test_a_full_disk(times_compiled: list[int], kept_kernels: Path, monkeypatch) -> None:
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    assert compiled(KERNEL, CAPABILITY).code
    assert entries(kept_kernels) == []


def test_several_processes(run_python, small: Path, kept_kernels: Path) -> None:
    code = """
import hashlib, sys
from pathlib import Path
from bf16codecs.cuda import compiling
from bf16codecs.cuda.sources import read_sources
compiling.kernel_sources = lambda _: read_sources("main.cu", Path(sys.argv[1]))
print(hashlib.sha256(compiling.compiled("kernel", (9, 0)).code).hexdigest())
"""
    with ThreadPoolExecutor(3) as pool:
        made = {run.stdout for run in pool.map(lambda _: run_python(code, str(small)), range(3))}
    assert len(made) == 1
    assert len(entries(kept_kernels)) == 1


def test_where_kernels_are_kept(monkeypatch) -> None:
    monkeypatch.setenv("BF16CODECS_CACHE_DIR", "here")
    assert cache_folder() == Path("here")
    monkeypatch.setenv("BF16CODECS_CACHE_DIR", "~/kept")
    assert cache_folder() == Path.home() / "kept"
    monkeypatch.delenv("BF16CODECS_CACHE_DIR")
    home = Path.home()
    if sys.platform == "linux":
        monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
        assert cache_folder() == Path("/xdg/bf16codecs")
        monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
        assert cache_folder() == home / ".cache" / "bf16codecs"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(home / "local"))
    assert cache_folder() == home / "local" / "bf16codecs"

    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("LOCALAPPDATA")
    monkeypatch.setattr(Path, "home", nowhere)
    assert cache_folder() is None
