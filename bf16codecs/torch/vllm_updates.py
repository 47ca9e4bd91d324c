"""A weight transfer engine of vLLM: its workers take steps that a training job publishes.

vLLM imports this module where ``--weight-transfer-config`` names the backend ``bf16codecs``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

from bf16codecs.torch.taking import StepTaker

__all__ = ["PublishedRun", "PublishedStep", "StoreTransferEngine"]


@dataclass
class PublishedRun(WeightTransferInitInfo):
    """A published run.

    Attributes
    ----------
    path
        A folder that the workers see, or an address.
    storage_options
        Options of the address's file system.
    keep_copy
        Whether each worker keeps a copy of all weights on the host, so that it only reads what has
        changed. Otherwise, it decodes its part of the whole step each time.
    """

    path: str
    storage_options: Mapping[str, Any] | None = None
    keep_copy: bool = True


@dataclass
class PublishedStep(WeightTransferUpdateInfo):
    """The number of a step to take."""

    step: int


class StoreTransferEngine(WeightTransferEngine[PublishedRun, PublishedStep]):
    """Takes steps of a published run, through the model's own loading of checkpoints."""

    init_info_cls = PublishedRun
    update_info_cls = PublishedStep
    supports_draft_weight_update = False

    _steps: StepTaker | None = None

    def init_transfer_engine(self, init_info: PublishedRun) -> None:
        """Begin to follow a run; nothing is read yet."""
        self.shutdown()
        options, keeps_copy = init_info.storage_options, init_info.keep_copy
        self._steps = StepTaker(init_info.path, options, keeps_copy)

    def start_weight_update(self) -> None:
        """Let the model be loaded layer by layer."""
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: PublishedStep) -> None:
        """Take a step, once it is there.

        Raises TimeoutError if it does not appear; StepNotFoundError if it was dropped.
        """
        if self._steps is None:
            raise RuntimeError(
                "no run is followed: call init_weight_transfer_engine with its path first"
            )
        weights = self._steps.weights(update_info.step)
        with disable_mtp_completeness_check(), torch.no_grad():
            self.model.load_weights(weights)

    def finish_weight_update(self) -> None:
        """End the loading layer by layer."""
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Free the copy, and close files and connections."""
        steps, self._steps = self._steps, None
        if steps is not None:
            steps.close()
