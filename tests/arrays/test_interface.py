"""All that reads arrays has the interface by which bases and conversions read them."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from bf16codecs._arrays import array, bases, library, views
from bf16codecs._arrays.array import ArrayReader, RangeReader, UnitArray
from noted_chunks import LibraryArray, StepsArray, read_range

MODULES = array, bases, library, views
READERS = [
    kind
    for module in MODULES
    for kind in vars(module).values()
    if isinstance(kind, type)
    and issubclass(kind, RangeReader)
    and kind.__module__ == module.__name__
]


def library_array(values: np.ndarray) -> UnitArray:
    def read(axes, out):
        out[...] = values[tuple(slice(a.start, a.stop, a.step) for a in axes)]

    return LibraryArray("x", values.shape, values.dtype, None, read, 1, OSError)


@pytest.mark.parametrize("kind", READERS, ids=lambda kind: kind.__name__)
def test_no_reader_lacks_a_part_of_the_interface(kind: type[RangeReader]) -> None:
    is_interface = kind in (RangeReader, ArrayReader, UnitArray)
    assert bool(inspect.isabstract(kind)) == is_interface
    for _, method in inspect.getmembers(kind, inspect.isfunction):
        assert "NotImplementedError" not in inspect.getsource(method)


def test_steps_of_several_arrays_are_read_by_ranges() -> None:
    values = np.arange(3 * 5 * 7, dtype=np.float32).reshape(3, 5, 7)
    reader = library_array(values)
    joined = StepsArray([reader, None, reader], np.float32(-1))
    expected = values.copy()
    expected[1] = -1
    raw = expected.tobytes()
    assert read_range(joined, 11, len(raw) - 3) == raw[11:-3]
    box = np.empty((3, 2, 7), np.float32)
    joined.read_box([range(3), range(1, 3), range(7)], box)
    assert np.array_equal(box, expected[:, 1:3])
