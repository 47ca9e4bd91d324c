"""Objects of checkpoints that are no tensors: pickles, which may run code when they are loaded."""

from __future__ import annotations

import io
import pickle
from contextlib import suppress

import torch

from bf16codecs._base.messages import few, one_line
from bf16codecs.errors import StoreError

__all__ = ["harmless"]


def harmless(content: bytes, label: str) -> io.BytesIO:
    """Return an object as PyTorch saves it, made anew of one that was loaded without running code.

    The bytes that were there are not handed on: whoever loads them by other rules might read other
    things in them.

    Parameters
    ----------
    content
        What `torch.save` wrote, or anything else.
    label
        Names it in messages.

    Raises
    ------
    StoreError
        If `torch.load` refuses it with ``weights_only=True``.
    """
    saved = io.BytesIO()
    try:
        torch.save(torch.load(io.BytesIO(content), weights_only=True), saved)
    except MemoryError:
        raise
    except pickle.UnpicklingError as e:
        names = _unsafe_names(content)
        has = f"has {few(names, 3)}, and " if names else ""
        raise StoreError(
            f"{label}: {has}may run code when it is loaded: allow the classes that you know"
            " (torch.serialization.add_safe_globals), or, if you trust who wrote the checkpoint,"
            " read it with StoreReader(..., weights_only=False)"
        ) from e
    except Exception as e:  # of damaged ones, anything
        raise StoreError(f"{label}: not loaded with weights_only=True: {one_line(e)}") from e
    saved.seek(0)
    return saved


def _unsafe_names(content: bytes) -> list[str]:
    """Return the names of classes and functions that would have to be allowed, if any tells."""
    with suppress(Exception):
        return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(content)))
    return []
