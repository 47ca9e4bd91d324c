"""Write what each command says with `--help` into the page of options, from its parser."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import click
from mkdocs.structure.pages import Page

from bf16codecs import cli

PAGE = "cli_options.md"
MARK = "<!-- the commands -->"
COMMANDS = {name: getattr(cli, name) for name in ("st2zarr", "zarr2st", "st2h5", "h52st")}


def _literally(text: str) -> str:
    """Return text in which nothing means something to Markdown."""
    return re.sub(r"[\\`*_<>\[\]#&]", lambda match: f"&#{ord(match[0])};", text)


def _described(name: str, command: click.Command) -> Iterator[str]:
    """Yield what describes a command, part by part."""
    context = command.make_context(name, [], resilient_parsing=True)
    yield f"## {name}"
    yield f"```text\n{' '.join([name, *command.collect_usage_pieces(context)])}\n```"
    yield _literally(inspect.cleandoc(command.help or ""))
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if isinstance(parameter, click.Option) and record:
            option, meaning = record
            yield f"`{option}`\n:   {_literally(meaning)}"


def _all_described() -> Iterator[str]:
    for name, command in COMMANDS.items():
        yield from _described(name, command)
    for name, command in cli.main.commands.items():
        yield from _described(f"bf16codecs {name}", command)


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Put the commands in the place of the mark."""
    if page.file.src_uri != PAGE:
        return markdown
    if MARK not in markdown:
        raise ValueError(f"{PAGE} has no {MARK}")
    return markdown.replace(MARK, "\n\n".join(_all_described()))
