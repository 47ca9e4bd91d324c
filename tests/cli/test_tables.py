"""Tables and progress on terminals of any width: numbers are whole, and lines fit."""

from __future__ import annotations

import importlib.resources
import os
import re
import shutil
import sys

import pytest

from bf16codecs._base.tables import Column, shortened
from bf16codecs.cli import console, tables
from bf16codecs.cli.tables import Table, print_table
from invoked import done, run

DEMO = importlib.resources.files("bf16codecs") / "data" / "demo.safetensors"
COLUMNS = [
    Column("tensor"),
    Column("dtype", is_text=True, rank=2),
    Column("x", rank=1),
    Column("y"),
]
ROWS = [
    (f"model.layers.{i}.self_attn.{name}.weight", "BF16", "123.45 kB", f"y{i}.5{name[0]}")
    for i in (0, 10)
    for name in ("q_proj", "k_proj")
]
# All of it: names, dtypes, and two gaps.
WHOLE = max(len(row[0]) for row in ROWS) + 2 + 5 + 2 + 9 + 2 + 6


@pytest.fixture
def terminal(monkeypatch):
    """Let standard output be a terminal of a width."""

    def narrow(columns: int) -> None:
        monkeypatch.setattr(tables.sys, "stdout", _Terminal(sys.stdout))
        monkeypatch.setenv("COLUMNS", str(columns))

    return narrow


class _Terminal:
    def __init__(self, stream):
        self._stream = stream

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def isatty(self):
        return True


def printed(capsys) -> list[str]:
    lines = capsys.readouterr().out.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()
    assert all(line == line.rstrip() for line in lines)
    return lines


def test_numbers_are_never_cut(terminal, capsys):
    for width in (200, WHOLE, 60, 55, 50, 45, 40, 30, 20):
        terminal(width)
        print_table(COLUMNS, ROWS)
        lines = printed(capsys)
        assert max(map(len, lines)) <= width
        end = next((i for i, line in enumerate(lines) if line.startswith("Too wide")), len(lines))
        body, hint = lines[:end], " ".join(map(str.strip, lines[end:]))
        text = "\n".join(body)
        assert [text.count(row[-1]) for row in ROWS] == [1] * 4, width
        assert text.count("123.45 kB") in (0, 4), width
        left_out = [] if all(row[0] in text for row in ROWS) else ["whole names"]
        left_out += [n for n, cell in (("dtype", "BF16"), ("x", "123.45 kB")) if cell not in text]
        names = ", ".join(left_out)
        wanted = f"Too wide for this terminal: {names}; a pipe gets all." if left_out else ""
        assert hint == wanted, width


def test_names_are_shortened_then_columns_left_out_then_names_get_lines(terminal, capsys):
    terminal(WHOLE)
    print_table(COLUMNS, ROWS)
    assert [line.split()[0] for line in printed(capsys)[1:]] == [row[0] for row in ROWS]
    terminal(WHOLE - 5)
    print_table(COLUMNS, ROWS)
    assert printed(capsys)[0].split() == ["tensor", "dtype", "x", "y"]
    terminal(WHOLE - 8)
    print_table(COLUMNS, ROWS)
    assert printed(capsys)[0].split() == ["tensor", "x", "y"]
    terminal(34)
    print_table(COLUMNS, ROWS)
    lines = printed(capsys)
    assert lines[1].split() == ["dtype", "x", "y"]
    assert lines[3].split() == ["BF16", "123.45", "kB", "y0.5q"]


@pytest.mark.parametrize(
    "names",
    [
        [row[0] for row in ROWS],
        [f"model.layers.{i}.{n}" for i in range(12) for n in ("attn.q.weight", "attn.k.weight")],
        [
            f"down_blocks.{i}.attentions.1.transformer_blocks.0.attn{j}.{n}.weight"
            for i in range(3)
            for j in (1, 2)
            for n in ("to_out.0", "to_k")
        ],
        [f"encoder/{i}/dense_{n}_kernel" for i in (1, 11, 111) for n in ("input", "inner", "in")],
    ],
)
def test_shortened_names_stay_different(terminal, capsys, names):
    for width in range(44, 80):
        terminal(width)
        print_table(COLUMNS, [(name, "BF16", "123.45 kB", "1.505") for name in names])
        shown = [line.split()[0] for line in printed(capsys)[1 : len(names) + 1]]
        assert len(set(shown)) == len(names)
        for short, name in zip(shown, names, strict=True):
            # Each word is cut at its end, and numbers are whole.
            parts = [re.findall(r"[^\W_]+", text) for text in (short, name)]
            for a, b in zip(*parts, strict=True):
                assert b.startswith(a)
                assert a == b or b.isalpha()


def test_sentences_are_wrapped_at_words(terminal, capsys):
    path = "/a/long/path/of/" + "m" * 40
    sentence = f"{path}: a model in a Zarr store, of format 3, in half-precision as it should be"
    for width in (20, 40, 60):
        terminal(width)
        console.say(sentence)
        lines = printed(capsys)
        assert all(len(line) <= width for line in lines if path not in line)
        assert " ".join(map(str.strip, lines)) == sentence
    terminal(200)
    console.say("  indented")
    console.say("")
    assert printed(capsys) == ["  indented", ""]


def test_piped_output_is_whole(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    print_table(COLUMNS, [*ROWS, ("n" * 500, "", "", "")], [("total", "", "", "1")])
    lines = printed(capsys)
    assert lines[5] == "n" * 500
    assert lines[6] == ""
    assert lines[7].split() == ["total", "1"]
    assert len(lines[7]) > 500
    assert len(lines) == 8


def test_rows_may_come_later(capsys):
    table = Table([Column("codec"), Column("rate", least=6)], [("a",), ("long name",)])
    table.row(("a", "1.00"))
    table.row(("long name", "100.00"))
    assert printed(capsys) == ["codec        rate", "a            1.00", "long name  100.00"]


def test_shortened():
    from rich.cells import cell_len

    for text in ("model.layers.0.mlp.weight", "重み" * 12, "short"):
        for width in range(5, 40):
            short = shortened(text, width)
            assert cell_len(short) <= width, (text, width)
            assert (short == text) == (cell_len(text) <= width), (text, width)
            assert short.endswith(text[-1]), (text, width)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_progress_stays_on_one_line():
    from io import StringIO

    from rich.cells import cell_len
    from rich.console import Console
    from rich.progress import Progress

    for width in (80, 60, 50, 40):
        out = Console(file=StringIO(), width=width, force_terminal=True)
        bar = Progress(*console._progress_columns(width), console=out, expand=width >= 60)
        for phase in ("convert", "measure"):
            bar.add_task(phase, total=999_900_000_000, completed=123_400_000_000)
        lines = _rendered(out, bar)
        assert len(lines) == 2, width
        for line, phase in zip(lines, ("convert", "measure"), strict=True):
            assert line.startswith(phase), width
            assert "123.4/999.9 GB" in line, width
            assert cell_len(line) <= width, width


def _rendered(out, bar) -> list[str]:
    lines = out.render_lines(bar.get_renderable(), pad=False)
    return ["".join(segment.text for segment in line) for line in lines]


def test_a_pipe_gets_the_same_at_any_width(monkeypatch):
    texts = set()
    for columns in ("40", "80", "300"):
        monkeypatch.setenv("COLUMNS", columns)
        texts.add(done("bf16codecs", "info", DEMO))
    assert len(texts) == 1


def test_terminals_without_a_size_are_taken_for_80_columns(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((0, 0)))
    assert shutil.get_terminal_size().columns == 80
    assert run("bf16codecs", "info", DEMO).exit_code == 0


def test_where_nothing_is_shortened_names_are_not_compared(monkeypatch, capsys):
    """A pipe gets the whole names of a model's tensors."""
    monkeypatch.setattr("bf16codecs._base.tables._PARTS", None)
    names = [f"model.layers.{i}.self_attn.o_proj.weight" for i in range(3)]
    print_table([Column("tensor", is_text=True)], [[name] for name in names])
    assert capsys.readouterr().out.split() == ["tensor", *names]
