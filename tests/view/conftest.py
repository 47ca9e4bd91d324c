"""A browser, with pages that connect to the viewer alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bf16codecs.convert import safetensors_to_zarr
from viewing import Looking, browser_program, viewing

Opens = Callable[..., Looking]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Start Chromium once; tests have contexts of their own in it."""
    program = browser_program()
    if program is None:
        pytest.skip("no Chromium is installed")
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        # Without a sandbox, since containers have none.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def look_at(browser: Any, tmp_path: Path) -> Iterator[Opens]:
    """Return a function that opens the page of some models in a browser of its own.

    At the end, no page may have logged an error, or requested anything from another host.
    """
    opened = []
    with ExitStack() as stack:

        def open_page(
            *sources: Any, query: str = "", client: Any = None, **options: Any
        ) -> Looking:
            client = client or stack.enter_context(viewing(*sources, **options))
            looking = Looking(browser, client, tmp_path)
            stack.callback(looking.close)
            opened.append(looking)
            looking.open(query)
            return looking

        yield open_page
        for looking in opened:
            looking.check()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, demo_model: Path) -> Path:
    """Return a store of the demo's model."""
    path = tmp_path_factory.mktemp("store") / "model.zarr"
    safetensors_to_zarr(demo_model, path)
    return path
