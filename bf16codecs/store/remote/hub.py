"""Repositories on a hub of Hugging Face: ``hf://owner/name[@revision][/folder][/file]``.

Their files are read by ranges from one commit. The package huggingface_hub lists the files, and
finds tokens as it always does.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from bf16codecs._arrays.http import open_session
from bf16codecs._base.limits import Limits
from bf16codecs._base.messages import from_extra, named_errors, near_names, one_line
from bf16codecs.errors import StoreError
from bf16codecs.store.kinds import ZARR_MARKERS, Kind, suffix_of
from bf16codecs.store.remote.retries import retried
from bf16codecs.store.remote.safetensors import RemoteFolder

__all__ = ["HubPlace", "find_on_hub"]

_ADDRESS = re.compile(
    r"hf://(?P<type>datasets/|spaces/|models/)?(?P<id>[^/@]+/[^/@]+)"
    r"(@(?P<revision>refs/(pr|convert)/[^/]+|[^/]+))?(/(?P<path>.*))?",
    re.DOTALL,
)
#: Options of a hub: all that this takes.
_OPTIONS = {"endpoint", "token"}


@dataclass(frozen=True)
class _Address:
    """The parts of an address on a hub."""

    text: str
    type: str
    id: str
    revision: str | None
    path: str

    @classmethod
    def of(cls, text: str) -> _Address:
        """Take an address apart; raise StoreError if no repository is named."""
        match = _ADDRESS.fullmatch(text)
        if match is None:
            raise StoreError(f"{text}: an address on a hub is hf://owner/name[@revision][/file]")
        revision = match["revision"]
        return cls(
            text,
            (match["type"] or "models/")[:-2],
            match["id"],
            revision and unquote(revision),
            (match["path"] or "").strip("/"),
        )


@dataclass(frozen=True)
class HubPlace:
    """A folder of a repository, or a file in it, at one commit.

    Attributes
    ----------
    where
        The address as it was given, for messages.
    fixed
        The same with the commit instead of the revision: nothing there ever changes.
    folder
        The folder in the repository; empty for all of it.
    url
        The address of the folder for the file system of HTTP, without a slash at its end.
    name
        The file in the folder; empty if the folder itself was named.
    options
        Options of that file system.
    sizes
        The sizes of all files below the folder, by their paths in it.
    sha256
        The digests of those of them that the hub knows.
    repository
        What huggingface_hub calls the commit, and how it reaches it.
    """

    where: str
    fixed: str
    folder: str
    url: str
    name: str
    # Not shown: both may have a token.
    options: dict[str, Any] = field(repr=False)
    sizes: Mapping[str, int]
    sha256: Mapping[str, str]
    repository: Mapping[str, Any] = field(repr=False)

    @property
    def kind(self) -> Kind:
        """The kind of model there; raises StoreError if there is none."""
        if self.name:
            kind = suffix_of(self.name)[1]
            why = "neither a folder, nor a ZIP or safetensors file"
        elif not ZARR_MARKERS.isdisjoint(self.sizes):
            kind = Kind.FOLDER
        else:
            is_model = any(suffix_of(name)[1] is Kind.SAFETENSORS for name in self._files)
            kind, why = Kind.SAFETENSORS if is_model else None, "no Zarr group, no safetensors"
        if kind is not None:
            return kind
        stores = sorted(name for name in _first_parts(self.sizes) if suffix_of(name)[1] is not None)
        advice = f"; name what is in it, such as {stores[0]!r:.80}" if stores else ""
        raise StoreError(f"{self.where}: not a model store: {why}{advice}")

    @property
    def _files(self) -> list[str]:
        """The files of the folder, without those of folders in it."""
        return [name for name in self.sizes if "/" not in name]

    def fetch(self, name: str) -> Path:
        """Download a file to huggingface_hub's cache; raise OSError if the hub fails."""
        from huggingface_hub import hf_hub_download

        path = posixpath.join(self.folder, name)
        with named_errors(self.where, OSError):
            return Path(hf_hub_download(filename=path, **self.repository))

    def files_in(self, limits: Limits) -> RemoteFolder:
        """Return the folder's files, without those of folders in it."""
        return RemoteFolder(
            self.url,
            self.where,
            self.options,
            limits,
            (self.name, ""),
            sizes={name: self.sizes[name] for name in self._files},
            folders=tuple(
                sorted(f"{part}/" for part in _first_parts(self.sizes) if part not in self.sizes)
            ),
            sha256=self.sha256,
            is_fixed=True,
        )


def find_on_hub(text: str, options: Mapping[str, Any]) -> HubPlace:
    """Ask a hub for the commit that an address names, and for its files.

    `options` may have a `token` and an `endpoint`. Raises StoreError if there is no such
    repository, revision, folder or file, or this reader may not see it; OSError if the hub fails;
    ValueError for other options.
    """
    if unknown := options.keys() - _OPTIONS:
        raise ValueError(f"{text}: a hub takes no option {min(unknown)!r}")
    address = _Address.of(text)
    with from_extra("hub", "models on a hub"):
        import aiohttp  # noqa: F401  # fsspec reads the files with it, and would name another extra
        from huggingface_hub import HfApi, hf_hub_url
        from huggingface_hub.utils import build_hf_headers

    api = HfApi(endpoint=options.get("endpoint"), token=options.get("token"))
    with _named(address):
        info: Any = retried(
            text,
            lambda: api.repo_info(
                address.id,
                repo_type=address.type,
                revision=address.revision,
                files_metadata=True,
            ),
            was_reached=False,
        )
        headers = build_hf_headers(token=options.get("token"))
    listed = {file.rfilename: file for file in info.siblings}
    # A folder may have any name, also that of a file.
    is_file = address.path in listed
    folder, _, name = address.path.rpartition("/") if is_file else (address.path, "", "")
    prefix = f"{folder}/" if folder else ""
    files = {
        path.removeprefix(prefix): file for path, file in listed.items() if path.startswith(prefix)
    }
    if not files:
        raise StoreError(f"{text}: {address.id} {_has_none(address.path, listed)}")
    url = hf_hub_url(
        info.id, f"{prefix}x", repo_type=address.type, revision=info.sha, endpoint=api.endpoint
    )
    return HubPlace(
        text,
        f"hf://{address.type}s/{info.id}@{info.sha}/{address.path}",
        folder,
        url.rpartition("/")[0],
        name,
        {
            "get_client": _open_session,
            "client_kwargs": {"token": options.get("token"), "account": _account(headers)},
        },
        {path: file.size for path, file in files.items()},
        {path: file.lfs.sha256 for path, file in files.items() if file.lfs is not None},
        {
            "repo_id": info.id,
            "repo_type": address.type,
            "revision": info.sha,
            "endpoint": api.endpoint,
            "token": options.get("token"),
        },
    )


async def _open_session(token: Any, account: str, **options: Any) -> Any:
    """Open a session with the token that was given, or that huggingface_hub finds here.

    A pickled file system finds it anew in its process, and does not have it. Its files are on other
    hosts, which get no token. `account` is part of what identifies a session to fsspec.
    """
    from huggingface_hub.utils import build_hf_headers

    headers = build_hf_headers(token=token)
    return await open_session(other_hosts=True, headers=headers, **options)


def _account(headers: Mapping[str, str]) -> str:
    """Return something that differs for each token, and does not reveal it."""
    return hashlib.sha256(headers.get("authorization", "").encode()).hexdigest()


def _has_none(path: str, listed: Mapping[str, Any]) -> str:
    """Say that a repository lacks a folder or a file, and name those that may be meant."""
    if not listed:
        return "is empty"
    folder, separator, name = path.rpartition("/")
    beside = _first_parts(
        other.removeprefix(folder + separator)
        for other in listed
        if other.startswith(folder + separator)
    )
    near = near_names(name, sorted(beside))
    what = "folder" if suffix_of(name)[1] in (None, Kind.FOLDER) else "file"
    return f"has no such {what}{f'; {near}' if near else ''}"


def _first_parts(paths: Iterable[str]) -> set[str]:
    """Return the names of files and folders that paths begin with."""
    return {path.partition("/")[0] for path in paths}


@contextmanager
def _named(address: _Address) -> Iterator[None]:
    """Say in one line why a repository cannot be opened."""
    from huggingface_hub import errors

    try:
        yield
    except OSError as e:
        cause = e.__cause__ or e
        at = f"{address.text}: "
        if isinstance(cause, errors.GatedRepoError):
            raise StoreError(
                f"{at}{address.id} is gated: accept its conditions on its page, and log in with"
                " `hf auth login`, or set HF_TOKEN"
            ) from e
        if isinstance(cause, errors.RepositoryNotFoundError):
            raise StoreError(
                f"{at}the hub has no repository {address.id}, or it is private: for one that you"
                " may read, log in with `hf auth login`, or set HF_TOKEN"
            ) from e
        if isinstance(cause, errors.RevisionNotFoundError):
            raise StoreError(f"{at}{address.id} has no revision {address.revision}") from e
        if isinstance(cause, errors.HFValidationError):
            raise StoreError(f"{at}{one_line(cause)}") from e
        raise OSError(f"{at}{one_line(e).removeprefix(at)}") from e
