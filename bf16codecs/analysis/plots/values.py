"""Pictures of values: exponents, bytes, bits, neighbours."""

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
    """Draw how often each exponent occurs, and how many bits all of them would take.

    Beside the powers of two, "0" stands for zeros and subnormal numbers.

    Parameters
    ----------
    group : GroupAnalysis or TensorAnalysis
        Of floating-point numbers.
    ax : matplotlib.axes.Axes, optional
        Where to draw.

    Returns
    -------
    matplotlib.axes.Axes
    """
    own = group.statistics
    if not own.exponents:
        raise ValueError(f"{name_of(group)}: {own.dtype} numbers have no exponents")
    ax = axes_for(ax)
    counts = np.array(own.exponents, float)
    bars = _exponent_bars(own.dtype, 100 * counts / max(1.0, counts.sum()))
    ax.bar(list(bars), [height for height, _ in bars.values()], width=0.85)
    ax.set_yscale("log")
    ax.set_xlabel("exponent: the power of 2 of the value")
    ax.set_ylabel("values with it, %")
    bits = len(own.exponents).bit_length() - 1
    found = f"{np.count_nonzero(counts)} of {len(counts)} exponents occur"
    ax.set_title(f"{found}: {own.entropies.exponent:.2f} of {bits} bits\n{name_of(group)}")
    every = max(1, len(bars) // 10)
    shown = {
        place: name or f"{place}".replace("-", "\N{MINUS SIGN}")
        for place, (_, name) in bars.items()
        if name or place % every == 0
    }
    ax.set_xticks(list(shown), list(shown.values()))
    return ax


def _exponent_bars(dtype: str, heights: NDArray[Any]) -> dict[int, tuple[float, str]]:
    """Return heights by powers of 2, and beside them, named, those of exponents that are none."""
    fields = FIELDS[dtype]
    normal = fields.normal
    there = np.flatnonzero(heights[normal.start : normal.stop]) + normal.start
    bars = {}
    if there.size:
        own = range(int(there[0]), int(there[-1]) + 1)
        bars = {i - fields.bias: (float(heights[i]), "") for i in own}
    first, last = min(bars, default=0), max(bars, default=0)
    zeros, not_finite = heights[: normal.start].sum(), heights[normal.stop :].sum()
    if zeros:
        bars[first - 2] = (zeros, "0")
    if not_finite:
        bars[last + 2] = (not_finite, "inf, NaN" if fields.mantissa else "NaN")
    return bars


def bytes_histogram(group: Group, which: str = "high", ax: Axes | None = None) -> Axes:
    """Draw how often each value of the most, or the least significant byte occurs.

    Parameters
    ----------
    group : GroupAnalysis or TensorAnalysis
        What was found.
    which : {"high", "low"}
        The byte.
    ax : matplotlib.axes.Axes, optional
        Where to draw.

    Returns
    -------
    matplotlib.axes.Axes
    """
    if which not in ("high", "low"):
        raise ValueError(f"which must be 'high' or 'low', not {which!r:.80}")
    at = 0 if which == "high" else -1
    own = group.statistics
    ax = axes_for(ax)
    counts = np.array(own.byte_counts[at], float)
    ax.bar(np.arange(256), 100 * counts / max(1.0, counts.sum()), width=1.0)
    ax.axhline(100 / 256, color="0.5", linestyle="--", linewidth=1, label="if all were as frequent")
    ax.set_xlabel(f"value of the {which} byte")
    ax.set_ylabel("values with it, %")
    ax.set_xlim(-1, 256)
    ax.legend(loc="upper right", fontsize="small")
    ax.set_title(
        f"{which.capitalize()} byte: {own.entropies.bytes[at]:.2f} of 8 bits\n{name_of(group)}"
    )
    return ax


def set_bits(group: Group, ax: Axes | None = None) -> Axes:
    """Draw in which part of the values each bit is set: 50 % is noise, 0 and 100 % are free.

    Parameters
    ----------
    group : GroupAnalysis or TensorAnalysis
        What was found.
    ax : matplotlib.axes.Axes, optional
        Where to draw.

    Returns
    -------
    matplotlib.axes.Axes
    """
    own = group.statistics
    ax = axes_for(ax)
    ax.bar(range(len(own.set_bits)), [100 * part for part in own.set_bits])
    ax.axhline(50, color="0.5", linestyle="--", linewidth=1)
    bit_axis(ax, own.dtype, len(own.set_bits))
    ax.set_ylim(0, 100)
    ax.set_ylabel("values in which it is set, %")
    ax.set_title(f"In which part of the values each bit is set\n{name_of(group)}")
    return ax


def predictions(group: Group, ax: Axes | None = None) -> Axes:
    """Draw what neighbours tell of an exponent, and what predicting it from them costs.

    Parameters
    ----------
    group : GroupAnalysis or TensorAnalysis
        Of values that have neighbours.
    ax : matplotlib.axes.Axes, optional
        Where to draw.

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
        places = np.arange(len(names)) + (i - (len(found) - 1) / 2) * width
        bars = ax.bar(places, heights, width, label=f"{p.neighbour} neighbour")
        ax.bar_label(bars, fmt="%.2f", fontsize="small", padding=2)
    ax.set_xticks(range(len(names)), names)
    ax.set_xlabel("what is coded")
    ax.margins(y=0.15)
    ax.set_ylabel("entropy of the exponent byte, bits")
    ax.legend(fontsize="small", loc="upper left")
    ax.set_title(f"What neighbours tell of the exponent\n{name_of(group)}")
    return ax
