"""Model stores as checkpoints of `torch.distributed.checkpoint`."""

from bf16codecs.torch.checkpoint.reader import StoreReader
from bf16codecs.torch.checkpoint.writer import StoreWriter

__all__ = ["StoreReader", "StoreWriter"]
