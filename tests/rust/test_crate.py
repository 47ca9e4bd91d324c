"""The Rust crate gives the bytes and verdicts of the Python package: its tests, run by cargo."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import bf16codecs
from c_library import PREFIX
from checkout import ROOT
from strange_frames import Strange, strange_frames, verdict

CRATES = ROOT / "examples" / "zarrs"
CRATE = CRATES / "bf16codecs"
PAGES = [ROOT / "docs" / "howto" / "rust.md", CRATES / "README.md"]
# Where the linker finds no libzstd, the feature that calls it is left out.
FEATURES = os.environ.get("BF16CODECS_RUST_FEATURES", "")

needs_cargo = [
    pytest.mark.skipif(shutil.which("cargo") is None, reason="there is no cargo"),
    pytest.mark.skipif(
        PREFIX is None, reason="BF16CODECS_C_PREFIX does not say where the C library is"
    ),
]


def facts(frame: bytes) -> str:
    """Return the output of `inspect` in the form of the crate's tests."""
    told = bf16codecs.inspect(frame)
    line = [told["version"], told["codec"], told["dtype"], told["raw_size"], told["encoded_size"]]
    line.append(told.get("base") or "-")
    if told["codec"] == "growing":
        lines = [[*line, told["steps"]]]
        for own, parent in zip(told["frames"], told["parents"], strict=True):
            lines.append([own["offset"], own["encoded_size"], "-" if parent is None else parent])
    else:
        lines = [[*line, told.get("steps", 1), told["by"]]]
        for block in told["blocks"]:
            checksum = "-" if block["checksum"] is None else block["checksum"]
            planes = [word for plane in block["planes"] for word in (plane["mode"], plane["size"])]
            lines.append([block["items"], block["offset"], block["size"], checksum, *planes])
    return "".join(" ".join(map(str, line)) + "\n" for line in lines)


def fields(strange: Strange) -> Iterator[bytes]:
    expected = verdict(strange)
    yield strange.name.encode()
    if isinstance(expected, bytes):
        error, result, told = "", expected, facts(strange.frame)
    else:
        error, message = expected
        result, told = message.encode(), ""
    yield error.encode()
    yield told.encode()
    yield b"" if strange.base is None else b"base"
    yield strange.frame
    yield strange.base or b""
    yield result


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rust") / "corpus"
    with path.open("wb") as file:
        for strange in strange_frames():
            for field in fields(strange):
                file.write(struct.pack("<Q", len(field)) + field)
    return path


def test_programs_of_the_docs_are_run() -> None:
    """They equal the programs in the crates' comments, which cargo runs."""
    comments = [(CRATES / crate / "src/lib.rs").read_text("utf-8")
                for crate in ("bf16codecs", "bf16codecs_zarrs")]  # fmt: skip
    programs = [
        program
        for page in PAGES
        for program in re.findall(r"^```rust\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)
    ]
    assert len(programs) >= 2
    for program in programs:
        lines = "".join(f"//! {line}".rstrip() + "\n" for line in program.splitlines())
        assert any(lines in text for text in comments), program


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=needs_cargo) for kind in ("shared", "static")]
)
def test_crate(corpus: Path, tmp_path_factory: pytest.TempPathFactory, kind: str) -> None:
    assert PREFIX is not None
    (library,) = Path(PREFIX).glob("lib*/**/libbf16codecs.so")
    variables = {
        "BF16CODECS_CORPUS": str(corpus),
        "BF16CODECS_STATIC": str(int(kind == "static")),
        "LD_LIBRARY_PATH": str(library.parent),
        "CARGO_TARGET_DIR": str(tmp_path_factory.getbasetemp() / "target"),
    }
    command = ["cargo", "test", "--offline", "--locked", "--manifest-path", CRATE / "Cargo.toml"]
    command += ["--features", FEATURES]
    tests = ["--", "--include-ignored"]
    done = subprocess.run(
        [*command, *tests],
        capture_output=True,
        text=True,
        env=os.environ | variables,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test frames_get_the_verdicts_of_python ... ok" in done.stdout
