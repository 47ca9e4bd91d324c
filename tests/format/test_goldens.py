"""Frames of early releases stay readable, and encoders still write most of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import bf16codecs
import reference_growing
from folders import names_in
from golden_features import features
from make_goldens import FOLDER, GOLDENS, Golden, path_of
from tiers import by_tier

KINDS = sorted({name.partition("-")[0] for name in GOLDENS})
by_kind = pytest.mark.parametrize("kind", KINDS)
#: The reference decoder takes seconds for larger contents: only the full tier decodes those.
MOST_DECODED_BY_REFERENCE = by_tier(20_000, 1 << 30)


def goldens_of(kind: str) -> Iterator[tuple[str, Golden, bytes]]:
    for name, golden in GOLDENS.items():
        if name.partition("-")[0] == kind:
            yield name, golden, path_of(name).read_bytes()


@by_kind
def test_goldens_decode(kind):
    for name, golden, frame in goldens_of(kind):
        raw, base = golden.raw(), golden.base_bytes()
        assert bf16codecs.decode(frame, base=base) == raw, name
        if len(raw) <= MOST_DECODED_BY_REFERENCE:
            assert reference_growing.decode(frame, base) == raw, name
        out = np.empty(len(raw), np.uint8)
        bf16codecs.decode(frame, out=out, base=base)
        assert out.tobytes() == raw, name


@by_kind
def test_goldens_are_what_their_names_say(kind):
    for name, golden, frame in goldens_of(kind):
        assert golden.has <= features(frame), name
        facts = bf16codecs.inspect(frame)
        assert facts["codec"] == golden.codec, name
        assert facts["dtype"] == golden.dtype, name
        assert facts["version"] == golden.version, name


@by_kind
def test_encoding_again_gives_the_goldens(kind):
    for name, golden, frame in goldens_of(kind):
        if golden.is_written_alike:
            assert golden.encode() == frame, name


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
    grids = {
        *(f"levels: integers, {low} low bits" for low in (0, 1, 2, 4)),
        *("levels: floats, 4 low bits", "levels: table, 0 low bits", "rounding 1"),
        *("plain items", "no plain items"),
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
    sparse = {"sparse signs", "sparse, no signs", "sparse exceptions", "no sparse exceptions"}
    assert forms | modes | others | tiles | grids | differences | sparse <= found
