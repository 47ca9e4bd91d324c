"""Makes array paths of tensor names: safe in every file system, URL and Zarr store, and readable.

The rules are those of docs/store.md, "Paths".
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

__all__ = ["RESERVED_ROOT", "STEP_PATH", "array_paths", "later_paths"]

#: Arrays other than tensors are below this name, so that no tensor's path begins with it.
RESERVED_ROOT = "safetensors"
#: In a run, the array with the numbers of the steps.
STEP_PATH = "step"

_MAX_SEGMENT = 120
_KEPT_OF_LONG_SEGMENT = 60
# Windows allows 260 characters for a whole path by default, POSIX 4096.
_MAX_PATH = 480
_MAX_DEPTH = 32

_UNSAFE = re.compile(rb"[^A-Za-z0-9_-]")
_UNSAFE_OR_UPPER = re.compile(rb"[^a-z0-9_-]")
_WINDOWS_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])", re.IGNORECASE)


def array_paths(names: Iterable[str]) -> dict[str, str]:
    """Map every tensor name to a unique path.

    The result depends on the set of names, not on their order: see docs/store.md, "Paths".
    """
    paths = {name: _path(name, _UNSAFE) for name in names}
    if _differ_by_case_only(paths.values()):
        paths = {name: _path(name, _UNSAFE_OR_UPPER) for name in paths}
    folders = {prefix for path in paths.values() for prefix in _prefixes(path)}
    paths = {name: path + "=" if path in folders else path for name, path in paths.items()}
    # Escaping is injective. Shortening is not by itself, so it is checked.
    if len(set(paths.values())) != len(paths):
        raise AssertionError("two tensor names were given one path")
    return paths


def later_paths(names: Iterable[str], taken: Iterable[str], suffix: str) -> dict[str, str]:
    """Map tensors that come later to paths in a run: docs/runs.md, "Arrays".

    `taken` are the paths of existing arrays. Where the path of a tensor would conflict with
    others, a digest of its name and the suffix becomes its path.
    """
    arrays = set(taken)
    spelling = {part.lower(): part for path in arrays for part in (*_prefixes(path), path)}
    paths = {}
    for name, path in array_paths(names).items():
        first, slash, rest = path.partition("/")
        if first.lower() == STEP_PATH:
            path = _escape_first(first) + slash + rest
        folders = list(_prefixes(path))
        is_free = path.lower() not in spelling and arrays.isdisjoint(folders)
        is_free &= all(spelling.get(part.lower(), part) == part for part in folders)
        paths[name] = path if is_free else _digest(f"{name}@{suffix}")
    return paths


def _path(name: str, unsafe: re.Pattern[bytes]) -> str:
    segments = [_segment(s, unsafe) for s in name.split(".")]
    if segments[0].lower() == RESERVED_ROOT:
        segments[0] = _escape_first(segments[0])
    path = "/".join(segments)
    if len(path) > _MAX_PATH or len(segments) > _MAX_DEPTH:
        return _digest(name)
    return path


def _segment(segment: str, unsafe: re.Pattern[bytes]) -> str:
    if not segment:
        return "="
    raw = segment.encode("utf-8")
    escaped = unsafe.sub(lambda m: b"=%02X" % m[0][0], raw).decode("ascii")
    if escaped.startswith("__") or _WINDOWS_DEVICE.fullmatch(escaped):
        escaped = _escape_first(escaped)
    if len(escaped) > _MAX_SEGMENT:
        return escaped[:_KEPT_OF_LONG_SEGMENT] + _digest(segment)
    return escaped


def _escape_first(segment: str) -> str:
    return f"={ord(segment[0]):02X}{segment[1:]}"


def _digest(text: str) -> str:
    # No unshortened path has "==" and this many digits, so a shortened path is unique.
    return "==" + hashlib.sha256(text.encode("utf-8")).hexdigest()[:32]


def _prefixes(path: str) -> Iterable[str]:
    """Yield the folders on the way to `path`."""
    end = path.find("/")
    while end >= 0:
        yield path[:end]
        end = path.find("/", end + 1)


def _differ_by_case_only(paths: Iterable[str]) -> bool:
    spelling: dict[str, str] = {}
    for path in paths:
        for prefix in (*_prefixes(path), path):
            if spelling.setdefault(prefix.lower(), prefix) != prefix:
                return True
    return False
