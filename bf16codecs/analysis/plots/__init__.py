"""Pictures of the results of an analysis, drawn by matplotlib.

Each function draws one picture on the given axes, or on new ones, and returns the axes:

>>> from bf16codecs.analysis import plots                           # doctest: +SKIP
>>> plots.exponents(analysis.model).figure.savefig("exponents.png") # doctest: +SKIP

People with any kind of colour vision can distinguish the colours, those of Okabe and Ito; lines
also differ in their markers. Inside the context `style`, pictures are light or dark.
"""

from bf16codecs.analysis.plots.style import (  # first: it reports a missing matplotlib
    FORMATS,
    STYLES,
    save,
    style,
)

# isort: split
from bf16codecs.analysis.plots.codecs import (
    bits_by_layer,
    block_entropies,
    block_sizes,
)
from bf16codecs.analysis.plots.speeds import ratio_and_speed, ratios_and_speeds
from bf16codecs.analysis.plots.steps import bits_over_steps, changed_bits
from bf16codecs.analysis.plots.values import bytes_histogram, exponents, predictions, set_bits

__all__ = [
    "FORMATS",
    "STYLES",
    "bits_by_layer",
    "bits_over_steps",
    "block_entropies",
    "block_sizes",
    "bytes_histogram",
    "changed_bits",
    "exponents",
    "predictions",
    "ratio_and_speed",
    "ratios_and_speeds",
    "save",
    "set_bits",
    "style",
]
