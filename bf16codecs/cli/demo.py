"""The command `demo`: a round trip of a small model with every codec."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from bf16codecs._base.interrupt import temporary
from bf16codecs._base.tables import format_size
from bf16codecs.cli.console import say, show_json
from bf16codecs.cli.options import Command, command, json_option
from bf16codecs.cli.tables import Table

__all__ = ["demo"]


@click.command(cls=Command)
@json_option
@command
def demo(as_json: bool) -> None:
    """Convert a small trained model and restore it, with every codec."""
    import importlib.resources
    import tempfile

    from bf16codecs.cli import round_trips
    from bf16codecs.safetensors import read_header

    resource = importlib.resources.files("bf16codecs") / "data" / "demo.safetensors"
    with (
        temporary(),
        importlib.resources.as_file(resource) as model,
        tempfile.TemporaryDirectory() as folder,
    ):
        header = read_header(model)
        values = (header.file_size - header.data_start) // 2
        table = None
        names = [round_trips.name_of(*choice) for choice in round_trips.CODECS]
        if not as_json:
            say(f"A language model of {values} BF16 weights, {format_size(header.file_size)}")
            table = Table(round_trips.COLUMNS, [(name,) for name in names])
        results = []
        for choice in round_trips.CODECS:
            results.append(round_trips.measure(model, Path(folder), *choice))
            if table is not None:
                table.row(results[-1].cells)
    if table is None:
        codecs = [{**asdict(result), "ratio": result.ratio} for result in results]
        show_json({"parameters": values, "nbytes": header.file_size, "codecs": codecs})
    else:
        table.end()
        for line in round_trips.explanation(results):
            say(line)
    if not all(result.exact for result in results):
        raise ValueError("a round trip was not bit-exact")
