"""A hub of Hugging Face on this machine: its list of files, and its redirects to another host."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from commands import package_environment
from servers import FileServer, serving

TOKEN = "hf_secret"


def is_large(path: Path) -> bool:
    """Return whether a file is one that the hub keeps on another host: weights, and chunks."""
    is_chunk = re.fullmatch(r"(c\.)?\d+(\.\d+)*", path.name)
    return path.suffix in (".safetensors", ".zip") or is_chunk is not None


class Hub:
    """Serves one repository, ``owner/name``, whose commits are folders below `root`.

    `commits` has the folder of each revision. Weights are on another host, `files`, as on the hub.
    `requests` lists the path of each request, and `tokens` what it was authorized with.
    """

    def __init__(self, root: Path, files: FileServer) -> None:
        self.root, self.files = root, files
        self.commits = {"main": "0" * 40}
        self.requests: list[str] = []
        self.tokens: list[str | None] = []
        #: Whether readers need the token.
        self.is_private = False
        #: A code of the hub for all requests, such as ``GatedRepo``.
        self.refusal = ""
        #: The name that the repository had before.
        self.old_name = "owner/old"
        #: How many of the next requests are answered with 429.
        self.busy = 0
        #: What the hub says of files, instead of the truth.
        self.lies: dict[str, dict[str, Any]] = {}
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, args=[0.02], daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def info(self, revision: str) -> dict[str, Any]:
        """Return what the hub says of a revision."""
        sha = self.commits.get(revision, revision)
        folder, siblings = self.root / sha, []
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                content, name = path.read_bytes(), path.relative_to(folder).as_posix()
                entry: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": "0"}
                if is_large(path) and path.is_file():
                    digest = hashlib.sha256(content).hexdigest()
                    entry["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 130}
                siblings.append(entry | self.lies.get(name, {}))
        return {"id": "owner/name", "sha": sha, "siblings": siblings}

    def tree(self, revision: str) -> list[dict[str, Any]]:
        """Return what the hub lists where programs ask for all of a revision."""
        return [
            {"type": "file", "path": entry["rfilename"], "size": entry["size"], "oid": "0"}
            for entry in self.info(revision)["siblings"]
        ]

    def _handler(hub) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                path = unquote(urlsplit(self.path).path)
                hub.requests.append(path)
                hub.tokens.append(self.headers.get("Authorization"))
                parts = path.strip("/").split("/")
                if hub.busy:
                    hub.busy -= 1
                    self.reply(429, b"", {"Retry-After": "1"})
                elif hub.refusal:
                    self.reply(403, b"", {"X-Error-Code": hub.refusal})
                elif hub.is_private and hub.tokens[-1] != f"Bearer {TOKEN}":
                    self.reply(401, b"", {"X-Error-Code": "RepoNotFound"})
                elif f"/{hub.old_name}" in path:
                    there = path.replace(hub.old_name, "owner/name")
                    self.reply(307, b"", {"Location": f"{there}?{urlsplit(self.path).query}"})
                elif parts[:5] == ["api", "models", "owner", "name", "tree"]:
                    self.reply(200, json.dumps(hub.tree(parts[5])).encode())
                elif parts[:4] == ["api", "models", "owner", "name"]:
                    self.reply_info("/".join(parts[5:]) or "main")
                elif parts[:3] == ["owner", "name", "resolve"]:
                    self.reply_file("/".join(parts[3:]))
                else:
                    self.reply(404, b"", {"X-Error-Code": "RepoNotFound"})

            def reply_info(self, revision: str) -> None:
                if not (hub.root / hub.commits.get(revision, revision)).is_dir():
                    self.reply(404, b"", {"X-Error-Code": "RevisionNotFound"})
                    return
                self.reply(200, json.dumps(hub.info(revision)).encode())

            def reply_file(self, name: str) -> None:
                revision, _, rest = name.partition("/")
                name = f"{hub.commits.get(revision, revision)}/{rest}"
                path = hub.root / name
                digest = hashlib.sha1(path.read_bytes() if path.is_file() else b"").hexdigest()
                about = {"X-Repo-Commit": name.partition("/")[0], "ETag": f'"{digest}"'}
                if is_large(path) and path.is_file():
                    there = f"{hub.files.url}/{quote(name)}?signature=x"
                    self.reply(302, b"", {**about, "Location": there})
                elif path.is_file():
                    self.reply_range(path.read_bytes(), about)
                else:
                    self.reply(404, b"", {"X-Error-Code": "EntryNotFound"})

            def reply_range(self, data: bytes, about: dict[str, str]) -> None:
                first, _, last = (self.headers.get("Range") or "bytes=0-")[6:].partition("-")
                start, stop = int(first), min(int(last or len(data)) + 1, len(data))
                content = f"bytes {start}-{stop - 1}/{len(data)}"
                status = 206 if "Range" in self.headers else 200
                self.reply(status, data[start:stop], {**about, "Content-Range": content})

            def reply(
                self, status: int, body: bytes, headers: dict[str, str] | None = None
            ) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        return Handler


@contextmanager
def hub_server(root: Path) -> Iterator[Hub]:
    """Run a hub for a while; its first commit is an empty folder in `root`."""
    with ExitStack() as stack:
        hub = Hub(root, stack.enter_context(serving(root)))
        stack.callback(hub.close)
        (root / hub.commits["main"]).mkdir()
        yield hub


def run_at(hub: Hub, cache: Path, code: str, *args: object, **environment: str) -> tuple[int, str]:
    """Run a program whose libraries know this hub alone; return its status and its output."""
    known = {"HF_ENDPOINT": hub.url, "HF_HOME": str(cache), "HF_HUB_DISABLE_XET": "1"}
    process = subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        env=package_environment(**known, **environment),
        capture_output=True,
        text=True,
        timeout=300,
    )
    return process.returncode, process.stdout + process.stderr
