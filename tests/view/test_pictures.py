"""Pictures show the values."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest

import bf16codecs
from bf16codecs.convert import safetensors_to_hdf5, safetensors_to_zarr
from bf16codecs.view.pictures import NOT_FINITE, NOTHING, SOUND, UNREADABLE, picture
from bf16codecs.view.sheets import Region, Sheet, View
from lazy_models import weights, write_safetensors

BUDGET = 16 << 20


@pytest.fixture
def opened(tmp_path):
    """Return a function that opens a model of some arrays."""
    models = []

    def open_arrays(arrays, name="model", convert=safetensors_to_zarr, **options):
        suffix = {safetensors_to_zarr: ".zarr", safetensors_to_hdf5: ".h5"}[convert]
        source = write_safetensors(tmp_path / f"{name}.safetensors", arrays)
        convert(source, tmp_path / f"{name}{suffix}", **options)
        models.append(bf16codecs.open_model(tmp_path / f"{name}{suffix}"))
        return models[-1]

    yield open_arrays
    for model in models:
        model.close()


def largest_file(store):
    files = [path for path in store.rglob("*") if path.is_file()] or [store]
    return max(files, key=lambda path: path.stat().st_size)


def flip_middle(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def view_of(tensor, height=64, width=64, rows=None, columns=None, budget=BUDGET):
    sheet = Sheet(tensor.shape)
    region = Region.of(sheet, rows, columns)
    return View(sheet, region, height, width, tensor.dtype.itemsize, budget, 1 << 16)


def cells_of(values, view, function):
    """Return the figures of the cells, by NumPy."""
    rows, columns = view.row_edges.tolist(), view.column_edges.tolist()
    return np.array(
        [
            [function(values[a:b, c:d]) for c, d in itertools.pairwise(columns)]
            for a, b in itertools.pairwise(rows)
        ]
    )


def test_whole_pictures(opened):
    for dtype in ("bfloat16", "float16", "float32", "float64", "float8_e4m3fn"):
        values = weights((100, 70), dtype)
        tensor = opened({"w": values}, dtype)["w"]
        view, numbers = view_of(tensor), values.astype(np.float64)
        assert view.is_whole, dtype
        expected = {
            "value": np.mean,
            "magnitude": lambda cell: np.sqrt(np.mean(cell**2)),
            "largest": lambda cell: np.abs(cell).max(),
        }
        for show, function in expected.items():
            found = picture(view, show, tensor)
            cells = cells_of(numbers, view, function)
            np.testing.assert_allclose(found.cells, cells, rtol=1e-6, err_msg=f"{dtype} {show}")
            assert np.all(found.states == SOUND), dtype
            assert not found.errors, dtype
        np.testing.assert_allclose(
            found.column_scales,
            cells_of(numbers, view, lambda cell: np.mean(cell**2)).mean(0) ** 0.5,
            rtol=0.05,
            err_msg=dtype,
        )


def test_zoomed_pictures_are_the_values(opened):
    values = weights((8, 300, 200))
    tensor = opened({"w": values}, chunk_size=1 << 16)["w"]
    view = view_of(tensor, 480, 480, "290:330", "30:60")
    found = picture(view, "value", tensor)
    expected = values.reshape(-1, 200)[290:330, 30:60]
    np.testing.assert_array_equal(found.cells, expected.astype(np.float32))
    assert found.texts[:2] == [f"{float(v):.4g}" for v in expected[0, :2]]
    assert found.bits == [f"{bits:04x}" for bits in expected.view(np.uint16).reshape(-1)]


def test_samples_are_near_the_whole(opened):
    values = weights((4000, 512))
    values[2000:] *= 4
    tensor = opened({"w": values})["w"]
    view = view_of(tensor, 40, 40, budget=2 << 20)
    assert not view.is_whole
    assert view.rows.size < 40
    found = picture(view, "magnitude", tensor)
    assert 0.015 < found.cells[:10].mean() < 0.025
    assert 0.06 < found.cells[-10:].mean() < 0.1


def test_long_rows_are_looked_at_in_parts(opened):
    values = weights((3, 1 << 20))
    tensor = opened({"w": values})["w"]
    view = view_of(tensor, budget=1 << 20)
    assert not view.is_whole
    found = picture(view, "magnitude", tensor)
    assert np.all((0.019 < found.cells) & (found.cells < 0.021))
    assert found.cells.shape[0] == 3


def test_memory_is_bounded(opened):
    values = np.zeros((1, 1 << 24), "int8")
    tensor = opened({"w": values}, codec="none")["w"]
    view = view_of(tensor, budget=64 << 20)
    tracemalloc.start()
    try:
        assert picture(view, "magnitude", tensor).cells.shape == (1, 64)
        assert tracemalloc.get_traced_memory()[1] < 120_000_000
    finally:
        tracemalloc.stop()


def test_one_dimension_is_wrapped(opened):
    values = weights((5000,))
    tensor = opened({"w": values})["w"]
    sheet = Sheet(tensor.shape)
    view = view_of(tensor, 200, 200)
    found = picture(view, "value", tensor)
    flat, states = found.cells.reshape(-1), found.states.reshape(-1)
    np.testing.assert_array_equal(flat[:5000], values.astype(np.float32))
    assert np.all(states[5000:] == NOTHING)
    assert states.size == sheet.rows * sheet.columns


def test_small_tensors(opened):
    for shape in ((), (1,), (5,), (1, 1), (7, 1), (1, 9)):
        values = weights(shape)
        tensor = opened({"w": values}, f"{shape}")["w"]
        cells = picture(view_of(tensor), "value", tensor).cells
        expected = values.astype(np.float32).reshape(-1)
        np.testing.assert_array_equal(cells.reshape(-1), expected, err_msg=f"{shape}")


def test_values_that_are_no_floats(opened):
    for dtype in ("bool", "int8", "uint16", "int32", "int64", "complex64"):
        values = np.arange(-3, 57).reshape(10, 6).astype(dtype)
        tensor = opened({"w": values}, dtype)["w"]
        found = picture(view_of(tensor), "value", tensor)
        expected = np.abs(values) if dtype == "complex64" else values
        np.testing.assert_array_equal(found.cells, expected.astype("f4"), err_msg=dtype)
        assert found.texts[5] == ("1" if dtype == "bool" else str(values[0, 5])), dtype
        assert not picture(view_of(tensor), "changed", tensor, tensor).cells.any(), dtype


def test_not_finite_values(opened):
    values = weights((40, 40), "float32")
    values[0, 0], values[0, 39], values[20] = np.nan, np.inf, np.nan
    tensor = opened({"w": values})["w"]
    with np.errstate(all="raise"):
        found = picture(view_of(tensor), "value", tensor)
    assert (found.states == NOT_FINITE).sum() == 42
    assert np.isnan(found.cells[20]).all()
    coarse = picture(view_of(tensor, 10, 10), "magnitude", tensor)
    assert (coarse.states == NOT_FINITE).sum() == 12
    assert np.isfinite(coarse.cells).all()


def test_changes(opened):
    old = weights((60, 50))
    new = old.copy()
    new[30:] *= 2
    new[0, 0] = np.nan
    a, b = opened({"w": old}, "a")["w"], opened({"w": new}, "b")["w"]
    view = view_of(a, 6, 5)
    changed = picture(view, "changed", b, a)
    assert np.all(changed.cells[3:] == 1)
    assert changed.cells[0, 0] == pytest.approx(1 / 100)
    assert not changed.cells[1:3].any()
    difference = picture(view, "difference", b, a)
    expected = cells_of(new.astype(float) - old.astype(float), view, np.nanmean)
    np.testing.assert_allclose(difference.cells, expected, atol=1e-7)
    wide = weights((60, 50), "float32")
    c, d = opened({"w": wide}, "c")["w"], opened({"w": wide.astype("bfloat16")}, "d")["w"]
    assert not picture(view, "changed", d, c).cells.any(), "rounded, they are the same"
    assert picture(view, "changed", c, d).cells.mean() > 0.9


@pytest.mark.parametrize("convert", [safetensors_to_zarr, safetensors_to_hdf5])
def test_damage_is_in_the_picture_beside_everything_else(opened, tmp_path, convert):
    values = weights((512, 512))
    model = opened({"w": values}, convert=convert, chunk_size=1 << 17)
    model.close()
    store = tmp_path / ("model.zarr" if convert is safetensors_to_zarr else "model.h5")
    flip_middle(largest_file(store))
    with bf16codecs.open_model(store) as damaged:
        tensor = damaged["w"]
        view = view_of(tensor, 512, 512)
        found = picture(view, "value", tensor)
        is_lost = found.states == UNREADABLE
        assert 0 < is_lost.sum() < found.states.size / 2
        assert found.errors
        assert "w" in found.errors[0]
        np.testing.assert_array_equal(found.cells[~is_lost], values.astype("f4")[~is_lost])
        assert np.isnan(found.cells[is_lost]).all()
