"""How a finished file or folder gets its name: in one step, whenever the process may die.

It is made in a *working folder* beside its target, `.bf16codecs-<random>.tmp/`:

    lock     locked as long as the maker lives
    new      what is made; after an exchange, what it replaced
    target   where two names cannot be exchanged: the name of the target that becomes `old`
    old      there, what is replaced

A working folder whose lock is free is a dead process's. The next process that writes beside it
removes it. Where death came between two renames, the target is missing: whoever asks for it next,
if only to read, gives it the new content first.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from bf16codecs._lock import LifeLock
from bf16codecs._rename import exchange, rename_new
from bf16codecs._sync import sync

__all__ = ["WORKING_PREFIX", "WorkingFolder", "recover", "recover_missing"]

WORKING_PREFIX = ".bf16codecs-"
_NAME = re.compile(re.escape(WORKING_PREFIX) + r"[0-9a-f]{16}\.tmp")

# Workers of a cluster may still put files into a folder that is being removed.
_REMOVALS = 3


class WorkingFolder:
    """A working folder that this process holds. `make` and `adopt` give one."""

    def __init__(self, path: Path, lock: LifeLock) -> None:
        self.path = path
        #: What is to be made.
        self.new = path / "new"
        self._lock = lock
        self._journal, self._old = path / "target", path / "old"
        #: Why the content of this folder may still be needed.
        self._is_needed: OSError | None = None

    @classmethod
    def make(cls, parent: Path) -> WorkingFolder:
        """Make a working folder.

        Raises
        ------
        OSError
            If `parent` does not allow that.
        """
        while True:
            path = parent / f"{WORKING_PREFIX}{secrets.token_hex(8)}.tmp"
            path.mkdir()
            try:
                lock = LifeLock(path / "lock")
            except FileNotFoundError:
                continue  # taken for a dead process's, as it had no lock yet
            except OSError:
                path.rmdir()
                raise
            if lock.is_taken:
                lock.close()
                continue
            made = cls(path, lock)
            try:
                lock.sign()
            except BaseException:
                made.close()
                raise
            return made

    @classmethod
    def adopt(cls, path: Path) -> WorkingFolder | None:
        """Take over a folder if its maker is certainly dead.

        Raises
        ------
        OSError
            If it may not be changed.
        """
        lock = LifeLock(path / "lock")
        if lock.is_held and lock.is_made_here():
            return cls(path, lock)
        lock.close()
        return None

    def publish(self, target: Path, may_replace: Callable[[], object], durable: bool) -> None:
        """Give `new` the target's name.

        Parameters
        ----------
        target
            A path in the folder that holds this one.
        may_replace
            Called if something has that name; raises if it must stay.
        durable
            Return only when the name is on the disk.

        Raises
        ------
        OSError
            If something fails.
        """
        while not self._publish_once(target, may_replace, durable):
            pass  # somebody else made or removed the target in between
        if durable:
            self._sync_names(target)

    def _sync_names(self, target: Path) -> None:
        try:
            sync(target.parent)
        except OSError as e:
            # Until the disk has the new name, a loss of power may bring back what was replaced.
            self._is_needed = e
            text = f"replaced, but a loss of power may undo that: {e.strerror}"
            raise OSError(e.errno, text, str(target)) from e

    def _publish_once(self, target: Path, may_replace: Callable[[], object], durable: bool) -> bool:
        try:
            rename_new(self.new, target)
            return True
        except FileExistsError:
            may_replace()
        try:
            if exchange(self.new, target):
                return True
            if not self.new.is_dir():
                os.replace(self.new, target)
                return True
            self._move_aside(target, durable)
        except FileNotFoundError:
            if os.path.lexists(target):
                raise
        return False

    def _move_aside(self, target: Path, durable: bool) -> None:
        """Move what is replaced to `old`: no plain rename replaces a folder that is not empty."""
        self._journal.write_bytes(os.fsencode(target.name))
        if durable:
            for path in (self._journal, self.path, target.parent):
                sync(path)
        _remove(self._old)  # of an earlier round
        os.rename(target, self._old)

    def journaled_target(self) -> Path | None:
        """Return the path that `old` had."""
        try:
            name = os.fsdecode(self._journal.read_bytes())
        except FileNotFoundError:
            return None
        # Whoever can write here might have written anything.
        is_plain = name == os.path.basename(name) and name not in {"", ".", ".."}
        return self.path.with_name(name) if is_plain and "\0" not in name else None

    def finish(self) -> None:
        """Give a target that is missing its new content, if death came between the two renames."""
        content = self.new if os.path.lexists(self.new) else self._old
        self._restore(content)

    def _restore(self, content: Path) -> None:
        target = self.journaled_target()
        if target is None or not os.path.lexists(self._old) or os.path.lexists(target):
            return
        try:
            with suppress(FileExistsError):
                rename_new(content, target)
                sync(target.parent)
        except OSError as e:
            self._is_needed = e
            raise

    def close(self) -> OSError | None:
        """Undo what was not finished, and remove the folder.

        Returns
        -------
        OSError or None
            Why something is left.
        """
        try:
            self._restore(self._old)
            if self._is_needed is None:
                self._remove()
        except OSError as e:
            return e
        finally:
            self.release()
        return self._is_needed

    def release(self) -> None:
        """Leave the folder as it is to whoever comes next."""
        self._lock.close()

    def _remove(self) -> None:
        # From here on, `old` may be incomplete: nobody must give it a name any more.
        self._journal.unlink(missing_ok=True)
        errors = [_remove(self.path / name) for name in os.listdir(self.path) if name != "lock"]
        error = next(filter(None, errors), None)
        if error is not None:
            raise error
        self._lock.remove()
        os.rmdir(self.path)


def recover(folder: Path) -> None:
    """Finish or undo what dead processes began in a folder, and remove what they left."""
    for path in _working_folders(folder):
        _recover(path, lambda dead: True)


def recover_missing(path: str | os.PathLike[str]) -> None:
    """Finish what a dead process began for a path where nothing is; touch nothing else."""
    target = Path(os.path.abspath(path))
    if not os.path.lexists(target):
        for found in _working_folders(target.parent):
            if (found / "target").is_file():
                _recover(found, lambda dead: dead.journaled_target() == target)


def _recover(path: Path, condition: Callable[[WorkingFolder], bool]) -> None:
    # What may not be changed, or not be locked, stays for those who can.
    with suppress(OSError):
        dead = WorkingFolder.adopt(path)
        if dead is None:
            return
        if not condition(dead):
            dead.release()
            return
        try:
            dead.finish()
        finally:
            dead.close()


def _working_folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [
                Path(entry.path)
                for entry in entries
                if _NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
            ]
    except OSError:
        return []


def _remove(path: Path) -> OSError | None:
    """Remove a file or a folder, as much of it as possible; return the first error."""
    errors: list[OSError] = []

    def note(function: Any, path: str, info: Any) -> None:
        if not isinstance(info[1], FileNotFoundError):
            errors.append(info[1])

    for _ in range(_REMOVALS):
        errors.clear()
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, onerror=note)
        else:
            try:
                path.unlink(missing_ok=True)
            except OSError as e:
                errors.append(e)
        if not errors:
            return None
    return errors[0]
