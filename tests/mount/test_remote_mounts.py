"""Stores and packed folders at addresses are mounted like those on a disk."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from bf16codecs.convert import (
    pack_hugging_face,
    safetensors_to_run,
    safetensors_to_zarr,
)
from hub_server import Hub
from lazy_models import weights, write_safetensors
from model_folders import contents, write_folder
from mounting import mounted, why_not
from object_store import Faults

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can")


def bytes_in(folder: Path) -> dict[str, bytes | None]:
    return {name: entry and entry[1] for name, entry in contents(folder).items()}


def test_in_a_bucket(tmp_path: Path, bucket: str, s3: dict[str, str], s3_faults: Faults) -> None:
    model = write_safetensors(tmp_path / "m.safetensors", {"w": weights((2048, 1024))})
    safetensors_to_zarr(model, f"{bucket}/m.zarr", target_options=s3)
    options = ("--storage-options", json.dumps(s3))
    log = tmp_path / "log"
    with mounted(f"{bucket}/m.zarr", tmp_path / "m", *options, "--log", log) as found:
        file = found.folder / model.name
        s3_faults.fault = lambda number, method, path: "denied"
        with pytest.raises(OSError, match="Input/output error"):
            file.read_bytes()
        s3_faults.clear()
        # What failed is asked for again.
        subprocess.run(["cmp", file, model], check=True)
    assert f"{bucket}/m.zarr" in log.read_text()


def test_a_run_in_a_bucket(tmp_path: Path, bucket: str, s3: dict[str, str]) -> None:
    files = [
        write_safetensors(tmp_path / f"{n}.safetensors", {"w": weights((300, 200), seed=n)})
        for n in (1, 2)
    ]
    safetensors_to_run(files, f"{bucket}/run.zarr", target_options=s3)
    with mounted(
        f"{bucket}/run.zarr", tmp_path / "m", "--storage-options", json.dumps(s3)
    ) as found:
        for file in files:
            step = found.folder / f"step-{file.stem}" / file.name
            subprocess.run(["cmp", step, file], check=True)


def test_a_packed_folder_in_a_bucket(tmp_path: Path, bucket: str, s3: dict[str, str]) -> None:
    original = write_folder(tmp_path / "original")
    pack_hugging_face(original, f"{bucket}/packed", storage_options=s3)
    with mounted(f"{bucket}/packed", tmp_path / "m", "--storage-options", json.dumps(s3)) as found:
        assert bytes_in(found.folder) == bytes_in(original)


def test_a_packed_folder_on_a_hub(tmp_path: Path, hub: Hub) -> None:
    original = write_folder(tmp_path / "original")
    commit = hub.root / hub.commits["main"]
    os.rmdir(commit)
    pack_hugging_face(original, commit)
    with mounted(
        "hf://owner/name", tmp_path / "m", HF_ENDPOINT=hub.url, HF_HOME=str(tmp_path / "home")
    ) as found:
        assert bytes_in(found.folder) == bytes_in(original)
