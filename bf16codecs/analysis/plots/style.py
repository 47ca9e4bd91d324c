"""Style, names and axes of all pictures."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bf16codecs._base.fields import FIELDS, bit_labels
from bf16codecs._base.messages import from_extra
from bf16codecs._base.paths import last_name
from bf16codecs.analysis.results import Analysis, GroupAnalysis, TensorAnalysis

with from_extra("plot", "bf16codecs.analysis.plots"):
    import matplotlib as mpl
    from cycler import cycler
    from matplotlib import pyplot as plt
    from matplotlib.backend_bases import FigureCanvasBase

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "FORMATS",
    "STYLES",
    "Group",
    "axes_for",
    "bit_axis",
    "kind_styles",
    "name_of",
    "save",
    "style",
    "ticks",
    "title_of",
]

# More names along an axis run into each other.
_MOST_TICKS = 16

#: What most pictures are of.
Group = GroupAnalysis | TensorAnalysis

# Okabe and Ito, "Color Universal Design", 2008; without yellow, which is too light on white.
_COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"]
_MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]
_BRIGHT = ["#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#D55E00"]
_TEXTS = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color")
_COMMON = {
    "axes.prop_cycle": cycler(color=_COLORS),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": "medium",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "figure.figsize": (6.4, 3.6),
    "figure.dpi": 110,
    "figure.constrained_layout.use": True,
    "legend.frameon": False,
    "image.cmap": "viridis",
    "svg.fonttype": "none",
}
#: What pictures can be saved as. PGF would need LaTeX.
FORMATS = sorted(FigureCanvasBase.get_supported_filetypes().keys() - {"pgf"})
#: Settings of matplotlib by the name of a style.
STYLES: Mapping[str, Mapping[str, Any]] = {
    "light": _COMMON,
    "dark": {
        **_COMMON,
        **dict.fromkeys(_TEXTS, "#e6e6e6"),
        "axes.edgecolor": "#8a8a8a",
        "axes.facecolor": "#1b1d21",
        "figure.facecolor": "#1b1d21",
        "savefig.facecolor": "#1b1d21",
        "grid.color": "#a0a0a0",
        "axes.prop_cycle": cycler(color=_BRIGHT),
    },
}


@contextmanager
def style(name: str = "light") -> Iterator[None]:
    """Draw all that is drawn inside in a style: ``"light"`` or ``"dark"``."""
    if name not in STYLES:
        raise ValueError(f"style must be {' or '.join(STYLES)}, not {name!r:.80}")
    with mpl.rc_context(dict(STYLES[name])):
        yield


def axes_for(ax: Axes | None) -> Axes:
    """Return the axes to draw on, new ones if there are none."""
    if ax is None:
        _, ax = plt.subplots()
    return ax


def name_of(group: Group) -> str:
    """Return what a picture is of."""
    if isinstance(group, TensorAnalysis):
        return group.name
    dtype = group.statistics.dtype
    return f"all {dtype} tensors" if group.kind == "all" else f"{dtype} tensors of {group.kind}"


def title_of(analysis: Analysis) -> str:
    """Return what a picture of a whole model, or of a series, is of."""
    return last_name(analysis.path)


def bit_axis(ax: Axes, dtype: str, count: int) -> None:
    """Name the bits along the x axis, the most significant one first."""
    ax.set_xticks(*ticks(bit_labels(dtype, count)))
    ax.set_xlabel("bit: sign (s), exponent (e), mantissa (m)" if dtype in FIELDS else "bit")


def ticks(names: Sequence[str]) -> tuple[Sequence[int], Sequence[str]]:
    """Return where to name what is drawn at 0, 1, 2 and so on, and these names."""
    every = -(-len(names) // _MOST_TICKS)
    return range(0, len(names), every), names[::every]


def kind_styles() -> Iterator[tuple[str, str]]:
    """Yield colours, and markers, for one thing after the other."""
    colors = mpl.rcParams["axes.prop_cycle"].by_key()["color"]
    return zip(itertools.cycle(colors), itertools.cycle(_MARKERS), strict=False)


def save(axes: Axes, target: Any, form: str) -> None:
    """Write the figure of some axes to a file, and close it.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
        What a function of this package returned.
    target : str, path or file
        Where to write it.
    form : str
        How: one of `FORMATS`. The bytes of an SVG depend on the picture alone.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    # With none of its own, which names other places, either.
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type")) if form == "svg" else None
    with mpl.rc_context({"svg.hashsalt": "bf16codecs"}):
        figure.savefig(target, format=form, metadata=metadata)
    plt.close(figure)
