"""A decoder of run lengths, from docs/format_rle.md alone."""

from __future__ import annotations

from reference_planes import FormatError, TruncatedFrame


def decode(encoded: bytes) -> bytes:
    raw = bytearray()
    at = 0

    def take() -> int:
        nonlocal at
        if at == len(encoded):
            raise TruncatedFrame
        at += 1
        return encoded[at - 1]

    while at < len(encoded):
        byte = take()
        if byte != 0xFF:
            raw.append(byte)
            continue
        count = take()
        if count == 4:
            raise FormatError("a count of 4")
        raw += b"\xff" * (count + 1) if count < 4 else bytes([take()]) * count
    return bytes(raw)


def encode(raw: bytes) -> bytes:
    """Encode as this package does, by the document."""
    encoded = bytearray()
    at = 0
    while at < len(raw):
        byte = raw[at : at + 1]
        run = 1
        while run < 255 and raw[at + run : at + run + 1] == byte:
            run += 1
        at += run
        if run >= 5:
            encoded += bytes([0xFF, run]) + byte
        else:
            encoded += bytes([0xFF, run - 1]) if byte == b"\xff" else byte * run
    return bytes(encoded)
