"""Stores as folders of their original files: a file system in user space (FUSE)."""

from typing import TYPE_CHECKING

from bf16codecs._base.lazy import lazy_names

if TYPE_CHECKING:
    from bf16codecs.mount.file_system import *

__all__ = ["mount"]

__getattr__, __dir__ = lazy_names(__name__, {"bf16codecs.mount.file_system": "mount"})
