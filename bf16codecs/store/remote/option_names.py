"""Names of options of object stores: fsspec's file systems and obstore have other ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["fsspec_options", "obstore_names"]

# By fsspec's names, obstore's.
_S3 = {
    "key": "access_key_id",
    "secret": "secret_access_key",
    "token": "session_token",
    "anon": "skip_signature",
    "endpoint_url": "endpoint",
    "region_name": "region",
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
}
_GCS = {"endpoint_url": "base_url", "anon": "skip_signature"}
_AZURE = {"sas_token": "sas_key", "anon": "skip_signature"}
_NAMES = {"s3": _S3, "s3a": _S3, "gs": _GCS, "gcs": _GCS, "az": _AZURE, "abfs": _AZURE}
_NAMES["abfss"] = _AZURE
# Of the clients in fsspec's file systems.
_OF_CLIENTS = {"region_name"}


def obstore_names(scheme: str) -> Mapping[str, str]:
    """Return obstore's names of options, by fsspec's, for addresses with a scheme."""
    return _NAMES.get(scheme, _AZURE)


def fsspec_options(scheme: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return options of obstore's store, or of fsspec's file system, as those of the latter."""
    known: dict[str, str] = {}
    for ours, theirs in _NAMES.get(scheme, {}).items():
        known.setdefault(theirs, ours)
    found = {n: value for n, value in options.items() if n not in known or n in known.values()}
    client: dict[str, Any] = {}
    for name in options.keys() - found.keys():
        into = client if known[name] in _OF_CLIENTS else found
        into.setdefault(known[name], options[name])
    if client:
        found["client_kwargs"] = {**client, **found.get("client_kwargs", {})}
    return found
