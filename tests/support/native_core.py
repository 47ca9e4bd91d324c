"""The native core. Tests import it from here alone, and prefer public names where these exist."""

from __future__ import annotations

from bf16codecs import _core as core

#: The instruction sets that this machine has, from the scalar definition to the default. A child
#: process uses another one if its variable BF16CODECS_ISA says so.
ISAS: list[str] = core.isas()

__all__ = ["ISAS", "core"]
