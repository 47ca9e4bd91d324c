"""The items that a picture reads: some for every cell, and no more than the limit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bf16codecs.view.sheets import Region, Sheet, View


def test_sheets():
    assert (Sheet(()).rows, Sheet(()).columns) == (1, 1)
    assert (Sheet((5,)).rows, Sheet((5,)).columns) == (1, 5)
    assert (Sheet((3, 4, 5)).rows, Sheet((3, 4, 5)).columns) == (12, 5)
    long = Sheet((3_000_000,))
    assert long.is_wrapped
    assert long.columns == 2048
    assert long.rows == 1465
    assert Sheet((0, 5)).size == 0


@given(st.lists(st.integers(1, 40), max_size=4).map(tuple), st.data())
def test_regions_are_within(shape, data):
    sheet = Sheet(shape)
    first = data.draw(st.integers(0, sheet.rows - 1))
    last = data.draw(st.integers(first + 1, sheet.rows + 5))
    region = Region.of(sheet, f"{first}:{last}", None)
    assert region.rows == range(first, min(last, sheet.rows))
    assert region.columns == range(sheet.columns)


def test_invalid_regions_are_refused():
    for text in ("5", "a:b", "-1:5", "5:5", "7:3", "99:100", "0:" + "9" * 50):
        with pytest.raises(ValueError, match="rows"):
            Region.of(Sheet((10, 10)), text, None)


SIZES = st.one_of(st.integers(1, 50), st.integers(1, 1 << 20))


@given(SIZES, SIZES, st.integers(1, 300), st.integers(1, 300), st.sampled_from([1, 2, 4, 8]))
def test_every_cell_is_looked_at_and_little_is_read(rows, columns, height, width, item_size):
    budget = 16 << 20
    sheet = Sheet((rows, columns))
    view = View(sheet, Region.of(sheet, None, None), height, width, item_size, budget, 1 << 16)
    assert view.row_edges[0] == 0
    assert view.row_edges[-1] == rows
    assert np.all(np.diff(view.row_edges) > 0)
    assert len(view.row_edges) - 1 <= height
    assert view.column_edges[-1] == columns
    assert 1 <= len(view.column_edges) - 1 <= width
    assert np.all(np.diff(view.rows) > 0)
    assert view.rows[-1] < rows
    # In each cell, the rows and columns that are read.
    seen = np.searchsorted(view.rows, view.row_edges)
    assert np.all(np.diff(seen) > 0)
    spans = list(view.spans())
    if spans != [range(columns)]:
        assert [span.start for span in spans] == view.column_edges[:-1].tolist()
    blocks = sum(view.rows.size * (1 + len(span) * item_size // 65536) for span in spans)
    assert min(blocks * 65536, rows * columns * item_size) <= 2 * budget
    if rows * columns * item_size <= budget and columns * item_size <= 1 << 19:
        assert view.is_whole


def test_small_regions_are_whole_and_exact():
    sheet = Sheet((1 << 17, 4096))
    view = View(sheet, Region.of(sheet, "500:600", "40:90"), 480, 480, 2, 16 << 20, 1 << 16)
    assert view.is_whole
    assert view.rows.tolist() == list(range(500, 600))
    assert np.diff(view.row_edges).max() == 1
    assert np.diff(view.column_edges).max() == 1
    assert view.is_exact


def test_narrow_regions_are_as_long_as_all_that_lies_between_their_rows():
    sheet = Sheet((1 << 17, 4096))
    view = View(sheet, Region.of(sheet, None, "0:8"), 480, 480, 2, 16 << 20, 1 << 19)
    assert not view.is_whole
    assert view.rows.size <= 32
