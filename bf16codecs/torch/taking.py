"""Steps of a published run as the weights that an inference engine loads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from bf16codecs.model.following import FollowedRun
from bf16codecs.model.model import Model
from bf16codecs.torch.lazy_weights import LazyWeight

__all__ = ["StepTaker"]

# How long a step may take to be seen after the trainer has published it.
_SECONDS = 60.0


class StepTaker:
    """Takes steps of a run.

    If it `keeps_copy`, it has all weights in host memory, and reads only what has changed.
    Otherwise it reads the whole step: an engine that loads the weights decodes the parts it copies.
    """

    def __init__(
        self, path: str, options: Mapping[str, Any] | None = None, keeps_copy: bool = True
    ) -> None:
        self._run, self._keeps_copy = FollowedRun(path, None, options), keeps_copy
        self._copy: dict[str, torch.Tensor] = {}
        self._before: Model | None = None

    def weights(self, number: int) -> Iterator[tuple[str, torch.Tensor]]:
        """Wait for a step; yield its tensors and their names.

        Raises TimeoutError if it does not appear; StepNotFoundError if it was dropped.
        """
        step = self._run.wait_for(number, _SECONDS)
        if not self._keeps_copy:
            return ((name, LazyWeight.of(tensor)) for name, tensor in step.items())
        before, self._before = self._before, None  # after an error, the copy is not used again
        if before is None:
            self._copy = step.load("torch")
        else:
            step.update(self._copy, have=before)
        self._before = step
        return iter(self._copy.items())

    def close(self) -> None:
        """Free the copy, and close files and connections."""
        self._copy, self._before = {}, None
        self._run.close()
