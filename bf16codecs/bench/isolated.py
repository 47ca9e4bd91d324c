"""Calls in processes of their own, whose memory nothing else has used before."""

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
    """Return what a call returns in a forked process; where memory is not measured, in this one.

    Parameters
    ----------
    name
        What is called, for messages.
    call
        What is called. What it returns, or raises, has to be pickled.

    Raises
    ------
    ValueError
        If the process ends before.
    """
    if not sys.platform.startswith("linux"):
        return call()
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(call, there), daemon=True)
    with warnings.catch_warnings():
        # Python 3.12 warns of other threads: those of NumPy's BLAS, which have no locks here. JAX,
        # where it was imported, warns of its own; nothing here uses it.
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
    # A signal ends this process, and the other one tells of it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    try:
        there.send((call(), None))
    except BaseException as e:  # extensions in Rust raise such as are no Exception
        there.send((None, _portable(e)))


def _portable(error: BaseException) -> Exception:
    """Return an error that can be raised in another process: not all can be pickled."""
    try:
        again = pickle.loads(pickle.dumps(error))
    except Exception:
        again = None
    is_same = isinstance(again, Exception) and str(again) == str(error)
    return again if is_same else RuntimeError(f"{type(error).__name__}: {error}")
