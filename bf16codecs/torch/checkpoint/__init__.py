"""Model stores as checkpoints of `torch.distributed.checkpoint`."""

import re

import torch

#: The oldest PyTorch with the plans and planners that this code expects.
_OLDEST = (2, 6)

if tuple(map(int, re.findall(r"\d+", torch.__version__)[:2])) < _OLDEST:
    raise ImportError(
        f"bf16codecs.torch.checkpoint needs PyTorch 2.6 or newer, and this is {torch.__version__}:"
        " pip install 'torch>=2.6'"
    )
if not torch.distributed.is_available():
    raise ImportError(
        "bf16codecs.torch.checkpoint needs torch.distributed, and this PyTorch,"
        f" {torch.__version__}, was built without it: install one that has it"
    )

from bf16codecs.torch.checkpoint.reader import StoreReader  # noqa: E402
from bf16codecs.torch.checkpoint.retention import latest_checkpoint  # noqa: E402
from bf16codecs.torch.checkpoint.writer import StoreWriter  # noqa: E402

__all__ = ["StoreReader", "StoreWriter", "latest_checkpoint"]
