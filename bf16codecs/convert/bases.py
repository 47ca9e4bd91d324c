"""The base of a conversion: the model that a store's differences refer to."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bf16codecs._base.arguments import argument
from bf16codecs._base.messages import one_line
from bf16codecs._base.paths import given_path
from bf16codecs.convert.base_search import pick_base
from bf16codecs.convert.options import AUTO
from bf16codecs.convert.target import absolute_target
from bf16codecs.errors import BaseMismatchError, BF16CodecsError, StoreError
from bf16codecs.store.attributes import BaseReference
from bf16codecs.store.bases import chain_of, files_of, identity, is_nameable, local_chain, path_to
from bf16codecs.store.choice import CodecChoice
from bf16codecs.store.kinds import path_of
from bf16codecs.store.opening import Opening, open_any
from bf16codecs.store.reader import ModelReader

__all__ = [
    "Base",
    "check_not_base",
    "opened_base",
]


@dataclass(frozen=True)
class Base:
    """A base, and how the store will name it."""

    model: ModelReader
    reference: BaseReference
    state: Any
    #: Why it was picked from a folder; empty if the caller named it.
    reason: str = ""

    def check_unchanged(self) -> None:
        """Raise BaseMismatchError if the base has changed since it was opened."""
        try:
            is_same = self.model.state() == self.state
        except OSError as e:
            raise BaseMismatchError(f"{self.model.where}: {one_line(e)}") from e
        if not is_same:
            raise BaseMismatchError(f"{self.model.where}: changed while it was read as a base")


def check_not_base(
    base: str | os.PathLike[str] | None, target: Path | str, options: Mapping[str, Any] | None
) -> None:
    """Raise ValueError, before any advice to overwrite, if `target` is in the chain of the base."""
    if base is None or (isinstance(target, Path) and not os.path.lexists(target)):
        return
    location = given_path(base, "base")
    if location.startswith(AUTO):  # which leaves out the target
        return
    try:
        model = open_any(location, Opening(options, chain=("",)))
    except (BF16CodecsError, OSError):
        return  # `opened_base` raises it
    with closing(model):
        _check_target(model, target)


def _check_target(model: ModelReader, target: Path | str) -> None:
    if isinstance(target, str):
        if any(identity(each.location[0]) == identity(target) for each in chain_of(model)):
            raise ValueError(f"{target}: would replace the base, {model.where}, or its base")
        return
    local = path_of(model.location[0])
    absolute_target(target, [] if local is None else [Path(local)], "base")
    absolute_target(target, local_chain(model.base), f"base that {model.where} needs")


@contextmanager
def opened_base(
    base: str | os.PathLike[str] | None,
    source: ModelReader | None,
    target: Path | str,
    choice: CodecChoice,
    kinds: Sequence[str],
    options: Mapping[str, Any] | None = None,
) -> Iterator[Base | str]:
    """Open the base of a conversion, and close it at the end; yield the reason if there is none.

    `base` is a path or an address, or None; ``"auto:"`` and a folder, on a disk or in an object
    store, choose the best of the models there, including the last steps of runs. If `source` is
    None, no base can be chosen from a folder. `choice` codes the differences. `kinds` are digests
    that later identify a safetensors base. `options` are those of the file system of a base at an
    address.

    Raises ValueError if the target would replace a model in the base's chain, the codec cannot
    store differences, or `options` come without such an address; StoreError if the base is not a
    model, its folder has none, or stores cannot name it.
    """
    if base is None:
        if options:
            name = argument("storage_options")
            raise ValueError(f"{name} are for addresses: neither the source nor a base is at one")
        yield ""
        return
    codec, location = choice.for_difference("bfloat16"), given_path(base, "base")
    reason = ""
    if location.startswith(AUTO):
        folder = location.removeprefix(AUTO)
        is_local = path_of(folder) is not None
        if is_local and isinstance(target, str):
            raise ValueError(
                f"{location}: a store in an object store cannot have a local base: upload the base,"
                " and name its address"
            )
        if is_local and options:
            raise ValueError(
                f"{location}: {argument('storage_options')} are for a base at an address, and this"
                " folder is on a disk"
            )
        picked, reason = pick_base(folder, source, target, choice, options)
        if picked is None:
            yield reason
            return
        location = picked
    # The new store is the first of the chain.
    with closing(open_any(location, Opening(options, chain=("",)))) as model:
        where, step = model.location
        _check_target(model, target)
        state = model.state()
        path = path_to(where, target)
        if not path.isprintable():  # readers would refuse it
            odd = next(c for c in path if not c.isprintable())
            raise StoreError(f"{where}: stores cannot name it as their base: rename {odd!a} in it")
        if "://" in path and not is_nameable(path):
            raise StoreError(
                f"{where}: stores cannot name it as their base: its address has another scheme than"
                " http, https, s3, gs and az"
            )
        reference = BaseReference(path, step, files_of(model, kinds), codec)
        yield Base(model, reference, state, reason)
