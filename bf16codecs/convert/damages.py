"""Collect the damage in a store, and its differences to a source, and raise them as one error."""

from __future__ import annotations

from bf16codecs._base.messages import DAMAGE_ADVICE, RESTORE_ADVICE, counted, one_line
from bf16codecs.errors import (
    BF16CodecsError,
    Damage,
    LimitError,
    ServerError,
    SourceMismatchError,
    StoreError,
)

__all__ = ["MOST_DAMAGE", "NO_DAMAGE", "Damages"]

#: Errors that do not mean that a store is damaged.
NO_DAMAGE = (LimitError, ServerError)

#: The most damage to collect: a damaged store may claim billions of chunks.
MOST_DAMAGE = 10_000


class Damages:
    """The damage and the differences found so far.

    Messages name the verified store, or step of a run, as `where`; `store` is the store alone.
    """

    def __init__(self, where: str, store: str) -> None:
        self._where, self._store = where, store
        # A dict as an ordered set: several checks may find the same damage.
        self._found = dict[Damage, None]()
        self._differing = list[Damage]()
        #: Steps and names of the tensors that differ.
        self._differing_tensors = set[tuple[int | None, str]]()
        #: Paths of arrays with faults other than damaged chunks.
        self.paths = set[str]()
        self._first: BF16CodecsError
        self._advice = ""

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(
        self,
        error: BF16CodecsError,
        step: int | None = None,
        tensor: str | None = None,
        chunk: tuple[int, ...] | None = None,
        path: str | None = None,
    ) -> None:
        """Note damage. Raise `error` if it is not damage, and as `check` does after 10,000."""
        if isinstance(error, NO_DAMAGE):
            raise error
        if not self._found:
            self._first = error
        text = one_line(error)
        if text.endswith(f"; {DAMAGE_ADVICE}"):
            text, self._advice = text.removesuffix(f"; {DAMAGE_ADVICE}"), f"; {RESTORE_ADVICE}"
        for name in (self._where, self._store):
            text = text.removeprefix(f"{name}: ")
        self._found[Damage(step, tensor, chunk, text)] = None
        if path is not None:
            self.paths.add(path)
        if len(self._found) >= MOST_DAMAGE:
            self.check()

    def differ(
        self,
        text: str,
        step: int | None = None,
        tensor: str | None = None,
        chunk: tuple[int, ...] | None = None,
    ) -> None:
        """Note a difference to the model that the store is compared with."""
        if tensor is not None:
            self._differing_tensors.add((step, tensor))
        if len(self._differing) < MOST_DAMAGE:
            self._differing.append(Damage(step, tensor, chunk, text))

    def check(self) -> None:
        """Raise an error with all damage, of the type of the first one, if any was noted."""
        if not self._found:
            return
        text = self._message(next(iter(self._found)))
        if len(self._found) > 1:
            text = f"{self._summary()}; the first: {text}"
        error = type(self._first)(f"{self._where}: {text}{self._advice}")
        error.damage, error.differences = tuple(self._found), tuple(self._differing)
        raise error from self._first

    def stop(self, error: Exception) -> None:
        """Raise the noted damage, if any, instead of an error that is not damage."""
        if self._found:
            self.add(StoreError(f"{one_line(error)}: the rest was not read"))
            self.check()

    def check_same(self, state: str, source: str, tensors: int) -> None:
        """Raise SourceMismatchError with all differences, if a sound store differs from a model.

        `state` describes the store (``"intact"``); `source` is the model's path, `tensors` its
        number of tensors.
        """
        if not self._differing:
            return
        text = self._message(self._differing[0])
        if count := len(self._differing_tensors):
            verb = "differs" if count == 1 else "differ"
            text = f"{count} of {counted(tensors, 'tensor')} {verb}; the first: {text}"
        what = f"{state}, but not what {source} holds"
        error = SourceMismatchError(f"{self._where}: {what}: {text}")
        error.differences = tuple(self._differing)
        raise error

    def _summary(self) -> str:
        """Return a summary of the damage."""
        chunks = sum(damage.chunk is not None for damage in self._found)
        tensors = len({damage.tensor for damage in self._found if damage.tensor is not None})
        others = len(self._found) - chunks
        parts = [counted(chunks, "chunk")] if chunks else []
        if others:
            parts.append(counted(others, "other fault" if chunks else "fault"))
        limit = "stopped after " if len(self._found) >= MOST_DAMAGE else ""
        within = f" in {counted(tensors, 'tensor')}" if tensors else ""
        return f"not intact: {limit}{' and '.join(parts)}{within}"

    def _message(self, damage: Damage) -> str:
        """Return the message of a damage, with the step unless `where` names it."""
        is_named = damage.step is None or self._where != self._store
        return damage.message if is_named else f"step {damage.step}: {damage.message}"
