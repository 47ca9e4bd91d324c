"""A plugin of vLLM: a format to load, ``bf16codecs``, and a backend of this name for new weights.

The format is that of folders that `pack-hf` made. Each process decodes only the parts of tensors
that its rank needs. The backend takes steps that a training job publishes: see `vllm_updates`.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from bf16codecs.torch.lazy_weights import LazyWeight
from bf16codecs.torch.patching import stores_of

if TYPE_CHECKING:
    import torch

__all__ = ["BACKEND", "LOAD_FORMAT", "register"]

#: The names of the format, and of the backend that takes new weights.
LOAD_FORMAT = BACKEND = "bf16codecs"


def register() -> None:
    """Register both; vLLM calls this in each of its processes, perhaps several times."""
    from vllm.model_executor import model_loader

    if LOAD_FORMAT not in model_loader._LOAD_FORMAT_TO_MODEL_LOADER:
        model_loader.register_model_loader(LOAD_FORMAT)(_loader())
    try:
        from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    except ImportError:  # an older release
        return
    if BACKEND not in WeightTransferEngineFactory._registry:
        module = "bf16codecs.torch.vllm_updates"
        WeightTransferEngineFactory.register_engine(BACKEND, module, "StoreTransferEngine")


def _loader() -> type[Any]:
    """Return the class of the loader, which needs vLLM."""
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    class StoreLoader(DefaultModelLoader):
        """Loads the weights of a packed folder; the rest remains with vLLM."""

        def download_model(self, model_config: Any) -> None:
            """Do nothing: stores are read where they are."""

        def _get_weights_iterator(
            self, source: Any
        ) -> Generator[tuple[str, torch.Tensor], None, None]:
            files = stores_of(source.model_or_path, source.revision, source.subfolder or "")
            if not getattr(self, "counter_before_loading_weights", 1):
                self.counter_before_loading_weights = time.perf_counter()
            is_unused = getattr(source, "is_unused_weight", None)
            for model in {id(file.model): file.model for file in files}.values():
                for name, tensor in model.items():  # in the order of their data
                    if is_unused is None or not is_unused(name):
                        yield source.prefix + name, LazyWeight.of(tensor)

    return StoreLoader
