"""Sizes, speeds and memory use of this package beside its installed peers.

Every contender gets the same tensors, one by one, in the same run, and every round trip is
checked. The tensors are repeated in memory until they take `nbytes`, so that speeds are those of a
large model and not of a cache; each copy is encoded alone, since a codec that looks far back would
otherwise find the copy before. Speeds are also given as a ratio to `memcpy` between warm
buffers, measured in the same round: machines differ by more than codecs do.
"""

from typing import TYPE_CHECKING

from bf16codecs._lazy import lazy_names

if TYPE_CHECKING:
    from bf16codecs.bench.checkpoints import RunResult, StepResult, measure_run
    from bf16codecs.bench.data import GAUSSIAN, tensors_of
    from bf16codecs.bench.host import Machine, machine
    from bf16codecs.bench.measure import Result, run
    from bf16codecs.bench.reports import to_csv, to_json
    from bf16codecs.bench.systems import SYSTEMS, Study, run_system

__all__ = [
    "GAUSSIAN",
    "SYSTEMS",
    "Machine",
    "Result",
    "RunResult",
    "StepResult",
    "Study",
    "machine",
    "measure_run",
    "run",
    "run_system",
    "tensors_of",
    "to_csv",
    "to_json",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "bf16codecs.bench.checkpoints": ["RunResult", "StepResult", "measure_run"],
        "bf16codecs.bench.data": ["GAUSSIAN", "tensors_of"],
        "bf16codecs.bench.host": ["Machine", "machine"],
        "bf16codecs.bench.measure": ["Result", "run"],
        "bf16codecs.bench.reports": ["to_csv", "to_json"],
        "bf16codecs.bench.systems": ["SYSTEMS", "Study", "run_system"],
    },
)
