"""Details of a model and its tensors for the page, as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from bf16codecs._base.fields import FIELDS, bit_labels
from bf16codecs._base.forks import make_lock
from bf16codecs.analysis.analyzer import Analyzer
from bf16codecs.analysis.checkpoints import Checkpoints
from bf16codecs.analysis.kinds import kind_of
from bf16codecs.analysis.results import TensorAnalysis
from bf16codecs.model.model import Model
from bf16codecs.model.tensor import LazyTensor
from bf16codecs.store.kinds import path_of
from bf16codecs.view.sheets import Sheet

__all__ = ["Details", "counterpart", "is_remote"]

# Bytes of a sample: of local models, and of those on servers.
_OF_TENSOR = (8 << 20, 1 << 20)
_OF_MODEL = (32 << 20, 4 << 20)
_OF_STEP = (1 << 20, 1 << 18)
# The most steps in the history of a tensor.
_MOST_STEPS = 40
# The most answers in the cache.
_KEPT = 256


def is_remote(model: Model) -> bool:
    """Return whether a model is read from a server."""
    return path_of(model.where) is None


def counterpart(other: Model | None, tensor: LazyTensor) -> LazyTensor | None:
    """Return the tensor of another model that one can be compared with, or None.

    It has the same name and shape, and the same dtype, but BF16 and FP32 compare with each other:
    see `LazyTensor.ranges_of`.
    """
    found = None if other is None else other.get(tensor.name)
    return None if found is None or tensor.ranges_of(found) is None else found


class Details:
    """Descriptions of checkpoints and their tensors, with a cache of expensive ones."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints
        self._kept: dict[Any, Any] = {}
        self._lock = make_lock()

    def contents(self, label: str, ask_sizes: bool = False) -> dict[str, Any]:
        """Return the document of `bf16codecs info --json` for a checkpoint, and tensors' kinds."""
        model = self.checkpoints[label]

        def find() -> dict[str, Any]:
            found = model.info(sizes=ask_sizes).to_json()
            for row in found["tensors"]:
                row["kind"] = kind_of(row["name"])
            return found

        return self._once(("contents", label, ask_sizes), find)

    def tensor(self, label: str, name: str) -> dict[str, Any]:
        """Return a tensor's dtype and shape, and the layout of its sheet."""
        tensor: LazyTensor = self.checkpoints[label][name]
        sheet = Sheet(tensor.shape)
        return {
            "name": name,
            "dtype": tensor.get_dtype(),
            "shape": list(tensor.shape),
            "nbytes": tensor.nbytes,
            "chunks": list(tensor.chunks),
            "rows": sheet.rows,
            "columns": sheet.columns,
            "is_wrapped": sheet.is_wrapped,
            "steps": [step for step in self.checkpoints.labels if name in self.checkpoints[step]],
        }

    def statistics(
        self, label: str, name: str, against: str | None, is_whole: bool
    ) -> dict[str, Any]:
        """Return entropies, histograms and scales of a tensor, or of a sample of it."""
        model = self.checkpoints[label]
        other = None if against is None else self.checkpoints[against]

        def find() -> dict[str, Any]:
            tensor = model[name]
            analyzer = Analyzer(kind_of, None if is_whole else _OF_TENSOR[is_remote(model)])
            found, damage = analyzer.tensor(tensor, counterpart(other, tensor))
            errors = [part.message for part in damage]
            return {**_plain(found), "size": tensor.size, "errors": errors}

        return self._once(("statistics", label, name, against, is_whole), find)

    def changes(self, label: str, against: str) -> dict[str, Any]:
        """Return how much of a sample of each tensor differs between two checkpoints."""
        model, other = self.checkpoints[label], self.checkpoints[against]

        def find() -> dict[str, Any]:
            analyzer = Analyzer(kind_of, _OF_MODEL[is_remote(model)], codecs=("arithmetic",))
            found = analyzer.changes(model, other)
            return {
                "share": found.share,
                "changes": {name: {"changed": t.changed} for name, t in found.tensors.items()},
                "bits": {name: tensor.bits for name, tensor in found.tensors.items()},
                "errors": [part.message for part in found.damage],
            }

        return self._once(("changes", label, against), find)

    def history(self, name: str) -> dict[str, Any]:
        """Return how samples of a tensor change from checkpoint to checkpoint."""

        def find() -> dict[str, Any]:
            steps = self.checkpoints.steps
            labels = _spread([label for label in steps if name in self.checkpoints[label]])
            return {"steps": [self._step(name, label) for label in labels]}

        return self._once(("history", name), find)

    def _step(self, name: str, label: str) -> dict[str, Any]:
        model, before = self.checkpoints[label], self.checkpoints.before(label)
        tensor = model[name]
        other = None if before is None else self.checkpoints[before]
        analyzer = Analyzer(kind_of, _OF_STEP[is_remote(model)], codecs=("arithmetic",))
        found, _ = analyzer.tensor(tensor, counterpart(other, tensor))
        change = found.statistics.change
        return {
            "step": label,
            "bits": found.bits,
            "changed": None if change is None else change.changed,
            "before": before,
        }

    def _once(self, key: Any, find: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return an answer from the cache, or find it; two threads may find the same one."""
        with self._lock:
            if key in self._kept:
                return self._kept[key]
        found = find()
        with self._lock:
            while len(self._kept) >= _KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = found
        return found


def _spread(labels: Sequence[str]) -> list[str]:
    """Return all labels, or, of too many, evenly spread ones that include the last."""
    every = -(-len(labels) // _MOST_STEPS)
    return list(labels[:: -every or None][::-1]) if labels else []


def _plain(found: TensorAnalysis) -> dict[str, Any]:
    """Return the parts of an analysis that the page shows."""
    document = asdict(found)
    statistics = document["statistics"]
    del statistics["byte_counts"]
    statistics["bit_labels"] = bit_labels(statistics["dtype"], len(statistics["set_bits"]))
    fields = FIELDS.get(statistics["dtype"])
    # From the first to the last exponent that occurs: float64 has thousands.
    counts = statistics.pop("exponents")
    occurring = [i for i, count in enumerate(counts) if count]
    first, last = (occurring[0], occurring[-1]) if occurring else (0, -1)
    normal = range(0) if fields is None else fields.normal
    statistics["exponents"] = {
        "first": first,
        "bias": 0 if fields is None else fields.bias,
        # Exponents below are those of zeros and subnormal numbers, above of infinities and NaN.
        "normal": [normal.start, normal.stop],
        "counts": counts[first : last + 1],
    }
    return document
