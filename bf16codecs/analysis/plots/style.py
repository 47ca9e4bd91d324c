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

# More labels along an axis would overlap.
_MOST_TICKS = 16

#: The subject of most pictures.
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
#: File formats of pictures, without PGF, which would need LaTeX.
FORMATS = sorted(FigureCanvasBase.get_supported_filetypes().keys() - {"pgf"})
#: Settings of matplotlib by style.
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
    """Draw the pictures inside the context in a style: ``"light"`` or ``"dark"``."""
    if name not in STYLES:
        raise ValueError(f"style must be {' or '.join(STYLES)}, not {name!r:.80}")
    with mpl.rc_context(dict(STYLES[name])):
        yield


def axes_for(ax: Axes | None) -> Axes:
    """Return the given axes, or new ones for None."""
    if ax is None:
        _, ax = plt.subplots()
    return ax


def name_of(group: Group) -> str:
    """Return the title of a picture of a tensor or a group."""
    if isinstance(group, TensorAnalysis):
        return group.name
    dtype = group.statistics.dtype
    return f"all {dtype} tensors" if group.kind == "all" else f"{dtype} tensors of {group.kind}"


def title_of(analysis: Analysis) -> str:
    """Return the title of a picture of a model or a series."""
    return last_name(analysis.path)


def bit_axis(ax: Axes, dtype: str, count: int) -> None:
    """Label the bits along the x axis, the most significant one first."""
    ax.set_xticks(*ticks(bit_labels(dtype, count)))
    ax.set_xlabel("bit: sign (s), exponent (e), mantissa (m)" if dtype in FIELDS else "bit")


def ticks(names: Sequence[str]) -> tuple[Sequence[int], Sequence[str]]:
    """Return positions and labels of ticks for items at 0, 1, 2, ...; not all, if they are many."""
    every = -(-len(names) // _MOST_TICKS)
    return range(0, len(names), every), names[::every]


def kind_styles() -> Iterator[tuple[str, str]]:
    """Yield a colour and a marker for each line of a picture."""
    colors = mpl.rcParams["axes.prop_cycle"].by_key()["color"]
    return zip(itertools.cycle(colors), itertools.cycle(_MARKERS), strict=False)


def save(axes: Axes, target: Any, form: str) -> None:
    """Write the figure of some axes to a file, and close the figure.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
        Axes that a function of this package returned.
    target : str, path or file
        The file to write.
    form : str
        The file format: one of `FORMATS`. The bytes of an SVG depend on the picture alone.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    # Without metadata, which hold the date and the addresses of matplotlib and of vocabularies.
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type")) if form == "svg" else None
    with mpl.rc_context({"svg.hashsalt": "bf16codecs"}):
        figure.savefig(target, format=form, metadata=metadata)
    plt.close(figure)
