"""The example of the HDF5 filter runs as described."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tiers
from bf16codecs.convert import safetensors_to_hdf5


def test_read_hdf5(root: Path, tmp_path: Path, demo_model: Path, run_python: Any) -> None:
    example = (root / "examples" / "read_hdf5.py").read_text("utf-8")
    given = [str(tmp_path / "m.h5")]
    safetensors_to_hdf5(demo_model, tmp_path / "m.h5", codec="huffman")
    for arguments in tiers.by_tier([given], [[], given]):
        shown = run_python(example, *arguments).stdout.splitlines()
        assert shown[0].startswith("39 tensors; lm_head.weight: shape (256, 96)")
        assert shown[1].startswith("as bfloat16: [0.0703125 -0.108887")
        assert shown[2] == "as float32, the same numbers: True"
