"""What the tensors of a lossy store lost."""

from __future__ import annotations

from bf16codecs._half import HalfLoss
from bf16codecs._messages import named_errors
from bf16codecs.errors import StoreError
from bf16codecs.store.backend import StoreReader
from bf16codecs.store.entries import ROUNDED, stored_loss

__all__ = ["tensor_loss"]


def tensor_loss(reader: StoreReader, path: str) -> HalfLoss | None:
    """Return what the tensors of an array lost, or None if the store has them exactly.

    Raises
    ------
    StoreError
        If the array's attributes do not say it.
    """
    entry = reader.attributes(path.removesuffix(ROUNDED)).get("lossy")
    if entry is None or path.endswith(ROUNDED):
        return None
    with named_errors(reader.label(path)):
        try:
            return stored_loss(entry)
        except (KeyError, TypeError, ValueError) as e:
            raise StoreError(f"its attributes do not say what was lost: {e}") from None
