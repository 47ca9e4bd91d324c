"""Everything that is damaged in a store: collected, and raised as one error."""

from __future__ import annotations

from bf16codecs._messages import DAMAGE_ADVICE, counted, one_line
from bf16codecs.errors import BF16CodecsError, Damage

__all__ = ["Damages"]

# A damaged store may promise any number of chunks: in 1 GiB, as many as there are bytes.
_MOST = 10_000
# Without what tells of all of it: this does.
_ADVICE = DAMAGE_ADVICE.partition(" (")[0]


class Damages:
    """What was found so far.

    Parameters
    ----------
    where
        The store, for messages.
    """

    def __init__(self, where: str) -> None:
        self._where, self._found = where, list[Damage]()
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
    ) -> None:
        """Note what cannot be read, or is not what it should be; raise if it is too much.

        Raises
        ------
        BF16CodecsError
            As `check`, after 10,000.
        """
        if not self._found:
            self._first = error
        text = one_line(error)
        if text.endswith(f"; {DAMAGE_ADVICE}"):
            text, self._advice = text.removesuffix(f"; {DAMAGE_ADVICE}"), f"; {_ADVICE}"
        text = text.removeprefix(f"{self._where}: ")
        self._found.append(Damage(step, tensor, chunk, text))
        if len(self._found) >= _MOST:
            self.check()

    def check(self) -> None:
        """Raise if anything was found.

        Raises
        ------
        BF16CodecsError
            Of a single damage, its own error; of several, one of the type of the first. Its
            `damage` has them all.
        """
        if not self._found:
            return
        error = self._first
        if len(self._found) > 1:
            text = f"{self._where}: {self._summary()}; the first: {self._found[0].message}"
            error = type(error)(f"{text}{self._advice}")
        error.damage = tuple(self._found)
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
