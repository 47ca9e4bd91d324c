"""The kind of model at a path or an address, found by its content or its name."""

from __future__ import annotations

import os
import re
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from bf16codecs._base.arguments import argument, as_options, for_caller
from bf16codecs._base.paths import given_path, index_suffix, require_path
from bf16codecs._files.journal import HDF5_MAGIC
from bf16codecs._files.publish import recover_missing
from bf16codecs.errors import StoreError

__all__ = [
    "FOREIGN_SUFFIXES",
    "GGUF_SUFFIX",
    "HUB_SCHEME",
    "LOCAL_SCHEMES",
    "OBJECT_SCHEMES",
    "PYTORCH_INDEX_SUFFIX",
    "PYTORCH_SUFFIXES",
    "STORE_SUFFIXES",
    "ZARR_MARKERS",
    "Kind",
    "address_scheme",
    "canonical_address",
    "detect",
    "detect_given",
    "is_file_address",
    "kind_of_address",
    "maker_of",
    "path_of",
    "plain_address",
    "refuse_hdf5",
    "restorer_of",
    "suffix_of",
]


class Kind(Enum):
    """The kinds of models, with their names in messages."""

    FOLDER = "a Zarr store"
    ZIP = "a Zarr store in a ZIP file"
    HDF5 = "an HDF5 file"
    SAFETENSORS = "a safetensors model"


# The functions and commands that make each kind, and that restore safetensors files from it.
_TO_ZARR = "safetensors_to_zarr", "st2zarr"
_FROM_ZARR, _FROM_HDF5 = ("zarr_to_safetensors", "zarr2st"), ("hdf5_to_safetensors", "h52st")
_MAKERS = {
    Kind.FOLDER: _TO_ZARR,
    Kind.ZIP: _TO_ZARR,
    Kind.HDF5: ("safetensors_to_hdf5", "st2h5"),
    Kind.SAFETENSORS: ("zarr_to_safetensors or hdf5_to_safetensors", "zarr2st or h52st"),
}
_RESTORERS = {Kind.FOLDER: _FROM_ZARR, Kind.ZIP: _FROM_ZARR, Kind.HDF5: _FROM_HDF5}
#: Suffixes of a store that replaces `*.safetensors` in a folder; the first one is preferred.
STORE_SUFFIXES = (".zarr", ".zarr.zip", ".h5")
#: Files of a folder that is a Zarr group or array.
ZARR_MARKERS = {"zarr.json", ".zgroup", ".zarray", ".zmetadata"}

_SAFETENSORS_SUFFIX = ".safetensors"
_SUFFIXES = {
    ".zarr": Kind.FOLDER,
    ".zip": Kind.ZIP,
    ".h5": Kind.HDF5,
    ".hdf5": Kind.HDF5,
    _SAFETENSORS_SUFFIX: Kind.SAFETENSORS,
}
#: Suffixes of files that `torch.save` writes.
PYTORCH_SUFFIXES = (".bin", ".ckpt", ".pt", ".pth")
#: The end of the name of an index of such files.
PYTORCH_INDEX_SUFFIX = ".bin.index.json"
#: The suffix of GGUF files.
GGUF_SUFFIX = ".gguf"
#: Suffixes of well-known files of other kinds: archives, and other models.
FOREIGN_SUFFIXES = {
    *(".7z", ".bz2", ".gz", ".rar", ".tar", ".tgz", ".xz", ".zst"),
    *(".npy", ".npz", ".onnx", ".pkl"),
    *PYTORCH_SUFFIXES,
    GGUF_SUFFIX,
}


def maker_of(kind: Kind) -> str:
    """Return the name of the function or command that makes models of a kind, for a message."""
    return for_caller(*_MAKERS[kind])


def restorer_of(kind: Kind | None) -> str:
    """Return the function or command that restores a kind; empty if none does."""
    return for_caller(*_RESTORERS[kind]) if kind in _RESTORERS else ""


def suffix_of(name: str) -> tuple[str, Kind | None]:
    """Return the suffix of a file's name that means a kind, and the kind, or empty and None."""
    for suffix, kind in _SUFFIXES.items():
        if name.lower().endswith(suffix):
            return suffix, kind
    suffix = index_suffix(name.lower())
    return suffix, Kind.SAFETENSORS if suffix else None


def detect(path: str | os.PathLike[str]) -> Kind | None:
    """Return what a file or a folder is, by its name, its first bytes or what it contains.

    None is returned if it holds no model. OSError is raised if it does not exist, or
    cannot be read, and ValueError if the path is empty.
    """
    path = Path(given_path(path, "store"))
    recover_missing(path)
    if path.is_dir():
        return _detect_folder(path)
    is_named = path.name.endswith(_SAFETENSORS_SUFFIX)
    if index_suffix(path.name) or (is_named and not path.is_file()):
        return Kind.SAFETENSORS
    if path.exists() and not path.is_file():
        return None  # reading from a pipe or a device may never end
    try:
        with open(path, "rb") as file:
            found = _detect_file(file)
            # A store may lie where the file was; anything else is a damaged file.
            return Kind.SAFETENSORS if is_named and found is None else found
    except OSError as e:
        e.filename = str(path)  # reading knows the descriptor alone
        raise


def options_of(text: str, options: Any) -> dict[str, Any]:
    """Return the options of an address.

    Raises TypeError if they are no mapping, and ValueError if some are given for a path.
    """
    found = as_options(options)
    if found and path_of(text) is not None:
        raise ValueError(f"{argument('storage_options')} are for addresses: {text} is a path")
    return found


def detect_given(path: str | os.PathLike[str]) -> Kind | None:
    """Return the kind of a model at a path that a user named.

    Errors are those of `detect`; where nothing is, FileNotFoundError suggests near names.
    """
    recover_missing(given_path(path, "store"))
    require_path(path)
    return detect(path)


def _detect_file(file: BinaryIO) -> Kind | None:
    start = file.read(9)
    size, at = os.fstat(file.fileno()).st_size, 0
    # The size of a header, and the brace that it begins with.
    if start[8:] == b"{" and int.from_bytes(start[:8], "little") <= size - 8:
        return Kind.SAFETENSORS
    if start[:2] == b"PK":
        return Kind.ZIP
    # Behind a user block, whose size is a power of two.
    while at + len(HDF5_MAGIC) <= size:
        file.seek(at)
        if file.read(len(HDF5_MAGIC)) == HDF5_MAGIC:
            return Kind.HDF5
        at = max(512, 2 * at)
    return None


def _detect_folder(path: Path) -> Kind | None:
    while True:
        before = os.stat(path)
        # lexists() and glob() would take an unreadable folder for an empty one.
        names = os.listdir(path)
        if not ZARR_MARKERS.isdisjoint(names):
            return Kind.FOLDER
        if any(name.endswith(_SAFETENSORS_SUFFIX) for name in names):
            return Kind.SAFETENSORS
        if os.path.samestat(before, os.stat(path)):
            return None
        # It was being removed: another has its name.


#: Schemes of addresses that are paths.
LOCAL_SCHEMES = ("file", "local")
#: Schemes of object stores that can be written.
OBJECT_SCHEMES = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss")
_ALIASES = {"s3a": "s3", "gcs": "gs"}
#: The scheme of addresses on a hub of Hugging Face.
HUB_SCHEME = "hf"
# Schemes of addresses that begin with a host or a bucket; others, such as memory://, may have
# nothing behind them.
_HOST_SCHEMES = {
    *("http", "https", "ftp", "sftp", "ssh", "webdav"),
    *("s3", "s3a", "gs", "gcs", "az", "azure", "adl", "abfs", "abfss", "oci", "oss", "tos"),
    HUB_SCHEME,
}


def path_of(text: str) -> str | None:
    """Return a local path, with or without a scheme before it; None for an address."""
    scheme, has_scheme, path = text.partition("://")
    if not has_scheme:
        return text
    return path if scheme.lower() in LOCAL_SCHEMES else None


def address_scheme(text: str) -> str:
    """Return the scheme of an address in lower case; empty for a path."""
    return "" if path_of(text) is not None else text.partition("://")[0].lower()


def kind_of_address(address: str) -> Kind:
    """Return the kind at an address by its suffix; without a known one, a Zarr store."""
    return suffix_of(_without_query(address))[1] or Kind.FOLDER


def is_file_address(address: str) -> bool:
    """Return whether an address ends as a file of a model, or an index, does."""
    name = _without_query(address).lower()
    others = (*PYTORCH_SUFFIXES, GGUF_SUFFIX, PYTORCH_INDEX_SUFFIX)
    return name.endswith(others) or suffix_of(name)[1] is Kind.SAFETENSORS


def _without_query(address: str) -> str:
    """Return an address without its query and fragment."""
    return re.split(r"[?#]", address, maxsplit=1)[0].rstrip("/")


def canonical_address(address: str) -> str:
    """Return the address of an object store with the one scheme that stands for its aliases."""
    scheme, separator, rest = address.partition("://")
    return f"{_ALIASES.get(scheme.lower(), scheme.lower())}{separator}{rest}"


def plain_address(address: str) -> str:
    """Return an address with its scheme in lower case, the only one that fsspec knows.

    Raises StoreError if there is nothing behind the scheme of a host or bucket.
    """
    last, _, host = address.rpartition("://")
    if not host.strip("/") and last.rpartition("::")[2].lower() in _HOST_SCHEMES:
        raise StoreError(f"{address}: an address of nothing: no host or bucket is named")
    scheme, separator, rest = address.partition("://")
    return f"{scheme.lower()}{separator}{rest}"


def refuse_hdf5(address: str) -> NoReturn:
    """Raise StoreError: libhdf5 reads local files alone."""
    suffix, _ = suffix_of(_without_query(address))
    raise StoreError(
        f"{address}: an address that ends in {suffix}: HDF5 files are read from local disks alone:"
        " download it, or let the address have a Zarr store, which is read in parts (h52st, then"
        " st2zarr)"
    )
