"""Make the figures of the documentation while it is built, by the command that their captions name.

They are of the model that ships with the package, so they are the same for everybody.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import bf16codecs

MODEL = Path(bf16codecs.__file__).parent / "data" / "demo.safetensors"


@functools.cache
def figures() -> dict[str, bytes]:
    """Return the pictures that `bf16codecs analyze` makes of the model, by their names."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "bf16codecs", "analyze", MODEL, "--out", "figures"]
        # From there, where no checkout hides the installed package.
        subprocess.run([*command, "--quiet"], cwd=folder, check=True)
        return {picture.name: picture.read_bytes() for picture in Path(folder).rglob("*.png")}


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pictures to the files of the site, in the folder `figures`."""
    for name, content in figures().items():
        files.append(File.generated(config, f"figures/{name}", content=content))
