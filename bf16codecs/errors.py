"""Errors that decoding raises.

All derive from `ValueError`, which is what numcodecs' own codecs raise for data that
they cannot decode.
"""

__all__ = ["CodecError", "CorruptDataError", "TruncatedDataError", "UnsupportedVersionError"]


class CodecError(ValueError):
    """Encoded data that cannot be decoded."""


class CorruptDataError(CodecError):
    """The data contradict themselves or their checksum, or are not a frame of this package."""


class TruncatedDataError(CodecError):
    """The data end before the frame does."""


class UnsupportedVersionError(CodecError):
    """The frame has a format version that this release does not read."""
