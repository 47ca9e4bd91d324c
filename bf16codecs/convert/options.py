"""Options of conversions to stores."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bf16codecs._base.arguments import as_integer, positive
from bf16codecs._base.limits import MAX_GROUP
from bf16codecs.store.choice import (
    DEFAULT_CHUNK_SIZE,
    DEFAULT_CODEC,
    DEFAULT_GROUP,
    DEFAULT_STEP_SIZE,
    MAX_HDF5_CHUNK,
    CodecChoice,
)
from bf16codecs.store.kinds import Kind, suffix_of

if TYPE_CHECKING:
    from bf16codecs.convert.summary import Progress

__all__ = ["AUTO", "Options", "RunOptions", "StoreOptions", "zarr_kind"]

#: Prefix of a folder from which the best base is taken.
AUTO = "auto:"


@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """Options that stores of models and of runs share."""

    codec: str = DEFAULT_CODEC
    level: str | int | None = None
    chunk_size: int = DEFAULT_CHUNK_SIZE
    threads: int | None = None
    zarr_format: int = 3
    sha256: bool = False
    verify: bool = True
    overwrite: bool = False
    #: Of the object store that the target is in.
    target_options: Mapping[str, Any] | None = None
    sync: bool = True
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if self.zarr_format not in (2, 3):
            raise ValueError(f"zarr_format must be 2 or 3, not {self.zarr_format!r}")
        # NumPy's 16-bit integers would overflow in computations.
        object.__setattr__(self, "chunk_size", positive("chunk_size", self.chunk_size))


@dataclass(frozen=True, kw_only=True)
class Options(StoreOptions):
    """Options of a conversion to a store: see `bf16codecs.convert.safetensors_to_zarr`.

    Raises TypeError or ValueError if an option is invalid, or contradicts another.
    """

    base: str | os.PathLike[str] | None = None
    storage_options: Mapping[str, Any] | None = None
    lossy: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lossy is not None and self.base is not None:
            raise ValueError("a lossy store has no base")
        _ = self.choice

    @property
    def choice(self) -> CodecChoice:
        """Codec of the tensors."""
        return CodecChoice(self.codec, self.level, self.lossy)

    @property
    def base_place(self) -> str:
        """Path or address of the base, or of the folder that has it; empty without one."""
        return "" if self.base is None else os.fspath(self.base).removeprefix(AUTO)

    def check_kind(self, kind: Kind) -> None:
        """Refuse options that a kind of store does not support."""
        if kind is not Kind.HDF5:
            return
        if self.lossy is not None or self.zarr_format != 3:
            name = "zarr_format" if self.lossy is None else "lossy"
            raise ValueError(f"{name} is for Zarr stores, not for HDF5 files")
        if self.chunk_size > MAX_HDF5_CHUNK:
            raise ValueError(
                f"HDF5 chunks have {MAX_HDF5_CHUNK} bytes at most, not {self.chunk_size}"
            )
        self.choice.check_hdf5()


@dataclass(frozen=True, kw_only=True)
class RunOptions(StoreOptions):
    """Options of a conversion to a run: see `bf16codecs.convert.safetensors_to_run`.

    Raises TypeError or ValueError if an option is invalid, or contradicts another.
    """

    keyframe_every: int = DEFAULT_GROUP
    chunk_size: int = DEFAULT_STEP_SIZE
    as_hdf5: bool = False
    allow_changed_tensors: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        as_integer("keyframe_every", self.keyframe_every, range(1, MAX_GROUP + 1))
        self.choice.for_run("bfloat16", self.keyframe_every)

    @property
    def choice(self) -> CodecChoice:
        """Codec of the tensors."""
        return CodecChoice(self.codec, self.level)

    def kind_of(self, target: Path) -> Kind:
        """Return the kind of store that a new run at `target` becomes."""
        return Kind.HDF5 if self.as_hdf5 else zarr_kind(target)


def zarr_kind(store: str | os.PathLike[str]) -> Kind:
    """Return the kind of Zarr store that a name stands for: a ZIP file or a folder."""
    return Kind.ZIP if suffix_of(Path(store).name)[1] is Kind.ZIP else Kind.FOLDER
