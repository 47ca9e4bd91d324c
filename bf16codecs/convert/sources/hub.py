"""Models on a hub of Hugging Face: ``hf://owner/name[@revision][/folder][/file]``.

Files are read by ranges from one commit, and their digests are compared with those that the hub
states. The package huggingface_hub lists the files, and finds tokens as it always does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from bf16codecs._base.limits import DEFAULT_LIMITS
from bf16codecs._base.messages import from_extra, one_line
from bf16codecs.errors import SafetensorsError, StoreError
from bf16codecs.store.kinds import Kind, kind_of_address
from bf16codecs.store.reader import ModelReader

__all__ = ["is_source", "open_source"]

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


def is_source(path: str) -> bool:
    """Return whether an address is on a hub."""
    return path.startswith("hf://")


def open_source(path: str, options: Mapping[str, Any] | None = None) -> ModelReader:
    """Open a file, an index or a folder of a repository, at the commit that its revision names.

    `options` may have a `token` and an `endpoint`. Raises StoreError if there is no such
    repository, or this reader may not see it; SafetensorsError if it has no safetensors model, or a
    file is damaged; OSError if the hub fails.
    """
    options = dict(options or {})
    if unknown := options.keys() - _OPTIONS:
        raise ValueError(f"{path}: a hub takes no option {min(unknown)!r}")
    address = _Address.of(path)
    with from_extra("hub", "models on a hub"):
        import aiohttp  # noqa: F401  # fsspec reads the files with it, and would name another extra
        from huggingface_hub import HfApi, hf_hub_url
        from huggingface_hub.utils import build_hf_headers

    from bf16codecs.store.remote.retries import retried
    from bf16codecs.store.remote.safetensors import RemoteFolder

    api = HfApi(endpoint=options.get("endpoint"), token=options.get("token"))
    with _named(address):
        info: Any = retried(
            path,
            lambda: api.repo_info(
                address.id,
                repo_type=address.type,
                revision=address.revision,
                files_metadata=True,
            ),
            was_reached=False,
        )
        headers = build_hf_headers(token=options.get("token"))
    is_file = kind_of_address(address.path) is Kind.SAFETENSORS
    folder, _, name = address.path.rpartition("/") if is_file else (address.path, "", "")
    prefix = f"{folder}/" if folder else ""
    files = {
        file.rfilename.removeprefix(prefix): file
        for file in info.siblings
        if file.rfilename.startswith(prefix)
    }
    if not files or (name and name not in files):
        raise SafetensorsError(f"{path}: {address.id} has no such {'file' if name else 'folder'}")
    here = {key: file for key, file in files.items() if "/" not in key}
    url = hf_hub_url(
        info.id, f"{prefix}x", repo_type=address.type, revision=info.sha, endpoint=api.endpoint
    )
    place = RemoteFolder(
        url.rpartition("/")[0],
        path,
        # Files are stored on other hosts, which get no token.
        {"client_kwargs": {"headers": headers, "other_hosts": True}},
        DEFAULT_LIMITS,
        sizes={key: file.size for key, file in here.items()},
        sha256={key: file.lfs.sha256 for key, file in here.items() if file.lfs is not None},
        is_fixed=True,
    )
    opened = place.open_file(name) if name else place.open_listed()
    if not name:
        opened.left_out += tuple(sorted({f"{k.partition('/')[0]}/" for k in files.keys() - here}))
    # Other processes read the same commit.
    opened.where = f"hf://{address.type}s/{info.id}@{info.sha}/{address.path}"
    opened.storage_options = options
    return opened


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
