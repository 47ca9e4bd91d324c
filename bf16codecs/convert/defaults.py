"""What conversions do when they are told nothing else."""

from __future__ import annotations

__all__ = ["DEFAULT_CHUNK_SIZE", "DEFAULT_GROUP", "DEFAULT_STEP_SIZE", "LEAST_CHUNK_SIZE"]

# 8 to 64 MiB convert equally fast; smaller ones take less memory, and a slice where a reader
# decodes whole chunks (format 2) less time.
DEFAULT_CHUNK_SIZE = 16 << 20
#: How many steps of a run from one that is coded whole to the next.
DEFAULT_GROUP = 16
#: The largest size of one step in a chunk.
DEFAULT_STEP_SIZE = 1 << 22
#: Of a chunk, where a model has many: a file takes as much of most disks, however little is in it,
#: and the head of a frame of 4 KiB is 1 % of it.
LEAST_CHUNK_SIZE = 1 << 12
