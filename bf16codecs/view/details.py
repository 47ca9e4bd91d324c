"""Details of a model and its tensors for the page, as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from bf16codecs._base.fields import FIELDS, bit_labels
from bf16codecs._base.forks import make_lock
from bf16codecs.analysis.checkpoints import Checkpoints
from bf16codecs.analysis.kinds import kind_of
from bf16codecs.analysis.look import Look
from bf16codecs.analysis.results import TensorAnalysis
from bf16codecs.model.model import Model
from bf16codecs.model.tensor import LazyTensor
from bf16codecs.store.kinds import path_of
from bf16codecs.view.sheets import Sheet

__all__ = ["Details", "counterpart", "is_far"]

# Bytes of a sample: of local models, and of those at servers.
_OF_TENSOR = (8 << 20, 1 << 20)
_OF_MODEL = (32 << 20, 4 << 20)
_OF_STEP = (1 << 20, 1 << 18)
# The most steps in a line.
_MOST_STEPS = 40
# The most answers that are kept.
_KEPT = 256


def is_far(model: Model) -> bool:
    """Tell whether a model is read from a server."""
    return path_of(model.where) is None


def counterpart(other: Model | None, tensor: LazyTensor) -> LazyTensor | None:
    """Return the tensor of another model to compare one with; None if it has none.

    It has the same shape, and the same dtype or the other one of BF16 and FP32: see
    `LazyTensor.ranges_of`.
    """
    found = None if other is None else other.get(tensor.name)
    return None if found is None or tensor.ranges_of(found) is None else found


class Details:
    """Describes checkpoints, and keeps answers that took work."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints
        self._kept: dict[Any, Any] = {}
        self._lock = make_lock()

    def contents(self, label: str, ask_sizes: bool = False) -> dict[str, Any]:
        """Return what `bf16codecs info --json` prints of a checkpoint, and kinds of tensors."""
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
            "steps": [own for own in self.checkpoints.labels if name in self.checkpoints[own]],
        }

    def statistics(
        self, label: str, name: str, against: str | None, is_whole: bool
    ) -> dict[str, Any]:
        """Return entropies, histograms and scales of a tensor, of a sample unless all is wanted."""
        model = self.checkpoints[label]
        other = None if against is None else self.checkpoints[against]

        def find() -> dict[str, Any]:
            tensor = model[name]
            look = Look(kind_of, None if is_whole else _OF_TENSOR[is_far(model)])
            found, damage = look.at_tensor(tensor, counterpart(other, tensor))
            errors = [own.message for own in damage]
            return {**_plain(found), "size": tensor.size, "errors": errors}

        return self._once(("statistics", label, name, against, is_whole), find)

    def changes(self, label: str, against: str) -> dict[str, Any]:
        """Return how much of a sample of each tensor differs between two checkpoints."""
        model, other = self.checkpoints[label], self.checkpoints[against]

        def find() -> dict[str, Any]:
            look = Look(kind_of, _OF_MODEL[is_far(model)], codecs=("arithmetic",))
            found = look.changes(model, other)
            return {
                "share": found.share,
                "changes": {name: {"changed": own.changed} for name, own in found.tensors.items()},
                "bits": {name: own.bits for name, own in found.tensors.items()},
                "errors": [own.message for own in found.damage],
            }

        return self._once(("changes", label, against), find)

    def history(self, name: str) -> dict[str, Any]:
        """Return how a tensor changes from checkpoint to checkpoint, of samples."""

        def find() -> dict[str, Any]:
            steps = self.checkpoints.steps
            labels = _spread([own for own in steps if name in self.checkpoints[own]])
            return {"steps": [self._step(name, own) for own in labels]}

        return self._once(("history", name), find)

    def _step(self, name: str, label: str) -> dict[str, Any]:
        model, before = self.checkpoints[label], self.checkpoints.before(label)
        tensor = model[name]
        other = None if before is None else self.checkpoints[before]
        look = Look(kind_of, _OF_STEP[is_far(model)], codecs=("arithmetic",))
        found, _ = look.at_tensor(tensor, counterpart(other, tensor))
        change = found.statistics.change
        return {
            "step": label,
            "bits": found.bits,
            "changed": None if change is None else change.changed,
            "before": before,
        }

    def _once(self, key: Any, find: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return a kept answer, or find it; finding it twice at the same time does no harm."""
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
    """Return all labels, or evenly spread ones with the last."""
    every = -(-len(labels) // _MOST_STEPS)
    return list(labels[:: -every or None][::-1]) if labels else []


def _plain(found: TensorAnalysis) -> dict[str, Any]:
    """Return the parts of an analysis that the page shows."""
    own = asdict(found)
    statistics = own["statistics"]
    del statistics["byte_counts"]
    statistics["bit_labels"] = bit_labels(statistics["dtype"], len(statistics["set_bits"]))
    fields = FIELDS.get(statistics["dtype"])
    # Of float64, thousands of exponents: from the first to the last that occurs.
    counts = statistics.pop("exponents")
    occurring = [i for i, count in enumerate(counts) if count]
    first, last = (occurring[0], occurring[-1]) if occurring else (0, -1)
    normal = range(0) if fields is None else fields.normal
    statistics["exponents"] = {
        "first": first,
        "bias": 0 if fields is None else fields.bias,
        # Those below are of zeros and subnormal numbers, those beyond of infinities and NaN.
        "normal": [normal.start, normal.stop],
        "counts": counts[first : last + 1],
    }
    return own
