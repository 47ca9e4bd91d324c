"""Pictures of coded sizes in a model's layers and blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from matplotlib.ticker import MaxNLocator

from bf16codecs.analysis.plots.style import Group, axes_for, kind_styles, name_of, title_of
from bf16codecs.analysis.results import Analysis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["bits_by_layer", "block_entropies", "block_sizes"]


def bits_by_layer(analysis: Analysis, codec: str = "arithmetic", ax: Axes | None = None) -> Axes:
    """Draw the bits per value that a codec takes in each layer, by kind of tensor.

    Parameters
    ----------
    analysis : Analysis
        The analysis of a model.
    codec : str
        A codec's name in `TensorAnalysis.bits`, or ``"exponent"`` for the entropy of exponents.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default, new ones.

    Returns
    -------
    matplotlib.axes.Axes
    """
    dtype = analysis.model.statistics.dtype
    sums: dict[str, dict[int, tuple[float, int]]] = {}
    for tensor in analysis.tensors:
        statistics = tensor.statistics
        bits = statistics.entropies.exponent if codec == "exponent" else tensor.bits.get(codec)
        if bits is None or statistics.dtype != dtype or tensor.kind == "norm":
            continue  # norms are small: the heads of their frames would set the scale
        layer = -1 if tensor.layer is None else tensor.layer
        before, values = sums.setdefault(tensor.kind, {}).get(layer, (0.0, 0))
        total = before + bits * statistics.values
        sums[tensor.kind][layer] = total, values + statistics.values
    ax = axes_for(ax)
    for (kind, layers), (color, marker) in zip(sorted(sums.items()), kind_styles(), strict=False):
        points = sorted((n, bits / max(1, values)) for n, (bits, values) in layers.items())
        inside = [point for point in points if point[0] >= 0]
        if inside:
            ax.plot(
                *zip(*inside, strict=True), marker=marker, markersize=4, color=color, label=kind
            )
        if len(inside) < len(points):
            label = f"{kind}, outside of layers"
            ax.axhline(points[0][1], linestyle=":", color=color, label=label)
    if sums:
        ax.legend(fontsize="small")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("layer")
    quantity = "entropy of the exponent" if codec == "exponent" else f"coded by {codec}"
    ax.set_ylabel(f"{quantity}, bits per value")
    ax.set_title(f"Layers and kinds of tensors: {quantity}\n{title_of(analysis)}")
    return ax


def block_entropies(group: Group, ax: Axes | None = None) -> Axes:
    """Draw the quantiles of the entropies and coded sizes of 64 KiB blocks.

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
    if not group.blocks:
        raise ValueError(f"{name_of(group)}: no blocks of floating-point numbers")
    ax = axes_for(ax)
    parts = [0, 5, 25, 50, 75, 95, 100]
    for (name, spread), (_, marker) in zip(group.blocks.items(), kind_styles(), strict=False):
        label = "order-0 entropy" if name == "entropy" else name
        ax.plot(parts, spread.quantiles, marker=marker, markersize=4, label=label)
    ax.set_xticks(parts)
    ax.set_xlabel("blocks that take no more, %")
    ax.set_ylabel("bits per value")
    ax.legend(fontsize="small")
    count = next(iter(group.blocks.values())).count
    ax.set_title(f"{count} blocks of 64 KiB: entropies, and what codecs reach\n{name_of(group)}")
    return ax


def block_sizes(study: Mapping[str, Sequence[tuple[int, float]]], ax: Axes | None = None) -> Axes:
    """Draw the bits per value that codecs take with blocks of several sizes.

    Parameters
    ----------
    study : mapping
        For each codec, pairs of a block size in bytes and bits per value, from `study_blocks`.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default, new ones.

    Returns
    -------
    matplotlib.axes.Axes
    """
    ax = axes_for(ax)
    for (name, points), (_, marker) in zip(study.items(), kind_styles(), strict=False):
        ax.plot(*zip(*points, strict=True), marker=marker, markersize=4, label=name)
    ax.set_xscale("log", base=2)
    sizes = sorted({size for points in study.values() for size, _ in points})
    ax.set_xticks(
        sizes, [f"{s >> 20} MiB" if s >= 1 << 20 else f"{s >> 10} KiB" for s in sizes], rotation=45
    )
    ax.set_xlabel("size of a block")
    ax.set_ylabel("bits per value")
    ax.legend(fontsize="small")
    ax.set_title("What codecs reach with blocks of several sizes")
    return ax
