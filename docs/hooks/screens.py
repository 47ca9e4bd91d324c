"""Pictures of the viewer's page, taken while the site is built, where there is a Chromium."""

from __future__ import annotations

import functools
import re
import shutil
import tempfile
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import bf16codecs
from bf16codecs.convert import safetensors_to_zarr

MODEL = Path(bf16codecs.__file__).parent / "data" / "demo.safetensors"
#: What the page shows in each picture.
SHOWN = {
    "view-model.png": "",
    "view-tensor.png": "?tensor=model.layers.0.self_attn.q_proj.weight",
}


@functools.cache
def screens() -> dict[str, bytes]:
    """Return pictures by their names; none if there is no browser to take them."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright

        from bf16codecs.view.checkpoints import Checkpoints
        from bf16codecs.view.server import running
    except ImportError:
        return {}
    if program is None:
        return {}
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "demo.safetensors.zarr"
        safetensors_to_zarr(MODEL, store)
        with running(Checkpoints([store]), 0) as (address, _), sync_playwright() as playwright:
            # Without a sandbox, since containers have none.
            browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1200, "height": 820})
            for name, query in SHOWN.items():
                page.goto(address + query)
                page.wait_for_selector('body[data-waiting="0"] main:not([aria-busy])')
                page.wait_for_timeout(500)
                # The folder is of no interest.
                page.eval_on_selector(
                    "#where", "own => { own.textContent = 'demo.safetensors.zarr' }"
                )
                page.eval_on_selector(
                    "h1", "own => own.textContent = own.textContent.split('/').pop()"
                )
                found[name] = page.screenshot()
            browser.close()
    return found


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pictures to the files of the site, in the folder `figures`."""
    for name, content in screens().items():
        files.append(File.generated(config, f"figures/{name}", content=content))


def on_page_markdown(markdown: str, **context: object) -> str:
    """Leave out pictures that could not be taken, and what stands below them."""
    if screens():
        return markdown
    return re.sub(
        r"^!\[[^]]*\]\([./]*figures/view-[^)]*\)\n\n\*.*?\*\n\n", "", markdown, flags=re.M
    )
