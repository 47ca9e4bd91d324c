"""A plugin of vLLM: ``--load-format bf16codecs`` loads a folder that `pack-hf` made.

Each process decodes only the parts of tensors that its rank needs.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from bf16codecs.torch.lazy_weights import LazyWeight
from bf16codecs.torch.patching import stores_of

if TYPE_CHECKING:
    import torch

__all__ = ["LOAD_FORMAT", "register"]

#: The name of the format.
LOAD_FORMAT = "bf16codecs"


def register() -> None:
    """Register the format; vLLM calls this in each of its processes, perhaps several times."""
    from vllm.model_executor import model_loader

    if LOAD_FORMAT not in model_loader._LOAD_FORMAT_TO_MODEL_LOADER:
        model_loader.register_model_loader(LOAD_FORMAT)(_loader())


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
