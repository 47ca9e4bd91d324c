"""Daemon threads that are in the native core when the interpreter exits."""

import itertools

from looping import for_each
from tiers import by_tier

CODE = """
import sys, threading, numpy as np, bf16codecs
data = np.arange(1 << 18, dtype=np.uint16)
begun = threading.Barrier(4)
def go_on(name, work):
    codec, work = getattr(bf16codecs, name)(), compile(work, "work", "exec")
    frame, out = codec.encode(data), np.empty_like(data)
    begun.wait()
    while True:
        exec(work)
for thread in range(3):
    words = sys.argv[1:][2 * thread :][:2]
    threading.Thread(target=go_on, args=words, daemon=True).start()
begun.wait()
"""

NAMES = ["BF16Arithmetic", "BF16Zstd", "RunLength"]
DECODE, ENCODE = "codec.decode(frame, out)", "codec.encode(data)"
#: Codec and work of each of three threads: the same for all, or different codecs.
ALIKE = [[(name, work)] * 3 for name, work in itertools.product(NAMES, (DECODE, ENCODE))]
MIXED = [[(name, work) for name in NAMES] for work in (DECODE, ENCODE)]


# Python before 3.14 ends such threads by unwinding their stacks, C++ and all.
@for_each("threads", by_tier(MIXED, ALIKE + MIXED))
def test_the_interpreter_exits_silently(run_python, threads) -> None:
    assert run_python(CODE, *itertools.chain(*threads)).stderr == ""
