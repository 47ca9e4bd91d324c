"""Pickles of PyTorch, read without running anything.

A pickle is a program that builds objects, and may call any function for that. Here its instructions
are followed, but only plain values, tensors and containers are built; every other object becomes an
`Unknown`, whose contents are looked at like those of a dictionary.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, NamedTuple

from bf16codecs._base.messages import one_line
from bf16codecs.errors import SafetensorsError

__all__ = ["Mapped", "Name", "Pickle", "Storage", "Tensor", "Unknown", "read_pickle"]

# No state of a model has more instructions: 2^24 take 45 s (Zen 3) and up to 2 GB.
_MOST_INSTRUCTIONS = 1 << 24
_MOST_DIMENSIONS = 64


@dataclass(frozen=True, slots=True)
class Name:
    """A class or a function, which is not imported."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True, slots=True)
class Storage:
    """Consecutive items of one type in a file, by the key that the file knows them by."""

    type: Name
    key: str
    items: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """A view of a storage; offset and strides are in items of its type, or of `dtype`.

    One that is not plain has the conjugates of the storage's numbers, or their negatives.
    """

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Name | None = None
    is_plain: bool = True


@dataclass(slots=True, eq=False)
class Mapped:
    """A dictionary: pairs, since keys of pickles need not be hashable here."""

    pairs: list[Any] = field(default_factory=list)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """Yield the keys and values; what is no pair is left out."""
        for pair in self.pairs:
            if isinstance(pair, (tuple, list)) and len(pair) == 2:
                yield pair[0], pair[1]


@dataclass(slots=True, eq=False)
class Unknown:
    """An object of any other class: the arguments that it was made of, its state and items."""

    kind: Any
    args: tuple[Any, ...] = ()
    contents: list[Any] = field(default_factory=list)


class _Mark:
    """The place on the stack where a group of values begins."""


def _tensor(*args: Any) -> Any:
    storage, offset, shape, strides = args[:4]
    return _checked(storage, offset, shape, strides, None, args[6:7])


def _typed_tensor(*args: Any) -> Any:
    storage, offset, shape, strides, _, _, dtype = args[:7]
    return _checked(storage, offset, shape, strides, dtype, args[7:8])


def _quantised(*args: Any) -> Any:
    tensor = replace(_tensor(*args[:4]), is_plain=False)
    quantiser = args[4]
    has_tensors = any(isinstance(value, Tensor) for value in quantiser)
    return Unknown("a quantised tensor", (tensor, *quantiser)) if has_tensors else tensor


def _checked(
    storage: Any, offset: Any, shape: Any, strides: Any, dtype: Any, bits: tuple[Any, ...]
) -> Tensor:
    is_valid = isinstance(storage, Storage) and len(shape) == len(strides) <= _MOST_DIMENSIONS
    numbers = (offset, *shape, *strides) if is_valid else ()
    if not is_valid or not all(type(n) is int and 0 <= n < 1 << 63 for n in numbers):
        raise ValueError("a tensor's storage, offset, shape or strides are invalid")
    if dtype is not None and not isinstance(dtype, Name):
        raise ValueError("a tensor's dtype is not one of torch")
    # Of bits such as conj and neg, those that are not set are left out, or false.
    is_plain = all(value is False for b in bits if isinstance(b, Mapped) for _, value in b)
    return Tensor(storage, offset, tuple(shape), tuple(strides), dtype, is_plain)


def _first(*args: Any) -> Any:
    return args[0]


def _of_subclass(*args: Any) -> Any:
    function, _, inner = args[:3]
    return _call(function, inner)


def _mapped(*args: Any) -> Mapped:
    return Mapped(args[0] if args and isinstance(args[0], list) else [])


# The functions that pickles of models call, as far as they are known; nothing is imported.
_KNOWN: dict[str, Callable[..., Any]] = {
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _typed_tensor,
    "torch._utils._rebuild_qtensor": _quantised,
    "torch._utils._rebuild_parameter": _first,
    "torch._utils._rebuild_parameter_with_state": _first,
    "torch._tensor._rebuild_from_type_v2": _of_subclass,
    "collections.OrderedDict": _mapped,
}


def _call(function: Any, args: Any) -> Any:
    """Return what a function would; an `Unknown` if it, or what it is given, is not known."""
    known = _KNOWN.get(str(function)) if isinstance(function, Name) else None
    if known is not None and isinstance(args, tuple):
        try:
            return known(*args)
        except (IndexError, TypeError, ValueError, RecursionError):
            pass
    # Without a copy: a few bytes may call a function with many arguments.
    return Unknown(function, args if isinstance(args, tuple) else (args,))


def _storage(value: Any) -> Storage | Unknown:
    """Return the storage that a persistent id stands for."""
    if isinstance(value, tuple) and len(value) >= 5 and value[0] == "storage":
        _, kind, key, _, items = value[:5]
        is_key = isinstance(key, (str, int))
        if isinstance(kind, Name) and is_key and type(items) is int and items >= 0:
            return Storage(kind, str(key), items)
    return Unknown("persistent id", (value,))


class _Machine:
    """The stack and the memory of a pickle's program."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.storages: list[Storage] = []

    def push_storage(self, value: Any) -> None:
        found = _storage(value)
        if isinstance(found, Storage):
            self.storages.append(found)
            # The older form may name a part of a storage, by its offset and size.
            if len(value) > 5 and value[5] is not None:
                found = Unknown("part of a storage")
        self.stack.append(found)

    def pop(self) -> Any:
        return self.stack.pop()

    def pop_to_mark(self) -> list[Any]:
        values = []
        while not isinstance(value := self.stack.pop(), _Mark):
            values.append(value)
        return values[::-1]

    def pop_pairs(self) -> list[tuple[Any, Any]]:
        values = self.pop_to_mark()
        return list(zip(values[::2], values[1::2], strict=True))

    def extend(self, values: list[Any]) -> None:
        """Append values to the list or set on top of the stack."""
        top = self.stack[-1]
        if isinstance(top, list):
            top.extend(values)
        elif isinstance(top, Unknown):
            top.contents.extend(values)
        else:
            raise ValueError("a value is appended to one that is no list")

    def add_pairs(self, pairs: list[tuple[Any, Any]]) -> None:
        top = self.stack[-1]
        if isinstance(top, Mapped):
            top.pairs.extend(pairs)
        elif isinstance(top, Unknown):
            top.contents.append(Mapped(pairs))
        else:
            raise ValueError("an item is set in a value that is no dictionary")

    def build(self) -> None:
        """Give the object on top of the stack its state."""
        state, top = self.pop(), self.stack[-1]
        if isinstance(top, Unknown):
            top.contents.append(state)

    def make(self, function: Any, args: Any) -> None:
        self.stack.append(_call(function, args))

    def inst(self, name: str) -> None:
        args = tuple(self.pop_to_mark())
        module, _, attribute = name.partition(" ")
        self.make(Name(module, attribute), args)

    def object_of_mark(self) -> None:
        kind, *args = self.pop_to_mark()
        self.make(kind, tuple(args))

    def new_with_keywords(self) -> None:
        keywords, args, kind = self.pop(), self.pop(), self.pop()
        self.make(kind, args)
        if isinstance(self.stack[-1], Unknown):
            self.stack[-1].contents.append(keywords)

    def reduce(self) -> None:
        args, function = self.pop(), self.pop()
        self.make(function, args)

    def global_name(self) -> None:
        attribute, module = self.pop(), self.pop()
        if not (isinstance(attribute, str) and isinstance(module, str)):
            raise ValueError("the name of a class is no text")
        self.stack.append(Name(module, attribute))

    def push_tuple(self, n: int) -> None:
        self.stack[len(self.stack) - n :] = [tuple(self.stack[len(self.stack) - n :])]

    def put(self, number: int | None) -> None:
        self.memo[len(self.memo) if number is None else number] = self.stack[-1]


_Action = Callable[[_Machine, Any], Any]


def _ignore(machine: _Machine, arg: Any) -> None:
    pass


def _push(machine: _Machine, arg: Any) -> None:
    machine.stack.append(arg)


def _pusher(make: Callable[[], Any]) -> _Action:
    return lambda machine, _: machine.stack.append(make())


def _extension(machine: _Machine, arg: Any) -> None:
    machine.stack.append(Unknown(f"extension {arg}"))


_ACTIONS: dict[str, _Action] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP", "READONLY_BUFFER"), _ignore),
    **dict.fromkeys(("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4"), _push),
    **dict.fromkeys(("FLOAT", "BINFLOAT", "STRING", "BINSTRING", "SHORT_BINSTRING"), _push),
    **dict.fromkeys(("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8", "UNICODE"), _push),
    **dict.fromkeys(("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"), _push),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), lambda m, arg: m.put(arg)),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda m, arg: m.stack.append(m.memo[arg])),
    **dict.fromkeys(("EXT1", "EXT2", "EXT4"), _extension),
    **dict.fromkeys(("EMPTY_LIST", "EMPTY_SET"), _pusher(list)),
    "NONE": _pusher(lambda: None),
    "NEWTRUE": _pusher(lambda: True),
    "NEWFALSE": _pusher(lambda: False),
    "EMPTY_TUPLE": _pusher(tuple),
    "EMPTY_DICT": _pusher(Mapped),
    "MARK": _pusher(_Mark),
    "NEXT_BUFFER": _pusher(lambda: Unknown("buffer")),
    "TUPLE1": lambda m, _: m.push_tuple(1),
    "TUPLE2": lambda m, _: m.push_tuple(2),
    "TUPLE3": lambda m, _: m.push_tuple(3),
    "POP": lambda m, _: m.pop(),
    "POP_MARK": lambda m, _: m.pop_to_mark(),
    "DUP": lambda m, _: m.stack.append(m.stack[-1]),
    "TUPLE": lambda m, _: m.stack.append(tuple(m.pop_to_mark())),
    "LIST": lambda m, _: m.stack.append(m.pop_to_mark()),
    "FROZENSET": lambda m, _: m.stack.append(m.pop_to_mark()),
    "DICT": lambda m, _: m.stack.append(Mapped(m.pop_pairs())),
    "APPEND": lambda m, _: m.extend([m.pop()]),
    "APPENDS": lambda m, _: m.extend(m.pop_to_mark()),
    "ADDITEMS": lambda m, _: m.extend(m.pop_to_mark()),
    "SETITEM": lambda m, _: m.add_pairs([(m.pop(), m.pop())[::-1]]),
    "SETITEMS": lambda m, _: m.add_pairs(m.pop_pairs()),
    "GLOBAL": lambda m, arg: m.stack.append(Name(*arg.split(" ", 1))),
    "STACK_GLOBAL": lambda m, _: m.global_name(),
    "REDUCE": lambda m, _: m.reduce(),
    "NEWOBJ": lambda m, _: m.reduce(),
    "NEWOBJ_EX": lambda m, _: m.new_with_keywords(),
    "INST": lambda m, arg: m.inst(arg),
    "OBJ": lambda m, _: m.object_of_mark(),
    "BUILD": lambda m, _: m.build(),
    "PERSID": lambda m, arg: m.push_storage(arg),
    "BINPERSID": lambda m, _: m.push_storage(m.pop()),
}


class Pickle(NamedTuple):
    """The value of a pickle, and all storages that it names, also those that it drops."""

    value: Any
    storages: list[Storage]


def read_pickle(file: BinaryIO, where: str) -> Pickle:
    """Read a pickle from the position in a file on, which is behind it then.

    Raises SafetensorsError if it is damaged, or longer than that of any model.
    """
    machine, count = _Machine(), 0
    try:
        for opcode, arg, _ in pickletools.genops(file):
            _ACTIONS[opcode.name](machine, arg)
            count += 1
            if count > _MOST_INSTRUCTIONS:
                raise ValueError(f"it has more than {_MOST_INSTRUCTIONS} instructions")
        if len(machine.stack) != 1:
            raise ValueError("it does not end with one value")
    except (IndexError, KeyError):
        raise SafetensorsError(f"{where}: a damaged pickle: a value is missing") from None
    except (OverflowError, TypeError, UnicodeError, ValueError) as e:
        raise SafetensorsError(f"{where}: a damaged pickle: {one_line(e)}") from None
    return Pickle(machine.stack[0], machine.storages)
