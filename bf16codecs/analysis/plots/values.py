"""Pictures of values: exponents, bytes, bits and neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bf16codecs._base.fields import FIELDS
from bf16codecs.analysis.plots.style import Group, axes_for, bit_axis, name_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["bytes_histogram", "exponents", "predictions", "set_bits"]


def exponents(group: Group, ax: Axes | None = None) -> Axes:
    """Draw how often each exponent occurs; the title has their entropy.

    Beside the powers of two, "0" stands for zeros and subnormal numbers.

    Parameters
    ----------
    group : GroupAnalysis or TensorAnalysis
        The analysis of floating-point numbers.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default, new ones.

    Returns
    -------
    matplotlib.axes.Axes
    """
    statistics = group.statistics
    if not statistics.exponents:
        raise ValueError(f"{name_of(group)}: {statistics.dtype} numbers have no exponents")
    ax = axes_for(ax)
    counts = np.array(statistics.exponents, float)
    bars = _exponent_bars(statistics.dtype, 100 * counts / max(1.0, counts.sum()))
    ax.bar(list(bars), [height for height, _ in bars.values()], width=0.85)
    ax.set_yscale("log")
    ax.set_xlabel("exponent: the power of 2 of the value")
    ax.set_ylabel("values with it, %")
    bits = len(statistics.exponents).bit_length() - 1
    found = f"{np.count_nonzero(counts)} of {len(counts)} exponents occur"
    ax.set_title(f"{found}: {statistics.entropies.exponent:.2f} of {bits} bits\n{name_of(group)}")
    every = max(1, len(bars) // 10)
    labels = {
        power: label or f"{power}".replace("-", "\N{MINUS SIGN}")
        for power, (_, label) in bars.items()
        if label or power % every == 0
    }
    ax.set_xticks(list(labels), list(labels.values()))
    return ax


def _exponent_bars(dtype: str, heights: NDArray[Any]) -> dict[int, tuple[float, str]]:
    """Return heights and labels of bars by power of 2; only bars of special exponents have one.

    The bar of zeros and subnormal numbers is left of the powers, that of infinities and NaN right.
    """
    fields = FIELDS[dtype]
    normal = fields.normal
    occurring = np.flatnonzero(heights[normal.start : normal.stop]) + normal.start
    bars = {}
    if occurring.size:
        shown = range(int(occurring[0]), int(occurring[-1]) + 1)
        bars = {i - fields.bias: (float(heights[i]), "") for i in shown}
    first, last = min(bars, default=0), max(bars, default=0)
    zeros, not_finite = heights[: normal.start].sum(), heights[normal.stop :].sum()
    if zeros:
        bars[first - 2] = (zeros, "0")
    if not_finite:
        bars[last + 2] = (not_finite, "inf, NaN" if fields.mantissa else "NaN")
    return bars


def bytes_histogram(group: Group, which: str = "high", ax: Axes | None = None) -> Axes:
    """Draw how often each value of the most or the least significant byte occurs.

    Parameters
    ----------
    group : GroupAnalysis or TensorAnalysis
        The analysis.
    which : {"high", "low"}
        The byte.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default, new ones.

    Returns
    -------
    matplotlib.axes.Axes
    """
    if which not in ("high", "low"):
        raise ValueError(f"which must be 'high' or 'low', not {which!r:.80}")
    byte = 0 if which == "high" else -1
    statistics = group.statistics
    ax = axes_for(ax)
    counts = np.array(statistics.byte_counts[byte], float)
    ax.bar(np.arange(256), 100 * counts / max(1.0, counts.sum()), width=1.0)
    ax.axhline(100 / 256, color="0.5", linestyle="--", linewidth=1, label="if all were as frequent")
    ax.set_xlabel(f"value of the {which} byte")
    ax.set_ylabel("values with it, %")
    ax.set_xlim(-1, 256)
    ax.legend(loc="upper right", fontsize="small")
    bits = statistics.entropies.bytes[byte]
    ax.set_title(f"{which.capitalize()} byte: {bits:.2f} of 8 bits\n{name_of(group)}")
    return ax


def set_bits(group: Group, ax: Axes | None = None) -> Axes:
    """Draw the part of the values in which each bit is set: 50 % is noise, 0 and 100 % are free.

    Parameters
    ----------
    group : GroupAnalysis or TensorAnalysis
        The analysis.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default, new ones.

    Returns
    -------
    matplotlib.axes.Axes
    """
    statistics = group.statistics
    ax = axes_for(ax)
    ax.bar(range(len(statistics.set_bits)), [100 * part for part in statistics.set_bits])
    ax.axhline(50, color="0.5", linestyle="--", linewidth=1)
    bit_axis(ax, statistics.dtype, len(statistics.set_bits))
    ax.set_ylim(0, 100)
    ax.set_ylabel("values in which it is set, %")
    ax.set_title(f"In which part of the values each bit is set\n{name_of(group)}")
    return ax


def predictions(group: Group, ax: Axes | None = None) -> Axes:
    """Draw how well neighbours predict an exponent: its entropy alone, given one, and as residual.

    Parameters
    ----------
    group : GroupAnalysis or TensorAnalysis
        The analysis of values that have neighbours.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default, new ones.

    Returns
    -------
    matplotlib.axes.Axes
    """
    found = [p for p in group.statistics.predictions if p.of == "exponent byte"]
    if not found:
        raise ValueError(f"{name_of(group)}: no values with neighbours")
    ax = axes_for(ax)
    names = ["alone", "given the neighbour", "delta to it", "XOR with it"]
    width = 0.8 / len(found)
    for i, p in enumerate(found):
        heights = [p.alone, p.given or 0.0, p.delta, p.xor]
        centers = np.arange(len(names)) + (i - (len(found) - 1) / 2) * width
        bars = ax.bar(centers, heights, width, label=f"{p.neighbour} neighbour")
        ax.bar_label(bars, fmt="%.2f", fontsize="small", padding=2)
    ax.set_xticks(range(len(names)), names)
    ax.set_xlabel("what is coded")
    ax.margins(y=0.15)
    ax.set_ylabel("entropy of the exponent byte, bits")
    ax.legend(fontsize="small", loc="upper left")
    ax.set_title(f"What neighbours tell of the exponent\n{name_of(group)}")
    return ax
