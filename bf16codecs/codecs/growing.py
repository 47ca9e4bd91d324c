"""Writing growing frames, to which versions are appended one by one (docs/format_growing.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from bf16codecs import _core
from bf16codecs._base.buffers import byte_view
from bf16codecs._base.messages import counted
from bf16codecs.codecs.frames import FrameCodec, encode_version

__all__ = [
    "Addition",
    "EncodedVersion",
    "Version",
    "append_version",
    "directory_nbytes",
    "encode_for_growing",
    "new_growing_frame",
]

_HEADER_NBYTES, _ENTRY_NBYTES = 32, 16


def directory_nbytes(room: int) -> int:
    """Return the size of the directory of a growing frame with room for so many versions."""
    return _HEADER_NBYTES + room * _ENTRY_NBYTES


class Version(NamedTuple):
    """A version's items, and the version that it is coded against."""

    content: Any
    #: The number of an earlier version, and its items.
    parent: int | None = None
    base: Any = None


class EncodedVersion(NamedTuple):
    """A version that was encoded elsewhere, its size, and the version that it is coded against."""

    frame: bytes
    nbytes: int
    parent: int | None = None


class Addition(NamedTuple):
    """The writes that append a version: its frame, and, once that is durable, its entry."""

    frame: bytes
    frame_at: int
    entry: bytes
    entry_at: int


def new_growing_frame(codec: FrameCodec, versions: Sequence[Version | EncodedVersion]) -> bytes:
    """Encode a growing frame with its first versions.

    Parameters
    ----------
    codec
        Its steps are the number of versions that the frame has room for.
    versions
        At least one, all of the same size. Contents and bases are buffers or arrays, as
        `FrameCodec.encode` takes them: at level "best", rows are those of their shapes.

    Raises
    ------
    ValueError
        If the versions are none or too many, or do not fit together.
    """
    if not 0 < len(versions) <= codec.steps:
        raise ValueError(f"{counted(len(versions), 'version')}, and room for {codec.steps}")
    nbytes = _nbytes(versions[0])
    frames = [_encode(codec, number, v, nbytes) for number, v in enumerate(versions)]
    block, dtype = _core.Index(frames[0]).block_items, _core.DTYPES[codec.dtype]
    directory = bytearray(_core.growing_directory(dtype, block, nbytes, codec.steps))
    end = len(directory)
    for number, (frame, version) in enumerate(zip(frames, versions, strict=True)):
        end += len(frame)
        entry = _core.growing_entry(end, version.parent)
        at = _entry_at(len(directory), codec.steps, number, entry)
        directory[at : at + len(entry)] = entry
    return b"".join([directory, *frames])


def encode_for_growing(codec: FrameCodec, version: Version) -> EncodedVersion:
    """Encode a version of a growing frame that is not at hand; its codec is as for that frame."""
    number = 0 if version.parent is None else version.parent + 1
    nbytes = _nbytes(version)
    return EncodedVersion(_encode(codec, number, version, nbytes), nbytes, version.parent)


def append_version(
    codec: FrameCodec, directory: Any, version: Version | EncodedVersion
) -> Addition:
    """Encode a further version of a growing frame.

    Parameters
    ----------
    codec
        A codec with the data type of the existing versions.
    directory : buffer
        The growing frame's first bytes: at least its directory.
    version
        A version of the same size as the existing ones.

    Returns
    -------
    Addition
        What to write, and where, counted from the growing frame's first byte.

    Raises
    ------
    bf16codecs.errors.CodecError
        If `directory` is damaged.
    ValueError
        If there is no room, or the version does not fit the others.
    """
    index = _core.GrowingIndex(directory)
    number, dtype = len(index.ends), index.dtype
    if number == index.room:
        raise ValueError(f"there is no room for more than {counted(number, 'version')}")
    if codec.dtype != dtype:
        raise ValueError(f"versions of {dtype} are there, and the codec is for {codec.dtype}")
    frame = _encode(codec, number, version, index.version_size, index.block_items)
    entry = _core.growing_entry(index.ends[-1] + len(frame), version.parent)
    entry_at = _entry_at(index.directory_size, index.room, number, entry)
    return Addition(frame, index.ends[-1], entry, entry_at)


def _nbytes(version: Version | EncodedVersion) -> int:
    return (
        version.nbytes if isinstance(version, EncodedVersion) else byte_view(version.content).size
    )


def _encode(
    codec: FrameCodec,
    number: int,
    version: Version | EncodedVersion,
    nbytes: int,
    block: int = 0,
) -> bytes:
    size, parent = _nbytes(version), version.parent
    if size != nbytes:
        raise ValueError(f"version {number} has {counted(size, 'byte')}, the others {nbytes}")
    has_base = isinstance(version, EncodedVersion) or (parent is None) == (version.base is None)
    if not has_base or not (parent is None or 0 <= parent < number):
        raise ValueError(f"version {number} needs an earlier one and its content, or neither")
    if isinstance(version, EncodedVersion):
        found = _core.Index(version.frame).block_items
        if block not in (0, found):
            raise ValueError(f"version {number} has blocks of {found} items, the others {block}")
        return version.frame
    if codec.steps > 1:
        codec = type(codec).from_config({**codec.get_config(), "steps": 1})
    return encode_version(codec, version.content, version.base, block)


def _entry_at(directory_size: int, room: int, number: int, entry: bytes) -> int:
    """Return where an entry lies: those of all versions are at the directory's end."""
    return directory_size - (room - number) * len(entry)
