"""Entries of a store's attributes: files, differences, bases, and losses.

docs/store.md is the normative description.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from bf16codecs._base.half import HalfLoss
from bf16codecs._base.names import PREFIX
from bf16codecs._files.digests import Digests
from bf16codecs.errors import StoreError
from bf16codecs.safetensors import DTYPE_BITS, SAFETENSORS, is_plain_name

__all__ = [
    "ROUNDED",
    "BaseFile",
    "BaseReference",
    "Difference",
    "StoredFile",
    "array_loss",
    "base_entry",
    "base_reference",
    "difference_entry",
    "file_entry",
    "loss_entry",
    "stated_shape",
    "stored_files",
    "stored_loss",
    "tensor_path",
]

# Prefix of the keys of restored files' digests, in lossy stores.
_RESTORED = "restored_"
# The kind of a file with an outline that does not say which.
_UNKNOWN_KIND = "other"
# The limit of POSIX systems; addresses are no longer.
_LONGEST_PATH = 4096
#: After the path of an FP32 array: its rounding to BF16. No path in a store has this sign.
ROUNDED = "#bfloat16"


@dataclass(frozen=True)
class StoredFile:
    """An original file: its header's array, its size, and its digests."""

    name: str
    size: int
    digests: Digests
    #: Array of its header or outline, or of the index's whole content.
    path: str
    #: The digests of the file that a lossy store restores, which is not the original.
    restored_digests: Digests | None = None
    #: What it is: a file that is not a safetensors file has an outline instead of a header.
    kind: str = SAFETENSORS

    @property
    def restored(self) -> Digests:
        """The digests of the restored file."""
        return self.digests if self.restored_digests is None else self.restored_digests


@dataclass(frozen=True)
class Difference:
    """A tensor that is stored as its difference to the base's; dtype and shape of safetensors."""

    tensor: str
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    #: Other tensors that are stored as this one: equal ones, and its roundings.
    copies: tuple[str, ...] = ()
    roundings: tuple[str, ...] = ()
    #: The level of its codec, if it is not that of the base's `codec`; information only.
    level: str | None = None

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes that an array of the tensor would have."""
        others = {"copies": list(self.copies), "roundings": list(self.roundings)}
        return {
            "tensor": self.tensor,
            "dtype": self.dtype,
            "shape": list(self.shape),
            **{key: names for key, names in others.items() if names},
        }


@dataclass(frozen=True)
class BaseFile:
    """The identity of a file of a base: size in bytes, digests in hex."""

    name: str
    size: int
    digests: Digests
    header_sha256: str


@dataclass(frozen=True)
class BaseReference:
    """The path and identity of the base of a store."""

    path: str
    step: int | None
    files: tuple[BaseFile, ...]
    #: The codec of the differences, as in Zarr's metadata.
    codec: Mapping[str, Any] = field(default_factory=dict)

    @property
    def location(self) -> str:
        """The path, with ``@`` and the step if the base is a step of a run."""
        return self.path if self.step is None else f"{self.path}@{self.step}"

    @property
    def codec_and_level(self) -> tuple[str, str]:
        """The names of the codec and of its level, empty where the store does not give them."""
        configuration = self.codec.get("configuration")
        level = configuration.get("level", "") if isinstance(configuration, Mapping) else ""
        return str(self.codec.get("name", "")).removeprefix(PREFIX), str(level)


def file_entry(file: StoredFile, key: str) -> dict[str, Any]:
    """Return the attributes' entry of a file, with `key` as the key of its path."""
    entry = {"name": file.name, "size": file.size, **file.digests.entry(), key: file.path}
    if file.kind != SAFETENSORS:
        entry |= {"kind": file.kind, "outline": entry.pop(key)}
    if file.restored_digests is not None:
        entry |= file.restored_digests.entry(_RESTORED)
    return entry


def loss_entry(loss: HalfLoss) -> dict[str, Any]:
    """Return the attributes' entry of a loss: JSON has no infinity."""
    numbers = vars(loss).items()
    return {"to": "float16", **{k: "Infinity" if n == math.inf else n for k, n in numbers}}


def stored_loss(entry: Mapping[str, Any]) -> HalfLoss:
    """Check the attributes' entry of a loss."""
    if entry["to"] != "float16":
        raise ValueError(f"{entry['to']!r:.80} is not a data type that lossy stores convert to")
    numbers = {field.name: entry[field.name] for field in fields(HalfLoss)}
    for name, number in numbers.items():
        kinds = (int,) if name in ("to_zero", "to_infinite") else (int, float)
        if number == "Infinity" and name in ("absolute", "relative"):
            numbers[name] = math.inf
        elif type(number) not in kinds or not 0 <= number < math.inf:
            raise ValueError(f"{number!r:.80} is not a valid value of {name}")
    return HalfLoss(**numbers)


def array_loss(attributes: Mapping[str, Any]) -> HalfLoss | None:
    """Return the loss of an array's tensors, or None if the store has them exactly.

    Raises StoreError if the array's attributes do not state it.
    """
    if "lossy" not in attributes:
        return None
    try:
        return stored_loss(attributes["lossy"])
    except (KeyError, TypeError, ValueError) as e:
        raise StoreError(f"its attributes do not state the loss: {e}") from None


def stored_files(
    content: Mapping[str, Any], with_digests: bool = True
) -> tuple[tuple[StoredFile, ...], StoredFile | None]:
    """Check the files, and the index, of a model; unless told otherwise, they have digests."""
    if not isinstance(content["files"], list):
        raise TypeError("files are not a list")
    # A checkpoint was in no file, so that it has no digest.
    with_digests = with_digests and "checkpoint" not in content
    files = tuple(_stored_file(entry, "header", with_digests) for entry in content["files"])
    # Otherwise a store could show the digest of a file that it does not restore.
    if any((file.restored_digests is None) == ("lossy" in content) for file in files):
        raise ValueError("files have a digest of the restored file in lossy stores, and only there")
    index = _stored_file(content["index"], "path") if "index" in content else None
    if index is not None and not index.name.endswith(".json"):
        raise ValueError(f"{index.name!r:.80} is not the name of an index")
    names = [f.name for f in files] + ([index.name] if index else [])
    if len(set(names)) != len(names):
        raise ValueError("two files have the same name")
    return files, index


def _stored_file(entry: Mapping[str, Any], key: str, with_digests: bool = True) -> StoredFile:
    """Check the attributes' entry of a file."""
    if not isinstance(entry, Mapping):
        raise TypeError(f"{entry!r:.80} is not the entry of a file")
    restored, kind = Digests.from_entry(entry, _RESTORED), SAFETENSORS
    if key == "header" and "outline" in entry:
        named = entry.get("kind")
        is_kind = isinstance(named, str) and named != SAFETENSORS
        key, kind = "outline", str(named) if is_kind else _UNKNOWN_KIND
    file = StoredFile(
        entry["name"],
        _size(entry["size"]),
        _digests(entry) if with_digests else Digests.from_entry(entry),
        entry[key],
        restored if restored.kinds else None,
        kind,
    )
    if not all(isinstance(text, str) for text in (file.name, file.path)):
        raise TypeError("a file's name or path is not a string")
    # Restoring must not write outside the target.
    if not is_plain_name(file.name):
        raise ValueError(f"{file.name!r:.80} is not a plain file name")
    return file


def _digests(entry: Mapping[str, Any]) -> Digests:
    digests = Digests.from_entry(entry)
    if not digests.kinds:
        raise ValueError("a file has no digest")
    return digests


def _size(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r:.80} is not a file size")
    return value


def difference_entry(path: str, difference: Difference) -> dict[str, Any]:
    """Return the attributes' entry of a tensor that is a difference."""
    entry = {"difference": path, **difference.attributes}
    del entry["tensor"]
    if difference.chunks != difference.shape:
        entry["chunks"] = list(difference.chunks)
    if difference.level is not None:
        entry["level"] = difference.level
    return entry


def tensor_path(name: str, entry: Any, differences: dict[str, Difference]) -> str:
    """Return the path of a tensor, and note it among the differences if it is one."""
    if not isinstance(entry, (str, Mapping)):
        raise TypeError(f"{entry!r:.80} is neither the path of a tensor nor an object")
    if isinstance(entry, str):
        path = entry
    else:
        path = entry["rounded"] if "rounded" in entry else entry["difference"]
    if not isinstance(path, str) or "#" in path:
        raise ValueError(f"{path!r:.80} is not an array path")
    if isinstance(entry, str):
        return path
    if "rounded" in entry:
        return path + ROUNDED
    if path in differences:
        raise ValueError(f"{differences[path].tensor!r:.80} and {name!r:.80} are one difference")
    differences[path] = _difference(name, entry)
    return path


def _difference(name: str, entry: Mapping[str, Any]) -> Difference:
    shape = stated_shape(entry["shape"])
    chunks = stated_shape(entry["chunks"]) if "chunks" in entry else shape
    if not isinstance(entry["dtype"], str) or entry["dtype"] not in DTYPE_BITS:
        raise ValueError(f"{entry['dtype']!r:.80} is not a dtype")
    if 0 in chunks:
        raise ValueError(f"{chunks!r:.80} is not the shape of chunks")
    others = [entry.get(key, []) for key in ("copies", "roundings")]
    if not all(isinstance(names, list) for names in others):
        raise TypeError(f"the copies or roundings of {name!r:.80} are not a list of tensors")
    level = entry.get("level")
    known = level if isinstance(level, str) else None
    copies, roundings = map(tuple, others)
    return Difference(name, entry["dtype"], shape, chunks, copies, roundings, known)


def stated_shape(value: Any) -> tuple[int, ...]:
    """Check a shape in attributes; raise ValueError if it is invalid, or too large."""
    if not isinstance(value, list) or not all(type(n) is int and n >= 0 for n in value):
        raise ValueError(f"{value!r:.80} is not a shape")
    count = 1
    for n in value:
        count *= n
        if count >> 64:  # the product of a million such numbers takes minutes
            raise ValueError(f"{value!r:.80} is larger than any tensor")
    return tuple(value)


def base_entry(base: BaseReference) -> dict[str, Any]:
    """Return the attributes' entry of a base."""
    entry: dict[str, Any] = {"path": base.path}
    if base.step is not None:
        entry["step"] = base.step
    entry["files"] = [
        {
            "name": file.name,
            "size": file.size,
            **file.digests.entry(),
            "header_sha256": file.header_sha256,
        }
        for file in base.files
    ]
    return {**entry, "codec": dict(base.codec)}


def base_reference(entry: Mapping[str, Any]) -> BaseReference:
    """Check the attributes' entry of a base."""
    files = tuple(
        # Checkpoints have the digest of the header alone.
        BaseFile(file["name"], _size(file["size"]), Digests.from_entry(file), file["header_sha256"])
        for file in entry["files"]
    )
    path, step, codec = entry["path"], entry.get("step"), entry.get("codec")
    texts = [path, *(text for f in files for text in (f.name, f.header_sha256))]
    if not files or not all(isinstance(text, str) for text in texts):
        raise TypeError("the base's path, or the name or header of a file, is not a string")
    if not 0 < len(path) <= _LONGEST_PATH or not path.isprintable():
        raise ValueError(f"{path!r:.80} is not the path of a base")
    if step is not None and (type(step) is not int or step < 0):
        raise ValueError(f"{step!r:.80} is not a step")
    return BaseReference(path, step, files, codec if isinstance(codec, Mapping) else {})
