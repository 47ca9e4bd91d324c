"""The example in C, built in each documented way, and the header in each dialect."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import bf16codecs
from c_library import Library
from checkout import ROOT

EXAMPLE = ROOT / "examples" / "c"
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror"]
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


def run(*command: str | Path, **variables: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | variables, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def by_pkg_config(library: Library, folder: Path, line: str = "shared") -> Path:
    """Build the example by a line of the page."""
    if shutil.which("pkg-config") is None:
        pytest.skip("there is no pkg-config")
    page = (ROOT / "docs" / "howto" / "c.md").read_text("utf-8")
    lines = re.findall(r"^```sh\n(cc .*?)\n```", page, re.MULTILINE | re.DOTALL)
    command = dict(zip(("shared", "static"), lines, strict=True))[line]
    shutil.copy(EXAMPLE / "frames.c", folder / "program.c")
    where = {"PKG_CONFIG_PATH": str(library.path.parent / "pkgconfig")}
    command = command.replace("cc ", f"cc -std=c99 {' '.join(WARNINGS)} ", 1)
    run("sh", "-ec", f"cd {shlex.quote(str(folder))}; {command}", **where)
    return folder / "program"


def by_cmake(library: Library, folder: Path, target: str, languages: str = "") -> Path:
    """Build one of the example's programs, in a project with other languages."""
    if shutil.which("cmake") is None:
        pytest.skip("there is no CMake")
    (folder / "more.cmake").write_text(f"enable_language({languages})\n" if languages else "")
    prefix = f"-DCMAKE_PREFIX_PATH={library.path.parents[1]}"
    more = f"-DCMAKE_PROJECT_INCLUDE={folder / 'more.cmake'}"
    run("cmake", "-S", EXAMPLE, "-B", folder, prefix, more)
    run("cmake", "--build", folder, "--target", target)
    return folder / target


WAYS = {
    "pkg-config": by_pkg_config,
    "pkg-config, static": partial(by_pkg_config, line="static"),
    "cmake": partial(by_cmake, target="frames"),
    "cmake, static": partial(by_cmake, target="frames_static"),
    "cmake, static, with C++": partial(by_cmake, target="frames_static", languages="CXX"),
}


@pytest.mark.parametrize("way", WAYS)
def test_example(library: Library, tmp_path: Path, way: str) -> None:
    program = WAYS[way](library, tmp_path)
    shared = {} if "static" in way else {"LD_LIBRARY_PATH": str(library.path.parent)}
    raw = np.random.default_rng(0).normal(0, 0.02, 700_000).astype("bfloat16").tobytes()
    files = [tmp_path / name for name in ("raw", "frame", "back", "part")]
    files[0].write_bytes(raw)
    told = run(program, "encode", *files[:2], **shared)
    frame = files[1].read_bytes()
    assert told == f"{len(raw)} bytes, {len(frame)} encoded\n"
    assert frame == bf16codecs.BF16Arithmetic().encode(raw)
    run(program, "decode", *files[1:3], **shared)
    assert files[2].read_bytes() == raw
    lines = run(program, "info", files[1], **shared).splitlines()
    assert lines[0] == f"version 1, arithmetic of bfloat16, {len(raw)} bytes in {len(frame)}"
    blocks = bf16codecs.inspect(frame)["blocks"]
    for number, (line, block) in enumerate(zip(lines[1:], blocks, strict=True)):
        planes = " ".join(f"{plane['mode']} {plane['size']}" for plane in block["planes"])
        assert line == f"block {number} at {block['offset']}: {planes}"
    run(program, "range", files[1], "1", "3", files[3], **shared)
    items = blocks[0]["items"]
    assert files[3].read_bytes() == raw[2 * items :]


def test_example_reports_errors(library: Library, tmp_path: Path) -> None:
    program = by_pkg_config(library, tmp_path)
    (tmp_path / "bad").write_bytes(b"\xbf\x16\xc0\xde\x07" + bytes(40))
    for arguments, status, message in [
        (["info", tmp_path / "none"], 1, "none: No such file or directory"),
        (["decode", tmp_path / "bad", tmp_path / "x"], 1, "has format version 7"),
        (["range", tmp_path / "bad", "0", "1", tmp_path / "x"], 1, "has format version 7"),
        (["range", tmp_path / "bad", "0", "0", tmp_path / "x"], 1, "the range has no blocks"),
        (["encode", tmp_path / "bad", tmp_path / "x", "int8"], 1, "int8: there is no such dtype"),
        (["encode"], 2, "usage: frames encode RAW FRAME"),
    ]:
        done = subprocess.run(
            [program, *arguments], capture_output=True, text=True, check=False,
            env=os.environ | {"LD_LIBRARY_PATH": str(library.path.parent)},
        )  # fmt: skip
        assert done.returncode == status
        assert message in done.stderr
        assert not (tmp_path / "x").exists()


ROUND_TRIP = """
#include <string.h>

int main(void) {
  static unsigned short weights[4000], other[4000];
  bf16codecs_error error;
  size_t size = 0, raw_size = 0;
  void *frame, *raw;
  for (int i = 0; i < 4000; ++i) weights[i] = (unsigned short)(0x3f80 + i % 7);
  memcpy(other, weights, sizeof other);
  frame = encode(weights, sizeof weights, &size, &error);
  if (frame == NULL || size >= sizeof weights / 2) return 1;
  raw = decode(frame, size, &raw_size, &error);
  if (raw == NULL || raw_size != sizeof other || memcmp(raw, other, raw_size) != 0) return 2;
  free(raw);
  ((unsigned char*)frame)[5] ^= 64;
  if (decode(frame, size, &raw_size, &error) != NULL || error.message[0] == 0) return 3;
  free(frame);
  return 0;
}
"""


def test_the_program_of_the_docs(library: Library, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "howto" / "c.md").read_text("utf-8")
    codes = re.findall(r"^```c\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "main.c").write_text("".join(codes) + ROUND_TRIP)
    include = f"-I{library.path.parents[1] / 'include'}"
    built = ["-L", library.path.parent, "-lbf16codecs", "-o", tmp_path / "main"]
    run("cc", "-std=c99", *WARNINGS, include, tmp_path / "main.c", *built)
    run(tmp_path / "main", LD_LIBRARY_PATH=str(library.path.parent))


@pytest.mark.parametrize("dialect", ["c99", "c17", "c++11", "c++20"])
def test_header_in_each_dialect(library: Library, tmp_path: Path, dialect: str) -> None:
    source = tmp_path / f"main.{'c' if '+' not in dialect else 'cpp'}"
    source.write_text(
        "#include <bf16codecs.h>\n"
        "int main(void) {\n"
        "  bf16codecs_encode_options encode = BF16CODECS_ENCODE_OPTIONS_INIT;\n"
        "  bf16codecs_decode_options decode = BF16CODECS_DECODE_OPTIONS_INIT;\n"
        "  bf16codecs_info info = BF16CODECS_INFO_INIT;\n"
        "  bf16codecs_block block = BF16CODECS_BLOCK_INIT;\n"
        "  bf16codecs_version_info version = BF16CODECS_VERSION_INFO_INIT;\n"
        "  bf16codecs_zstd zstd = BF16CODECS_ZSTD_INIT;\n"
        "  return !(encode.steps == 1 && encode.codec == BF16CODECS_CODEC_HUFFMAN &&\n"
        "           decode.struct_size && info.struct_size && block.struct_size &&\n"
        "           version.struct_size && zstd.struct_size);\n"
        "}\n"
    )
    include = f"-I{library.path.parents[1] / 'include'}"
    compiler = "cc" if "+" not in dialect else "c++"
    run(compiler, f"-std={dialect}", *WARNINGS, include, source, "-o", tmp_path / "main")
    run(tmp_path / "main")
