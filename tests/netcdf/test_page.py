"""The page on netCDF, which needs programs that the tests of the documentation do not have."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from pathlib import Path

import pytest

from checkout import ROOT
from doc_pages import PageRun, blocks_of, make_commands


@pytest.mark.usefixtures("programs", "netcdf4")
def test_page(tmp_path: Path, demo_model: Path) -> None:
    programs, place = tmp_path / "bin", tmp_path / "work"
    programs.mkdir()
    place.mkdir()
    make_commands(programs)
    with ExitStack() as servers:
        run = PageRun(place, programs, demo_model, servers)
        for block in blocks_of(ROOT / "docs" / "howto" / "netcdf.md"):
            if block.language in ("python", "sh") and block.not_run != "builds netCDF-C":
                run.run(dataclasses.replace(block, not_run=None))
