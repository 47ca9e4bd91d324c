"""Messages: an error in one line, with its subject."""

from __future__ import annotations

import difflib
import errno
import os
import re
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

from bf16codecs._base.arguments import for_caller
from bf16codecs.errors import (
    BF16CodecsError,
    CodecError,
    CorruptDataError,
    StoreError,
    TruncatedDataError,
)

__all__ = [
    "DAMAGE_ADVICE",
    "FILES_ADVICE",
    "RESTORE_ADVICE",
    "advised",
    "as_memory_error",
    "causes",
    "counted",
    "damaged",
    "few",
    "from_extra",
    "install_extra",
    "named_damage",
    "named_errors",
    "near_names",
    "one_line",
    "other_tensors",
    "quantised_lines",
    "raise_named",
    "system_text",
    "warn_caller",
]

#: Advice about damaged data from `verify`, which must not advise to run itself.
RESTORE_ADVICE = "restore it from its source or a copy"
#: Advice about damaged data.
DAMAGE_ADVICE = f"{RESTORE_ADVICE} (bf16codecs verify checks all of a store)"
#: Advice where a process has as many files open as it may.
FILES_ADVICE = "allow more of them (ulimit -n), or close some"

# A message may quote text of any length from a store. For a chain of stores, the last one and the
# reason are at the end.
_FIRST, _LAST = 600, 400
# How alike a name and a near one are at least.
_ALIKE = 0.6
# How many grids a summary lists.
_MOST_GRIDS = 6
# How many names a message suggests at most.
_MOST_NEAR = 3
# How much to quote of a server's message, or of what it sends instead of a header.
_FROM_SERVER = 200


def counted(n: int, noun: str) -> str:
    """Return a number of things in words: ``"1 byte"``, ``"2 bytes"``."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def few(names: Sequence[str], most: int) -> str:
    """Name the first of some things, and say how many more there are: ``"a, b and 7 more"``."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def quantised_lines(grids: Iterable[str | None], tensors: int) -> Iterator[str]:
    """Yield a line for each grid of some of so many tensors: the commonest, and how many more."""
    found = Counter(grid for grid in grids if grid is not None).most_common()
    # One line about others takes no less room than their last one.
    shown = found if len(found) <= _MOST_GRIDS + 1 else found[:_MOST_GRIDS]
    for grid, count in shown:
        yield f"quantised once: {grid} ({count} of {counted(tensors, 'tensor')})"
    if len(shown) < len(found):
        others = sum(count for _, count in found[len(shown) :])
        yield f"quantised once: {len(found) - len(shown)} more grids ({counted(others, 'tensor')})"


def near_names(
    name: str, names: Iterable[str], key: Callable[[str], str] = str, alike: float = _ALIKE
) -> str:
    """Ask whether a missing name was to be one like it, or one that contains it; empty if none is.

    `key` returns the part of a name that is compared first, and `alike` is how alike these parts
    are at least. The nearest name is the first one.
    """
    known = list(names)
    close = difflib.get_close_matches(key(name), {key(other) for other in known}, 3, alike)
    near = [other for part in close for other in known if key(other) == part]
    near.sort(key=lambda other: difflib.SequenceMatcher(None, name, other).ratio(), reverse=True)
    if not near and name:
        near = [other for other in known if name.lower() in other.lower()]
    if not near:
        return ""
    quoted = list(map(repr, near))
    if len(quoted) > _MOST_NEAR:
        quoted[_MOST_NEAR:] = [f"one of {len(quoted) - _MOST_NEAR} more"]
    *others, last = quoted
    return f"did you mean {', '.join(others)}{' or ' if others else ''}{last}?"


def other_tensors(name: str, names: Collection[str]) -> str:
    """Name tensors like a missing one, or say how to list all, for the end of a message."""
    if not names:
        return "; there are no tensors"
    lists = f"{for_caller('keys()', 'bf16codecs info')} lists all names"
    if near := near_names(name, names):
        return f"; {near} {lists}" if near.endswith(" more?") else f"; {near}"
    first, count = next(iter(names)), counted(len(names), "tensor")
    return f"; it has {count}, such as {first!r:.300}: {lists}"


def one_line(error: BaseException) -> str:
    """Return an error's message without line breaks, with its type where that has to explain it."""
    line = " ".join(_text(error).split())
    return line if len(line) <= _FIRST + _LAST else f"{line[:_FIRST]} ... {line[-_LAST:]}"


def _text(error: BaseException) -> str:
    package = type(error).__module__.partition(".")[0]
    if package == "aiohttp" and (text := _text_of_http(error)):
        return text
    if isinstance(error, OSError) and error.strerror:
        where = "" if error.filename is None else f"{error.filename}: "
        return f"{where}{system_text(error)}"
    explains_itself = isinstance(error, (BF16CodecsError, OSError, ValueError)) and str(error)
    text = str(error) if explains_itself else f"{type(error).__name__}: {error}"
    if package == "obstore":
        # Behind the message, obstore lists all details of the request.
        text = text.partition("Debug source:")[0].rstrip(": \n")
    return text


def system_text(error: OSError) -> str:
    """Return the system's text for an error, with advice if the process has too many files open."""
    text = error.strerror or ""
    needs_advice = error.errno == errno.EMFILE and FILES_ADVICE not in text
    return f"{text}; {FILES_ADVICE}" if needs_advice else text


def _text_of_http(error: Any) -> str:
    """Return what an error of aiohttp means, without the address; empty if it says it itself."""
    if type(error).__name__.startswith(("InvalidURL", "InvalidUrl")):
        return "not a valid address"
    if type(error).__name__ == "TooManyRedirects":
        return f"the server redirects again and again ({counted(len(error.history), 'time')})"
    # aiohttp invents a status, 400, for replies that are invalid or cut off.
    if type(cause := error.__cause__).__module__ == "aiohttp.http_exceptions":
        is_cut = type(cause).__name__ in ("ContentLengthError", "TransferEncodingError")
        what = "is cut off" if is_cut else "is not valid HTTP"
        return f"the reply {what}: {_from_server(cause.message)}"
    if hasattr(error, "status"):
        why = _from_server(error.message)
        return f"the server answers {error.status}{f' ({why})' if why else ''}"
    if not hasattr(error, "os_error"):
        return ""
    why = system_text(error.os_error) or str(error.os_error)
    # asyncio has the number alone, of each of the host's addresses if it has several.
    number = error.os_error.errno or (re.findall(r"Errno (\d+)", why) or [0])[0]
    if "Connect call failed" in why and number:
        why = os.strerror(int(number))
    return f"Cannot connect to host {error.host}:{error.port}: {why}"


def _from_server(text: str) -> str:
    """Cut text from a server, which may be of any length."""
    line = " ".join(text.split())
    return line if len(line) <= _FROM_SERVER else f"{line[:_FROM_SERVER]} ..."


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, what it was raised from, and so on."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


# Messages of other libraries. Python's may also mean that the user may have no more threads; the
# second is zstd's.
_NO_MEMORY = "can't start new thread", "Allocation error : not enough memory"


def as_memory_error(error: BaseException) -> MemoryError | None:
    """Return a MemoryError for an error that a shortage of memory caused, whatever its text.

    The text of this package's errors does not count, since it quotes stores. C code may overlook a
    MemoryError and raise a SystemError from it: json of Python 3.12.
    """
    for cause in causes(error):
        names_it = not isinstance(cause, BF16CodecsError) and any(
            text in str(cause) for text in _NO_MEMORY
        )
        if isinstance(cause, MemoryError) or names_it:
            return MemoryError(str(cause))
    return None


def advised(text: str) -> str:
    """Add to a message about damaged data what to do."""
    return f"{text}; {DAMAGE_ADVICE}"


def damaged(why: str | KeyError, what: str = "damaged") -> str:
    """Say that data are damaged, why, or what they lack, and what to do."""
    return advised(f"{what}: {f'without {why}' if isinstance(why, KeyError) else why}")


@contextmanager
def named_errors(
    what: str,
    otherwise: type[Exception] = StoreError,
    of_system: type[Exception] | None = None,
) -> Iterator[None]:
    """Say in one line what failed, and why. MemoryError passes unchanged.

    `what` is the store, tensor or chunk that the block of code is about. Errors that are not of
    this package become `otherwise`; those that are `of_system` remain so, such as OSError.
    """
    try:
        yield
    except MemoryError:
        raise
    except Exception as e:
        if shortage := as_memory_error(e):
            raise shortage from e
        kind = otherwise
        if isinstance(e, BF16CodecsError):
            kind = type(e)
        elif of_system is not None and isinstance(e, of_system):
            # Python's own classes are made of one text; those of other packages may not be.
            kind = type(e) if type(e).__module__ == "builtins" else of_system
        text = one_line(e)
        if isinstance(e, OSError) and e.strerror and e.filename and what.endswith(str(e.filename)):
            text = system_text(e)
        raise kind(f"{what}: {text.removeprefix(f'{what}: ')}") from e


@contextmanager
def named_damage(what: str = "") -> Iterator[None]:
    """Say which encoded data are damaged, and what to do; other errors pass unchanged.

    `what` names the data, if nothing else does.
    """
    try:
        yield
    except CodecError as e:
        raise_named(e, what)


def raise_named(error: CodecError, what: str = "") -> NoReturn:
    """Raise an error as `named_damage` does, which takes a microsecond without one."""
    where, text = f"{what}: " if what else "", one_line(error)
    if isinstance(error, (CorruptDataError, TruncatedDataError)) and DAMAGE_ADVICE not in text:
        text = damaged(text)  # otherwise the message has it, perhaps for a base
    elif not where:
        raise error
    raise type(error)(f"{where}{text}") from error


def install_extra(extra: str) -> str:
    """Return the shell command that installs an extra of this package."""
    return f"pip install 'bf16codecs[{extra}]'"


@contextmanager
def from_extra(extra: str, what: str) -> Iterator[None]:
    """Say what needs a package that cannot be imported, and which extra installs it."""
    try:
        yield
    except ImportError as e:
        text = f"for {what}, another package is needed: {install_extra(extra)} ({e})"
        raise type(e)(text, name=e.name) from e


# Packages between the caller and the codec. zarr encodes in other threads.
_BETWEEN = {"asyncio", "bf16codecs", "concurrent", "h5py", "numcodecs", "threading", "zarr"}


def _caller() -> FrameType | None:
    """Return the caller's stack frame: in another thread, if this is one of zarr's."""
    frames = sys._current_frames()
    here = frames.pop(threading.get_ident())
    # Without the GIL, other threads go on, and their frames cannot be followed meanwhile.
    others = frames.values() if getattr(sys, "_is_gil_enabled", lambda: True)() else ()
    for first in (here, *others):
        frame: FrameType | None = first
        passed = set()
        while frame is not None:
            package = str(frame.f_globals.get("__name__")).partition(".")[0]
            if package not in _BETWEEN:
                break
            passed.add(package)
            frame = frame.f_back
        if frame is not None and passed & {"bf16codecs", "zarr"}:
            return frame
    return None


def warn_caller(text: str, category: type[Warning]) -> None:
    """Warn at the line that called this package, directly or through zarr or h5py."""
    frame = _caller()
    if frame is None:
        warnings.warn(text, category, stacklevel=2)
        return
    names = frame.f_globals
    registry = names.setdefault("__warningregistry__", {})
    where = frame.f_code.co_filename, frame.f_lineno, str(names.get("__name__"))
    warnings.warn_explicit(text, category, *where, registry)
