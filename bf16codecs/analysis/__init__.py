"""Analysis of a model's weights: why they compress as well as they do.

`analyze` measures a model or a series of checkpoints: entropies of bytes and fields, how well
neighbours predict a value, scales of rows and columns, coded sizes. `plots` draws the results, and
`write_report` writes them as one HTML page.
"""

from typing import TYPE_CHECKING

from bf16codecs._base.lazy import lazy_names

if TYPE_CHECKING:
    from bf16codecs.analysis.analyzing import *
    from bf16codecs.analysis.block_sizes import *
    from bf16codecs.analysis.histogram import *
    from bf16codecs.analysis.html_report import *
    from bf16codecs.analysis.kinds import *
    from bf16codecs.analysis.results import *
    from bf16codecs.analysis.scales import *
    from bf16codecs.analysis.statistics import *
    from bf16codecs.analysis.tables import reasons as reasons

__all__ = [
    "KINDS",
    "Analysis",
    "Change",
    "Entropies",
    "GroupAnalysis",
    "Histogram",
    "Prediction",
    "Scales",
    "Spread",
    "Statistics",
    "StepAnalysis",
    "TensorAnalysis",
    "analyze",
    "kind_of",
    "reasons",
    "report",
    "study_blocks",
    "write_report",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "bf16codecs.analysis.analyzing": "analyze",
        "bf16codecs.analysis.block_sizes": "study_blocks",
        "bf16codecs.analysis.histogram": "Histogram",
        "bf16codecs.analysis.kinds": "KINDS kind_of",
        "bf16codecs.analysis.tables": "reasons",
        "bf16codecs.analysis.html_report": "report write_report",
        "bf16codecs.analysis.results": "Analysis GroupAnalysis StepAnalysis TensorAnalysis",
        "bf16codecs.analysis.scales": "Scales",
        "bf16codecs.analysis.statistics": "Change Entropies Prediction Spread Statistics",
    },
    submodules=["plots"],
)
