"""Object stores by obstore, whose options may be in its own words, or in those of fsspec."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, timedelta
from typing import Any

from bf16codecs._base.limits import CONNECT_SECONDS
from bf16codecs._base.messages import from_extra, named_errors
from bf16codecs.errors import StoreError
from bf16codecs.store.remote.option_names import obstore_names

with from_extra("remote", "object stores"):
    import obstore.store

__all__ = ["object_store"]

_S3, _GCS = ("s3", "s3a"), ("gs", "gcs")
# Of fsspec's caches and threads, which obstore does not have.
_WITHOUT_EFFECT = {
    *("asynchronous", "loop", "skip_instance_cache", "use_listings_cache", "listings_expiry_time"),
    *("max_paths", "default_block_size", "default_fill_cache", "default_cache_type", "use_ssl"),
}
_CREDENTIALS = {"access_key_id", "secret_access_key", "session_token", "skip_signature"}
# A request is sent again this often, and not after this time: commands should end.
_RETRIES, _RETRY_SECONDS = 6, 90
# For a chunk on a slow line.
_REQUEST_SECONDS = 300


def object_store(url: str, options: Mapping[str, Any], seconds: float | None = None) -> Any:
    """Open the object store at an address, which has a prefix of keys.

    Options are those of obstore's store, or of fsspec's file system with this scheme. A request
    ends within so many `seconds`, repetitions included.

    Raises OSError if there are no credentials, or an option is not known; StoreError in a process
    that was forked after another had opened one.
    """
    _check_process(url)
    scheme, _, rest = url.partition("://")
    config = _renamed(scheme, dict(options))
    client = {
        "timeout": f"{_REQUEST_SECONDS}s",
        "connect_timeout": f"{CONNECT_SECONDS}s",
        **config.pop("client_options", {}),
    }
    retries = config.pop("retry_config", _retry_config(_RETRY_SECONDS))
    if seconds is not None:
        # The last request begins within the first half, and ends within the second.
        client["timeout"], retries = f"{seconds / 3}s", _retry_config(seconds / 2)
    if scheme in _S3 and "credential_provider" not in config:
        _add_credentials(url, config)
    if scheme in _S3 and "endpoint" not in config:
        # As botocore does: obstore knows the second one, and refuses http:// there.
        named = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        if named:
            config["endpoint"] = named
    endpoint = str(config.get("endpoint", config.get("base_url", "")))
    if endpoint.startswith("http://"):
        client.setdefault("allow_http", True)
    with named_errors(url, OSError, OSError):
        return obstore.store.from_url(
            f"{'gs' if scheme == 'gcs' else scheme}://{rest}",
            client_options=client,
            retry_config=retries,
            **config,
        )


_opened_in: int | None = None


def _check_process(url: str) -> None:
    """Refuse a process that was forked: obstore's threads are gone, and requests would wait."""
    global _opened_in
    _opened_in = _opened_in or os.getpid()
    if _opened_in != os.getpid():
        raise StoreError(
            f"{url}: obstore was used before this process was forked, and does not survive that:"
            " start processes with multiprocessing.get_context('spawn') or 'forkserver'"
        )


def _retry_config(seconds: float) -> Any:
    return {"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=seconds)}


def _renamed(scheme: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return options with the names that obstore knows."""
    names = obstore_names(scheme)
    options = {**options.pop("client_kwargs", {}), **options}
    if scheme in _GCS:
        options |= _of_gcs_token(options.pop("token", None))
    if scheme not in _S3 + _GCS:
        options |= _of_connection(options.pop("connection_string", ""))
    return {
        names.get(name, name): value
        for name, value in options.items()
        if name not in _WITHOUT_EFFECT
    }


def _of_gcs_token(token: Any) -> dict[str, Any]:
    """Return the options that stand for gcsfs's `token`."""
    if token == "anon":
        return {"skip_signature": True}
    if isinstance(token, Mapping):
        return {"service_account_key": json.dumps(dict(token))}
    if isinstance(token, str) and os.path.exists(token):
        return {"application_credentials": token}
    return {}


_OF_CONNECTION = {
    "AccountName": "account_name",
    "AccountKey": "account_key",
    "BlobEndpoint": "endpoint",
    "SharedAccessSignature": "sas_key",
}


def _of_connection(text: str) -> dict[str, str]:
    """Return the options that stand for a connection string of Azure."""
    pairs = (part.partition("=") for part in text.split(";"))
    return {_OF_CONNECTION[name]: value for name, _, value in pairs if name in _OF_CONNECTION}


def _add_credentials(url: str, config: dict[str, Any]) -> None:
    """Add what botocore finds, such as a profile: obstore does not read AWS's files."""
    profile = config.pop("profile", None)
    if any(config.get(name) for name in _CREDENTIALS):
        return
    try:
        import botocore.session
    except ImportError:  # obstore looks in the environment
        return
    with named_errors(url, OSError, OSError):
        session = botocore.session.Session(profile=profile)
        region = session.get_config_variable("region")
        endpoint = session.get_scoped_config().get("endpoint_url")
        if session.get_credentials() is None:
            raise PermissionError(
                "no credentials are known: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a"
                " profile, or give them as storage options"
            )
    if region is not None:
        config.setdefault("region", region)
    if endpoint and not any(name.startswith("AWS_ENDPOINT_URL") for name in os.environ):
        config.setdefault("endpoint", endpoint)
    config["credential_provider"] = _Credentials(profile)


class _Credentials:
    """Credentials as botocore finds and renews them, also in another process."""

    def __init__(self, profile: str | None) -> None:
        self._profile, self._session = profile, None

    def __reduce__(self) -> tuple[Any, ...]:
        return _Credentials, (self._profile,)

    def __call__(self) -> dict[str, Any]:
        """Return the current ones."""
        import botocore.session

        session: Any = self._session or botocore.session.Session(profile=self._profile)
        self._session = session
        found = session.get_credentials()
        if found is None:
            raise StoreError("the credentials are gone")
        frozen = found.get_frozen_credentials()
        expiry = getattr(found, "_expiry_time", None)
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": None if expiry is None else expiry.astimezone(UTC),
        }
