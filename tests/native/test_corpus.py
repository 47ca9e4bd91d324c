"""The corpora of the fuzz targets: one for each target, with its options, and small."""

from __future__ import annotations

import re
from pathlib import Path

FUZZ = Path(__file__).parent / "fuzz"
MOST_BYTES, MOST_FILES = 430_000, 1050


def test_each_target_has_a_corpus_and_options() -> None:
    text = (FUZZ / "CMakeLists.txt").read_text("utf-8")
    targets = set(re.findall(r"^add_fuzz_target\((\w+)", text, re.MULTILINE))
    assert {path.name for path in (FUZZ / "corpus").iterdir()} == targets
    assert {path.stem for path in (FUZZ / "options").iterdir()} == {f"fuzz_{t}" for t in targets}


def test_corpora_stay_small() -> None:
    sizes = [path.stat().st_size for path in (FUZZ / "corpus").glob("*/*")]
    assert len(sizes) <= MOST_FILES
    assert sum(sizes) <= MOST_BYTES
