"""Follows a run while a training job publishes steps."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Any

from bf16codecs._arrays.storage import KeyStorage
from bf16codecs._base.arguments import as_integer
from bf16codecs._base.limits import Limits
from bf16codecs._base.paths import given_path
from bf16codecs.errors import StepNotFoundError, StoreError
from bf16codecs.model.model import Model
from bf16codecs.model.tensor import ModelHandle
from bf16codecs.store.published.layout import PublishedInfo
from bf16codecs.store.published.roots import info_of_root
from bf16codecs.store.published.storage import PackedStorage, refuse_zarr
from bf16codecs.store.published.watching import Watched, watched
from bf16codecs.store.reader import ModelReader
from bf16codecs.store.runs.layout import listed
from bf16codecs.store.runs.reader import StepReader
from bf16codecs.store.zarr.reader import ZarrArrays

__all__ = ["FollowedRun", "follow"]

# Seconds between looks: a step takes a job seconds, and a look a request without a body.
_FIRST_WAIT, _GROWTH, _LONGEST_WAIT = 0.02, 1.5, 1.0
# How long a server may fail, or lack what the root lists, as one that lags may.
_PATIENCE = 60.0
_ADVICE = "only runs that bf16codecs.torch.publish writes can be followed"


def follow(
    path: str | os.PathLike[str],
    have: int | None = None,
    *,
    latest: bool = False,
    timeout: float | None = None,
    storage_options: Mapping[str, Any] | None = None,
    max_bytes: int | None = None,
) -> Iterator[Model]:
    """Yield the steps of a published run as they appear, each as a `Model`.

    A step that is yielded is complete, and what changed in it is at hand: `Model.update` and
    `bf16codecs.torch.load_into`, with the step before as `have`, read little else.

    Parameters
    ----------
    path
        The run: a folder, or an address. It need not be there yet: a warning says so.
    have
        The number of the step that the caller has: later ones are yielded. By default, the newest
        one is yielded first. So it is if the run no longer has the caller's, or never had it, and
        when a job has begun the run anew.
    latest
        Of several steps that have appeared, yield the newest alone. Otherwise, each is yielded, but
        those that are dropped before their turn.
    timeout
        Raise TimeoutError if no step appears for so many seconds.
    storage_options
        Options of the address's file system.
    max_bytes
        As `open_model` takes it.

    Yields
    ------
    Model
        A step; `Model.step` is its number. Close it when done, or leave that to the garbage
        collector.

    Raises
    ------
    bf16codecs.store.StoreError
        If something else is at the path, or the run is damaged.
    TimeoutError
        After `timeout`.
    OSError
        If a server fails for a minute.

    Examples
    --------
    >>> from bf16codecs.torch import follow, load_into
    >>> have = None
    >>> for model in follow("policy.zarr"):  # doctest: +SKIP
    ...     load_into(module, model, have=have)
    ...     have = model
    """
    last = None if have is None else as_integer("have", have)
    run = FollowedRun(path, last, storage_options, max_bytes)
    return _follow(run, latest, timeout)


def _follow(run: FollowedRun, latest: bool, timeout: float | None) -> Iterator[Model]:
    with closing(run):
        while True:
            yield run.wait_for_next(latest, timeout)


class FollowedRun:
    """A published run that is followed, from the step with a number on; parameters as `follow`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        last: int | None = None,
        options: Mapping[str, Any] | None = None,
        max_bytes: int | None = None,
    ) -> None:
        self._where, self._last = given_path(path, "run"), last
        self._options, self._limits = options, Limits(max_bytes)
        self._watched: Watched | None = None
        self._document: bytes | None = None
        #: The plans that its steps had before it began anew.
        self._old_plans: set[str] = set()
        self._storages: list[KeyStorage] = []
        #: Its storage, once it is there.
        self._packed: PackedStorage | None = None

    def wait_for_next(self, latest: bool = False, timeout: float | None = None) -> Model:
        """Wait for the next step; return it once its changes are at hand."""
        return self._wait_for(partial(self._next, latest), timeout, "no new step")

    def wait_for(self, number: int, timeout: float | None = None) -> Model:
        """Wait for the step with a number; return it once its changes are at hand."""
        return self._wait_for(partial(self._at, number), timeout, f"no step {number}")

    def _wait_for(
        self, find: Callable[[], int | None], timeout: float | None, lacking: str
    ) -> Model:
        """Look until a step is found; return it."""
        begin, wait, failing_since = time.monotonic(), _FIRST_WAIT, None
        while True:
            failure: Exception | None = None
            try:
                self._look()
                index = find()
                if index is not None:
                    return self._taken(index)
                failing_since = None
            except (OSError, _MissingError) as e:
                failure = e
                failing_since = failing_since or time.monotonic()
                if time.monotonic() - failing_since > _PATIENCE:
                    raise
            if timeout is not None and time.monotonic() - begin > timeout:
                raise TimeoutError(f"{self._where}: {lacking} for {timeout} s") from failure
            time.sleep(wait)
            wait = min(_LONGEST_WAIT, wait * _GROWTH)

    def _taken(self, index: int) -> Model:
        """Return a step, after getting what has changed since the last one."""
        assert self._packed is not None
        info = self._packed.info
        if self._last in info.numbers:
            for step in info.steps[info.numbers.index(self._last) + 1 : index + 1]:
                try:
                    self._packed.packs.fetch(step)
                except StoreError as e:
                    raise _MissingError(str(e)) from e
        # The storage of each step is its own: closing one, or what it reads, is not another's.
        packed = self._packed.with_info(info)
        reader = ModelReader(ZarrArrays(self._where, packed, refuse_zarr, self._limits))
        reader.storage_options = self._options
        reader.stored.read_up_to(index)
        self._last = info.numbers[index]
        arguments = self._where, self._options, self._limits.max_bytes, None, self._last
        return Model._of(ModelHandle(*arguments, opened=StepReader(reader, index)))

    def _look(self) -> None:
        """Take the steps that are there now, unless a server that lags shows older ones."""
        if self._watched is None:
            self._watched = watched(self._where, self._options)
        document = self._watched.look()
        if document is None:
            self._warn_of_none()
        if document is None or document is self._document:
            return
        info = info_of_root(self._where, document, _ADVICE)
        self._document = document
        known = None if self._packed is None else self._packed.info
        if known is None or info.plan not in {known.plan, *self._old_plans}:
            self._open(info)
        elif info.plan == known.plan and info.numbers[-1] >= known.numbers[-1]:
            assert self._packed is not None
            self._packed = self._packed.with_info(info)

    def _open(self, info: PublishedInfo) -> None:
        """Open a run that has begun, perhaps anew: then it has none of the steps before."""
        if self._packed is not None:
            self._old_plans.add(self._packed.info.plan)
            self._last = None
        assert self._watched is not None
        storage = self._watched.storage()
        self._storages.append(storage)
        # Closing a step is not to close the storage.
        self._packed = PackedStorage(self._where, storage, info).with_info(info)

    def _warn_of_none(self) -> None:
        if self._packed is None and self._document is None:
            self._document = b""
            text = f"{self._where}: no published run is there yet: waiting for it"
            warnings.warn(text, UserWarning, stacklevel=5)

    def _next(self, latest: bool) -> int | None:
        """Return the index of the next step, if it is there."""
        if self._packed is None:
            return None
        numbers = self._packed.info.numbers
        if self._last not in numbers or latest:
            return len(numbers) - 1 if self._last != numbers[-1] else None
        index = numbers.index(self._last) + 1
        return index if index < len(numbers) else None

    def _at(self, number: int) -> int | None:
        """Return the index of the step with a number, if it is there.

        Raises StepNotFoundError if it will not be: there are later ones.
        """
        numbers = [] if self._packed is None else self._packed.info.numbers
        if number in numbers:
            return numbers.index(number)
        if numbers and number < numbers[-1]:
            raise StepNotFoundError(f"{self._where}: no step {number}; there are {listed(numbers)}")
        return None

    def close(self) -> None:
        """Close files and connections."""
        for storage in self._storages:
            storage.close()


class _MissingError(StoreError):
    """A pack that the root lists is not there, or not whole: the server lags, or it was dropped."""
