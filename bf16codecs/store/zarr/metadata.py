"""Metadata of Zarr groups and arrays, parsed without zarr."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import ml_dtypes  # noqa: F401  (makes its names known to numpy.dtype)
import numpy as np

from bf16codecs import _core
from bf16codecs._arrays.grid import ChunkIndex
from bf16codecs._arrays.storage import KeyStorage
from bf16codecs._base.arguments import for_caller
from bf16codecs._base.buffers import layout_for
from bf16codecs._base.messages import counted, damaged, named_errors, one_line
from bf16codecs._base.names import ARITHMETIC_ID, BLOCKS_ID, DELTA_ID, HUFFMAN_ID, PREFIX
from bf16codecs.errors import StoreError
from bf16codecs.store.choice import PLAIN_ZSTD
from bf16codecs.store.kinds import ZARR_MARKERS, path_of
from bf16codecs.store.paths import STEP_PATH
from bf16codecs.store.plan import header_path

__all__ = [
    "ARRAY_DOCUMENTS",
    "COPIES",
    "DEFAULT_KEYS",
    "GROUP_DOCUMENTS",
    "OTHER_DIFFERENCES",
    "OTHER_GROUP",
    "OTHER_KEYS",
    "NoGroupError",
    "ParsedArray",
    "Root",
    "array_codecs",
    "check_keys",
    "check_refusals",
    "chunk_key",
    "growing_steps",
    "leads_elsewhere",
    "named_shape",
    "parse_array",
    "read_json",
    "read_root",
    "shown_codecs",
    "stated_versions",
]

#: Names of the documents of an array, and of a group, by Zarr format. Appends replace those of a
#: root in this order: the last one decides which steps the store has.
ARRAY_DOCUMENTS = {2: (".zarray", ".zattrs"), 3: ("zarr.json",)}
GROUP_DOCUMENTS = {2: (".zgroup", ".zattrs", ".zmetadata"), 3: ("zarr.json",)}
#: The root's document with consolidated metadata: copies of the documents below.
COPIES = {2: ".zmetadata", 3: "zarr.json"}
#: Encodings of the keys of chunks in format 3, as this package uses them: no key of one is a key of
#: the other.
DEFAULT_KEYS, OTHER_KEYS = "default", "v2"
#: The folder of chunks of differences, below an array's path, in a store with the other encoding.
#: Segments of paths have no dot.
OTHER_DIFFERENCES = "v2.difference"

# Differences of 16-bit integers.
_DELTA_V3 = {"name": DELTA_ID, "configuration": {"dtype": "<u2"}}
_DELTA_V2 = {"id": "delta", "dtype": "<u2", "astype": "<u2"}
# The limit of POSIX systems, less room for the path of the store.
_LONGEST_PATH = 2048


class NoGroupError(StoreError):
    """Not a Zarr group, but something else in Zarr or in a ZIP file."""


class ParsedArray(NamedTuple):
    """An array's metadata, as far as reading its chunks needs them."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[int, ...]
    #: Maps a chunk's index to its key below the array's path.
    key: Callable[[tuple[int, ...]], str]
    #: Names of the codecs; "bytes" stands for little-endian items, `DELTA_ID` for 16-bit integers.
    codecs: list[str]


def chunk_key(zarr_format: int, encoding: str = DEFAULT_KEYS) -> Callable[[ChunkIndex], str]:
    """Return what maps a chunk's index to its key, as this package writes them.

    Format 3 has two names for an `encoding` of keys.
    """
    if zarr_format == 3 and encoding == DEFAULT_KEYS:
        return lambda index: ".".join(["c", *map(str, index)])
    return lambda index: ".".join(map(str, index)) or "0"


def leads_elsewhere(path: str) -> bool:
    """Return whether keys made from this path may lead out of the store."""
    return len(path) > _LONGEST_PATH or any(map(_is_no_name, path.split("/")))


def _is_no_name(part: str) -> bool:
    # In addresses, `%` may stand for any character, and `?` and `#` end the path.
    return part in ("", ".", "..") or not part.isprintable() or bool(set(part) & set("\\:%?#"))


_ADVICE = "zarr.open reads it, and st2zarr makes model stores of safetensors"
#: The description of a group that is not a model store.
OTHER_GROUP = f"a Zarr group: {_ADVICE}"
_GROWING_CODECS = (ARITHMETIC_ID, HUFFMAN_ID)
_DIMENSION = re.compile(r"dim(\d{1,2})_(\d{1,19})")
_KEYS_V3 = {
    *("zarr_format", "node_type", "shape", "data_type", "chunk_grid", "chunk_key_encoding"),
    *("fill_value", "codecs", "attributes", "storage_transformers", "dimension_names"),
}
_DTYPES = {
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("complex64", "complex128"),
    *_core.DTYPES,
}


def parse_array(zarr_format: int, document: dict[str, Any]) -> ParsedArray | None:
    """Return what reading an array's chunks takes of its metadata.

    None is returned for uncommon metadata: zarr has to read the array.
    Raises StoreError if they are invalid.
    """
    try:
        _check_order(zarr_format, document)
        return (_parse_v3 if zarr_format == 3 else _parse_v2)(document)
    except StoreError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        why = error if isinstance(error, KeyError) else one_line(error)
        raise StoreError(damaged(why, "damaged array metadata")) from error


def check_keys(zarr_format: int, document: dict[str, Any]) -> None:
    """Raise StoreError if array metadata have a key that has to be understood, and is not.

    zarr's message would be about its constructor.
    """
    for key in document.keys() - _KEYS_V3 if zarr_format == 3 else ():
        value = document[key]
        if not isinstance(value, dict) or value.get("must_understand") is not False:
            why = f"key {key!r:.80} is not one of Zarr's"
            raise StoreError(damaged(why, "damaged array metadata"))


def _check_order(zarr_format: int, document: dict[str, Any]) -> None:
    """Refuse an array whose items, or their bytes, have another order than in docs/store.md.

    If chunks have no checksum of their items, no other check would find such damage: `<i8` and
    `>i8` differ in one bit.
    """
    if zarr_format == 2:
        is_big, is_c_order = str(document.get("dtype")).startswith(">"), document["order"] == "C"
    else:
        codecs = list(_all_codecs(document.get("codecs")))
        endians = [configuration.get("endian") for _, configuration in codecs]
        is_big = any(endian not in (None, "little") for endian in endians)
        is_c_order = all(name != "transpose" for name, _ in codecs)
    if is_big:
        raise StoreError("is big-endian")
    if not is_c_order:
        raise StoreError("is not in C order")


def _all_codecs(found: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield names and configurations of codecs, and of those inside of shards."""
    left = [found]
    while left:
        codec = left.pop()
        if isinstance(codec, list):
            left += codec
        elif isinstance(codec, dict):
            given = codec.get("configuration")
            configuration = given if isinstance(given, dict) else {}
            yield codec.get("name"), configuration
            left.append(configuration.get("codecs"))
        else:
            yield codec, {}


def array_codecs(zarr_format: int, document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return names and configurations of an array's codecs, in either format as in 3."""
    if zarr_format == 2:
        given = [*(document.get("filters") or []), document.get("compressor") or {"id": "none"}]
        return [{"name": codec["id"], "configuration": codec} for codec in given]
    codecs = [c if isinstance(c, dict) else {"name": c} for c in document["codecs"]]
    if codecs[0]["name"] == BLOCKS_ID:
        codecs[0] = codecs[0]["configuration"]["codec"]
    return codecs


def shown_codecs(codecs: list[dict[str, Any]]) -> str:
    """Return the name of codecs for ``--codec``: this package's, or Zarr's."""
    names = [codec["name"] for codec in codecs if codec["name"] != "bytes"]
    shown = [PLAIN_ZSTD if name == "zstd" else name.removeprefix(PREFIX) for name in names]
    return "+".join(shown) or "none"


def stated_versions(codecs: list[dict[str, Any]]) -> int:
    """Return the number of versions in a chunk, according to an array's codecs."""
    configuration = codecs[0].get("configuration")
    steps = configuration.get("steps") if isinstance(configuration, dict) else None
    return steps if type(steps) is int and steps > 0 else 1


def growing_steps(zarr_format: int, document: dict[str, Any]) -> int:
    """Return for how many steps the chunks of an array can be growing frames; 0 if for none.

    They can if a codec of this package is the only one, and keys are those that it writes.
    """
    parsed, codecs = parse_array(zarr_format, document), array_codecs(zarr_format, document)
    if parsed is None or len(codecs) != 1 or codecs[0]["name"] not in _GROWING_CODECS:
        return 0
    configuration, index = codecs[0].get("configuration", {}), tuple(range(len(parsed.shape)))
    is_ours = configuration.get("dtype", "bfloat16") == layout_for(parsed.dtype)
    is_ours &= parsed.key(index) == chunk_key(zarr_format)(index)
    return stated_versions(codecs) if is_ours else 0


def named_shape(document: dict[str, Any]) -> tuple[int | None, ...] | None:
    """Return the shape in the names of dimensions, if these follow docs/store.md.

    For the first axis of a run, whose name has no size, the result has None.
    """
    attributes = document.get("attributes")
    if document.get("zarr_format") == 2 and isinstance(attributes, dict):
        names = attributes.get("_ARRAY_DIMENSIONS")
    else:
        names = document.get("dimension_names")
    if not isinstance(names, list):
        return None
    before = [None] if names[:1] == [STEP_PATH] else []
    names = names[len(before) :]
    matches = [_DIMENSION.fullmatch(n) for n in names if isinstance(n, str)]
    sizes = [int(m[2]) for axis, m in enumerate(matches) if m and int(m[1]) == axis]
    return (*before, *sizes) if len(sizes) == len(names) else None


def _parse_v3(document: dict[str, Any]) -> ParsedArray | None:
    if document["node_type"] != "array":
        raise StoreError("is a group, not an array")
    document["fill_value"]  # which zarr demands
    grid, encoding = document["chunk_grid"], document["chunk_key_encoding"]
    name = document["data_type"]
    if not isinstance(name, str) or name not in _DTYPES or document.get("storage_transformers"):
        return None
    if grid["name"] != "regular":
        return None
    given = document["codecs"] if isinstance(document["codecs"], list) else []
    codecs: list[dict[str, Any]] = [{"name": c} if isinstance(c, str) else c for c in given]
    if not codecs or not all(isinstance(c, dict) for c in codecs):
        raise ValueError(f"{document['codecs']!r:.80} are not codecs")
    if codecs[0].get("configuration", {}).get("endian", "little") != "little":
        return None
    if any(c["name"] == DELTA_ID and c != _DELTA_V3 for c in codecs):
        return None
    if encoding["name"] not in ("default", "v2"):
        return None
    prefixed = encoding["name"] == "default"
    separator = encoding.get("configuration", {}).get("separator", "/" if prefixed else ".")

    _check_separator(separator)

    def key(index: ChunkIndex) -> str:
        numbers = map(str, index)
        return separator.join(("c", *numbers)) if prefixed else separator.join(numbers) or "0"

    shape, chunks = _shapes(document["shape"], grid["configuration"]["chunk_shape"])
    return ParsedArray(shape, np.dtype(name), chunks, key, [c["name"] for c in codecs])


def _parse_v2(document: dict[str, Any]) -> ParsedArray | None:
    shape, chunks = _shapes(document["shape"], document["chunks"])
    name = document["dtype"]
    filters = document.get("filters") or []
    if not isinstance(name, str) or filters not in ([], [_DELTA_V2]):
        return None
    if name not in _DTYPES:
        dtype = np.dtype(name)
        if dtype.name not in _DTYPES or not dtype.isnative:
            return None
        name = dtype.name
    separator = document.get("dimension_separator", ".")
    _check_separator(separator)
    compressor, _ = document["compressor"], document["fill_value"]
    codecs = ["bytes", *(DELTA_ID for _ in filters)]
    if compressor is not None:
        codecs.append(compressor["id"])

    def key(index: ChunkIndex) -> str:
        return separator.join(map(str, index)) or "0"

    return ParsedArray(shape, np.dtype(name), chunks, key, codecs)


def _check_separator(separator: Any) -> None:
    # Any other could make of a chunk's key a path that leads out of the store.
    if separator not in (".", "/"):
        raise ValueError(f"{separator!r:.80} is not a separator of chunk keys")


def _shapes(shape: Any, chunks: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    for sizes, least in ((shape, 0), (chunks, 1)):
        if not isinstance(sizes, list) or not all(type(n) is int and n >= least for n in sizes):
            raise ValueError(f"{sizes!r:.80} is not a shape")
    if len(shape) != len(chunks):
        raise ValueError(
            f"chunks of {counted(len(chunks), 'dimension')} in an array of {len(shape)}"
        )
    return tuple(shape), tuple(chunks)


class Root(NamedTuple):
    """The metadata of a store's root."""

    zarr_format: int
    attributes: dict[str, Any]
    #: The document `COPIES`; empty if it is missing.
    copies: dict[str, Any]
    #: The copies of arrays' documents by path, unchecked; in format 2 with their attributes.
    arrays: dict[str, Any]


def read_root(where: str, storage: KeyStorage) -> Root:
    """Read the metadata of a store's root, whichever format it has."""
    root = read_json(where, storage, "zarr.json")
    if root is not None:
        if root.get("node_type") != "group":
            raise _array_error(where)
        consolidated = _object(where, root, "consolidated_metadata")
        copies = dict(_object(where, consolidated, "metadata"))
        return Root(3, _object(where, root, "attributes"), root, copies)
    collected = read_json(where, storage, ".zmetadata")
    if collected is None:
        attributes = read_json(where, storage, ".zattrs")
        if "bf16codecs" not in (attributes or {}) and read_json(where, storage, ".zarray"):
            raise _array_error(where)
        if attributes is None:
            if read_json(where, storage, ".zgroup") is None:
                raise _no_root(where, storage)
            check_refusals(where, storage, ".zattrs")
        return Root(2, attributes or {}, {}, {})
    entries = _object(where, collected, "metadata")
    arrays = {
        path.removesuffix("/.zarray"): {
            **document,
            "attributes": entries.get(f"{path.removesuffix('.zarray')}.zattrs"),
        }
        for path, document in entries.items()
        if path.endswith("/.zarray") and isinstance(document, dict)
    }
    return Root(2, _object(where, entries, ".zattrs"), collected, arrays)


def _no_root(where: str, storage: KeyStorage) -> StoreError:
    """Return why the root has no metadata: in a damaged model store, headers are left."""
    check_refusals(where, storage, "zarr.json", ".zmetadata", ".zattrs", ".zgroup")
    for metadata, roots in (("zarr.json", "zarr.json"), (".zarray", ".zgroup and .zattrs")):
        if read_json(where, storage, f"{header_path(0)}/{metadata}") is not None:
            why = f"the metadata of the whole store, {roots}, are missing"
            return StoreError(f"{where}: {damaged(why)}")
    return NoGroupError(f"{where}: not a model store: {_no_group(where, storage.zip_names())}")


def _no_group(where: str, zip_names: Sequence[str]) -> str:
    """Return a message that the group is missing, with the folder of one in a ZIP file."""
    parts = [name.rpartition("/") for name in zip_names]
    groups = [folder for folder, _, name in parts if name in ZARR_MARKERS]
    if groups:
        folder = min(groups, key=lambda group: group.count("/"))
        return (
            f"its Zarr group is in the folder {folder!r:.80} of the ZIP file: zip the content of"
            " that folder, and not the folder (cd there; zip -r0 ../new.zarr.zip .)"
        )
    maker = for_caller("safetensors_to_zarr", "st2zarr")
    if any(name.endswith("/data.pkl") for name in zip_names):
        return f"a ZIP file that torch.save wrote: make a store of it ({maker})"
    is_local = path_of(where) is not None
    advice = (
        "; addresses of safetensors files end in .safetensors or .index.json; of files of PyTorch"
        f" and GGUF, {maker} makes stores"
    )
    if "?" in where:
        advice += ", and queries (?...) go with addresses of files, not with those of folders"
    return f"no Zarr group is there{'' if is_local else advice}"


def _array_error(where: str) -> NoGroupError:
    return NoGroupError(f"{where}: not a model store, but a Zarr array: {_ADVICE}")


def _object(where: str, document: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a member that is a JSON object; an empty one if it is missing or null."""
    member = document.get(name)
    if member is not None and not isinstance(member, dict):
        raise StoreError(f"{where}: {name} is not a JSON object")
    return member or {}


def check_refusals(where: str, storage: KeyStorage, *keys: str) -> None:
    """Raise an error if a server has refused one of these keys, of which one is needed."""
    for key in keys:
        if refusal := storage.refusal(key):
            raise OSError(
                f"{where}: {key}: {refusal}; S3 gives the same answer for a missing key to those"
                " who may not list keys"
            )


def read_json(where: str, storage: KeyStorage, key: str) -> dict[str, Any] | None:
    """Read a metadata document; return None if it is missing."""
    with named_errors(f"{where}: {key}", OSError):
        data = storage.read(key)
    if data is None:
        return None
    try:
        document = json.loads(data.tobytes())
    except (ValueError, RecursionError) as e:
        raise StoreError(f"{where}: {damaged(f'{key} is not JSON: {one_line(e)}')}") from e
    if not isinstance(document, dict):
        raise StoreError(f"{where}: {damaged(f'{key} is not a JSON object')}")
    return document
