"""Pictures of benchmarks: ratio against speed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib import pyplot as plt
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from bf16codecs._base.messages import counted
from bf16codecs.analysis.plots.labels import place_labels
from bf16codecs.analysis.plots.style import axes_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["ratio_and_speed", "ratios_and_speeds"]

Row = Mapping[str, Any]
Point = tuple[float, float]

_DIRECTIONS = ("encode", "decode")
# Inches of the picture of one table.
_WIDTH, _HEIGHT = 12.8, 4.6
# Ratios that differ by more than this factor get a logarithmic axis.
_FAR = 3
# The row of `bench` that measures copying instead of a codec.
_COPYING = "memcpy"
_FRONT = "filled: no other is better in both"
_KINDS = {"this package": "o", "others": "s", "lossy": "^"}


def ratio_and_speed(
    results: Iterable[Row], direction: str = "decode", ax: Axes | None = None
) -> Axes:
    """Draw the ratio of codecs against their speed: codecs up and to the right are better.

    Codecs that no other one beats in both (the Pareto front) are filled, and a line joins them. A
    dotted line marks the speed of memcpy.

    Parameters
    ----------
    results : iterable of mapping
        ``"results"`` of ``bf16codecs bench --json`` on one system.
    direction : {"decode", "encode"}
        The speed to draw.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default, new ones.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ValueError
        If the direction is neither.
    """
    if direction not in _DIRECTIONS:
        raise ValueError(f"direction must be 'decode' or 'encode', not {direction!r:.80}")
    ax = axes_for(ax)
    points = _draw_points(ax, list(results), direction)
    ax.set_title(f"Ratio against the speed to {direction}")
    ax.legend(*_legend([ax]), fontsize="x-small")
    figure = ax.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    place_labels(ax, points)
    return ax


def ratios_and_speeds(tables: Mapping[str, Sequence[Row]]) -> Figure:
    """Draw the ratio against both speeds, with a row of two pictures for each table.

    Parameters
    ----------
    tables : mapping
        Results for `ratio_and_speed`, by title.

    Returns
    -------
    matplotlib.figure.Figure
    """
    figure, rows = plt.subplots(
        len(tables), 2, figsize=(_WIDTH, _HEIGHT * len(tables)), sharey="row", squeeze=False
    )
    unlabelled = []
    for (title, results), pair in zip(tables.items(), rows, strict=True):
        for direction, ax in zip(_DIRECTIONS, pair, strict=True):
            unlabelled.append((ax, _draw_points(ax, results, direction)))
            ax.set_title(f"{title}: ratio against the speed to {direction}")
        pair[1].set_ylabel("")
    handles, labels = _legend(figure.axes)
    figure.legend(handles, labels, loc="outside upper left", ncols=len(labels), fontsize="small")
    figure.draw_without_rendering()
    for ax, points in unlabelled:  # now that positions are final
        place_labels(ax, points)
    return figure


def _draw_points(ax: Axes, rows: Sequence[Row], direction: str) -> dict[str, Point]:
    """Draw everything but the labels, and return the points by label."""
    color = plt.rcParams["text.color"]
    points = {}
    by_kind: dict[str, list[Point]] = {kind: [] for kind in _KINDS}
    for name, row in zip(_names(rows), rows, strict=True):
        speed = row[f"{direction}_gbps"]
        if row["name"] == _COPYING:
            ax.axvline(speed, color=color, alpha=0.5, linestyle=":", linewidth=1, label=_COPYING)
            continue
        points[name] = speed, row["ratio"]
        by_kind[_kind_of(row)].append(points[name])
    front = _front(points.values())
    if front:
        ax.plot(*zip(*front, strict=True), color=color, alpha=0.5, linewidth=1, label=_FRONT)
    colors = plt.rcParams["axes.prop_cycle"].by_key()["color"]
    for (kind, group), edge in zip(by_kind.items(), colors, strict=False):
        if group:
            ax.scatter(
                [speed for speed, _ in group],
                [ratio for _, ratio in group],
                s=24,
                marker=_KINDS[kind],
                facecolor=[edge if point in front else "none" for point in group],
                edgecolor=edge,
                zorder=3,
                label=kind,
            )
    _scale_axes(ax, [ratio for _, ratio in points.values()])
    ax.set_xlabel(f"speed to {direction}, GB/s{_of_threads(rows)}")
    ax.set_ylabel("ratio: size before / after")
    return points


def _scale_axes(ax: Axes, ratios: Sequence[float]) -> None:
    """Make the axis of speeds logarithmic, and that of ratios if they are far apart."""
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(plain)
    ax.xaxis.set_minor_formatter(NullFormatter())
    if ratios and max(ratios) > _FAR * min(ratios):
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
        ax.yaxis.set_major_formatter(plain)
        ax.yaxis.set_minor_locator(NullLocator())
    ax.margins(0.14, 0.12)


def _legend(axes: Sequence[Axes]) -> tuple[list[Any], list[str]]:
    """Return handles and labels of a legend, each label once."""
    found: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    order = [label for label in (*_KINDS, _FRONT, _COPYING) if label in found]
    return [_plain(found[label]) for label in order], order


def _plain(handle: Any) -> Any:
    """Replace a handle of points, some of them filled, by one marker in the colour of its edge."""
    if isinstance(handle, Line2D):
        return handle
    color, (marker,) = handle.get_edgecolor()[0], handle.get_paths()
    return Line2D([], [], color=color, marker=marker, linestyle="none")


def _kind_of(row: Row) -> str:
    if row.get("lossy"):
        return "lossy"
    return "this package" if "BF16" in row["name"] else "others"


def _of_threads(rows: Sequence[Row]) -> str:
    threads = {row.get("threads", 1) for row in rows}
    return " of one thread" if threads == {1} else ""


def _names(rows: Sequence[Row]) -> list[str]:
    """Return the names of rows, with the number of threads where a name occurs twice."""
    counts = Counter(row["name"] for row in rows)
    return [
        name if counts[name] == 1 else f"{name}, {counted(row['threads'], 'thread')}"
        for row in rows
        for name in [row["name"]]
    ]


def _front(points: Iterable[Point]) -> list[Point]:
    """Return the points that no other one beats in both, the fastest first."""
    front: list[Point] = []
    for speed, ratio in sorted(points, key=lambda point: (-point[0], -point[1])):
        if not front or ratio > front[-1][1]:
            front.append((speed, ratio))
    return front
