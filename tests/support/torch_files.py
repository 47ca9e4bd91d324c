"""Files as `torch.save` writes them, made without torch: of pickles that are written by hand."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FILES = Path(__file__).parent.parent / "convert" / "goldens" / "torch_files"
#: The magic number and the protocol of the older form, and what it says of the system.
_OLDER_START = (0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True})


def plain(value: Any) -> bytes:
    """Return instructions that push a plain value, without a beginning and an end."""
    return pickle.dumps(value, 2)[2:-1]


def call(module: str, name: str, *args: bytes) -> bytes:
    """Return instructions that call a function with what other instructions push."""
    return f"c{module}\n{name}\n".encode() + b"(" + b"".join(args) + b"tR"


def storage(kind: str, key: str, items: int) -> bytes:
    """Return instructions that push a storage."""
    name = f"c{'torch.storage' if kind == 'Untyped' else 'torch'}\n{kind}Storage\n".encode()
    return b"(" + plain("storage") + name + b"".join(map(plain, (key, "cpu", items))) + b"tQ"


def tensor(
    kind: str,
    key: str,
    items: int,
    offset: int,
    shape: Sequence[int],
    strides: Sequence[int],
) -> bytes:
    """Return instructions that push a tensor."""
    rest = (offset, tuple(shape), tuple(strides), False)
    parts = [storage(kind, key, items), *map(plain, rest), b"ccollections\nOrderedDict\n)R"]
    return call("torch._utils", "_rebuild_tensor_v2", *parts)


def pickled(values: Mapping[str, bytes] | bytes) -> bytes:
    """Return a pickle of a dictionary of values, or of one value, that instructions push."""
    if isinstance(values, bytes):
        return b"\x80\x02" + values + b"."
    return b"\x80\x02}(" + b"".join(plain(k) + v for k, v in values.items()) + b"u."


def write_zip(
    path: Path,
    content: bytes,
    storages: Mapping[str, bytes],
    byteorder: str = "little",
    compression: int = zipfile.ZIP_STORED,
) -> Path:
    """Write the newer form."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", content)
        archive.writestr("archive/byteorder", byteorder)
        for key, data in storages.items():
            archive.writestr(f"archive/data/{key}", data, compression)
        archive.writestr("archive/version", "3\n")
    return path


def write_older(path: Path, content: bytes, storages: Mapping[str, tuple[int, bytes]]) -> Path:
    """Write the older form; of each storage, the number of items and the bytes are given."""
    start = b"".join(pickle.dumps(value, 2) for value in _OLDER_START)
    data = b"".join(n.to_bytes(8, "little") + raw for n, raw in storages.values())
    path.write_bytes(start + content + pickle.dumps(list(storages), 2) + data)
    return path
