"""An analysis as files in a new folder."""

from __future__ import annotations

import csv
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bf16codecs._base import interrupt as _interrupt
from bf16codecs._base.paths import given_path, require_folder_of
from bf16codecs._base.tables import json_parts
from bf16codecs.analysis import plots
from bf16codecs.analysis.html_report import pictures, write_report
from bf16codecs.analysis.results import Analysis
from bf16codecs.convert.target import target_errors

__all__ = ["check_folder", "write_folder"]


def check_folder(out: str) -> None:
    """Refuse a folder that is not empty or not writable, before the work of an analysis."""
    folder = Path(given_path(out, "folder"))
    require_folder_of(folder)
    if os.path.lexists(folder):
        if not folder.is_dir() or any(folder.iterdir()):
            text = "exists and is not an empty folder: name a new one"
            raise FileExistsError(errno.EEXIST, text, out)
        with _new_folder_in(folder):
            pass
    else:
        folder.mkdir()
        folder.rmdir()


def write_folder(analysis: Analysis, out: str) -> None:
    """Write the pictures in both styles, the table of tensors, the JSON document and the report.

    `check_folder` must have accepted the folder, which is left unchanged after an error.
    """
    folder = Path(out)
    is_new = not folder.exists()
    folder.mkdir(exist_ok=True)
    try:
        with target_errors(folder), _new_folder_in(folder) as new:
            _write_into(new, analysis)
    except BaseException:
        if is_new:
            folder.rmdir()
        raise


@contextmanager
def _new_folder_in(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder, and move its files into `folder` at the end, unless it failed."""
    try:
        name = tempfile.mkdtemp(prefix=".", dir=folder)
    except OSError as e:
        e.filename = str(folder)
        raise
    try:
        yield Path(name)
        for file in Path(name).iterdir():
            file.rename(folder / file.name)
    except OSError as e:
        if Path(name) in Path(str(e.filename)).parents:
            e.filename = None  # users do not know the temporary folder
        raise
    finally:
        shutil.rmtree(name)


def _write_into(folder: Path, analysis: Analysis) -> None:
    for name, _, draw in pictures(analysis):
        for style in plots.STYLES:
            suffix = "" if style == "light" else f"-{style}"
            _interrupt.check()  # matplotlib imports modules, which may swallow a signal's exception
            with plots.style(style):
                plots.save(draw(), folder / f"{name}{suffix}.png", "png")
    table = analysis.table()
    with open(folder / "tensors.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        for row in zip(*table.values(), strict=True):
            writer.writerow("x".join(map(str, v)) if isinstance(v, list) else v for v in row)
    with open(folder / "analysis.json", "w", encoding="utf-8") as file:
        file.writelines(json_parts(analysis.to_json()))
    write_report(analysis, folder / "report.html")
