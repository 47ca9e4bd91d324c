"""Benchmark of this package's codecs and its installed peers: sizes, speeds and memory.

Every contender gets the same tensors, one by one, in a process of its own, and every round trip is
checked. The tensors are repeated in memory until they take `nbytes`, so that a cache cannot hold
them. Each copy is encoded separately: otherwise a codec with a large window would find the previous
copy. Slow contenders get fewer rounds and a part of the tensors, so that all fit into a shared time
budget. The earlier systems encoded a model as one piece, and get one here. Speeds are also reported
as ratios to `memcpy` between warm buffers in the same round, since machines differ by more than
codecs do.
"""

from typing import TYPE_CHECKING

from bf16codecs._base.lazy import lazy_names

if TYPE_CHECKING:
    from bf16codecs.bench.checkpoints import *
    from bf16codecs.bench.data import *
    from bf16codecs.bench.defaults import *
    from bf16codecs.bench.host import *
    from bf16codecs.bench.measure import *
    from bf16codecs.bench.plan import *
    from bf16codecs.bench.reports import *
    from bf16codecs.bench.study import *
    from bf16codecs.bench.systems import *

__all__ = [
    "DEFAULT_NBYTES",
    "GAUSSIAN",
    "SECONDS",
    "SYSTEM_TITLES",
    "Failure",
    "Machine",
    "Measured",
    "NothingToMeasureError",
    "Payload",
    "Plan",
    "PlannedStudy",
    "Result",
    "RunResult",
    "Sample",
    "StepResult",
    "Study",
    "machine",
    "measure_run",
    "plan_of",
    "sample_of",
    "study_codecs",
    "study_system",
    "to_csv",
    "to_json",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "bf16codecs.bench.checkpoints": "RunResult StepResult measure_run",
        "bf16codecs.bench.data": "GAUSSIAN NothingToMeasureError Payload Sample sample_of",
        "bf16codecs.bench.defaults": "DEFAULT_NBYTES SECONDS SYSTEM_TITLES",
        "bf16codecs.bench.host": "Machine machine",
        "bf16codecs.bench.measure": "Failure Result",
        "bf16codecs.bench.plan": "Plan PlannedStudy plan_of",
        "bf16codecs.bench.reports": "Measured to_csv to_json",
        "bf16codecs.bench.study": "Study study_codecs",
        "bf16codecs.bench.systems": "study_system",
    },
)
