"""Each file that the table of docs/howto/sources.md names becomes a store, and comes back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bf16codecs import open_model
from checkout import ROOT
from folders import content_of
from invoked import done

PAGE = ROOT / "docs" / "howto" / "sources.md"
FILES = ROOT / "tests" / "convert" / "goldens"
FOLDERS = [FILES, FILES / "torch_files", FILES / "gguf_files"]
#: Names in the table that are tested elsewhere: safetensors, indexes, and addresses.
ELSEWHERE = re.compile(r".*safetensors.*|.*index\.json|.*://.*|torch\..*|\.(metadata|distcp)")


def rows() -> list[list[str]]:
    lines = PAGE.read_text("utf-8").splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("| source"))
    table = [line for line in lines[first + 2 :] if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def named_files() -> list[Path]:
    names = [name for row in rows() for name in re.findall(r"`([^`]+)`", row[0])]
    found = []
    for name in names:
        paths = [folder / name for folder in FOLDERS if (folder / name).exists()]
        assert paths or ELSEWHERE.fullmatch(name), name
        found += paths
    return found


@pytest.mark.parametrize("source", named_files(), ids=lambda path: path.name)
def test_files_that_the_table_names(source: Path, tmp_path: Path) -> None:
    done("st2zarr", source, tmp_path / "m.zarr")
    done("zarr2st", tmp_path / "m.zarr", tmp_path / f"back{source.suffix}")
    assert content_of(tmp_path / f"back{source.suffix}") == content_of(source)


def test_names_that_the_table_gives(tmp_path: Path) -> None:
    (torch_row,) = (row for row in rows() if "torch.save" in row[0])
    (name,) = re.findall(r"such as `([^`]+)`", torch_row[1])
    done("st2zarr", FILES / "torch_files" / "training.ckpt", tmp_path / "m.zarr")
    with open_model(tmp_path / "m.zarr") as model:
        assert name in model


def test_rows_are_whole() -> None:
    assert len(named_files()) >= 6
    assert all(len(row) == 4 for row in rows())
