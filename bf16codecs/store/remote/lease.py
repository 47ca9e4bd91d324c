"""The lease of a folder in an object store: a note in the root's document, which its holder renews.

Keys of a Zarr store are where readers look for them, so two writers of one store would mix theirs.
The one whose note is in the document may write. The next document makes its store visible, in one
step, and readers ignore the note beside a store that is there already. A writer that has died no
longer renews its note, and the next one takes over. The document is replaced only on condition that
it is the one that was read, so a writer whose lease was taken over cannot publish. What it still
removes or overwrites without a condition, it does while its lease is fresh, by requests that end
before another may take over. Durations are compared, clocks are not.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import socket
import threading
import time
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from bf16codecs._base import interrupt
from bf16codecs._base.forks import make_lock
from bf16codecs._base.messages import one_line
from bf16codecs.errors import LeftoverWarning, StoreError
from bf16codecs.store.layout import ATTRIBUTES_KEY, WRITING_KEY
from bf16codecs.store.remote.object_folder import (
    LONGEST_SECONDS,
    ConflictError,
    Found,
    ObjectFolder,
)

__all__ = [
    "DEAD_SECONDS",
    "ROOT",
    "Lease",
    "arrays_in_note",
    "has_note",
    "is_held",
    "note_of",
    "wait_for_death",
    "without_note",
]

#: The root's document.
ROOT = "zarr.json"
# A note is renewed this often, and its holder trusts it for less time than others wait for another
# renewal: a request without a condition takes up to `LONGEST_SECONDS`.
_RENEW_SECONDS, _FRESH_SECONDS = 10, 30
#: A writer whose note has not changed for so long is dead.
DEAD_SECONDS = _FRESH_SECONDS + LONGEST_SECONDS + 30
_LOOK_SECONDS = 3
# Keys that are removed by one request.
_BATCH = 1000


class Lease:
    """The right to write the store in a folder, until `close`.

    Parameters
    ----------
    folder
        The folder.
    found
        The root's document as it is; None if there is none. A note in it is replaced if its writer
        is dead, for which `wait_for_death` waited.
    key
        Of the document, where the folder is not a store.

    Raises
    ------
    BlockingIOError
        If another process is writing the store.
    StoreError
        If the object store has no conditional requests.
    """

    def __init__(self, folder: ObjectFolder, found: Found | None, key: str = ROOT) -> None:
        self._key = key
        self._folder, self.token, self._pid = folder, secrets.token_hex(8), os.getpid()
        self._renewals, self._is_lost, self._lock = 0, False, make_lock()
        #: Arrays whose keys this may have written, or is about to remove.
        self.arrays: list[str] = []
        self._base: str | None = None
        #: Whether keys are left that the next writer has to remove.
        self.leaves_keys = False
        #: The document that readers see, without the note.
        self._document = None if found is None else without_note(found.data)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="bf16codecs lease", daemon=True)
        self._renewed_at = _now()
        try:
            if found is None:
                self._version = folder.create(self._key, self._noted())
            else:
                self._version = folder.replace(self._key, self._noted(), found.version)
        except ConflictError:
            raise _busy(folder, "") from None
        try:
            if found is None:
                folder.check_creating(self._key, self._noted())
            folder.check_replacing(self._key, self._noted())
            self._thread.start()
        except BaseException:
            self.close()
            raise

    def _noted(self, document: bytes | None = None) -> bytes:
        """Return a root's document, by default the present one, with the note."""
        document = document or self._document
        parsed = {"zarr_format": 3, "node_type": "group", "attributes": {ATTRIBUTES_KEY: {}}}
        if document is not None:
            parsed = json.loads(document)
        note: dict[str, Any] = {
            "by": f"process {os.getpid()} on {socket.gethostname()}",
            "token": self.token,
            "renewals": self._renewals,
            "arrays": self.arrays,
        }
        if self._base is not None:
            note["base"] = self._base
        if self.leaves_keys:
            note["ended"] = True
        _ours(parsed)[WRITING_KEY] = note
        return json.dumps(parsed, separators=(",", ":")).encode()

    def _keep(self) -> None:
        """Renew the note until the end; what fails now may succeed the next time."""
        while not self._ended.wait(_RENEW_SECONDS):
            try:
                self._renew()
            except (OSError, StoreError):
                if self._is_lost:
                    return

    def _renew(self) -> None:
        with self._lock:
            self._renewals += 1
            self._replace(self._noted())

    def _replace(self, document: bytes) -> None:
        """Replace the root's document; raise StoreError if the note is another's by now."""
        sent = _now()
        try:
            self._version = self._folder.replace(self._key, document, self._version)
        except ConflictError:
            # An earlier renewal may have arrived after all.
            found = self._folder.read(self._key)
            if found is None or not has_note(found, self.token):
                raise self._lose() from None
            try:
                self._version = self._folder.replace(self._key, document, found.version)
            except ConflictError:
                raise self._lose() from None
        self._renewed_at = sent  # others count from when it arrived, which is later

    def _lose(self) -> StoreError:
        self._is_lost = True
        return StoreError(
            f"{self._folder.where}: another process took over, since this one's note in it was not"
            f" renewed for {DEAD_SECONDS} s"
        )

    def check(self) -> None:
        """Make sure that the lease is fresh; raise StoreError if another process has taken over."""
        if self.is_lost:
            raise self._lose()
        if _now() - self._renewed_at > _FRESH_SECONDS:
            self._renew()

    @property
    def is_lost(self) -> bool:
        """Whether another process has taken over, or this one was forked from the holder."""
        return self._is_lost or os.getpid() != self._pid

    def declare(self, arrays: Iterable[str], base: str | None = None) -> None:
        """Record the arrays whose keys this may write or remove, before it does so.

        `base` is the address of the model that the store will be a difference to: whoever removes
        models looks for it.
        """
        with self._lock:
            more = {*arrays}.difference(self.arrays)
            if not more and base is None:
                return
            self.arrays = sorted({*self.arrays, *more})
            self._base = base or self._base
            self._renewals += 1
            self._replace(self._noted())

    def publish(self, document: bytes) -> None:
        """Let readers see another document: the store that it describes is there.

        Raises StoreError if another process has taken over; OSError if the document has not
        arrived, or that is not known.
        """
        with self._lock:
            try:
                self._replace(self._noted(document))
            except OSError:
                # It may have arrived, or arrive later: nothing is done before the note is renewed.
                self._renewed_at = -math.inf
                found = self._folder.read(self._key)
                if found is None or not has_note(found, self.token):
                    raise
                if without_note(found.data) != without_note(self._noted(document)):
                    raise
                self._version = found.version
            self._document = document

    def withdraw(self) -> None:
        """Let readers see no store any more."""
        with self._lock:
            self._document = None
            self._renewals += 1
            self._replace(self._noted())

    def remove(self, keys: Iterable[str]) -> None:
        """Remove keys."""
        left = list(keys)
        while left:
            self.check()
            self._folder.remove(left[:_BATCH])
            del left[:_BATCH]

    def close(self, document: bytes | None = None) -> None:
        """Take the note out, perhaps with another document; remove it where no store is.

        With `document`, errors are those of `publish`. Otherwise they are warnings: the note stays,
        and the next writer waits until it counts as dead.
        """
        self._ended.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(LONGEST_SECONDS)
        if document is not None:
            self._end(document)
            return
        try:
            if not self.is_lost:
                self._end(self._document)
        except (OSError, StoreError) as e:
            if not self.is_lost:
                text = f"{self._folder.where}: still has this process's note: {one_line(e)}"
                warnings.warn(text, LeftoverWarning, stacklevel=2)

    def _end(self, document: bytes | None) -> None:
        with self._lock:
            if self.leaves_keys:
                document = self._noted(document)
            if document is not None:
                self._replace(document)
                return
            # No request removes on a condition: the lease has to be fresh.
            self._replace(self._noted())
            self._folder.remove([self._key])


def wait_for_death(folder: ObjectFolder, found: Found | None, key: str = ROOT) -> bool:
    """Wait until a note in a root's document has not been renewed for so long that it is dead.

    Returns whether there was one, whose writer may have written keys meanwhile. Raises
    BlockingIOError if it is renewed, or replaced.
    """
    if found is None or not is_held(found):
        return False
    note = note_of(found.data) or {}
    by = f"{str(note.get('by', 'a process'))!r:.200}"
    warnings.warn(
        f"{folder.where}: {by} was writing it: if it does not go on within {DEAD_SECONDS} s, this"
        " takes over",
        LeftoverWarning,
        stacklevel=3,
    )
    end = time.monotonic() + DEAD_SECONDS
    while time.monotonic() < end:
        interrupt.check()
        time.sleep(_LOOK_SECONDS)
        now = folder.read(key)
        if now is None or now.version != found.version:
            raise _busy(folder, by)
    return True


def is_held(found: Found) -> bool:
    """Return whether a root's document has a note of a writer that has not ended."""
    note = note_of(found.data)
    return note is not None and note.get("ended") is not True


def _busy(folder: ObjectFolder, by: str) -> BlockingIOError:
    who = f" ({by})" if by else ""
    return BlockingIOError(f"{folder.where}: another process is writing it{who}")


def _now() -> float:
    """Return seconds that also pass while the computer sleeps, where the system counts them."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def _ours(document: Any) -> dict[str, Any]:
    ours = document["attributes"][ATTRIBUTES_KEY]
    if not isinstance(ours, dict):
        raise TypeError("no attributes of a store")
    return ours


def note_of(document: bytes) -> Mapping[str, Any] | None:
    """Return the note in a root's document; None if there is none."""
    try:
        note = _ours(json.loads(document))[WRITING_KEY]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return note if isinstance(note, Mapping) else None


def arrays_in_note(document: bytes) -> set[str]:
    """Return the arrays that a dead writer may have left keys of, by its note."""
    arrays = (note_of(document) or {}).get("arrays")
    return {path for path in arrays if isinstance(path, str)} if isinstance(arrays, list) else set()


def without_note(document: bytes) -> bytes | None:
    """Return a root's document without the note; None if it is nothing but that."""
    if note_of(document) is None:
        return document
    parsed = json.loads(document)
    ours = _ours(parsed)
    del ours[WRITING_KEY]
    return json.dumps(parsed, separators=(",", ":")).encode() if ours else None


def has_note(found: Found, token: str) -> bool:
    """Return whether a root's document has the note of the writer with this token."""
    note = note_of(found.data)
    return note is not None and note.get("token") == token
