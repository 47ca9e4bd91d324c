"""Every exception and warning that this package raises by a name of its own."""

from collections.abc import Iterable
from typing import NamedTuple

__all__ = [
    "BF16CodecsError",
    "BaseMismatchError",
    "CheckpointWarning",
    "CodecError",
    "CorruptDataError",
    "Damage",
    "DeviceError",
    "DtypeMismatchWarning",
    "LeftoverWarning",
    "LimitError",
    "ManyFilesWarning",
    "MountError",
    "SafetensorsError",
    "ServerError",
    "SourceMismatchError",
    "StepNotFoundError",
    "StoreError",
    "TensorChangeWarning",
    "TensorNotFoundError",
    "TruncatedDataError",
    "UnsupportedVersionError",
    "UpdateError",
]


class Damage(NamedTuple):
    """Something in a store that cannot be read, or is not what it should be, or another is."""

    #: Of a run, the number of the step.
    step: int | None
    #: The tensor; None if it is no single one's: a header, a file's digest.
    tensor: str | None
    #: Index of the chunk in the tensor's grid of chunks; None if it is not in a single one.
    chunk: tuple[int, ...] | None
    #: Why, in one line.
    message: str


class BF16CodecsError(Exception):
    """Base of this package's exceptions."""

    #: What `bf16codecs.convert.verify_store` found before it raised this, 10,000 at most.
    damage: tuple[Damage, ...] = ()
    #: What it found to be otherwise in what it compared the store with, 10,000 at most.
    differences: tuple[Damage, ...] = ()


class CodecError(BF16CodecsError, ValueError):
    """Encoded data that cannot be decoded.

    It is a `ValueError`, as numcodecs' own codecs raise for such data.
    """


class CorruptDataError(CodecError):
    """The data are inconsistent, fail their checksum, or are not a frame of this package."""


class TruncatedDataError(CodecError):
    """The data end before the frame does."""


class BaseMismatchError(CodecError):
    """The frame has differences to a base, and this is another one, or none."""


class UnsupportedVersionError(CodecError):
    """The frame or store has a version that this release does not read."""


class DeviceError(BF16CodecsError, RuntimeError):
    """A GPU is missing or failed, or its driver or compiler; the data may be intact."""


class StoreError(BF16CodecsError, ValueError):
    """Something that is not a model store, or one that is incomplete or inconsistent."""


class LimitError(StoreError):
    """More data than the caller, or the store's own size, allows; the data may be intact."""


class ServerError(StoreError):
    """A reply that does not answer the request; the data may be intact."""


class SafetensorsError(BF16CodecsError, ValueError):
    """A safetensors file, or a set of them, that breaks the format's rules."""


class SourceMismatchError(BF16CodecsError, ValueError):
    """A store is intact, and not a copy of the model that it was compared with."""


class MountError(BF16CodecsError, OSError):
    """A store cannot be mounted on a folder."""


class UpdateError(BF16CodecsError):
    """An update failed, and some tensors are new; each of the others is as before.

    Attributes
    ----------
    updated : tuple of str
        The names of the tensors that are new.
    """

    def __init__(self, text: str, updated: Iterable[str] = ()) -> None:
        super().__init__(text)
        self.updated = tuple(updated)


class TensorNotFoundError(BF16CodecsError, KeyError):
    """The model has no tensor of that name."""

    def __str__(self) -> str:
        # KeyError would show the message as a quoted string.
        return str(self.args[0])


class StepNotFoundError(BF16CodecsError, KeyError):
    """The run has no such step."""

    def __str__(self) -> str:
        return str(self.args[0])


class DtypeMismatchWarning(UserWarning):
    """Numbers of one data type are encoded by a codec for another: exactly, but less well."""


class LeftoverWarning(UserWarning):
    """A conversion could not remove a folder that it made, or a store that it replaced."""


class CheckpointWarning(UserWarning):
    """A training job's checkpoint is there, but something beside it could not be done as asked."""


class TensorChangeWarning(UserWarning):
    """A step of a run has tensors of other dtypes or shapes than steps before it."""


class ManyFilesWarning(UserWarning):
    """A conversion makes, or removes, so many files that it takes long."""
