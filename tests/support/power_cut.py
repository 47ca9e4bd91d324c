"""Simulates what a disk may hold after a loss of power: files and names, from a log of operations.

Data of a file are sure to be there up to its last sync, and the names in a folder likewise. A
rename changes both of its folders or neither, and what is done to one name is done in order.
Nothing else is in order.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from folders import Files


@dataclass
class File:
    """A file: its content as programs see it, and as the disk is sure to have it."""

    now: bytearray = field(default_factory=bytearray)
    synced: bytes = b""


@dataclass
class Folder:
    """A folder, and how many of its changes the disk is sure to have."""

    changes: list[int] = field(default_factory=list)
    synced: int = 0


Node = File | Folder


@dataclass
class Change:
    """Names that change together: (folder, name, node or None) each."""

    names: list[tuple[Folder, str, Node | None]]


@dataclass(frozen=True)
class Record:
    """One operation of the log; `count` is its number among those that may fail."""

    name: str
    count: int
    number: int
    data: bytes
    path: str
    other: str


def read_log(path: Path) -> list[Record]:
    """Return the operations that faults.c wrote down."""
    records = []
    with open(path, "rb") as file:
        while line := file.readline():
            name, count, number, size, one, other = line.decode().rstrip("\n").split("\t")
            data = file.read(int(size))
            records.append(Record(name, int(count), int(number), data, one, other))
    return records


class Disk:
    """The files below one folder; `do` applies operations, `states` yields what may survive.

    Parameters
    ----------
    root
        The folder.
    files
        What is in it, and on the disk, before.
    """

    def __init__(self, root: Path, files: Files) -> None:
        self._root = str(root)
        self._top = Folder()
        self._names: dict[tuple[int, str], Node] = {}
        self._changes: list[Change] = []
        self._nodes: list[Node] = [self._top]  # kept, since names hold their ids only
        self._yielded: set[tuple[frozenset[int], frozenset[int]]] = set()
        for path, content in sorted(files.items()):
            node = Folder() if content is None else File(bytearray(content), content)
            self._change([(f"{self._root}/{path}", node)])
        for folder in (node for node in self._nodes if isinstance(node, Folder)):
            folder.synced = len(folder.changes)

    def _find(self, path: str) -> Node:
        node: Node = self._top
        for name in path.removeprefix(self._root).strip("/").split("/"):
            if name:
                node = self._names[id(node), name]
        return node

    def _change(self, names: list[tuple[str, Node | None]]) -> None:
        change = Change([])
        for path, node in names:
            folder = self._find(os.path.dirname(path))
            assert isinstance(folder, Folder)
            name = os.path.basename(path)
            change.names.append((folder, name, node))
            if not folder.changes or folder.changes[-1] != len(self._changes):
                folder.changes.append(len(self._changes))
            if node is not None:
                self._nodes.append(node)
        for folder, name, node in change.names:
            if node is None:
                del self._names[id(folder), name]
            else:
                self._names[id(folder), name] = node
        self._changes.append(change)

    def do(self, record: Record) -> None:
        """Apply an operation to the state that programs see."""
        path, other = record.path, record.other
        if record.name in ("create", "mkdir"):
            self._change([(path, Folder() if record.name == "mkdir" else File())])
        elif record.name == "remove":
            self._change([(path, None)])
        elif record.name == "rename":
            self._change([(path, None), (other, self._find(path))])
        elif record.name == "exchange":
            self._change([(path, self._find(other)), (other, self._find(path))])
        elif record.name == "link":
            self._change([(other, self._find(path))])
        else:
            self._change_content(self._find(path), record)

    def _change_content(self, node: Node, record: Record) -> None:
        self._yielded.clear()
        if record.name == "sync":
            if isinstance(node, File):
                node.synced = bytes(node.now)
            else:
                node.synced = len(node.changes)
            return
        assert isinstance(node, File)
        stop = record.number + len(record.data)
        node.now.extend(bytes(max(0, stop - len(node.now))))
        if record.name == "truncate":
            del node.now[record.number :]
        else:
            node.now[record.number : stop] = record.data

    def states(self, again: bool = False) -> Iterator[Files]:
        """Yield what the disk may hold now, the extremes: names or data as new or old as possible.

        What was yielded before is so only `again`, or if contents have changed.

        Names: as a file system with one journal keeps them, whose changes arrive in order up to
        any; with one folder that is as old, or as new, as possible, and all others the reverse; and
        with everything but one change. Data: all of them old, or new, and where all names are
        there, one file's the reverse of all others'.
        """
        kept = self._certain()
        choices = [kept, set(range(len(self._changes)))]
        choices += [set(range(n)) | kept for n in range(max(kept, default=0), len(self._changes))]
        for node in self._nodes:
            if isinstance(node, Folder) and node.synced < len(node.changes):
                choices.append(self._with({*kept, *node.changes}))
                choices.append(self._without(kept, node))
        choices += [self._but(n) for n in range(len(self._changes)) if n not in kept]
        all_names = frozenset(range(len(self._changes)))
        dirty = {id(n) for n in self._nodes if isinstance(n, File) and n.synced != n.now}
        extremes = {frozenset(dirty), frozenset[int]()}
        others = {frozenset(each) for one in dirty for each in ({one}, dirty - {one})}
        for chosen in {frozenset(choice) for choice in choices}:
            for old in extremes | others if chosen == all_names else extremes:
                if again or (chosen, old) not in self._yielded:
                    self._yielded.add((chosen, old))
                    yield self._files(chosen, old)

    def _certain(self) -> set[int]:
        folders = [node for node in self._nodes if isinstance(node, Folder)]
        return self._with({n for f in folders for n in f.changes[: f.synced]})

    def _with(self, changes: set[int]) -> set[int]:
        """Add all changes that come before these."""
        todo, found = list(changes), set(changes)
        while todo:
            number = todo.pop()
            for folder, _, _ in self._changes[number].names:
                for before in folder.changes[: folder.changes.index(number)]:
                    if before not in found:
                        found.add(before)
                        todo.append(before)
        return found

    def _without(self, kept: set[int], old: Folder) -> set[int]:
        """Return all changes but those of one folder that are not certain, and what needs them."""
        found, late = set(), {id(old)}
        for number, change in enumerate(self._changes):
            folders = {id(folder) for folder, _, _ in change.names}
            if number in kept or not folders & late:
                found.add(number)
            else:
                late |= folders
        return found

    def _but(self, lost: int) -> set[int]:
        """Return all changes except one and later changes of the same names."""
        found: set[int] = set()
        late: set[tuple[int, str]] = set()
        for number, change in enumerate(self._changes):
            names = {(id(folder), name) for folder, name, _ in change.names}
            if number == lost or names & late:
                late |= names
            else:
                found.add(number)
        return found

    def _files(self, chosen: frozenset[int], old: frozenset[int]) -> Files:
        names: dict[int, dict[str, Node]] = {}
        for number in sorted(chosen):
            for folder, name, node in self._changes[number].names:
                if node is None:
                    names.get(id(folder), {}).pop(name, None)
                else:
                    names.setdefault(id(folder), {})[name] = node
        files: Files = {}

        def visit(folder: Node, prefix: str) -> None:
            for name, node in names.get(id(folder), {}).items():
                if isinstance(node, File):
                    files[prefix + name] = node.synced if id(node) in old else bytes(node.now)
                else:
                    files[prefix + name] = None
                    visit(node, f"{prefix}{name}/")

        visit(self._top, "")
        return files


def states_during(
    disk: Disk, records: Iterable[Record], deciding: Collection[str], every: int, first: int
) -> list[Files]:
    """Apply the operations; return the states that the disk may hold, each once.

    Parameters
    ----------
    disk
        As it is before.
    records
        The operations.
    deciding
        Names of operations after which it always looks, as it does after those on locks.
    every, first
        It also looks after one operation in `every`, the first of them the one with index `first`.
    """
    seen: dict[frozenset[tuple[str, bytes | None]], Files] = {}
    for index, record in enumerate(records):
        disk.do(record)
        is_deciding = record.name in deciding or record.path.endswith("/lock")
        if is_deciding or index % every == first % every:
            seen.update((frozenset(state.items()), state) for state in disk.states())
    return list(seen.values())
