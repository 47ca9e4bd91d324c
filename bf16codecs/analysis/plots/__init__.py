"""Pictures of what an analysis found, drawn by matplotlib.

Each function draws one picture on axes that it is given, or on new ones, and returns the axes:

>>> from bf16codecs.analysis import plots                           # doctest: +SKIP
>>> plots.exponents(analysis.model).figure.savefig("exponents.png") # doctest: +SKIP

Colours are those of Okabe and Ito, which people with any kind of colour vision tell apart, and
lines differ in their markers, too. `style` makes all pictures inside it light or dark.
"""

from bf16codecs.analysis.plots.style import (  # first: it says what is not installed
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
