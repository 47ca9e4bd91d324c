"""Frames that were written once stay readable, and most are still written in the same way."""

from __future__ import annotations

import numpy as np
import pytest

import bf16codecs
import reference_growing
from folders import names_in
from golden_features import features
from make_goldens import FOLDER, GOLDENS, path_of

goldens = pytest.mark.parametrize("name", GOLDENS)


@goldens
def test_golden_decodes(name):
    frame, raw, base = path_of(name).read_bytes(), GOLDENS[name].raw(), GOLDENS[name].base_bytes()
    assert bf16codecs.decode(frame, base=base) == raw
    assert reference_growing.decode(frame, base) == raw
    out = np.empty(len(raw), np.uint8)
    bf16codecs.decode(frame, out=out, base=base)
    assert out.tobytes() == raw


@goldens
def test_golden_is_what_its_name_says(name):
    golden, frame = GOLDENS[name], path_of(name).read_bytes()
    assert golden.has <= features(frame)
    facts = bf16codecs.inspect(frame)
    assert facts["codec"] == golden.codec
    assert facts["dtype"] == golden.dtype
    assert facts["version"] == golden.version


@pytest.mark.parametrize("name", [name for name in GOLDENS if GOLDENS[name].is_written_alike])
def test_encoding_again_gives_the_golden(name):
    assert GOLDENS[name].encode() == path_of(name).read_bytes()


def test_no_golden_is_left_over():
    assert names_in(FOLDER) == {path_of(name).name for name in GOLDENS}


def test_goldens_cover_every_mode_and_form():
    found = set().union(*(features(path_of(name).read_bytes()) for name in GOLDENS))
    forms = {f"{form} of {groups}" for form in ("pairs", "wide", "tiles") for groups in (1, 2, 4)}
    modes = {"stored", "constant", "huffman of 1", "huffman sizes of 2", "huffman sizes of 4"}
    others = {"zstandard", "scale", "escapes", "no escapes", "by byte", "no checksums"}
    tiles = {
        f"{tables}, {classes}"
        for tables in ("Gaussian", "explicit")
        for classes in ("one class", "four classes")
    } | {
        "rows",
        "no rows",
        "columns",
        "no columns",
        "escaped keys",
        "no escaped keys",
        "2 sections",
    }
    differences = {
        "same",
        "difference",
        "versions",
        "ordered",
        "plain",
        "exclusive or",
        "near classes",
        "no near classes",
        "escapes of differences",
        "last items",
        *(f"differences of {groups}" for groups in (1, 2, 4)),
    }
    assert forms | modes | others | tiles | differences <= found
