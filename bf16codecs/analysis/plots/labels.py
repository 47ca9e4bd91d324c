"""Labels of points, which do not overlap."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.text import Text
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["place_labels"]

Boxes = NDArray[np.float64]  # of shape (n, 4): left, bottom, right, top, in pixels

# In points. Beyond the first of these distances, a line connects the label with its point.
_DISTANCES = np.array([5, 10, 16, 24, 34, 46, 60, 78, 100, 130, 165])
_MARKER, _MARGIN, _CROWD = 5.0, 1.0, 100.0
# In degrees, the preferred ones first: to the right, where labels are read best, then to the left.
_ANGLES = np.radians(
    [0, 180, 90, 270, 30, 330, 150, 210, 60, 120, 240, 300, 15, 345, 165, 195],
)


def place_labels(ax: Axes, points: Mapping[str, tuple[float, float]]) -> None:
    """Label points by name, each label where it covers no point, line or other label.

    `points` has coordinates by name. Draw the figure first (`draw_without_rendering`), which fixes
    all positions, and leave the axes' limits alone afterwards.
    """
    figure = ax.get_figure(root=True)
    assert figure is not None
    if not points:
        return
    scale = figure.dpi / 72
    positions = dict(zip(points, ax.transData.transform(list(points.values())), strict=True))
    taken = _obstacles(ax, np.array(list(positions.values())), _MARKER * scale)
    for name in _crowded_first(positions, _CROWD * scale):
        text = ax.annotate(
            name,
            points[name],
            (0, 0),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize="x-small",
            arrowprops={"arrowstyle": "-", "color": "0.5", "linewidth": 0.5, "shrinkA": 0},
        )
        text.set_in_layout(False)
        extent = Text.get_window_extent(text)  # without the line
        half = np.array([extent.width, extent.height]) / 2 + _MARGIN * scale
        centers = _candidates(positions[name], half, scale)
        boxes = np.hstack([centers - half, centers + half])
        best = int(np.argmin(_covered(boxes, taken, np.array(ax.bbox.extents))))
        taken = np.vstack([taken, boxes[best]])
        text.set_position((centers[best] - positions[name]) / scale)
        if best < len(_ANGLES) and text.arrow_patch is not None:
            text.arrow_patch.set_visible(False)


def _crowded_first(positions: Mapping[str, NDArray[np.float64]], near: float) -> list[str]:
    """Return names, those with most neighbours first: labels of lone points always find room."""
    points = np.array(list(positions.values()))

    def neighbours(name: str) -> int:
        away = np.abs(points - positions[name]) * (1, 2)  # labels are wider than high
        return int((np.hypot(*away.T) < near).sum())

    return sorted(positions, key=lambda name: (-neighbours(name), -positions[name][1], name))


def _obstacles(ax: Axes, points: NDArray[np.float64], size: float) -> Boxes:
    """Return boxes around points, lines and the legend, which labels must not cover."""
    found = [_squares(points, size), *_squares_of_lines(ax, size / 2)]
    legend = ax.get_legend()
    if legend is not None:
        found.append(np.array([legend.get_window_extent().extents]))
    return np.vstack(found)


def _squares_of_lines(ax: Axes, size: float) -> Iterator[Boxes]:
    """Yield small squares along the lines of some axes."""
    for line in ax.lines:
        corners = line.get_transform().transform(line.get_xydata())
        for first, last in itertools.pairwise(corners):
            count = 2 + int(math.dist(first, last) / (2 * size))
            yield _squares(np.linspace(first, last, count), size)


def _squares(centers: NDArray[np.float64], size: float) -> Boxes:
    return np.hstack([centers - size / 2, centers + size / 2])


def _candidates(
    point: NDArray[np.float64], half: NDArray[np.float64], scale: float
) -> NDArray[np.float64]:
    """Return possible centers of a point's label, given half its size; the nearest ones first."""
    directions = np.column_stack([np.cos(_ANGLES), np.sin(_ANGLES)])
    away = _DISTANCES[:, None, None] * scale + half
    return np.asarray(point + (directions * away).reshape(-1, 2))


def _covered(boxes: Boxes, taken: Boxes, room: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the area of each box that covers something else or lies outside `room`."""

    def common(others: Boxes) -> NDArray[np.float64]:
        low = np.maximum(boxes[:, None, :2], others[:, :2])
        high = np.minimum(boxes[:, None, 2:], others[:, 2:])
        return np.clip(high - low, 0, None).prod(axis=2).sum(axis=1)

    areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    return np.round(common(taken) + areas - common(room[None]), 3)
