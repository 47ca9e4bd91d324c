"""Tells addresses from paths."""

from __future__ import annotations

import re
from typing import NoReturn

from bf16codecs.errors import StoreError
from bf16codecs.store.kinds import Kind, suffix_of

__all__ = ["LOCAL_SCHEMES", "kind_of_address", "path_of", "plain_address", "refuse_hdf5"]

#: Of addresses that are paths.
LOCAL_SCHEMES = ("file", "local")
# Of addresses that begin with a host or a bucket; others, such as memory://, may be whole as they
# are.
_SCHEMES_OF_PLACES = {
    *("http", "https", "ftp", "sftp", "ssh", "webdav"),
    *("s3", "s3a", "gs", "gcs", "az", "azure", "adl", "abfs", "abfss", "oci", "oss", "tos", "hf"),
}


def path_of(text: str) -> str | None:
    """Return a local path, with or without a scheme before it; None for an address."""
    scheme, has_scheme, path = text.partition("://")
    if not has_scheme:
        return text
    return path if scheme.lower() in LOCAL_SCHEMES else None


def kind_of_address(address: str) -> Kind:
    """Return what is at an address, which its end says: a Zarr store, if it says nothing."""
    return suffix_of(_place(address))[1] or Kind.FOLDER


def _place(address: str) -> str:
    """Return what of an address names what is there."""
    return re.split(r"[?#]", address, maxsplit=1)[0].rstrip("/")


def plain_address(address: str) -> str:
    """Return an address with its scheme in lower case, the only one that fsspec knows.

    Raises
    ------
    StoreError
        If there is nothing behind the scheme of a host or bucket.
    """
    last, _, place = address.rpartition("://")
    if not place.strip("/") and last.rpartition("::")[2].lower() in _SCHEMES_OF_PLACES:
        raise StoreError(f"{address}: an address of nothing: no host or bucket is named")
    scheme, separator, rest = address.partition("://")
    return f"{scheme.lower()}{separator}{rest}"


def refuse_hdf5(address: str) -> NoReturn:
    """Raise: libhdf5 reads local files."""
    suffix, _ = suffix_of(_place(address))
    raise StoreError(
        f"{address}: an address that ends in {suffix}: HDF5 files are read from local disks alone:"
        " download it, or let the address have a Zarr store, which is read in parts (h52st, then"
        " st2zarr)"
    )
