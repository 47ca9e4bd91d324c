"""The filter plugin and the options with which h5py uses it."""

from __future__ import annotations

import contextlib
import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import h5py

from bf16codecs._buffers import DTYPES
from bf16codecs.codecs import BF16Arithmetic, BF16Huffman, BF16Split, BF16Zstd, FrameCodec

__all__ = [
    "FILTER_ID",
    "PLUGIN_PATH",
    "ZSTD_FILTER_ID",
    "Arithmetic",
    "FrameFilter",
    "Huffman",
    "Split",
    "Zstd",
    "cd_values",
    "register",
    "require_zstd",
]

#: The folder of the plugin, for the environment variable ``HDF5_PLUGIN_PATH``.
PLUGIN_PATH = str(Path(__file__).absolute().parents[1] / "plugins")

#: The registered filter of the HDF Group's list that hdf5plugin brings.
ZSTD_FILTER_ID = 32015

# Flags in cd_values.
_BY_BYTE, _NO_CHECKSUMS = 1, 2


@cache
def _filter_class() -> int:
    """Return the address of the plugin's H5Z_class2_t."""
    found = sorted(Path(PLUGIN_PATH).glob("*h5bf16codecs.*"))
    if not found:
        raise ImportError(f"the HDF5 plugin is not in {PLUGIN_PATH}: install bf16codecs again")
    library = ctypes.CDLL(str(found[0]))
    library.H5PLget_plugin_info.restype = ctypes.c_void_p
    return int(library.H5PLget_plugin_info())


def register() -> None:
    """Register the filter with the libhdf5 that h5py uses; importing this module does so."""
    if not h5py.h5z.register_filter(_filter_class()):
        raise ImportError("h5py's libhdf5 does not accept the filter of bf16codecs")


#: The filter's number: the second member of H5Z_class2_t. The plugin's source defines it.
FILTER_ID = ctypes.c_int.from_address(_filter_class() + ctypes.sizeof(ctypes.c_int)).value


def cd_values(codec: FrameCodec, chunk_nbytes: int = 0, row: int = 0) -> tuple[int, ...]:
    """Return the filter's parameters: docs/hdf5_filter.md, "cd_values"."""
    config = codec["configuration"]
    flags = _BY_BYTE if config.get("by") == "byte" else 0
    if not config.get("checksum", True):
        flags |= _NO_CHECKSUMS
    level = 1 if config.get("level") == "best" else 0
    values = [codec._native_codec, DTYPES[codec.dtype], flags, level]
    # HDF5's numbers have 32 bits, and larger chunks are possible from HDF5 2.0.
    values += [n if n < 1 << 32 else 0 for n in (chunk_nbytes, row if level else 0)]
    while len(values) > 2 and values[-1] == 0:
        values.pop()
    return tuple(values)


class FrameFilter(h5py.filters.FilterRefBase):
    """What the options of this package's filter share. Not to be instantiated itself.

    `codec_class` makes the codec for the data type of an array.
    """

    filter_id = FILTER_ID
    codec_class: type[FrameCodec]

    def __init__(self, dtype: Any, **parameters: Any) -> None:
        self._dtype = dtype
        self._parameters = parameters
        self.codec = self.codec_for("bfloat16")
        self.filter_options = cd_values(self.codec)

    def codec_for(self, dtype: str) -> FrameCodec:
        """Return the codec, for the element layout `dtype` if none was asked for."""
        return self.codec_class(
            dtype=dtype if self._dtype is None else self._dtype, **self._parameters
        )

    def get_config(self) -> dict[str, Any]:
        """Return the parameters."""
        return {"dtype": self._dtype, **self._parameters}

    def __repr__(self) -> str:
        parameters = ", ".join(f"{k}={v!r}" for k, v in self.get_config().items())
        return f"{type(self).__name__}({parameters})"


class Split(FrameFilter):
    """Separate the byte planes of floating-point numbers, without compressing them.

    Parameters
    ----------
    dtype : str, optional
        How an element's bytes become planes. By default `write_tensor` takes that of the array,
        and h5py ``bfloat16``.
    by : {"field", "byte"}
        Where an element is cut.
    """

    codec_class = BF16Split

    def __init__(self, dtype: str | None = None, by: str = "field") -> None:
        super().__init__(dtype, by=by)


class Huffman(FrameFilter):
    """Compress floating-point numbers with Huffman codes.

    Parameters
    ----------
    dtype : str, optional
        How an element's bytes become planes. By default `write_tensor` takes that of the array,
        and h5py ``bfloat16``.
    checksum : bool
        Store checksums, and verify them when decoding.

    Examples
    --------
    >>> import h5py, numpy as np
    >>> values = np.random.default_rng(0).normal(size=100_000).astype("float32")
    >>> with h5py.File("values.h5", "w", driver="core", backing_store=False) as file:
    ...     dataset = file.create_dataset("x", data=values, compression=Huffman("float32"))
    ...     bool((dataset[:] == values).all())
    True
    """

    codec_class = BF16Huffman

    def __init__(self, dtype: str | None = None, checksum: bool = True) -> None:
        super().__init__(dtype, checksum=checksum)


class Arithmetic(FrameFilter):
    """Compress floating-point numbers with an interleaved range coder (rANS).

    Parameters
    ----------
    dtype : str, optional
        How an element's bytes become planes. By default `write_tensor` takes that of the array,
        and h5py ``bfloat16``.
    level : {"fast", "best"}
        As in `bf16codecs.BF16Arithmetic`.
    checksum : bool
        Store checksums, and verify them when decoding.
    """

    codec_class = BF16Arithmetic

    def __init__(
        self, dtype: str | None = None, level: str = "fast", checksum: bool = True
    ) -> None:
        super().__init__(dtype, level=level, checksum=checksum)


def require_zstd() -> None:
    """Make HDF5's Zstandard filter available.

    Raises
    ------
    ValueError
        If it is not: hdf5plugin is not installed.
    """
    if h5py.h5z.filter_avail(ZSTD_FILTER_ID):
        return
    with contextlib.suppress(ImportError):
        import hdf5plugin  # noqa: F401  (registers its filters)
    if not h5py.h5z.filter_avail(ZSTD_FILTER_ID):
        raise ValueError(
            f"HDF5's Zstandard filter {ZSTD_FILTER_ID} is not available: install hdf5plugin"
        )


class Zstd(h5py.filters.FilterRefBase):
    """HDF5's own pipeline of its byte shuffle and Zstandard, the filter 32015 of hdf5plugin.

    Parameters
    ----------
    level : int
        1 to 22.

    Notes
    -----
    ``**Zstd()`` asks h5py for both filters. ``compression=Zstd()`` cannot ask for the shuffle:
    add ``shuffle=True``.
    """

    def __init__(self, level: int = 3) -> None:
        self.level = BF16Zstd(level).level
        self.filter_options = (self.level,)

    @property
    def filter_id(self) -> int:
        """The Zstandard filter, which has to be available once somebody asks."""
        require_zstd()
        return ZSTD_FILTER_ID

    @property
    def _kwargs(self) -> dict[str, Any]:
        return {
            "shuffle": True,
            "compression": self.filter_id,
            "compression_opts": self.filter_options,
        }

    def get_config(self) -> dict[str, Any]:
        """Return the parameters."""
        return {"level": self.level}

    def __repr__(self) -> str:
        return f"Zstd(level={self.level})"


register()
