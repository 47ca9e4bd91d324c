"""Daemon threads that are in the native core when the interpreter exits."""

import pytest

CODE = """
import sys, threading, numpy as np, bf16codecs
work = compile(sys.argv[2], "work", "exec")
codec = getattr(bf16codecs, sys.argv[1])()
data = np.arange(1 << 18, dtype=np.uint16)
frame = codec.encode(data)
begun = threading.Barrier(4)
def go_on():
    out = np.empty_like(data)
    begun.wait()
    while True:
        exec(work)
for _ in range(3):
    threading.Thread(target=go_on, daemon=True).start()
begun.wait()
"""


# Python before 3.14 ends such threads by unwinding their stacks, C++ and all.
@pytest.mark.parametrize("work", ["codec.decode(frame, out)", "codec.encode(data)"])
@pytest.mark.parametrize("name", ["BF16Arithmetic", "BF16Zstd", "RunLength"])
def test_nothing_is_said(run_python, name: str, work: str) -> None:
    assert run_python(CODE, name, work).stderr == ""
