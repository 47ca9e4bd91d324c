"""Follows a run while a training job publishes steps."""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Self

from bf16codecs._arrays.storage import KeyStorage
from bf16codecs._base.arguments import as_integer, seconds
from bf16codecs._base.limits import Limits
from bf16codecs._base.messages import warn_caller
from bf16codecs._base.paths import absolute, given_path
from bf16codecs.errors import ServerError, StepNotFoundError, StoreError
from bf16codecs.model.model import Model
from bf16codecs.model.tensor import ModelHandle
from bf16codecs.store.opening import split_step
from bf16codecs.store.published.layout import PublishedInfo
from bf16codecs.store.published.opening import reader_of
from bf16codecs.store.published.roots import UnreadableError, info_of_root
from bf16codecs.store.published.storage import MOST_CHANGES, PackedStorage
from bf16codecs.store.published.watching import watched
from bf16codecs.store.runs.layout import listed
from bf16codecs.store.runs.reader import StepReader

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
) -> FollowedRun:
    """Return an iterator over the steps of a published run, each as it appears.

    A step that is yielded is complete, and what changed in it is at hand: `Model.update` and
    `bf16codecs.torch.load_into`, with the step before as `have`, read little else.

    Parameters
    ----------
    path
        The run: a folder, or an address. It need not be there yet: a warning says so.
    have
        The number of the step that the caller has: the ones after it are yielded. By default, the
        newest one of which all files are there is yielded first. The newest is also the next one if
        the run no longer has the step before, or if a job has begun the run anew. Where the run
        ends before this step, as a server that lags may show it, the newest is yielded after a
        minute.
    latest
        Of several steps that have appeared, yield the newest alone.
    timeout
        Raise TimeoutError if no step appears for so many seconds.
    storage_options
        Options of the address's file system.
    max_bytes
        As `open_model` takes it.

    Returns
    -------
    FollowedRun
        An iterator of `Model`; `Model.step` is the number of the step. After an error, it can be
        asked again: if files of a step did not come, it goes on with the newest one. Close it when
        done, or use it as a context manager: then the steps that it has yielded can no longer be
        read.

    Raises
    ------
    bf16codecs.store.StoreError
        If something else is at the path; if the run is damaged, incomplete or removed for a minute.
    TimeoutError
        After `timeout`.
    OSError
        If a server fails for a minute.
    ValueError
        If `path` names a step, or `have` or `timeout` is negative.

    Examples
    --------
    >>> from bf16codecs.torch import follow, load_into  # doctest: +SKIP
    >>> have = None
    >>> for model in follow("policy.zarr"):  # doctest: +SKIP
    ...     load_into(module, model, have=have)
    ...     have = model
    """
    last = None if have is None else as_integer("have", have)
    if last is not None and last < 0:
        raise ValueError(f"have must be the number of a step, not {last}")
    return FollowedRun(path, last, storage_options, max_bytes, latest, timeout)


class FollowedRun:
    """A published run that is followed: see `follow`, whose parameters it has."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        last: int | None = None,
        options: Mapping[str, Any] | None = None,
        max_bytes: int | None = None,
        latest: bool = False,
        timeout: float | None = None,
    ) -> None:
        text = given_path(path, "run")
        run, step = split_step(text)
        if step is not None:
            raise ValueError(f"{text}: names a step: follow {run}, with have={step}")
        self._where = text if "://" in text else absolute(text)
        self._options, self._limits = options, Limits(max_bytes)
        self._last, self._latest, self._timeout = last, latest, seconds("timeout", timeout)
        self._ends_early_since: float | None = None
        #: Whether files of the next step did not come: the newest one takes its place.
        self._lacks_next = False
        self._watched = watched(self._where, options)
        self._document: bytes | None = None
        self._has_warned = False
        #: The plans that its steps had before it began anew.
        self._old_plans: set[str] = set()
        self._storage: KeyStorage | None = None
        #: Its storage, once it is there.
        self._packed: PackedStorage | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Model:
        return self._wait_for(self._next, self._timeout, "no new step")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def wait_for(self, number: int, timeout: float | None = None) -> Model:
        """Wait for the step with a number; return it once its changes are at hand."""
        return self._wait_for(partial(self._at, number), timeout, f"no step {number}", number)

    def _wait_for(
        self,
        find: Callable[[], int | None],
        timeout: float | None,
        lacking: str,
        least: int | None = None,
    ) -> Model:
        """Look until a step is found, with all of its files; return it.

        Where some are lacking, an earlier step takes its place, whose number is at least `least`,
        or above that of the last one.
        """
        begin, wait, failing_since = time.monotonic(), _FIRST_WAIT, None
        while True:
            failure: Exception | None = None
            try:
                self._look()
                index = find()
                if index is not None:
                    return self._taken(index, least)
                failing_since = None
            except (OSError, UnreadableError, _MissingError) as e:
                failure = e
                failing_since = failing_since or time.monotonic()
                if time.monotonic() - failing_since > _PATIENCE:
                    if isinstance(e, _MissingError):
                        self._lacks_next = True
                        raise StoreError(str(e)) from e
                    raise
            if timeout is not None and time.monotonic() - begin > timeout:
                reason = "" if failure is None else f": {failure}"
                text = f"{self._where}: {lacking} for {timeout:g} s{reason}"
                raise TimeoutError(text) from failure
            time.sleep(wait)
            wait = min(_LONGEST_WAIT, wait * _GROWTH)

    def _taken(self, index: int, least: int | None) -> Model:
        """Return a step, after getting what has changed since the last one."""
        assert self._packed is not None
        info = self._packed.info
        # Without the steps that nobody needs who reads this one: a run may have thousands.
        info = replace(info, steps=info.steps[: index + 1]).keeping(1 + MOST_CHANGES)
        numbers = info.numbers
        known = numbers.index(self._last) if self._last in numbers else None
        if least is None:
            least = -1 if self._last is None else self._last + 1
        first = bisect_left(numbers[:-1], least)
        self._packed.packs.forget_others(info.steps)
        with _waited_for():
            index = self._packed.with_info(info).prepare(known, len(numbers) - 1, first)
        info = replace(info, steps=info.steps[: index + 1])
        # The storage of each step is its own: closing one, or what it reads, is not another's.
        reader = reader_of(self._where, self._packed.with_info(info), self._limits)
        reader.storage_options = self._options
        self._last, self._ends_early_since, self._lacks_next = numbers[index], None, False
        arguments = self._where, self._options, self._limits.max_bytes, None, self._last
        return Model._of(ModelHandle(*arguments, opened=StepReader(reader, index)))

    def _look(self) -> None:
        """Take the steps that are there now, unless a server that lags shows older ones."""
        document = self._watched.look()
        if document is None:
            self._warn_of_none()
        if document is None or document is self._document:
            return
        info = info_of_root(self._where, document, _ADVICE)
        known = None if self._packed is None else self._packed.info
        if (
            known is None
            or info.plan not in {known.plan, *self._old_plans}
            or self._watched.was_replaced()
        ):
            self._open(info)
        elif info.plan == known.plan and info.numbers[-1] >= known.numbers[-1]:
            assert self._packed is not None
            self._packed = self._packed.with_info(info)
        self._document = document

    def _warn_of_none(self) -> None:
        """Warn that there is no run yet.

        Raises StoreError if a run was there before, or something else is there.
        """
        if self._packed is not None:
            raise _MissingError(f"{self._where}: the run is no longer there")
        if not self._has_warned:
            self._watched.refuse_others()
            self._has_warned = True
            text = f"{self._where}: no published run is there yet: waiting for it"
            warn_caller(text, UserWarning)

    def _open(self, info: PublishedInfo) -> None:
        """Open a run that has begun, or was replaced; one with another plan has other steps."""
        if self._packed is not None and self._packed.info.plan != info.plan:
            self._old_plans.add(self._packed.info.plan)
            self._last = None
        self.close()
        self._storage = self._watched.storage()
        with _waited_for():
            packed = PackedStorage(self._where, self._storage, info)
        self._packed = packed.with_info(info)  # closing a step is not to close the storage

    def _next(self) -> int | None:
        """Return the index of the next step, if it is there."""
        if self._packed is None:
            return None
        numbers = self._packed.info.numbers
        if self._last not in numbers or self._latest or self._lacks_next:
            is_next = self._last != numbers[-1] and not self._ends_early(numbers[-1])
            return len(numbers) - 1 if is_next else None
        index = numbers.index(self._last) + 1
        return index if index < len(numbers) else None

    def _ends_early(self, newest: int) -> bool:
        """Tell whether the run ends before the step that the caller has, and may go on soon."""
        if self._last is None or newest > self._last:
            return False
        self._ends_early_since = self._ends_early_since or time.monotonic()
        return time.monotonic() - self._ends_early_since <= _PATIENCE

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
        """Close files and connections: the steps that were yielded can no longer be read."""
        storage, self._storage = self._storage, None
        if storage is not None:
            storage.close()


class _MissingError(StoreError):
    """Something that the root lists is not there, or not whole: it comes, or was dropped."""


@contextmanager
def _waited_for() -> Iterator[None]:
    """Let something be asked for again that is not there, but not of a server that cannot serve."""
    try:
        yield
    except ServerError:
        raise
    except StoreError as e:
        raise _MissingError(str(e)) from e
