"""Collects damage in a store, and differences to a source, to raise them as one error."""

from __future__ import annotations

from bf16codecs._base.messages import DAMAGE_ADVICE, counted, one_line
from bf16codecs.errors import (
    BF16CodecsError,
    Damage,
    LimitError,
    ServerError,
    SourceMismatchError,
    StoreError,
)

__all__ = ["NO_DAMAGE", "Damages"]

#: Errors that say nothing of a store.
NO_DAMAGE = (LimitError, ServerError)

# A damaged store may promise any number of chunks: in 1 GiB, as many as there are bytes.
_MOST = 10_000
# Without what tells of all of it: this does.
_ADVICE = DAMAGE_ADVICE.partition(" (")[0]


class Damages:
    """The damage and the differences found so far.

    Parameters
    ----------
    where
        What is verified, for messages.
    place
        The store, which is that, or of which that is a step.
    """

    def __init__(self, where: str, place: str) -> None:
        self._where, self._place = where, place
        #: Without those that are found again on another way.
        self._found = dict[Damage, None]()
        self._differing = list[Damage]()
        #: Steps and tensors of which some of the data differ.
        self._other_tensors = set[tuple[int | None, str]]()
        #: Of arrays with other faults than chunks'.
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
        """Note what cannot be read, or is not what it should be; raise if it is too much.

        Raises
        ------
        BF16CodecsError
            As `check`, after 10,000; or the error, if it says nothing of the store.
        """
        if isinstance(error, NO_DAMAGE):
            raise error
        if not self._found:
            self._first = error
        text = one_line(error)
        if text.endswith(f"; {DAMAGE_ADVICE}"):
            text, self._advice = text.removesuffix(f"; {DAMAGE_ADVICE}"), f"; {_ADVICE}"
        for name in (self._where, self._place):
            text = text.removeprefix(f"{name}: ")
        self._found[Damage(step, tensor, chunk, text)] = None
        if path is not None:
            self.paths.add(path)
        if len(self._found) >= _MOST:
            self.check()

    def differ(
        self,
        text: str,
        step: int | None = None,
        tensor: str | None = None,
        chunk: tuple[int, ...] | None = None,
    ) -> None:
        """Note what is otherwise in the model that the store is compared with."""
        if tensor is not None:
            self._other_tensors.add((step, tensor))
        if len(self._differing) < _MOST:
            self._differing.append(Damage(step, tensor, chunk, text))

    def check(self) -> None:
        """Raise if anything is damaged.

        Raises
        ------
        BF16CodecsError
            Of the type of the first. Its `damage` has all.
        """
        if not self._found:
            return
        text = self._told(next(iter(self._found)))
        if len(self._found) > 1:
            text = f"{self._summary()}; the first: {text}"
        error = type(self._first)(f"{self._where}: {text}{self._advice}")
        error.damage, error.differences = tuple(self._found), tuple(self._differing)
        raise error from self._first

    def stop(self, error: Exception) -> None:
        """Raise what is damaged, if anything is, before an error that says nothing of the store.

        Raises
        ------
        BF16CodecsError
            As `check`.
        """
        if self._found:
            self.add(StoreError(f"{one_line(error)}: the rest was not read"))
            self.check()

    def check_same(self, state: str, source: str, tensors: int) -> None:
        """Raise if something is otherwise in the model that a sound store was compared with.

        Parameters
        ----------
        state
            What the store is.
        source
            What it was compared with.
        tensors
            How many there are.

        Raises
        ------
        SourceMismatchError
            Its `differences` have all.
        """
        if not self._differing:
            return
        text = self._told(self._differing[0])
        if count := len(self._other_tensors):
            verb = "differs" if count == 1 else "differ"
            text = f"{count} of {counted(tensors, 'tensor')} {verb}; the first: {text}"
        what = f"{state}, but not what {source} holds"
        error = SourceMismatchError(f"{self._where}: {what}: {text}")
        error.differences = tuple(self._differing)
        raise error

    def _summary(self) -> str:
        """Say how much is damaged."""
        chunks = sum(damage.chunk is not None for damage in self._found)
        tensors = len({damage.tensor for damage in self._found if damage.tensor is not None})
        others = len(self._found) - chunks
        parts = [counted(chunks, "chunk")] if chunks else []
        if others:
            parts.append(counted(others, "other fault" if chunks else "fault"))
        limit = "stopped after " if len(self._found) >= _MOST else ""
        within = f" in {counted(tensors, 'tensor')}" if tensors else ""
        return f"not intact: {limit}{' and '.join(parts)}{within}"

    def _told(self, own: Damage) -> str:
        """Say what is damaged: of a run, users know steps, and messages the chunks' versions."""
        is_known = own.step is None or self._where != self._place
        return own.message if is_known else f"step {own.step}: {own.message}"
