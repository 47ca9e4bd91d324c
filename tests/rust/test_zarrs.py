"""The codecs for zarrs and this package read each other's chunks.

Cargo has to get zarrs and its dependencies. Where it can, set BF16CODECS_ZARRS=1; it cannot
where `.ci/run` runs.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import zarr

import bf16codecs  # noqa: F401 (the data types)
from c_library import PREFIX
from checkout import ROOT
from rust_stores import write_arrays, write_damaged, write_refused

CRATE = ROOT / "examples" / "zarrs" / "bf16codecs_zarrs"
FEATURES = os.environ.get("BF16CODECS_RUST_FEATURES", "")

pytestmark = [
    pytest.mark.skipif(PREFIX is None, reason="BF16CODECS_C_PREFIX names no C library"),
    pytest.mark.skipif("BF16CODECS_ZARRS" not in os.environ, reason="cargo cannot get zarrs"),
]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of stores, after the tests in Rust have passed on them."""
    folder = tmp_path_factory.mktemp("stores")
    write_arrays(folder / "arrays", "zstd" in FEATURES)
    write_damaged(folder / "damaged")
    write_refused(folder / "refused")
    assert PREFIX is not None
    (library,) = Path(PREFIX).glob("lib*/**/libbf16codecs.so")
    variables = {"BF16CODECS_STORES": str(folder), "LD_LIBRARY_PATH": str(library.parent)}
    done = subprocess.run(
        ["cargo", "test", "--offline", "--features", FEATURES, "--", "--include-ignored",
         "--nocapture"],
        cwd=CRATE, capture_output=True, text=True, env=os.environ | variables, check=False,
    )  # fmt: skip
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test arrays_are_written_for_python ... ok" in done.stdout
    return folder


def test_what_zarrs_wrote_is_read(stores: Path) -> None:
    names = sorted(path.name for path in (stores / "written").iterdir())
    assert len(names) > 15
    for name in names:
        array = zarr.open_array(stores / "written" / name, mode="r")
        raw = np.ascontiguousarray(array[:]).tobytes()
        assert raw == (stores / "arrays" / f"{name}.raw").read_bytes(), name


def test_chunks_are_the_same(stores: Path) -> None:
    """Except with Zstandard, which is another release there, and in shards."""
    compared = 0
    for folder in (stores / "written").iterdir():
        if folder.name in ("shards", "missing") or "zstd" in folder.name:
            continue
        for path in folder.rglob("*"):
            if path.is_file() and not path.name.startswith((".z", "zarr.json")):
                own = stores / "arrays" / path.relative_to(stores / "written")
                assert path.read_bytes() == own.read_bytes(), path
                compared += 1
    assert compared > 30
