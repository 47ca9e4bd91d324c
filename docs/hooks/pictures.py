"""Make the pictures of the documentation while it is built.

They are of the model that ships with the package, so they are the same for everybody: figures by
the command that their captions name, and the viewer's page in a Chromium, where there is one.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files

import bf16codecs
from bf16codecs.convert import safetensors_to_zarr

MODEL = Path(bf16codecs.__file__).parent / "data" / "demo.safetensors"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: What the viewer's page shows in each picture of it.
SHOWN = {
    "view-model.png": "",
    "view-tensor.png": "?tensor=model.layers.0.self_attn.q_proj.weight",
}

log = get_plugin_logger(__name__)


@functools.cache
def figures() -> dict[str, bytes]:
    """Return the pictures that `bf16codecs analyze` makes of the model, by their names."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "bf16codecs", "analyze", MODEL, "--out", "figures"]
        # From there, where no checkout hides the installed package.
        subprocess.run([*command, "--quiet"], cwd=folder, check=True)
        return {picture.name: picture.read_bytes() for picture in Path(folder).rglob("*.png")}


@functools.cache
def screens() -> dict[str, bytes]:
    """Return pictures of the viewer's page by their names; none if nothing can take them."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None or not all(map(find_spec, ("playwright", "starlette", "uvicorn"))):
        log.info("no pictures of the viewer: they take Chromium, playwright, starlette and uvicorn")
        return {}
    from playwright.sync_api import sync_playwright

    from bf16codecs.analysis.checkpoints import Checkpoints
    from bf16codecs.view.server import running

    found = {}
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        store = Path(folder) / "demo.safetensors.zarr"
        safetensors_to_zarr(MODEL, store)
        # Without a sandbox, since containers have none.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 820})
        checkpoints = Checkpoints([store])
        with running(checkpoints, 0) as (address, _):
            for name, query in SHOWN.items():
                page.goto(address + query)
                page.wait_for_selector('body[data-waiting="0"] main:not([aria-busy])')
                for selector in ("#where", "h1"):  # the folder is of no interest
                    strip = "own => { own.textContent = own.textContent.split('/').pop(); }"
                    page.eval_on_selector(selector, strip)
                found[name] = page.screenshot()
        checkpoints.close()
        browser.close()
    return found


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pictures to the files of the site, in the folder `figures`."""
    for name, content in {**figures(), **screens()}.items():
        files.append(File.generated(config, f"figures/{name}", content=content))


def on_page_markdown(markdown: str, **context: object) -> str:
    """Leave out pictures that could not be taken, and what stands below them."""
    if screens():
        return markdown
    return re.sub(
        r"^!\[[^]]*\]\([./]*figures/view-[^)]*\)\n\n\*.*?\*\n\n", "", markdown, flags=re.M
    )
