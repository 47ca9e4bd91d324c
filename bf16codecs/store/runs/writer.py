"""The interface of runs that a step is added to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from bf16codecs import _core
from bf16codecs._arrays.grid import ArrayPlan, ChunkIndex
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.messages import counted, damaged, named_damage
from bf16codecs.codecs import BF16Arithmetic, FrameCodec
from bf16codecs.codecs.growing import (
    EncodedVersion,
    Version,
    append_version,
    directory_nbytes,
    new_growing_frame,
)
from bf16codecs.errors import CodecError, CorruptDataError, StoreError, TruncatedDataError
from bf16codecs.store.layout import StoreInfo

__all__ = [
    "AnyVersion",
    "Appended",
    "Fill",
    "Growth",
    "RunArray",
    "RunWriter",
    "Shrunk",
    "Write",
    "grow",
    "shrink",
    "start",
]

#: A version to encode, or one that was encoded by another process.
AnyVersion = Version | EncodedVersion
#: Makes a version of fill values.
Fill = Callable[[], Bytes]


@dataclass(frozen=True)
class RunArray(ArrayPlan):
    """The array of a tensor over time: its first axis is the step.

    Its codec has as many steps as a group of the run.
    """

    codec: FrameCodec = field(default_factory=BF16Arithmetic)

    @property
    def dimension_names(self) -> list[str]:
        """Dimension names; those of the tensor's axes count without the step."""
        return ["step", *(f"dim{axis}_{size}" for axis, size in enumerate(self.shape[1:]))]


class Write(NamedTuple):
    """Bytes, and their offset in a chunk."""

    at: int
    content: bytes


class Growth(NamedTuple):
    """The writes that add a version to a chunk: frames, and, once these are durable, entries."""

    frames: Sequence[Write]
    entries: Sequence[Write]


class Shrunk(NamedTuple):
    """A chunk with fewer versions: empty entries to write, and the end of its last frame."""

    entries: Write
    end: int


class Appended(NamedTuple):
    """A written version: the number of bytes, and where its frame is."""

    nbytes: int
    chunk: Any
    at: int
    size: int


class Started(NamedTuple):
    """A new chunk, and where in it the frame of its last version is."""

    content: bytes
    at: int
    size: int


class RunWriter(Protocol):
    """A run that gets one step more; `append` may be called by several threads.

    Attributes
    ----------
    concurrency
        How many chunks at a time to write pays off, beyond one for each processor.
    is_readable
        Whether other processes can read the run while it gets a step.
    """

    concurrency: int
    is_readable: bool

    def create(self, array: RunArray) -> None:
        """Prepare a new array."""

    def extend(self, path: str, steps: int) -> None:
        """Let an existing array have a number of steps."""

    def append(
        self,
        array: RunArray,
        index: ChunkIndex,
        slot: int,
        version: AnyVersion,
        fill: Fill | None,
    ) -> Appended:
        """Add a version to a chunk, as its version number `slot`.

        `fill` returns the content of earlier versions if the chunk does not exist yet; None if it
        has to exist. StoreError or CodecError is raised if the chunk is missing, or damaged.
        """

    def read(self, appended: Appended) -> Bytes:
        """Read the frame of a version back from where it was written."""

    def write_bytes(self, array: ArrayPlan, content: bytes) -> int:
        """Write an array of bytes, of one chunk; return its stored size."""

    def write_steps(self, numbers: Sequence[int]) -> int:
        """Write the array with the numbers of the steps; return its stored size."""

    def finish(self, info: StoreInfo) -> int:
        """Make the step part of the run atomically; return the size of the metadata."""

    def remove_last(self, info: StoreInfo, gone: Sequence[str]) -> None:
        """Remove the last step of the run atomically; nothing else was changed before.

        `info` becomes the run's contents, and no other step needs the arrays that are `gone`.
        """

    def abandon(self) -> None:
        """Leave the run as it was; do nothing after `finish`."""

    def close(self) -> None:
        """Close files and connections."""


def start(codec: FrameCodec, slot: int, version: AnyVersion, fill: Fill | None) -> Started:
    """Return a new chunk whose version `slot` is the first that is not filled.

    Raises StoreError if there have to be versions before it.
    """
    before: list[AnyVersion] = []
    if slot:
        if fill is None:
            raise StoreError(damaged("it is missing"))
        before = [Version(fill())] * slot
    content = new_growing_frame(codec, [*before, version])
    index = _core.GrowingIndex(content)
    starts = [index.directory_size, *index.ends]
    return Started(content, starts[slot], starts[slot + 1] - starts[slot])


def grow(codec: FrameCodec, directory: bytes, size: int, slot: int, version: AnyVersion) -> Growth:
    """Return the writes that add version `slot`, which is not the first, to a chunk.

    The chunk has `size` bytes, which may be more than its frames take, and its first ones have at
    least the directory. CodecError is raised if the chunk is damaged, or has not all versions
    before, and these alone.
    """
    with named_damage():
        index = _core.GrowingIndex(directory)
        _check_versions(index, slot, codec.steps)
        if size < index.ends[-1]:  # which writing behind it would hide
            raise TruncatedDataError(
                f"the growing frame has {counted(size, 'byte')} of {index.ends[-1]}"
            )
    added = append_version(codec, directory, version)
    return Growth([Write(added.frame_at, added.frame)], [Write(added.entry_at, added.entry)])


def shrink(directory: bytes, slot: int, room: int) -> Shrunk | None:
    """Return the write and end that remove version `slot`, not the first, and later ones.

    The chunk has room for `room` versions. None is returned if it is damaged: it is left alone, and
    appending to it reports the damage.
    """
    first = directory_nbytes(slot)
    entries = bytes(len(directory[first:]))
    try:
        index = _core.GrowingIndex(directory[:first] + entries)
        _check_versions(index, slot, room)
    except CodecError:
        return None
    return Shrunk(Write(first, entries), index.ends[-1])


def _check_versions(index: _core.GrowingIndex, count: int, room: int) -> None:
    """Refuse a chunk that has not as many versions as its group has steps, or another room."""
    if (index.room, len(index.ends)) != (room, count):
        raise CorruptDataError(
            f"it has {counted(len(index.ends), 'version')} and room for {index.room}: there are"
            f" {counted(count, 'step')} in groups of {room}"
        )
