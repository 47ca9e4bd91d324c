"""Pickles of PyTorch, read without running anything.

A pickle is a program that builds objects, and may call any function for that. Here its instructions
are followed, but only plain values, tensors and containers are built; every other object becomes an
`Unknown`, whose contents are looked at like those of a dictionary.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from bf16codecs.errors import SafetensorsError

__all__ = ["Mapped", "Name", "Storage", "Tensor", "Unknown", "read_pickle"]

# No state of a model has more instructions: 2^24 take 20 s and 2 GB.
_MOST_INSTRUCTIONS = 1 << 24


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
    """A view of a storage; offset and strides are in items of its type, or of `dtype`."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Name | None = None


@dataclass(slots=True, eq=False)
class Mapped:
    """A dictionary: pairs, since keys of pickles need not be hashable here."""

    pairs: list[tuple[Any, Any]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Unknown:
    """An object of any other class: the arguments that it was made of, and its state."""

    kind: Any
    contents: list[Any] = field(default_factory=list)


class _Mark:
    """The place on the stack where a group of values begins."""


def _tensor(*args: Any) -> Any:
    storage, offset, shape, strides = args[:4]
    return _checked(storage, offset, shape, strides, None)


def _typed_tensor(*args: Any) -> Any:
    storage, offset, shape, strides, _, _, dtype = args[:7]
    return _checked(storage, offset, shape, strides, dtype)


def _checked(storage: Any, offset: Any, shape: Any, strides: Any, dtype: Any) -> Tensor:
    numbers = (offset, *shape, *strides)
    is_valid = isinstance(storage, Storage) and len(shape) == len(strides)
    if not is_valid or not all(type(n) is int and n >= 0 for n in numbers):
        raise ValueError("a tensor's storage, offset, shape or strides are invalid")
    if dtype is not None and not isinstance(dtype, Name):
        raise ValueError("a tensor's dtype is not one of torch")
    return Tensor(storage, offset, tuple(shape), tuple(strides), dtype)


def _first(*args: Any) -> Any:
    return args[0]


def _of_subclass(*args: Any) -> Any:
    function, _, inner = args[:3]
    return _call(function, inner)


def _mapped(*args: Any) -> Mapped:
    return Mapped(list(map(tuple, args[0])) if args else [])


# The functions that pickles of models call, as far as they are known; nothing is imported.
_KNOWN: dict[str, Callable[..., Any]] = {
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _typed_tensor,
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
        except (IndexError, TypeError, ValueError):
            pass
    return Unknown(function, list(args) if isinstance(args, tuple) else [args])


def _storage(value: Any) -> Any:
    """Return the storage that a persistent id stands for."""
    if isinstance(value, tuple) and len(value) >= 5 and value[0] == "storage":
        _, kind, key, _, items = value[:5]
        is_key = isinstance(key, (str, int))
        if isinstance(kind, Name) and is_key and type(items) is int and items >= 0:
            return Storage(kind, str(key), items)
    return Unknown("persistent id", [value])


class _Machine:
    """The stack and the memory of a pickle's program."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

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
            raise ValueError("values are appended to what is no list")

    def add_pairs(self, pairs: list[tuple[Any, Any]]) -> None:
        top = self.stack[-1]
        if isinstance(top, Mapped):
            top.pairs.extend(pairs)
        elif isinstance(top, Unknown):
            top.contents.append(Mapped(pairs))
        else:
            raise ValueError("items are set of what is no dictionary")

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

    def run(self, opcode: str, arg: Any) -> None:
        """Follow one instruction."""
        stack = self.stack
        if opcode in _IGNORED:
            return
        if opcode in _PUSHES_ARGUMENT:
            stack.append(arg)
        elif opcode in _CONSTANTS:
            stack.append(_CONSTANTS[opcode]())
        elif opcode in _TUPLES:
            n = _TUPLES[opcode]
            stack[len(stack) - n :] = [tuple(stack[len(stack) - n :])]
        elif opcode in _PUTS:
            self.memo[len(self.memo) if arg is None else arg] = stack[-1]
        elif opcode in _GETS:
            stack.append(self.memo[arg])
        else:
            _OTHERS[opcode](self, arg)


_IGNORED = {"PROTO", "FRAME", "STOP", "READONLY_BUFFER"}
_PUSHES_ARGUMENT = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BYTEARRAY8"),
}
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": Mapped,
    "EMPTY_SET": list,
    "MARK": _Mark,
    "NEXT_BUFFER": lambda: Unknown("buffer"),
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PUTS = {"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"}
_GETS = {"GET", "BINGET", "LONG_BINGET"}
_OTHERS: dict[str, Callable[[_Machine, Any], Any]] = {
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
    "PERSID": lambda m, arg: m.stack.append(_storage(arg)),
    "BINPERSID": lambda m, _: m.stack.append(_storage(m.pop())),
    "EXT1": lambda m, arg: m.stack.append(Unknown(f"extension {arg}")),
    "EXT2": lambda m, arg: m.stack.append(Unknown(f"extension {arg}")),
    "EXT4": lambda m, arg: m.stack.append(Unknown(f"extension {arg}")),
}


def read_pickle(file: BinaryIO, where: str) -> Any:
    """Return the value of a pickle, from the position in a file on, which is behind it then.

    Raises SafetensorsError if it is damaged, or longer than that of any model.
    """
    machine, count = _Machine(), 0
    try:
        for opcode, arg, _ in pickletools.genops(file):
            machine.run(opcode.name, arg)
            count += 1
            if count > _MOST_INSTRUCTIONS:
                raise ValueError(f"more than {_MOST_INSTRUCTIONS} instructions")
        (value,) = machine.stack
    except (IndexError, KeyError, OverflowError, TypeError, UnicodeError, ValueError) as e:
        raise SafetensorsError(f"{where}: a damaged pickle: {str(e) or type(e).__name__}") from None
    return value
