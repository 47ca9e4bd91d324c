"""Models that the workers of a cluster open for themselves."""

from __future__ import annotations

import errno
import functools
import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bf16codecs._base.limits import Limits
from bf16codecs._base.paths import absolute
from bf16codecs.store.kinds import path_of
from bf16codecs.store.opening import Opening, open_any
from bf16codecs.store.reader import ModelReader

__all__ = ["Shared", "not_seen", "shared"]


@dataclass(frozen=True)
class Shared:
    """A model that was opened in one process, and that others open when they need it.

    They keep it open for further jobs of the same conversion, which `token` tells from others.
    """

    open: Callable[[], ModelReader] = field(compare=False)
    token: str = field(default_factory=lambda: secrets.token_hex(8))

    def model(self) -> ModelReader:
        """Return the open model, in any process."""
        return _opened(self)


# A store, its base, a source: of two conversions at a time.
@functools.lru_cache(maxsize=6)
def _opened(model: Shared) -> ModelReader:
    try:
        return model.open()
    except FileNotFoundError as e:
        raise not_seen(str(e.filename)) from e


def not_seen(path: str) -> FileNotFoundError:
    """Return the error for a path that a worker does not find."""
    text = (
        f"not found by the worker on {socket.gethostname()}: workers need a disk that all machines"
        " share, or an object store"
    )
    return FileNotFoundError(errno.ENOENT, text, path)


def shared(reader: ModelReader) -> Shared:
    """Return a model, or a step of a run, for other processes to open."""
    where, step = reader.location
    path = path_of(where)
    where = where if path is None else absolute(path)
    base = None if reader.base is None else shared(reader.base)
    reopen = reader.reopen or partial(_reopened, where, step, reader.storage_options, reader.limits)
    return Shared(reopen if base is None else partial(_with_base, reopen, base))


def _reopened(
    where: str, step: int | None, options: Mapping[str, Any] | None, limits: Limits
) -> ModelReader:
    return open_any(where, Opening(options, limits, step=step, with_base=False))


def _with_base(reopen: Callable[[], ModelReader], base: Shared) -> ModelReader:
    """Open a model with its base, which was compared with the reference to it before."""
    reader = reopen()
    reader.open_base, reader.closes_base = lambda _: base.model(), False
    return reader
