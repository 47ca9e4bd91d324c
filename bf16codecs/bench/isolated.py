"""Calls in processes of their own, so that no earlier work affects measurements of memory."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import sys
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

__all__ = ["in_a_process"]

T = TypeVar("T")


def in_a_process(name: str, call: Callable[[], T]) -> T:
    """Return the result of a call in a forked process; except on Linux, in this process.

    Parameters
    ----------
    name
        Name of the call in messages.
    call
        The call. Its result must be picklable.

    Raises
    ------
    ValueError
        If the process ends before it has a result.
    Exception
        If the call raises one.
    """
    if not sys.platform.startswith("linux"):
        return call()
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(call, there), daemon=True)
    with warnings.catch_warnings():
        # Python 3.12 warns of other threads: NumPy's BLAS threads, which hold no locks now. JAX
        # warns of its own threads, if it was imported; the call does not use it.
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
        process.start()
    there.close()
    try:
        answer, error = here.recv()
    except EOFError:
        process.join()
        raise ValueError(f"{name}: its process ended with {process.exitcode}") from None
    finally:
        process.kill()
        process.join()
        here.close()
    if error is not None:
        raise error
    result: T = answer
    return result


def _answer(call: Callable[[], Any], there: Connection) -> None:
    # A signal ends this process; the parent process reports it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    try:
        there.send((call(), None))
    except BaseException as e:  # panics of Rust extensions are not subclasses of Exception
        there.send((None, _portable(e)))


def _portable(error: BaseException) -> Exception:
    """Return an error that another process can raise: not all errors can be pickled."""
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:
        copy = None
    is_same = isinstance(copy, Exception) and str(copy) == str(error)
    return copy if is_same else RuntimeError(f"{type(error).__name__}: {error}")
