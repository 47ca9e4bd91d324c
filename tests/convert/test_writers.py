"""Several processes that write one target, and processes that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bf16codecs import open_model
from bf16codecs.convert import safetensors_to_zarr, verify_store
from checkout import package_environment
from folders import REPLACEMENTS, names_in

POSIX = pytest.mark.skipif(os.name != "posix", reason="kills")


WRITER = """
import sys
from bf16codecs.convert import safetensors_to_hdf5, safetensors_to_zarr
target, *sources = sys.argv[1:]
convert = safetensors_to_hdf5 if target.endswith(".h5") else safetensors_to_zarr
if {exchange}:
    from bf16codecs import _rename
    _rename._system_call = lambda: None
print("ready", flush=True)
for _ in range({rounds}):
    for source in sources:
        convert(source, target, overwrite=True, chunk_size=512, verify=False, threads=1)
"""


def writer(rounds: int, exchange: bool, *args: Path) -> subprocess.Popen[str]:
    code = WRITER.format(rounds=rounds, exchange=not exchange)
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        stdout=subprocess.PIPE,
        text=True,
        env=package_environment(),
    )


@pytest.mark.slow
@pytest.mark.parametrize("exchange", [True, False], ids=["exchange", "no exchange"])
@pytest.mark.parametrize("target", ["m.zarr", "m.zip", "m.h5"])
def test_two_writers(folder: Path, old: Path, new: Path, target: str, exchange: bool) -> None:
    """Each time anybody looks, after the first, one of both stores is there, complete."""
    rounds = REPLACEMENTS // 5
    processes = [writer(rounds, exchange, folder / target, old, new) for _ in range(2)]
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    assert names_in(folder) == {target}
    content = values_in(folder / target)
    assert content in (values_of(old), values_of(new))


def values_in(store: Path) -> bytes:
    with open_model(store) as model:
        return bytes(model["a"][:].tobytes())


def values_of(source: Path) -> bytes:
    return source.read_bytes()[-64 * 8 * 2 :]


@pytest.fixture
def killed() -> Callable[[subprocess.Popen[str], float], None]:
    def kill(process: subprocess.Popen[str], seconds: float) -> None:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        process.communicate()

    return kill


@pytest.mark.slow
@POSIX
@pytest.mark.parametrize("exchange", [True, False], ids=["exchange", "no exchange"])
def test_writer_that_is_killed_again_and_again(
    folder: Path, old: Path, new: Path, exchange: bool, killed: Any
) -> None:
    target = folder / "m.zarr"
    safetensors_to_zarr(old, target)
    for i in range(4):
        killed(writer(1000, exchange, target, old, new), 0.05 + 0.07 * i)
        # No more than the last one's is left: each run removes what the one before left.
        assert len(names_in(folder)) <= 2
        verify_store(target)
        assert values_in(target) in map(values_of, (old, new))
    safetensors_to_zarr(new, target, overwrite=True)
    assert names_in(folder) == {"m.zarr"}
