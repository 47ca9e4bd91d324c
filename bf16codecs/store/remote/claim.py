"""Who writes a store in an object store: a note in the root's document.

Keys of a Zarr store are where readers look for them, so two writers of one store would mix theirs.
The one that has its note in the document may write. The next document makes its store visible, in
one step, and readers ignore the note beside a store that is there already. A writer that has died
no longer renews its note, and the next one replaces it. Each replaces only what it has read: of two
writers that both believe to have the right, one fails before its store is visible. No clocks are
compared.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
import warnings
from collections.abc import Mapping
from typing import Any

from bf16codecs._base import interrupt
from bf16codecs._base.forks import make_lock
from bf16codecs.errors import LeftoverWarning, StoreError
from bf16codecs.store.layout import ATTRIBUTES_KEY, WRITING_KEY
from bf16codecs.store.remote.object_folder import ConflictError, Found, ObjectFolder

__all__ = ["ROOT", "Claim", "has_note", "note_of", "without_note"]

#: The root's document.
ROOT = "zarr.json"
# A note is renewed this often. One that has not been renewed for longer is a dead writer's.
_RENEW_SECONDS, _DEAD_SECONDS = 10, 45
# Its own writer trusts it for less.
_STALE_SECONDS = 25
_LOOK_SECONDS = 3


class Claim:
    """The right to write the store in a folder.

    Parameters
    ----------
    folder
        The folder.
    found
        The root's document as it is; None if there is none. A note in it is replaced if its writer
        is dead, for which this waits.
    is_known
        Whether the object store is known to have conditions, since the store was made there.

    Raises
    ------
    BlockingIOError
        If another process is writing the store.
    StoreError
        If the object store has no conditions.
    """

    def __init__(self, folder: ObjectFolder, found: Found | None, is_known: bool = False) -> None:
        self._folder, self.token = folder, secrets.token_hex(8)
        self._renewals, self._is_lost, self._lock = 0, False, make_lock()
        if found is not None and (note := note_of(found.data)) is not None:
            self._wait_for_death(found, note)
        #: The document that readers see, without the note.
        self._document = None if found is None else without_note(found.data)
        try:
            if found is None:
                self._version = folder.create(ROOT, self._noted())
            else:
                self._version = folder.replace(ROOT, self._noted(), found.version)
        except ConflictError:
            raise self._busy("") from None
        self._renewed_at = _now()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="bf16codecs claim", daemon=True)
        self._thread.start()
        if is_known:
            return
        try:
            folder.check_conditions()
        except BaseException:
            self.give_up()
            raise

    def _noted(self) -> bytes:
        """Return the root's document with the note."""
        document = {"zarr_format": 3, "node_type": "group", "attributes": {ATTRIBUTES_KEY: {}}}
        if self._document is not None:
            document = json.loads(self._document)
        by = f"process {os.getpid()} on {socket.gethostname()}"
        note = {"by": by, "token": self.token, "renewals": self._renewals}
        _ours(document)[WRITING_KEY] = note
        return json.dumps(document, separators=(",", ":")).encode()

    def _busy(self, by: Any) -> BlockingIOError:
        who = f"another process is writing it ({by})" if by else "another process is writing it"
        return BlockingIOError(f"{self._folder.where}: {who}")

    def _wait_for_death(self, found: Found, note: Mapping[str, Any]) -> None:
        """Wait until a note has not been renewed for so long that its writer must be dead."""
        by = str(note.get("by", "a process"))
        warnings.warn(
            f"{self._folder.where}: {by:.200} was writing it: what it left is removed if it does"
            f" not go on within {_DEAD_SECONDS} s",
            LeftoverWarning,
            stacklevel=2,
        )
        end = time.monotonic() + _DEAD_SECONDS
        while time.monotonic() < end:
            interrupt.check()
            time.sleep(_LOOK_SECONDS)
            now = self._folder.read(ROOT)
            if now is None or now.version != found.version:
                raise self._busy(by)

    def _keep(self) -> None:
        """Renew the note until the end; what fails now may succeed the next time."""
        while not self._ended.wait(_RENEW_SECONDS):
            self._renewals += 1
            try:
                with self._lock:
                    self._replace(self._noted())
            except ConflictError:
                self._is_lost = True
                return
            except OSError:
                continue

    def _replace(self, document: bytes) -> None:
        """Replace the document; raise ConflictError if it is another's by now."""
        try:
            self._version = self._folder.replace(ROOT, document, self._version)
        except ConflictError:
            # An earlier renewal may have arrived after all.
            found = self._folder.read(ROOT)
            if found is None or not has_note(found, self.token):
                raise
            self._version = self._folder.replace(ROOT, document, found.version)
        self._renewed_at = _now()

    def check(self) -> None:
        """Raise StoreError if another process has taken over, or may do so."""
        if self._is_lost or _now() - self._renewed_at > _STALE_SECONDS:
            why = "another process took over" if self._is_lost else "another process may take over"
            raise StoreError(
                f"{self._folder.where}: {why}, since this one's note in it was not renewed for long"
            )

    def publish(self, document: bytes) -> None:
        """Let readers see another document: the store that it describes is there.

        Raises StoreError if another process has taken over; OSError if it is not known whether
        the document has arrived.
        """
        with self._lock:
            self._document = document
            self._change(self._noted())

    def end(self, document: bytes | None = None) -> None:
        """Take the note out, perhaps with another document: from now on, others may write.

        Errors are those of `publish`.
        """
        self.stop()
        self._document = self._document if document is None else document
        assert self._document is not None
        self._change(self._document)

    def _change(self, document: bytes) -> None:
        try:
            self._replace(document)
        except ConflictError:
            self._is_lost = True
            self.check()

    def give_up(self) -> None:
        """Take the note out, or remove it where no store is; leave that of another process."""
        self.stop()
        if self._document is not None:
            try:
                self._replace(self._document)
            except ConflictError:
                self._is_lost = True
        elif self.is_held():
            self._folder.remove([ROOT])

    def is_held(self) -> bool:
        """Return whether the note is still this writer's; ask the server."""
        found = self._folder.read(ROOT)
        self._is_lost |= found is None or not has_note(found, self.token)
        return not self._is_lost

    def stop(self) -> None:
        """Renew the note no more: soon, another process may take over."""
        self._ended.set()
        self._thread.join()


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
