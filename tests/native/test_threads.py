"""Threads: their number changes no byte, Python's own threads go on, processes may fork."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import bf16codecs
from bf16codecs.convert import safetensors_to_zarr
from bf16codecs.errors import CorruptDataError
from contents import gaussian, lcg_bytes, weights, with_zeros
from looping import for_each
from models import write_model
from native_core import core
from tiers import by_tier
from waiting import wait_until

CODECS = {"split": 1, "huffman": 2, "arithmetic": 3, "zstd": 4}
codecs = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)

RAW = weights(30_000) + bytes(40_000) + lcg_bytes(20_001)
can_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
# Python 3.12 warns about forking with threads, which these tests do.
ignore_fork_warning = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


def encode(raw, codec: int, block: int = 1024) -> bytes:
    return core.encode(raw, codec, 0, level=3 if codec == CODECS["zstd"] else 0, block=block)


@pytest.fixture(autouse=True)
def _restore_threads():
    before = bf16codecs.get_num_threads()
    yield
    bf16codecs.set_num_threads(before)


@codecs
def test_the_number_of_threads_changes_no_byte(codec):
    frames = []
    for threads in (1, 2, 5):
        bf16codecs.set_num_threads(threads)
        for _ in range(5):
            frames.append(encode(RAW, codec))
            assert core.decode(frames[-1]) == RAW
    assert len(set(frames)) == 1


def test_the_number_of_threads_changes_no_frame_of_a_codec():
    raw = weights(400_000)
    codecs = [
        bf16codecs.BF16Split(),
        bf16codecs.BF16Huffman(checksum=False),
        bf16codecs.BF16Arithmetic(),
        bf16codecs.BF16Zstd(dtype="float32"),
    ]
    frames = []
    for threads in (1, 2, 3):
        bf16codecs.set_num_threads(threads)
        frames.append([codec.encode(raw) for codec in codecs])
        assert all(bf16codecs.decode(frame) == raw for frame in frames[-1]), threads
    assert frames[0] == frames[1] == frames[2]


@for_each("dtype", range(6))
def test_the_number_of_threads_changes_no_byte_of_a_model(dtype):
    raw = gaussian(80, 300, dtype) + b"x"
    for content, version in ((raw, 2), (with_zeros(raw[:-1], dtype), 1)):
        frames = set()
        for threads in (1, 2, 5):
            bf16codecs.set_num_threads(threads)
            for _ in range(3):
                frame = core.encode(content, 3, dtype, level=1, block=2048, row=300)
                assert core.decode(frame) == content
                frames.add(frame)
        assert len(frames) == 1
        assert bf16codecs.inspect(frame)["version"] == version


@codecs
def test_many_python_threads_at_once(codec):
    bf16codecs.set_num_threads(3)
    raws = [RAW[i:] + bytes(i) for i in range(0, 64, 2)]
    frames = [encode(raw, codec) for raw in raws]

    def work(number: int) -> bool:
        raw, frame = raws[number % len(raws)], frames[number % len(raws)]
        if number % 10 == 0:
            bf16codecs.set_num_threads(1 + number % 4)
        out = np.empty(len(raw), np.uint8)
        core.decode_into(frame, out)
        return encode(raw, codec) == frame and out.tobytes() == raw

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(160)))


def test_python_threads_start_no_more_threads_than_allowed():
    tasks = "/proc/self/task"
    if not os.path.isdir(tasks):
        pytest.skip("counts threads in /proc")
    bf16codecs.set_num_threads(2)
    frame = encode(RAW, CODECS["arithmetic"])
    before = len(os.listdir(tasks))
    with ThreadPoolExecutor(6) as pool:
        assert all(raw == RAW for raw in pool.map(lambda _: core.decode(frame), range(100)))
        # Python's six, and the core's one helper thread if no test has started it yet.
        assert len(os.listdir(tasks)) <= before + 6 + 1


@for_each("started", [0, 1])
def test_a_system_without_room_for_threads(started, tmp_path, monkeypatch):
    """Reading continues with the existing threads, or in the calling one."""
    source = write_model(tmp_path / "m.safetensors", [("a", "BF16", (64, 64))])
    safetensors_to_zarr(source, tmp_path / "m.zarr", chunk_size=1024, overwrite=True)
    starts = []

    def start(thread):
        starts.append(thread)
        if len(starts) > started:
            raise RuntimeError("can't start new thread")
        start_thread(thread)

    start_thread = threading.Thread.start
    bf16codecs.set_num_threads(4)
    with bf16codecs.open_model(tmp_path / "m.zarr") as model, monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        assert model["a"][...].tobytes() == source.read_bytes()[-8192:]
        assert len(starts) == started + 1


def test_the_lowest_damaged_block_is_named():
    frame = bytearray(encode(RAW, CODECS["arithmetic"]))
    offsets = core.Index(frame).offsets
    assert len(offsets) > 20
    for block in (7, 8, 9, 15):
        frame[offsets[block + 1] - 1] ^= 1
    for threads in (1, 2, 5):
        bf16codecs.set_num_threads(threads)
        for _ in range(40):
            with pytest.raises(CorruptDataError, match="block 7 of"):
                core.decode(frame)


@codecs
def test_errors_leave_the_threads_usable(codec):
    bf16codecs.set_num_threads(4)
    good = encode(RAW, codec)
    bad = bytearray(good)
    for offset in core.Index(good).offsets[:-1]:
        bad[offset] = 77
    for _ in range(20):
        with pytest.raises(CorruptDataError):
            core.decode(bad)
        assert core.decode(good) == RAW


@pytest.mark.parametrize("what", ["encode", "decode", "decode_into", "decode_blocks", "Index"])
def test_other_python_threads_go_on(what):
    """With an endless switch interval, another thread runs only where the core releases the GIL."""
    raw = weights(1_000_000)
    frame = encode(raw, CODECS["arithmetic"], block=0)
    index = core.Index(frame)
    payload = frame[index.offsets[0] :]
    out = np.empty(len(raw), np.uint8)
    call = {
        "encode": lambda: encode(raw, CODECS["arithmetic"], block=0),
        "decode": lambda: core.decode(frame),
        "decode_into": lambda: core.decode_into(frame, out),
        "decode_blocks": lambda: core.decode_blocks(frame, 0, index.n_blocks, out),
        "Index": lambda: index.decode_block_range(payload, 0, index.n_blocks, out),
    }[what]
    bf16codecs.set_num_threads(1)
    begin, progress = threading.Event(), []

    def other() -> None:
        begin.wait()
        progress.append(True)

    thread = threading.Thread(target=other)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        # The new thread keeps the interpreter to itself until it waits, so this returns after that.
        thread.start()
        begin.set()
        for _ in range(200):
            call()
            if progress:
                break
        went_on = bool(progress)
    finally:
        sys.setswitchinterval(before)
        begin.set()
        thread.join()
    assert went_on


# --- fork ----------------------------------------------------------------------------------------


def exit_status_of_child(work) -> int:
    """Fork, and return 0 if `work()` is true in the child; a child that hangs is killed."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if work() else 2
        finally:
            os._exit(status)
    ended = []

    def has_ended() -> bool:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            ended.append(os.waitstatus_to_exitcode(status))
        return bool(ended)

    if wait_until(has_ended):
        return ended[0]
    os.kill(child, 9)
    os.waitpid(child, 0)
    return -1


@can_fork
@ignore_fork_warning
@codecs
def test_a_forked_child_encodes_and_decodes(codec):
    bf16codecs.set_num_threads(3)
    frame = encode(RAW, codec)

    def work() -> bool:
        same = encode(RAW, codec) == frame and core.decode(frame) == RAW
        return same and bf16codecs.get_num_threads() == 3

    for _ in range(5):
        assert exit_status_of_child(work) == 0
    assert exit_status_of_child(lambda: exit_status_of_child(work) == 0) == 0
    assert work()


@can_fork
@ignore_fork_warning
def test_forks_while_other_threads_are_at_work():
    bf16codecs.set_num_threads(3)
    frame = encode(RAW, CODECS["arithmetic"])
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            assert core.decode(frame) == RAW

    threads = [threading.Thread(target=busy) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(by_tier(8, 20)):
            assert exit_status_of_child(lambda: core.decode(frame) == RAW) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def decode_in_worker(frame: bytes) -> int:
    return hash(core.decode(frame))


@can_fork
@ignore_fork_warning
def test_pools_of_forked_processes():
    bf16codecs.set_num_threads(3)
    frames = [encode(RAW[i:], CODECS["huffman"]) for i in range(8)]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        found = pool.map_async(decode_in_worker, frames).get(timeout=60)
    assert found == [hash(RAW[i:]) for i in range(8)]


# --- their number --------------------------------------------------------------------------------


def test_the_number_of_threads_is_checked():
    for threads in (1, 2, 7, 1024):
        bf16codecs.set_num_threads(threads)
        assert bf16codecs.get_num_threads() == threads
    for wrong in (0, -1, 1025, 2**31 - 1, 1 << 40):
        with pytest.raises(ValueError, match=rf"^the number of threads .* 1024, not {wrong}$"):
            bf16codecs.set_num_threads(wrong)
    for wrong in (1.5, "2", None, b"2", True):
        with pytest.raises(TypeError, match=r"^the number of threads must be an integer, not "):
            bf16codecs.set_num_threads(wrong)
    assert bf16codecs.get_num_threads() == 1024


def test_the_environment_sets_the_number(run_python):
    code = "import bf16codecs; print(bf16codecs.get_num_threads())"
    default = run_python(code, BF16CODECS_NUM_THREADS="").stdout
    assert int(default) >= 1
    assert run_python(code, BF16CODECS_NUM_THREADS="3").stdout == "3\n"
    for wrong in ("0", "-2", "many", "99999999999999999999", "2000"):
        done = run_python(code, BF16CODECS_NUM_THREADS=wrong)
        assert done.stdout == default
        assert done.stderr.count(f"RuntimeWarning: BF16CODECS_NUM_THREADS is {wrong!r}, not a") == 1


def test_the_environment_is_obeyed(run_python):
    code = """
import os
from bf16codecs import BF16Arithmetic
raw, codec = bytes(range(256)) * 16_000, BF16Arithmetic()  # 8 blocks
before = len(os.listdir("/proc/self/task"))
assert codec.decode(codec.encode(raw)) == raw
print(len(os.listdir("/proc/self/task")) - before)
"""
    if not os.path.isdir("/proc/self/task"):
        pytest.skip("counts threads in /proc")
    for threads in (1, 2, 4):
        assert int(run_python(code, BF16CODECS_NUM_THREADS=str(threads)).stdout) == threads - 1
