"""Commands as processes: signals, full disks, terminals, memory."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import zarr

from bf16codecs._base.messages import FILES_ADVICE
from bf16codecs.convert import safetensors_to_zarr, verify_store
from bf16codecs.model import open_model
from bf16codecs.store.hdf5.writer import Hdf5Writer
from bf16codecs.store.zarr.writer import ZarrWriter
from commands import ended, start
from folders import names_in
from invoked import done
from looping import for_each
from models import entry, file_bytes, write_model
from tiers import by_tier


def slow(*values: Any) -> Any:
    """Return a case that only the full tier tries: a process takes a second."""
    return pytest.param(*values, marks=pytest.mark.slow)


POSIX = pytest.mark.skipif(os.name != "posix", reason="signals and limits of POSIX")

#: Name of a store: the commands that write and restore it, and the class that writes its chunks.
KINDS: dict[str, tuple[str, str, type]] = {
    "m.zarr": ("st2zarr", "zarr2st", ZarrWriter),
    "m.zip": ("st2zarr", "zarr2st", ZarrWriter),
    "m.h5": ("st2h5", "h52st", Hdf5Writer),
}

#: Let writers wait, once they have written a chunk, until a signal has arrived. That is when the
#: system delivers it: the handler may have to wait for the main thread, and that for a writer.
WAITING = """
import os, select
from {module} import {writer} as Writer

arrived, told = os.pipe()
os.set_blocking(told, False)
signal.set_wakeup_fd(told)
write = Writer.write

def write_and_wait(self, *args):
    result = write(self, *args)
    os.write({pipe}, b"x")
    select.select([arrived], [], [], 60)
    return result

Writer.write = write_and_wait
"""

#: A file may not grow over 100 kB.
LIMIT = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000))"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tensors = [(f"t{i}", "BF16", (1 << 18,)) for i in range(4)]
    return write_model(tmp_path / "m.safetensors", tensors)


def interrupt(model: Path, target: str, number: int, *options: str) -> subprocess.Popen[str]:
    """Send a signal to a conversion that has begun to write."""
    command, _, writer = KINDS[target]
    reading, writing = os.pipe()
    before = WAITING.format(module=writer.__module__, writer=writer.__name__, pipe=writing)
    args = (model, model.with_name(target), "--chunk-size", "64K", *options)
    process = start(command, *args, before=before, pass_fds=[writing])
    os.close(writing)
    begun = os.read(reading, 1)  # nothing if the process ends before
    os.close(reading)
    assert begun, process.communicate()
    process.send_signal(number)
    return process


@POSIX
@pytest.mark.parametrize(
    ("target", "existing", "name", "status", "message"),
    [
        ("m.zarr", False, "SIGINT", 130, "interrupted"),
        ("m.h5", True, "SIGINT", 130, "interrupted"),
        slow("m.zarr", True, "SIGINT", 130, "interrupted"),
        slow("m.zip", False, "SIGINT", 130, "interrupted"),
        slow("m.zip", True, "SIGINT", 130, "interrupted"),
        slow("m.h5", False, "SIGINT", 130, "interrupted"),
        slow("m.zarr", False, "SIGTERM", 143, "terminated"),
        slow("m.zarr", False, "SIGHUP", 129, "terminated"),
    ],
)
def test_interruption_leaves_nothing(
    model: Path, target: str, existing: bool, name: str, status: int, message: str
) -> None:
    store, command = model.with_name(target), KINDS[target][0]
    if existing:
        small = write_model(model.with_name("small"), [("x", "BF16", (4, 4))])
        done(command, small, store)
    options = ["--overwrite"] if existing else []
    process = interrupt(model, target, getattr(signal, name), *options)
    out, err = ended(process)
    assert process.returncode == status, err
    assert (out, err) == ("", f"{command}: {message}\n")
    left = names_in(model.parent) - {"small"}
    assert left == ({"m.safetensors", target} if existing else {"m.safetensors"})
    if existing:
        verify_store(store, small)


#: Send a signal from where Python drops what a handler raises, before the store is finished.
SWALLOWED = """
import os, weakref
from bf16codecs.store.zarr.writer import ZarrWriter
finish = ZarrWriter.finish

def send(reference):
    os.kill(os.getpid(), signal.{name})
    for _ in range(1000):  # the handler is called between two steps of this
        pass

def finish_and_send(self, info):
    thing = set()
    reference = weakref.ref(thing, send)
    del thing
    return finish(self, info)

ZarrWriter.finish = finish_and_send
"""


@POSIX
@pytest.mark.parametrize(
    ("name", "status", "verify"),
    [
        ("SIGINT", 130, "--verify"),
        slow("SIGINT", 130, "--no-verify"),
        slow("SIGHUP", 129, "--verify"),
        slow("SIGHUP", 129, "--no-verify"),
    ],
)
def test_signal_that_python_drops(model: Path, name: str, status: int, verify: str) -> None:
    before = SWALLOWED.format(name=name)
    process = start("st2zarr", model, model.with_name("m.zarr"), verify, before=before)
    out, err = ended(process)
    assert (process.returncode, out, len(err.splitlines())) == (status, "", 1), err
    assert names_in(model.parent) == {"m.safetensors"}


#: Send a signal when zarr wants something done, before or while that runs.
IN_ZARR = """
import asyncio, os, threading
run, has_begun, kept = asyncio.run_coroutine_threadsafe, threading.Event(), []

async def wait(coroutine):
    kept.append(asyncio.current_task())  # as what waits for a server is
    has_begun.set()
    await asyncio.Event().wait()
    await coroutine

def run_and_send(coroutine, loop):
    if {begins}:
        run(wait(coroutine), loop)
        has_begun.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    return run(coroutine, loop)

asyncio.run_coroutine_threadsafe = run_and_send
"""


@POSIX
@pytest.mark.parametrize("begins", [slow(False), True])
def test_signal_during_work_of_zarr(model: Path, begins: bool) -> None:
    store = model.with_name("m.zarr")
    safetensors_to_zarr(model, store, codec="none")
    with open_model(store) as opened:
        bits = opened["t0"].zarr[:]
    array = zarr.create_array(
        store,
        name="t0",
        data=bits,
        chunks=(1 << 16,),
        overwrite=True,
        filters=None,
        compressors=zarr.codecs.BloscCodec(),
        fill_value=float("nan"),
    )
    array.attrs["bf16codecs"] = {"tensor": "t0"}
    zarr.consolidate_metadata(store)
    process = start(
        "zarr2st",
        store,
        model.with_name("b"),
        "--max-bytes",
        "1G",
        before=IN_ZARR.format(begins=begins),
    )
    assert ended(process)[1] == "zarr2st: terminated\n"
    assert process.returncode == 143
    assert names_in(model.parent) == {"m.safetensors", "m.zarr"}


@POSIX
def test_later_signals_are_raised_as_well() -> None:
    """Code that never checks the flag is ended by the second signal if the first was lost."""
    before = """
import os, weakref
from bf16codecs._base import interrupt as _interrupt
import bf16codecs.store.opening
clock = 0.0
_interrupt.time = type("Clock", (), {"monotonic": staticmethod(lambda: clock)})

def send(reference):
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(1000):  # the handler is called between two steps of this
        pass

def hang(*args, **options):
    global clock
    thing = set()
    reference = weakref.ref(thing, send)
    del thing
    os.kill(os.getpid(), signal.SIGINT)  # with the first one
    clock = 1.0
    with _interrupt.shielded():
        os.kill(os.getpid(), signal.SIGINT)
    print("in vain", flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    print("never", flush=True)
    os._exit(9)

bf16codecs.store.opening.open_either = hang
"""
    process = start("bf16codecs", "info", "x", before=before)
    out, err = ended(process)
    assert (process.returncode, out, err) == (143, "in vain\n", "bf16codecs info: terminated\n")


#: Send further signals during the clean-up.
IMPATIENT = """
import os, shutil
remove = shutil.rmtree

def send_and_remove(*args, **options):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(os.getpid(), number)
    return remove(*args, **options)

shutil.rmtree = send_and_remove
"""


@POSIX
@pytest.mark.slow
def test_signals_do_not_interrupt_the_clean_up(model: Path) -> None:
    """Neither a second one, nor the first one once the target has its name."""
    store = model.with_name("m.zarr")
    before = IMPATIENT + SWALLOWED.format(name="SIGTERM")
    process = start("st2zarr", model, store, before=before)
    assert ended(process)[1] == "st2zarr: terminated\n"
    assert names_in(model.parent) == {"m.safetensors"}
    done("st2zarr", model, store)
    process = start("st2zarr", model, store, "--overwrite", before=IMPATIENT)
    text = f"st2zarr: terminated, but {store} is complete\n"
    assert ended(process)[1] == text
    assert process.returncode == 143
    assert names_in(model.parent) == {"m.safetensors", "m.zarr"}
    verify_store(store, model)


@POSIX
def test_signals_that_are_ignored_stay_so(model: Path) -> None:
    """As `nohup` does."""
    before = "signal.signal(signal.SIGHUP, signal.SIG_IGN)" + SWALLOWED.format(name="SIGHUP")
    process = start("st2zarr", model, model.with_name("m.zarr"), before=before)
    ended(process)
    assert process.returncode == 0


def test_the_library_installs_no_handlers(run_python: Any, demo_model: Path) -> None:
    code = """
import signal, sys
before = [signal.getsignal(n) for n in signal.valid_signals()]
from bf16codecs.convert import safetensors_to_zarr
during = []
def look(*args):
    during.append([signal.getsignal(n) for n in signal.valid_signals()])
safetensors_to_zarr(sys.argv[1], "m.zarr", progress=look)
assert during and all(each == before for each in during)
"""
    run_python(code, str(demo_model))


@POSIX
@pytest.mark.parametrize("target", ["m.zarr", slow("m.zip"), slow("m.h5")])
def test_kill_leaves_no_target_and_the_next_run_cleans_up(model: Path, target: str) -> None:
    store = model.with_name(target)
    process = interrupt(model, target, signal.SIGKILL)
    ended(process)
    assert not store.exists()
    assert list(model.parent.glob(".bf16codecs-*.tmp"))
    done(KINDS[target][0], model, store)
    verify_store(store, model)
    assert names_in(model.parent) == {"m.safetensors", target}


@POSIX
@pytest.mark.parametrize(
    ("target", "codec"),
    [
        ("m.zarr", "none"),
        slow("m.zarr", "arithmetic"),
        *(slow(kind, codec) for kind in ("m.zip", "m.h5") for codec in ("none", "arithmetic")),
    ],
)
def test_disk_that_takes_no_more(model: Path, target: str, codec: str) -> None:
    """Full both ways: while converting to a store, and while restoring the file."""
    to, back, _ = KINDS[target]
    store, options = model.with_name(target), ("--codec", codec)

    def refused(command: str, *args: Any) -> None:
        process = start(command, *args, before=LIMIT)
        out, err = ended(process)
        assert (process.returncode, out, len(err.splitlines())) == (1, "", 1), err
        assert "File too large" in err

    refused(to, model, store, *options)
    assert names_in(model.parent) == {"m.safetensors"}
    if codec != "none":
        return  # the restored file does not depend on the codec
    done(to, model, store, *options)
    refused(back, store, model.with_name("back"))
    assert names_in(model.parent) == {"m.safetensors", target}


@POSIX
def test_progress_is_for_terminals(model: Path, tmp_path: Path) -> None:
    import pty

    shown = []
    # The bar's last state is always shown: without verification, that of the conversion.
    for options in (("--no-verify",), ("--quiet",)):
        leader, follower = pty.openpty()
        args = (model, tmp_path / "m.zarr", "--overwrite", *options)
        process = start("st2zarr", *args, stderr=follower, TERM="xterm")
        os.close(follower)
        text = b""
        while True:
            try:
                part = os.read(leader, 4096)
            except OSError:  # Linux's error where the other end is closed
                break
            if not part:
                break
            text += part
        ended(process)
        os.close(leader)
        assert process.returncode == 0
        shown.append(text.decode())
    assert "convert" in shown[0]
    assert re.search(r"\d+(\.\d+)?/\d+(\.\d+)? MB", shown[0])
    assert shown[1] == ""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    ("to", "back"),
    [
        ("safetensors_to_zarr", "zarr_to_safetensors"),
        ("safetensors_to_hdf5", "hdf5_to_safetensors"),
    ],
)
def test_memory_is_bounded(tmp_path: Path, run_python: Any, to: str, back: str) -> None:
    """Both directions, with a model larger than the allowed memory."""
    model = write_model(tmp_path / "m.safetensors", [("t", "BF16", (1 << 24,))])
    data = model.read_bytes()[-(1 << 25) :]
    with open(model, "wb") as file:
        file.write(file_bytes({f"t{i}": entry("BF16", [1 << 24], i << 25) for i in range(10)}))
        for _ in range(10):
            file.write(data)
    assert model.stat().st_size > 300e6
    code = f"""
import sys
from pathlib import Path
from bf16codecs.convert import {to}, {back}
{to}(sys.argv[1], "store", threads=2)
{back}("store", "back", threads=2)
status = Path("/proc/self/status").read_text()
print(status.split("VmHWM:")[1].split()[0])
"""
    assert int(run_python(code, str(model)).stdout) * 1024 < 300e6
    shutil.rmtree(tmp_path)


def test_reader_that_has_had_enough(model: Path) -> None:
    store = model.with_name("m.zarr")
    safetensors_to_zarr(model, store)
    process = start("bf16codecs", "info", store)
    assert process.stdout is not None
    process.stdout.close()
    process.wait(timeout=60)
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()


def test_zarr_commands_do_not_import_h5py(run_python: Any, demo_model: Path) -> None:
    code = """
import sys
from bf16codecs.convert import safetensors_to_zarr, verify_store
safetensors_to_zarr(sys.argv[1], "m.zarr")
verify_store("m.zarr")
print("h5py" in sys.modules)
"""
    assert run_python(code, str(demo_model)).stdout.strip() == "False"


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
@for_each("command, name", [("st2zarr", "m.zarr"), ("st2zarr", "m.zip"), ("st2h5", "m.h5")])
def test_few_open_files(tmp_path, demo_model, command, name):
    """Whichever file cannot be opened, the target is missing or whole, and nothing else is left."""
    for limit in by_tier([8, 48, 54], [*range(7, 70)]):
        folder = tmp_path / f"{command}-{name}-{limit}"
        folder.mkdir()
        before = f"import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))"
        process = start(command, demo_model, folder / name, before=before)
        _, err = ended(process)
        assert names_in(folder) == ({name} if process.returncode == 0 else set()), (limit, err)
        if process.returncode:
            last = err.splitlines()[-1]
            # The message names the file that could not be opened, the store's or Python's.
            assert re.fullmatch(
                rf"{command}: /.*: Too many open files; {re.escape(FILES_ADVICE)}", last
            ), (limit, err)
