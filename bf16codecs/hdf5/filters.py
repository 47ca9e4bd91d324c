"""The HDF5 filter plugin, and its options for h5py."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from functools import cache
from pathlib import Path
from typing import Any

import h5py
from h5py._hl.base import phil

from bf16codecs import _core
from bf16codecs._base.buffers import AUTO
from bf16codecs._base.messages import warn_caller
from bf16codecs.codecs import BF16Arithmetic, BF16Huffman, BF16Split, BF16Zstd, FrameCodec
from bf16codecs.errors import DtypeMismatchWarning

__all__ = [
    "FILTER_ID",
    "FILTER_IDS",
    "PLUGIN_PATH",
    "ZSTD_FILTER_ID",
    "Arithmetic",
    "FrameFilter",
    "Huffman",
    "Split",
    "Zstd",
    "cd_values",
    "codec_level",
    "codec_name",
    "filter_name",
    "filter_steps",
    "filters_edges",
    "filters_of",
    "register",
    "require_zstd",
]

#: Folder of the plugin, for the environment variable ``HDF5_PLUGIN_PATH``.
PLUGIN_PATH = str(Path(__file__).absolute().parents[1] / "plugins")

#: Zstandard's id in the HDF Group's list of filters; hdf5plugin provides it.
ZSTD_FILTER_ID = 32015


_Warn = ctypes.CFUNCTYPE(None, ctypes.c_char_p)


def _warn(text: bytes) -> None:
    """Warn the caller who creates a dataset, instead of the plugin's line on standard error.

    If warnings are errors, print that line: libhdf5 is the caller, and cannot raise exceptions.
    """
    try:
        warn_caller(text.decode(), DtypeMismatchWarning)
    except DtypeMismatchWarning as e:
        print(f"bf16codecs: warning: {e}", file=sys.stderr)


# Must live as long as the plugin, which calls it.
_WARN = _Warn(_warn)


class _PluginInfo(ctypes.Structure):
    """libhdf5's H5Z_class2_t, and the plugin's own field behind it: see plugin.cpp."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("version", "id", "has_encoder", "has_decoder")),
        ("name", ctypes.c_char_p),
        *((name, ctypes.c_void_p) for name in ("can_apply", "set_local", "filter")),
        ("warn", _Warn),
    )


@cache
def _filter_classes() -> list[int]:
    """Return the addresses of the plugins' H5Z_class2_t, one for each filter id."""
    found = sorted(Path(PLUGIN_PATH).glob("*h5bf16codecs*"))
    if not found:
        raise ImportError(f"the HDF5 plugin is not in {PLUGIN_PATH}: reinstall bf16codecs")
    addresses = []
    for path in found:
        library = ctypes.CDLL(str(path))
        library.H5PLget_plugin_info.restype = ctypes.POINTER(_PluginInfo)
        info = library.H5PLget_plugin_info()
        info.contents.warn = _WARN
        addresses.append(ctypes.addressof(info.contents))
    return addresses


def register() -> None:
    """Register the filter with h5py's libhdf5; importing this module does so."""
    for address in _filter_classes():
        if not h5py.h5z.register_filter(address):
            raise ImportError("h5py's libhdf5 does not accept the filter of bf16codecs")


# Indices in `cd_values`, whose trailing zeros are left out.
_LEVEL_INDEX, _STEPS_INDEX = 3, 6

# H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS.
_UNFILTERED_EDGES = 2

#: All ids of the filter. Files with any of them stay readable.
FILTER_IDS = _core.HDF5_FILTER_IDS
#: The id that new files get.
FILTER_ID = FILTER_IDS[0]


def cd_values(codec: FrameCodec, chunk_nbytes: int = 0, row: int = 0) -> tuple[int, ...]:
    """Return the filter's parameters: docs/hdf5_filter.md, "cd_values"."""
    config = codec["configuration"]
    flags = _core.HDF5_FLAGS["by_byte"] if config.get("by") == "byte" else 0
    if not config.get("checksum", True):
        flags |= _core.HDF5_FLAGS["no_checksums"]
    if not config.get("grid", True):
        flags |= _core.HDF5_FLAGS["no_grids"]
    level = _core.LEVELS[config["level"]] if isinstance(codec, BF16Arithmetic) else 0
    dtype = _core.HDF5_AUTO_DTYPE if codec.dtype == AUTO else _core.DTYPES[codec.dtype]
    values = [codec.number, dtype, flags, level]
    # `cd_values` have 32 bits, and HDF5 2.0 allows larger chunks.
    has_rows = level or getattr(codec, "grid", False)
    values += [n if n < 1 << 32 else 0 for n in (chunk_nbytes, row if has_rows else 0)]
    values.append(codec.steps if codec.steps > 1 else 0)
    while len(values) > 2 and values[-1] == 0:
        values.pop()
    return tuple(values)


class _Options(h5py.filters.FilterRefBase):
    """Immutable options of a filter; h5py's base class is mutable."""

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: make another")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: make another")

    def get_config(self) -> dict[str, Any]:
        """Return the parameters."""
        raise NotImplementedError

    def __repr__(self) -> str:
        parameters = ", ".join(f"{k}={v!r}" for k, v in self.get_config().items())
        return f"{type(self).__name__}({parameters})"


class FrameFilter(_Options):
    """Base class of the options of this package's filter; use its subclasses."""

    filter_id = FILTER_ID
    codec_class: type[FrameCodec]
    #: The codec that h5py reads and writes with.
    codec: FrameCodec

    def __init__(self, dtype: Any, **parameters: Any) -> None:
        codec = self.codec_class(dtype="bfloat16" if dtype is None else dtype, **parameters)
        self.__dict__.update(
            codec=codec,
            filter_options=cd_values(codec),
            _dtype=None if dtype is None else codec.dtype,
        )

    def codec_for(self, dtype: str) -> FrameCodec:
        """Return the codec, with element layout `dtype` unless the options name one."""
        if self._dtype not in (None, AUTO):
            return self.codec
        return self.codec_class(**{**self.codec["configuration"], "dtype": dtype})

    def get_config(self) -> dict[str, Any]:
        """Return the parameters."""
        return {**self.codec["configuration"], "dtype": self._dtype}


class Split(FrameFilter):
    """Separate the byte planes of floating-point numbers, without compressing them.

    Parameters
    ----------
    dtype : str, optional
        How an element's bytes become planes. By default `write_tensor` takes that of the array,
        and h5py ``bfloat16``; with ``"auto"`` both take that of the array.
    by : {"field", "byte"}
        As in `bf16codecs.BF16Split`.
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
        and h5py ``bfloat16``; with ``"auto"`` both take that of the array.
    checksum : bool
        Store checksums, and verify them when decoding.
    steps : int
        As in `bf16codecs.BF16Huffman`: the first dimension of the chunks is a multiple of it.
    grid : bool
        As in `bf16codecs.BF16Huffman`.

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

    def __init__(
        self,
        dtype: str | None = None,
        checksum: bool = True,
        steps: int = 1,
        grid: bool = True,
    ) -> None:
        super().__init__(dtype, checksum=checksum, steps=steps, grid=grid)


class Arithmetic(FrameFilter):
    """Compress floating-point numbers with an interleaved range coder (rANS).

    Parameters
    ----------
    dtype : str, optional
        How an element's bytes become planes. By default `write_tensor` takes that of the array,
        and h5py ``bfloat16``; with ``"auto"`` both take that of the array.
    level : {"fast", "best"}
        As in `bf16codecs.BF16Arithmetic`.
    checksum : bool
        Store checksums, and verify them when decoding.
    steps : int
        As in `bf16codecs.BF16Arithmetic`: the first dimension of the chunks is a multiple of it.
    grid : bool
        As in `bf16codecs.BF16Arithmetic`.
    """

    codec_class = BF16Arithmetic

    def __init__(
        self,
        dtype: str | None = None,
        level: str = "fast",
        checksum: bool = True,
        steps: int = 1,
        grid: bool = True,
    ) -> None:
        super().__init__(dtype, level=level, checksum=checksum, steps=steps, grid=grid)


def require_zstd() -> None:
    """Make HDF5's Zstandard filter available; raise ValueError if hdf5plugin is not installed."""
    if h5py.h5z.filter_avail(ZSTD_FILTER_ID):
        return
    with contextlib.suppress(ImportError):
        import hdf5plugin  # noqa: F401  (registers its filters)
    if not h5py.h5z.filter_avail(ZSTD_FILTER_ID):
        raise ValueError(
            f"HDF5's Zstandard filter {ZSTD_FILTER_ID} is not available: pip install hdf5plugin"
        )


class Zstd(_Options):
    """Shuffle bytes and compress with Zstandard: filter 32015, from hdf5plugin.

    Parameters
    ----------
    level : int
        1 to 22.

    Notes
    -----
    ``**Zstd()`` sets both filters in h5py. ``compression=Zstd()`` sets Zstandard alone: add
    ``shuffle=True``.
    """

    level: int

    def __init__(self, level: int = 3) -> None:
        level = BF16Zstd(level).level
        self.__dict__.update(level=level, filter_options=(level,))

    @property
    def filter_id(self) -> int:
        """Id of the Zstandard filter; getting it makes the filter available."""
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


def filters_of(properties: Any) -> list[tuple[int, tuple[int, ...]]]:
    """Return ids and parameters of a dataset's filters, from its creation properties."""
    filters = [properties.get_filter(i) for i in range(properties.get_nfilters())]
    return [(number, tuple(values)) for number, _, values, _ in filters]


@cache
def _chunk_options() -> Any:
    """Return libhdf5's `H5Pget_chunk_opts`, which h5py does not wrap; None if it is not found."""
    # h5py's modules are linked with the library; on Windows, it is loaded by name.
    for name in (h5py.h5p.__file__, "hdf5"):
        with contextlib.suppress(OSError, AttributeError):
            function = ctypes.CDLL(name).H5Pget_chunk_opts
            function.argtypes = [ctypes.c_int64, ctypes.POINTER(ctypes.c_uint)]
            return function
    return None


def filters_edges(properties: Any) -> bool:
    """Return whether filters apply to chunks that extend beyond a dataset with this `PropDCID`."""
    options, function = ctypes.c_uint(), _chunk_options()
    if function is not None and function(properties.id, ctypes.byref(options)) < 0:
        raise OSError("HDF5 does not return the options of chunks")
    return not options.value & _UNFILTERED_EDGES


def codec_name(dataset: Any) -> str:
    """Return the names of a dataset's filters: ``"arithmetic"``, ``"shuffle+zstd"``, ``"none"``."""
    return "+".join(_codec_or_filter(*each) for each in _filters(dataset)) or "none"


def codec_level(dataset: Any) -> str:
    """Return the level of a dataset's arithmetic coder: ``"fast"``, ``"best"``, or ``""``."""
    names = {level: name for name, level in _core.LEVELS.items()}
    for number, values in _filters(dataset):
        if number in FILTER_IDS and values[:1] == (_core.CODECS["arithmetic"],):
            return names.get(_parameter(values, _LEVEL_INDEX), "")
    return ""


def filter_steps(filters: list[tuple[int, tuple[int, ...]]]) -> int:
    """Return the number of versions in a chunk, from the filters that `filters_of` returns."""
    for number, values in filters:
        if number in FILTER_IDS:
            return max(1, _parameter(values, _STEPS_INDEX))
    return 1


def _parameter(values: tuple[int, ...], index: int) -> int:
    return values[index] if index < len(values) else 0


def _filters(dataset: Any) -> list[tuple[int, tuple[int, ...]]]:
    with phil:
        return filters_of(dataset.get_create_plist())


def _codec_or_filter(number: int, values: tuple[int, ...]) -> str:
    if number in FILTER_IDS:
        names = {n: name for name, n in _core.CODECS.items()} | {0: "huffman"}
        return names.get(_parameter(values, 0), "bf16codecs")
    return filter_name(number)


def filter_name(number: int) -> str:
    """Return the name of a filter: ``"gzip"``, ``"filter 32020"``."""
    names = {
        h5py.h5z.FILTER_SHUFFLE: "shuffle",
        h5py.h5z.FILTER_DEFLATE: "gzip",
        h5py.h5z.FILTER_FLETCHER32: "fletcher32",
        h5py.h5z.FILTER_LZF: "lzf",
        h5py.h5z.FILTER_SZIP: "szip",
        **dict.fromkeys(FILTER_IDS, "bf16codecs"),
        ZSTD_FILTER_ID: "zstd",
    }
    return names.get(number, f"filter {number}")


register()
