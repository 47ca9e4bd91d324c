"""Selections as Hypothesis strategies."""

from __future__ import annotations

from hypothesis import strategies as st


def selections(length: int) -> st.SearchStrategy[int | slice]:
    """Draw an index or a slice of an axis."""
    bound = st.integers(-length, length) | st.none()
    return st.integers(-length, length - 1) | st.builds(
        slice, bound, bound, st.integers(1, length) | st.none()
    )
