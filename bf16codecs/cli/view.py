"""The `view` command."""

from __future__ import annotations

import signal
from typing import Any

import click

from bf16codecs._base.interrupt import Interrupted, forget
from bf16codecs._base.tables import printable
from bf16codecs.cli.console import say
from bf16codecs.cli.options import Command, WholeNumber, command, max_read_option, storage_option

__all__ = ["view"]


@click.command(cls=Command)
@click.argument("sources", nargs=-1, required=True, metavar="STORE_OR_ADDRESS...")
@click.option("--base", metavar="MODEL", help="Compare with this model.")
@click.option(
    "--port",
    type=WholeNumber(0, 65535),
    help="Port on 127.0.0.1; 0 is a free one.  [default: 8716, or a free one if that is in use]",
)
@click.option(
    "--browser/--no-browser", default=True, show_default=True, help="Open the page in the browser."
)
@storage_option
@max_read_option
@command
def view(
    sources: tuple[str, ...], base: str | None, port: int | None, browser: bool, **options: Any
) -> None:
    """Show the weights of a model on a page in the browser.

    STORE_OR_ADDRESS is a store of any kind, a run or a step of one, or a safetensors model. For
    several models, or a run, the page has a slider, and shows changes. It reads only the blocks
    that it shows. Only browsers on this machine can open it, and it loads nothing from elsewhere.
    """
    from bf16codecs.analysis.checkpoints import Checkpoints
    from bf16codecs.view.server import serve

    checkpoints = Checkpoints(sources, base, **options)
    try:
        serve(checkpoints, port, opens_browser=browser, say=lambda text: say(printable(text)))
    except Interrupted as e:
        if e.number != signal.SIGINT:
            raise
        forget()  # Ctrl-C is how users stop the server
    finally:
        checkpoints.close()
