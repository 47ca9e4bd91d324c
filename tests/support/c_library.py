"""The C library, called from Python without the package."""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, Structure, byref, c_char, c_int, c_size_t, c_uint, c_uint32, c_uint64
from ctypes import c_void_p as pointer
from pathlib import Path

PREFIX = os.environ.get("BF16CODECS_C_PREFIX")  # where it is installed
OK, UNSUPPORTED, INVALID_ARGUMENT, NO_ROOM = 0, 5, 6, 7
NO_PARENT, OUTSIDE = 2**64 - 1, 2**64 - 2
STATUS_OF = {
    "CorruptDataError": 1,
    "TruncatedDataError": 2,
    "BaseMismatchError": 3,
    "UnsupportedVersionError": 4,
}


class Error(Structure):
    _fields_ = [("status", c_int), ("message", c_char * 508)]


class Sized(Structure):
    """A structure that begins with its size."""

    def __init__(self, **values) -> None:
        super().__init__(ctypes.sizeof(self), **values)


COMPRESS = ctypes.CFUNCTYPE(c_size_t, pointer, pointer, c_size_t, c_int, pointer, c_size_t)
DECOMPRESS = ctypes.CFUNCTYPE(c_int, pointer, pointer, c_size_t, pointer, c_size_t)


def fields(text: str, types: dict[str, type] | None = None) -> list[tuple[str, type]]:
    return [(name, (types or {}).get(name, c_uint64)) for name in text.split()]


class Zstd(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("user", pointer),
        ("compress", COMPRESS),
        ("decompress", DECOMPRESS),
    ]


INTS = dict.fromkeys(
    ["version", "codec", "dtype", "by_byte", "has_checksums", "needs_base", "level"], c_int
)


class EncodeOptions(Sized):
    _fields_ = fields(
        "struct_size codec dtype level by_byte no_checksums may_drop_steps steps block_items row"
        " base zstd no_grids",
        INTS
        | {"struct_size": c_size_t, "no_checksums": c_int, "may_drop_steps": c_int}
        | {"no_grids": c_int}
        | {"steps": c_uint, "base": ctypes.c_char_p, "zstd": POINTER(Zstd)},
    )

    def __init__(self, **values) -> None:
        super().__init__(**{"codec": 2, "steps": 1} | values)


class DecodeOptions(Sized):
    _fields_ = fields(
        "struct_size base base_size padded zstd",
        {"struct_size": c_size_t, "base": ctypes.c_char_p, "base_size": c_size_t}
        | {"padded": c_int, "zstd": POINTER(Zstd)},
    )


class Info(Sized):
    _fields_ = fields(
        "struct_size version codec dtype by_byte has_checksums needs_base steps room item_size"
        " raw_size padded_size frame_size head_size block_items blocks base_digest",
        INTS | {"struct_size": c_size_t, "steps": c_uint, "room": c_uint},
    )


class Block(Sized):
    _fields_ = fields(
        "struct_size items offset size raw_offset raw_size parent has_checksum checksum",
        {"struct_size": c_size_t, "has_checksum": c_int, "checksum": c_uint32},
    )


class Plane(Structure):
    _fields_ = [("mode", c_int), ("size", c_size_t)]


class Version(Sized):
    _fields_ = fields("struct_size offset size parent", {"struct_size": c_size_t})


class CError(Exception):
    """An error code that the library returned, with its message."""

    def __init__(self, error: Error) -> None:
        super().__init__(error.message.decode())
        self.status = error.status


class Library:
    """The library's functions, which raise `CError`; a buffer's size is passed with it."""

    def __init__(self, prefix: str) -> None:
        (path,) = Path(prefix).glob("lib*/**/libbf16codecs.so")
        self.path = path
        self.raw = ctypes.CDLL(str(path))
        self.out = ctypes.create_string_buffer(1)
        self.raw.bf16codecs_rle_bound.restype = c_uint64
        self.raw.bf16codecs_rle_bound.argtypes = [c_uint64]
        for name in ("version", "active_isa", "codec_name", "dtype_name", "mode_name"):
            getattr(self.raw, f"bf16codecs_{name}").restype = ctypes.c_char_p
        self.raw.bf16codecs_status_name.restype = ctypes.c_char_p

    def call(self, name: str, *arguments) -> None:
        error = Error(status=77, message=b"not set")
        status = getattr(self.raw, f"bf16codecs_{name}")(*arguments, byref(error))
        assert status == error.status
        assert (status == OK) == (error.message == b"")
        if status != OK:
            raise CError(error)

    def memory(self, size: int) -> ctypes.Array[c_char]:
        """Return memory for a result. It is reused: allocating 64 MB takes longer than a call."""
        if size > len(self.out):
            self.out = ctypes.create_string_buffer(size)
        return self.out

    def name(self, what: str, number: int) -> str | None:
        name = getattr(self.raw, f"bf16codecs_{what}_name")(number)
        return name.decode() if name is not None else None

    def encode(self, raw: bytes, **options) -> bytes:
        asked = EncodeOptions(**options)
        room, size = c_uint64(), c_size_t()
        self.call("encode_room", c_uint64(len(raw)), byref(asked), byref(room))
        frame = ctypes.create_string_buffer(room.value)
        self.call("encode", raw, c_size_t(len(raw)), byref(asked), frame, room, byref(size))
        return frame.raw[: size.value]

    def decode(self, frame: bytes, size: int, base: bytes | None = None, **options) -> bytes:
        asked = DecodeOptions(base=base, base_size=len(base or b""), **options)
        out, found = self.memory(size), c_size_t()
        self.call(
            "decode", frame, c_size_t(len(frame)), byref(asked), out, c_size_t(size), byref(found)
        )
        return ctypes.string_at(out, found.value)

    def inspect(self, frame: bytes) -> Info:
        info = Info()
        self.call("inspect", frame, c_size_t(len(frame)), byref(info))
        return info

    def head_size(self, prefix: bytes) -> int:
        size = c_uint64()
        self.call("head_size", prefix, c_size_t(len(prefix)), byref(size))
        return size.value

    def open(self, head: bytes) -> Frame:
        frame = pointer()
        self.call("open", head, c_size_t(len(head)), byref(frame))
        return Frame(self, frame)

    def open_growing(self, directory: bytes) -> Growing:
        growing = pointer()
        self.call("growing_open", directory, c_size_t(len(directory)), byref(growing))
        return Growing(self, growing)


class Growing:
    """The directory of a growing frame, until it is closed."""

    def __init__(self, library: Library, growing: pointer) -> None:
        self.library, self.growing = library, growing

    def __enter__(self) -> Growing:
        return self

    def __exit__(self, *exception: object) -> None:
        self.library.raw.bf16codecs_growing_close(self.growing)

    def info(self) -> Info:
        info = Info()
        self.library.call("growing_info", self.growing, byref(info))
        return info

    def version(self, number: int) -> Version:
        version = Version()
        self.library.call("growing_version", self.growing, c_uint64(number), byref(version))
        return version

    def open(self, number: int, head: bytes) -> Frame:
        frame = pointer()
        size = c_size_t(len(head))
        self.library.call("growing_frame", self.growing, c_uint64(number), head, size, byref(frame))
        return Frame(self.library, frame)


class Frame:
    """The head of a frame, until it is closed."""

    def __init__(self, library: Library, frame: pointer) -> None:
        self.library, self.frame = library, frame

    def __enter__(self) -> Frame:
        return self

    def __exit__(self, *exception: object) -> None:
        self.library.raw.bf16codecs_close(self.frame)

    def info(self) -> Info:
        info = Info()
        self.library.call("frame_info", self.frame, byref(info))
        return info

    def block(self, number: int) -> Block:
        block = Block()
        self.library.call("block_info", self.frame, c_uint64(number), byref(block))
        return block

    def planes(self, number: int, block: bytes) -> list[tuple[str | None, int]]:
        planes = (Plane * 8)()
        size = c_size_t(len(block))
        self.library.call("block_planes", self.frame, c_uint64(number), block, size, planes)
        found = planes[: self.info().item_size]
        return [(self.library.name("mode", plane.mode), plane.size) for plane in found]

    def decode(self, payload: bytes, first: int, last: int, size: int, **options) -> bytes:
        base = options.get("base")
        asked = DecodeOptions(base_size=len(base or b""), **options)
        out, found = self.library.memory(size), c_size_t()
        self.library.call(
            "decode_blocks", self.frame, payload, c_size_t(len(payload)), c_uint64(first),
            c_uint64(last), byref(asked), out, c_size_t(size), byref(found),
        )  # fmt: skip
        return ctypes.string_at(out, found.value)
