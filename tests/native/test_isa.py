"""Every instruction set of this machine gives the same bytes and the same errors."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

import bf16codecs
from native_core import ISAS
from tiers import by_tier

SCRIPT = Path(__file__).parents[1] / "support" / "isa_corpus.py"
#: Every seventh case in the quick tier: 7 divides no length of the corpus's inner loops.
EVERY = by_tier(7, 1)


def digests(isa: str) -> dict[str, str]:
    environment = os.environ | {"BF16CODECS_ISA": isa}
    command = [sys.executable, str(SCRIPT), str(EVERY)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result.pop("isa") == isa
    return result


@pytest.fixture(scope="module")
def scalar() -> dict[str, str]:
    return digests("scalar")


def test_the_scalar_definition_is_available() -> None:
    assert ISAS[0] == "scalar"
    assert set(ISAS) <= {"scalar", "avx2", "avx512", "avx512vbmi2", "avx512bf16", "neon"}


def test_this_run_uses_the_set_of_the_variable() -> None:
    wanted = os.environ.get("BF16CODECS_ISA", ISAS[-1])
    assert bf16codecs.active_isa() == wanted


def test_the_processor_has_these_sets() -> None:
    try:
        flags = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        pytest.skip("no /proc/cpuinfo to compare with")
    expected = ["scalar"]
    if platform.machine() == "x86_64":
        expected += ["avx2"] if {"avx2", "bmi1"} <= flags else []
        wide = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
        expected += ["avx512"] if wide <= flags else []
        wide |= {"avx512vbmi", "avx512_vbmi2"}
        expected += ["avx512vbmi2"] if wide <= flags else []
        expected += ["avx512bf16"] if wide | {"avx512_bf16"} <= flags else []
    else:
        expected += ["neon"] if platform.machine() == "aarch64" else []
    assert expected == ISAS


@pytest.mark.parametrize("isa", ISAS[1:])
def test_bytes_and_errors_are_the_scalar_ones(isa: str, scalar: dict[str, str]) -> None:
    assert digests(isa) == scalar


def test_unknown_set_is_the_best_one(run_python) -> None:
    code = "import bf16codecs; print(bf16codecs.active_isa())"
    for isa in ("mmx", "AVX2", "scalar ", "x" * 10_000):
        done = run_python(code, BF16CODECS_ISA=isa)
        assert done.stdout.strip() == ISAS[-1]
        assert f"RuntimeWarning: BF16CODECS_ISA is '{isa[:70]}" in done.stderr
        assert f"it has {', '.join(ISAS)}; {ISAS[-1]} is used\n" in done.stderr
        assert len(done.stderr) < 500
    for isa in ("", *ISAS):
        done = run_python(code, BF16CODECS_ISA=isa)
        assert (done.stdout.strip(), done.stderr) == (isa or ISAS[-1], "")
