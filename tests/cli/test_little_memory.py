"""Commands that run out of address space report it in one line, and leave no target."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import click
import numcodecs
import pytest
from click.testing import CliRunner

from bf16codecs import BF16Zstd, open_model
from bf16codecs.cli import options
from bf16codecs.convert import safetensors_to_hdf5, safetensors_to_zarr
from bf16codecs.errors import StoreError
from folders import names_in
from invoked import done, run
from lazy_models import weights, write_safetensors

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="address space is Linux' to limit")

# The limit counts from the memory after all imports, which are not under test, and take seconds:
# each case is a child of the process that did them.
LIMITED = """
import importlib, json, os, pkgutil, re, resource, sys
import blake3, h5py, rich.progress, zarr
import bf16codecs
from bf16codecs import cli
others = r"\\b(analysis|analyze|bench|cuda|dask|demo|torch|torch_tensors|view|_xarray)\\b"
for module in pkgutil.walk_packages(bf16codecs.__path__, "bf16codecs."):
    if not re.search(others, module.name):
        importlib.import_module(module.name)

def run(name, extra, arguments, log):
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(log, os.O_CREAT | os.O_WRONLY), 2)
    sys.argv = [name, *arguments]
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    limit = pages * resource.getpagesize() + extra
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    sys.exit(getattr(cli, name)())

statuses = []
for case in json.loads(sys.argv[1]):
    child = os.fork()
    if child == 0:
        run(*case)
    statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(json.dumps(statuses))
"""
# The least ends at the start, or in the middle; 24 MiB suffice, or nearly. Below them, libhdf5 does
# not survive every malloc() that fails.
CASES = [
    *(("st2zarr", extra) for extra in (0, 4 << 20, 24 << 20)),
    *(("zarr2st", extra) for extra in (0, 4 << 20)),
    *(("verify", extra) for extra in (0, 8 << 20, 24 << 20)),
    *(("st2h5", 24 << 20), ("h52st", 24 << 20)),
]


@pytest.mark.slow
def test_little_memory(tmp_path: Path, demo_model: Path, run_python) -> None:
    store, file, target = tmp_path / "m.zarr", tmp_path / "m.h5", tmp_path / "target"
    safetensors_to_zarr(demo_model, store, sync=False)
    safetensors_to_hdf5(demo_model, file, sync=False)
    arguments = {
        "st2zarr": ["st2zarr", demo_model, target],
        "zarr2st": ["zarr2st", store, target],
        "st2h5": ["st2h5", demo_model, target],
        "h52st": ["h52st", file, target],
        "verify": ["main", "verify", store],
    }
    cases, targets, logs = [], [], []
    for i, (command, extra) in enumerate(CASES):
        targets.append(tmp_path / f"target{i}"), logs.append(tmp_path / f"log{i}")
        name, *rest = (str(targets[i] if a is target else a) for a in arguments[command])
        cases.append([name, extra, rest, str(logs[i])])
    lines = run_python(LIMITED, json.dumps(cases), OPENBLAS_NUM_THREADS="1").stdout
    for case, status, made, log in zip(CASES, json.loads(lines), targets, logs, strict=True):
        said = log.read_text()
        # blake3 does not survive every malloc() that fails.
        if status == 0 or (status == -signal.SIGABRT and "memory allocation of" in said):
            continue
        assert status == 1, (case, said)
        assert "Traceback" not in said, case
        assert len(said.splitlines()) == 1, (case, said)
        assert "damaged" not in said, case
        assert not made.exists(), case


EXHAUSTED = """
import resource
from pathlib import Path
from bf16codecs._files.publish import WorkingFolder

working = WorkingFolder.make(Path("."), durable=True)
working.new.mkdir()
for i in range(50):
    Path(working.new, str(i)).mkdir()
    Path(working.new, str(i), "file").write_bytes(b"1")
with open("/proc/self/statm") as file:
    limit = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
held, size = [], 1 << 20
while size >= 32:
    try:
        held.append(bytearray(size))
    except MemoryError:
        size //= 2
error = working.close()
held.clear()
assert error is None, error
"""


def test_what_was_made_is_removed_when_no_memory_is_left(tmp_path: Path, run_python) -> None:
    run_python(EXHAUSTED)
    assert list(tmp_path.iterdir()) == []


def test_a_command_without_memory(demo_model: Path, tmp_path: Path, monkeypatch) -> None:
    """It ends in one line and leaves no target; the next one removes what is left."""
    open_file = os.open
    for allowed in (1, 5, 20):
        left = iter(range(allowed))

        def fail(*args, left=left, **options):
            if next(left, None) is None:
                raise MemoryError
            return open_file(*args, **options)

        with monkeypatch.context() as patch:
            patch.setattr(os, "open", fail)
            result = run("st2zarr", demo_model, tmp_path / "m.zarr")
        assert (result.exit_code, result.stderr) == (1, "st2zarr: not enough memory\n"), allowed
        assert not (tmp_path / "m.zarr").exists(), allowed
    done("st2zarr", demo_model, tmp_path / "m.zarr")
    assert names_in(tmp_path) == {"m.zarr"}


def test_shortage_of_memory_is_no_damage(tmp_path: Path, monkeypatch) -> None:
    path = write_safetensors(tmp_path / "m.safetensors", {"w": weights((64, 64))})
    safetensors_to_zarr(path, tmp_path / "m.zarr", codec="zstd")

    def fail(*args: object, **options: object) -> None:
        raise RuntimeError("Zstd decompression error: b'Allocation error : not enough memory'")

    with open_model(tmp_path / "m.zarr") as model:
        monkeypatch.setattr(numcodecs.Zstd, "decode", fail)
        with pytest.raises(MemoryError):
            model["w"][:]
    frame = BF16Zstd().encode(weights((64, 64)))
    monkeypatch.setattr("numcodecs.zstd.decompress", fail)
    with pytest.raises(MemoryError):
        BF16Zstd().decode(frame)


def test_ways_of_saying_that_there_is_no_memory() -> None:
    """Each gets one line; other errors of C code are bugs, with a traceback."""

    def run(error: BaseException) -> tuple[int, str]:
        @click.command()
        @options.command
        def fail() -> None:
            raise error

        result = CliRunner().invoke(fail)
        return result.exit_code, result.output

    of_c = SystemError("returned a result with an exception set")
    assert run(of_c) == (1, "")  # a traceback, which click's runner keeps for itself
    of_c.__cause__ = MemoryError()
    of_zstd = RuntimeError("Zstd decompression error: b'Allocation error : not enough memory'")
    named = StoreError("chunk 0: cannot be read")
    named.__cause__ = of_zstd
    for error in (of_c, of_zstd, named, MemoryError(), RuntimeError("can't start new thread")):
        assert run(error) == (1, "fail: not enough memory\n")
    # A store's text may be anything.
    quoting = 'm.zarr: no tensor "can\'t start new thread"'
    assert run(StoreError(quoting)) == (1, f"fail: {quoting}\n")
