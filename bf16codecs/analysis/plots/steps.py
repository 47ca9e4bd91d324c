"""Pictures of a series of checkpoints, and of differences to a base."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bf16codecs.analysis.coded_sizes import DIFFERENCE
from bf16codecs.analysis.plots.style import axes_for, bit_axis, kind_styles, ticks, title_of
from bf16codecs.analysis.results import Analysis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["bits_over_steps", "changed_bits"]


def bits_over_steps(analysis: Analysis, codec: str = "arithmetic", ax: Axes | None = None) -> Axes:
    """Draw the sizes of a series' checkpoints, whole and as differences, by kind of tensor.

    Parameters
    ----------
    analysis : Analysis
        The analysis of a series.
    codec : str
        ``"huffman"``, ``"arithmetic"`` or ``"arithmetic best"``.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default, new ones.

    Returns
    -------
    matplotlib.axes.Axes
    """
    steps = analysis.steps
    if not steps:
        raise ValueError(f"{analysis.path}: one model, and no series of checkpoints")
    ax = axes_for(ax)
    kinds = dict.fromkeys(group.kind for step in steps for group in step.kinds)
    names = [step.step for step in steps]
    for kind, (color, marker) in zip(kinds, kind_styles(), strict=False):
        for prefix, line in (("", "-"), (DIFFERENCE, "--")):
            points = [
                (index, group.bits[prefix + codec])
                for index, step in enumerate(steps)
                for group in step.kinds
                if group.kind == kind and prefix + codec in group.bits
            ]
            if points:
                label = f"{kind}, whole" if not prefix else f"{kind}, difference"
                ax.plot(
                    *zip(*points, strict=True),
                    line,
                    marker=marker,
                    color=color,
                    markersize=4,
                    label=label,
                )
    ax.set_xticks(*ticks(names))
    ax.set_ylim(bottom=0)
    ax.set_xlabel("step, one beside the other; differences are to the one before")
    ax.set_ylabel("bits per value")
    ax.legend(fontsize="x-small", ncols=2)
    ax.set_title(f"Checkpoints over time, coded by {codec}\n{title_of(analysis)}")
    return ax


def changed_bits(analysis: Analysis, ax: Axes | None = None) -> Axes:
    """Draw the part of the values in which each bit differs from the base or the step before.

    Parameters
    ----------
    analysis : Analysis
        The analysis of a series, or of a model that was compared with a base.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default, new ones.

    Returns
    -------
    matplotlib.axes.Axes
    """
    steps = analysis.steps
    changes = [(s.step, s.model.statistics.change) for s in steps] or [
        ("", analysis.model.statistics.change)
    ]
    known = [(name, change) for name, change in changes if change is not None]
    if not known:
        raise ValueError(f"{analysis.path}: was compared with nothing")
    ax = axes_for(ax)
    parts = 100 * np.array([change.flipped for _, change in known])
    image = ax.imshow(parts, aspect="auto", vmin=0, vmax=50)
    ax.figure.colorbar(image, ax=ax, label="values in which it differs, %")
    bit_axis(ax, analysis.model.statistics.dtype, parts.shape[1])
    ax.set_yticks(*ticks([name for name, _ in known]))
    ax.grid(visible=False)
    ax.set_ylabel("step" if steps else "")
    compared = "from step to step" if steps else "from the base"
    ax.set_title(f"Which bits differ {compared}\n{title_of(analysis)}")
    return ax
