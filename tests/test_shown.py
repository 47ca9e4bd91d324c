"""JSON that is written in parts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bf16codecs._base.tables import json_parts
from bf16codecs.cli.reports import write_json


def test_json_comes_in_parts() -> None:
    document = {"numbers": list(range(100_000)), "names": ["a", None, {"b": 0.5}]}
    parts = list(json_parts(document))
    assert "".join(parts) == json.dumps(document, indent=2) + "\n"
    assert len(parts) > 1
    assert max(map(len, parts)) < 1 << 20


def test_what_json_lacks_leaves_files_alone(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text("before")
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json({"figure": float("nan")}, str(file))
    assert file.read_text() == "before"
