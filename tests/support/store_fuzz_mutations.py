"""Families of mutants of stores, each counted and made by number, for the store fuzzer.

A family is a sequence: its length is known before any of its mutants is made, so that a run can
take a sample of all, and a mutant can be made again from its number.
"""

from __future__ import annotations

import bisect
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from store_fuzz_truth import Seed

#: A file's replacement: other bytes, nothing, or a function that makes something at its path.
Content = bytes | None | Callable[[Path], None]
#: All tensors.
EVERYTHING = frozenset({"*"})


@dataclass(frozen=True)
class Mutant:
    """A damaged store, as changes of a sound one."""

    label: str
    #: By path in the store; the empty path is the store's own file, `../` leads beside it.
    changes: Mapping[str, Content]
    #: Parts that may be read wrongly, since no checksum that a reader checks covers the change:
    #: tensors, `HEADER`, or `EVERYTHING`.
    unknowable: frozenset[str] = frozenset()


class Family(Sequence[Mutant]):
    """Mutants by number: every place in turn, each with every operation."""

    def __init__(self, n_places: int, operations: Sequence[Any]) -> None:
        self._n_places, self._operations = n_places, operations

    def __len__(self) -> int:
        return self._n_places * len(self._operations)

    def __getitem__(self, number: Any) -> Mutant:
        place, operation = divmod(range(len(self))[number], len(self._operations))
        return self.make(place, self._operations[operation])

    def make(self, place: int, operation: Any) -> Mutant:
        """Return a mutant."""
        raise NotImplementedError


# --- bytes ----------------------------------------------------------------------------------------


def _written(new: Callable[[bytes], bytes]) -> Callable[[bytes, int], tuple[bytes, int]]:
    """Overwrite bytes at an offset; return the content and how many bytes may differ."""

    def operation(raw: bytes, at: int) -> tuple[bytes, int]:
        part = new(raw[at : at + 8])
        part = part[: len(raw) - at]
        return raw[:at] + part + raw[at + len(part) :], len(part)

    return operation


def _number(value: int, size: int) -> Callable[[bytes], bytes]:
    return lambda raw: value.to_bytes(size, "little")


def _added(value: int, size: int) -> Callable[[bytes], bytes]:
    def new(raw: bytes) -> bytes:
        found = int.from_bytes(raw[:size], "little") + value
        return (found % (1 << 8 * size)).to_bytes(size, "little")

    return new


#: Each returns the new content, and the length of the range that differs (to the end: -1).
BYTE_OPERATIONS: dict[str, Callable[[bytes, int], tuple[bytes, int]]] = {
    **{f"bit {i}": _written(lambda raw, i=i: bytes([raw[0] ^ 1 << i])) for i in range(8)},
    "zero": _written(_number(0, 1)),
    "0xff": _written(_number(255, 1)),
    "one more": _written(_added(1, 1)),
    "one less": _written(_added(-1, 1)),
    "u16 max": _written(_number(2**16 - 1, 2)),
    "u32 zero": _written(_number(0, 4)),
    "u32 max": _written(_number(2**32 - 1, 4)),
    "u32 half": _written(_number(2**31 - 1, 4)),
    "u32 large": _written(_number(2**30, 4)),
    "u64 zero": _written(_number(0, 8)),
    "u64 max": _written(_number(2**64 - 1, 8)),
    "u64 half": _written(_number(2**63 - 1, 8)),
    "u64 large": _written(_number(2**40, 8)),
    "cut": lambda raw, at: (raw[:at], 0),
    "insert zero": lambda raw, at: (raw[:at] + b"\0" + raw[at:], -1),
    "insert digit": lambda raw, at: (raw[:at] + b"9" + raw[at:], -1),
    "insert bytes": lambda raw, at: (raw[:at] + bytes(range(64)) + raw[at:], -1),
    "remove": lambda raw, at: (raw[:at] + raw[at + 1 :], -1),
    "remove 8": lambda raw, at: (raw[:at] + raw[at + 8 :], -1),
    "repeat": lambda raw, at: (raw[:at] + raw[max(0, at - 16) :], -1),
    "swap": _written(lambda raw: raw[1::-1] if len(raw) > 1 else raw),
}


class Bytes(Family):
    """Every byte of every file."""

    def __init__(self, seed: Seed) -> None:
        self._seed, self._paths = seed, list(seed.files)
        self._starts = list(itertools.accumulate((len(c) for c in seed.files.values()), initial=0))
        super().__init__(self._starts[-1], list(BYTE_OPERATIONS))

    def make(self, place: int, operation: str) -> Mutant:
        """Change a byte, or some, or where the file ends."""
        number = bisect.bisect_right(self._starts, place) - 1
        path, at = self._paths[number], place - self._starts[number]
        raw = self._seed.files[path]
        content, length = BYTE_OPERATIONS[operation](raw, at)
        stop = len(raw) if length < 0 else at + length
        regions = self._seed.unchecked.get(path, [])
        touched = (names for first, last, names in regions if first < stop and at < last)
        unknowable = frozenset[str]().union(*touched)
        return Mutant(f"{path} byte {at}: {operation}", {path: content}, unknowable)


# --- JSON -----------------------------------------------------------------------------------------

_DEEP = 100_000
_TRANSPOSED = '[{"name":"transpose","configuration":{"order":[1,0]}},{"name":"bytes"}]'
#: Texts that a value is replaced by.
VALUES = [
    *(
        "null",
        "true",
        "false",
        "-1",
        "0",
        "1",
        "2",
        "3",
        "4096",
        "1.0",
        "1.5",
        "-0",
        "1e308",
        "1e999",
    ),
    *(str(2**n + d) for n in (31, 32, 53, 62, 63, 64) for d in (-1, 0)),
    *("1e999", "NaN", "Infinity", "-Infinity", "9" * 400, "9" * 5000),
    *('""', '"x"', '"."', '".."', '"/"', '"/../.."', '"/../../../secret"', '"\\\\"', '"a\\nb"'),
    *('"\\u0000"', '"\\ud800"', '"\\udc00\\ud800"', '"\\u202e"', f'"{"long" * 25_000}"'),
    *('"c"', '"0"', '"NaN"', '"zstd"', '"bytes"', '"blosc"', '"uint8"', '"int8"', '"float16"'),
    *(
        '"bfloat16"',
        '"float64"',
        '"<f8"',
        '">f4"',
        '">i8"',
        '"big"',
        '"|O"',
        '"|S9"',
        '"<M8[ns]"',
        '"F"',
        '"array"',
        '"group"',
    ),
    *('"../x"', '"/etc/passwd"', '"safetensors/header/0"', '"w/a"', '"zarr.json"', '"w"', '"BF16"'),
    *("[]", "{}", "[0]", "[1]", "[[]]", "[{}]", '["x"]', "[null]", "[1,1]", "[0,0]", "[true,true]"),
    *("[16,24]", "[384]", "[24,16,1]", "[1,24,16]", "[768]", "[4194304]", "[1073741824]", "[1e3]"),
    *("[4611686018427387904]", "[4294967296,4294967296]", "[9223372036854775808,0]", "[-1]"),
    *('{"name":"zstd"}', '{"id":"zstd"}', '{"name":"x"}', '{"id":"pickle"}', '{"a":{"b":{}}}'),
    *('[{"name":"bytes"}]', '[{"name":"bytes"},{"name":"zstd","configuration":{"level":3}}]'),
    *(_TRANSPOSED, '{"":0}'),
    *("[" * _DEEP + "]" * _DEEP, '{"a":' * _DEEP + "1" + "}" * _DEEP),
    "[" + ",".join(["1"] * 100_000) + "]",
]
_EDITS = (
    "delete",
    "twice",
    "twice null",
    "rename",
    "swap",
    "swap far",
    "neighbour",
    "more",
    "less",
)
_EDITS += ("add", "drop", "text", "wrap", "double", "half", "case", "far")

Path_ = tuple[Any, ...]


def _walk(value: Any, at: Path_ = ()) -> Iterator[Path_]:
    yield at
    if isinstance(value, dict):
        for key, member in value.items():
            yield from _walk(member, (*at, key))
    elif isinstance(value, list):
        for i, member in enumerate(value):
            yield from _walk(member, (*at, i))


def _get(value: Any, at: Path_) -> Any:
    for key in at:
        value = value[key]
    return value


def _dump(value: Any, raw: Mapping[Path_, str], at: Path_ = ()) -> str:
    """Write JSON; `raw` has the whole text of members, with their keys in objects, by path."""
    if isinstance(value, dict):
        members = [
            raw.get((*at, key), None)
            if (*at, key) in raw
            else f"{_text(key)}:{_dump(member, raw, (*at, key))}"
            for key, member in value.items()
        ]
        return "{" + ",".join(filter(None, members)) + "}"
    if isinstance(value, list):
        members = [
            raw[(*at, i)] if (*at, i) in raw else _dump(member, raw, (*at, i))
            for i, member in enumerate(value)
        ]
        return "[" + ",".join(filter(None, members)) + "]"
    return _text(value)


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


class Json(Family):
    """Every value of every JSON document.

    Parameters
    ----------
    documents
        By name: the text, and a function that turns another text into changes of a store.
    unknowable
        As of `Mutant`.
    """

    def __init__(
        self,
        documents: Mapping[str, tuple[bytes, Callable[[bytes], Mapping[str, Content]]]],
        unknowable: frozenset[str] = frozenset(),
    ) -> None:
        self._documents, self._unknowable = documents, unknowable
        self._trees = {name: json.loads(text) for name, (text, _) in documents.items()}
        self._places = [(name, at) for name, tree in self._trees.items() for at in _walk(tree)]
        # Values by their depth, and by their key too.
        self._pools: dict[Any, list[tuple[int, Path_]]] = {}
        for number, (name, at) in enumerate(self._places):
            for pool in ((name, len(at)), (name, len(at), at[-1] if at else None)):
                self._pools.setdefault(pool, []).append((number, at))
        super().__init__(len(self._places), [*range(len(VALUES)), *_EDITS])

    def make(self, place: int, operation: int | str) -> Mutant:
        """Change a value, or the text around it."""
        name, at = self._places[place]
        tree = self._trees[name]
        if isinstance(operation, int):
            raw = {at: self._member(at, VALUES[operation])}
            what = VALUES[operation][:40]
        else:
            raw, what = self._edit(tree, place, name, at, operation), operation
        text = raw[()] if () in raw else _dump(tree, raw)
        where = ".".join(map(str, at))
        changes = self._documents[name][1](text.encode())
        return Mutant(f"{name} {where}: {what}", changes, self._unknowable)

    def _member(self, at: Path_, text: str) -> str:
        return f"{_text(at[-1])}:{text}" if at and isinstance(at[-1], str) else text

    def _edit(self, tree: Any, place: int, name: str, at: Path_, edit: str) -> dict[Path_, str]:
        value = _get(tree, at)
        same = _dump(value, {})
        other_at = self._other(name, at, place, far=edit.endswith("far"))
        other = _dump(_get(tree, other_at), {})
        texts = {
            "twice": f"{same},{self._member(at, other)}",
            "twice null": f"{same},{self._member(at, 'null')}",
            "neighbour": other,
            "far": other,
            "more": _text(value + 1) if type(value) in (int, float) else f"[{same}]",
            "less": _text(value - 1) if type(value) in (int, float) else same,
            "add": _appended(value, other),
            "drop": _dump(value[:-1], {}) if isinstance(value, (list, str)) else "[]",
            "text": _text(str(value)),
            "wrap": f'{{"x":{same}}}',
            "double": _text(value * 2) if isinstance(value, (int, str, list)) else same,
            "half": _text(value // 2) if isinstance(value, int) else same,
            "case": _text(value.swapcase()) if isinstance(value, str) else same,
        }
        if edit == "delete":
            return {at: ""} if at else {(): ""}
        if edit == "rename":
            return {at: f'"x":{same}' if at and isinstance(at[-1], str) else same}
        if edit.startswith("swap"):
            if at[: len(other_at)] == other_at or other_at[: len(at)] == at:
                return {at: self._member(at, "0")}
            return {at: self._member(at, other), other_at: self._member(other_at, same)}
        return {at: self._member(at, texts[edit])}

    def _other(self, name: str, at: Path_, place: int, far: bool) -> Path_:
        """Return the place of another value of the same document, at the same depth.

        Far away, it is one of the same key if there is another.
        """
        pool = self._pools[name, len(at)]
        if far and at and len(self._pools[name, len(at), at[-1]]) > 1:
            pool = self._pools[name, len(at), at[-1]]
        return pool[(bisect.bisect_left(pool, place, key=lambda p: p[0]) + 1) % len(pool)][1]


def _appended(value: Any, other: str) -> str:
    same = _dump(value, {})
    if isinstance(value, dict):
        return same[:-1] + ("," if value else "") + f'"x":{other}}}'
    if isinstance(value, list):
        return same[:-1] + ("," if value else "") + other + "]"
    return _text(f"{value}x")
