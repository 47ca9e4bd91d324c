"""Programs that know nothing of this package read a mounted store as its original files."""

from __future__ import annotations

import errno
import filecmp
import mmap
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from bf16codecs.convert import (
    append_to_run,
    drop_steps,
    pack_hugging_face,
    safetensors_to_hdf5,
    safetensors_to_run,
    safetensors_to_zarr,
)
from checkout import package_environment
from commands import ended, start
from lazy_models import weights, write_safetensors
from model_folders import contents, folder_modes, write_folder, write_sharded
from mounting import is_mounted, mounted, unmount, why_not
from published import State, bits_of, states
from waiting import wait_until

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can")

#: 8 MiB, in two chunks of whole rows and several blocks.
SHAPE = (2048, 2048)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tensors = {
        "embed": weights(SHAPE),
        "empty": weights((0, 3)),
        "scalar": weights(()),
        "norm": weights((2047,), "float32", seed=1),
        "head": weights((300, 1024), "float16", seed=2),
    }
    return write_safetensors(tmp_path / "model.safetensors", tensors, {"format": "pt"})


@pytest.fixture
def store(tmp_path: Path, model: Path) -> Path:
    safetensors_to_zarr(model, tmp_path / "store.zarr", chunk_size=4 << 20)
    return tmp_path / "store.zarr"


def assert_same(one: Path, other: Path) -> None:
    """Compare files with a program of the system."""
    subprocess.run(["cmp", one, other], check=True)


# --- what is there --------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"zarr_format": 2}, {"codec": "zstd"}, {"codec": "none"}])
def test_a_model(tmp_path: Path, model: Path, options: dict[str, object]) -> None:
    safetensors_to_zarr(model, tmp_path / "store.zarr", **options)  # type: ignore[arg-type]
    with mounted(tmp_path / "store.zarr", tmp_path / "m") as found:
        assert os.listdir(found.folder) == [model.name]
        assert_same(found.folder / model.name, model)


def test_in_a_zip_file_and_in_hdf5(tmp_path: Path, model: Path) -> None:
    safetensors_to_zarr(model, tmp_path / "store.zarr.zip")
    safetensors_to_hdf5(model, tmp_path / "store.h5")
    for name in ("store.zarr.zip", "store.h5"):
        with mounted(tmp_path / name, tmp_path / "m") as found:
            assert_same(found.folder / model.name, model)


def test_a_difference_to_a_base(tmp_path: Path, model: Path, store: Path) -> None:
    other = write_safetensors(tmp_path / "new.safetensors", {"embed": weights(SHAPE) * 2})
    safetensors_to_zarr(other, tmp_path / "new.zarr", base=store)
    with mounted(tmp_path / "new.zarr", tmp_path / "m") as found:
        assert_same(found.folder / other.name, other)
    store.rename(tmp_path / "moved.zarr")
    with mounted(tmp_path / "new.zarr", tmp_path / "m", "--base", tmp_path / "moved.zarr") as found:
        assert_same(found.folder / other.name, other)


def test_shards_and_their_index(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    write_sharded(tmp_path / "shards")
    safetensors_to_zarr(tmp_path / "shards", tmp_path / "store.zarr")
    with mounted(tmp_path / "store.zarr", tmp_path / "m") as found:
        names = os.listdir(tmp_path / "shards")
        assert sorted(os.listdir(found.folder)) == sorted(names)
        _, differing, failed = filecmp.cmpfiles(tmp_path / "shards", found.folder, names, False)
        assert not differing + failed


def test_a_packed_folder(tmp_path: Path) -> None:
    original = write_folder(tmp_path / "original")
    os.utime(original / "config.json", (1_000_000_000, 1_000_000_000))
    pack_hugging_face(original, tmp_path / "packed")
    with mounted(tmp_path / "packed", tmp_path / "m") as found:
        read_only = {
            name: entry and (entry[0] & 0o555, entry[1])
            for name, entry in contents(original).items()
        }
        assert contents(found.folder) == read_only
        modes = {name: mode & 0o555 for name, mode in folder_modes(original).items()}
        assert folder_modes(found.folder) == modes


def test_the_steps_of_a_run_are_folders_and_new_ones_appear(tmp_path: Path) -> None:
    files = [
        write_safetensors(tmp_path / f"step-{n}.safetensors", {"w": weights((500, 700), seed=n)})
        for n in (100, 200, 300)
    ]
    run = tmp_path / "run.zarr"
    safetensors_to_run(files[:2], run)
    with mounted(run, tmp_path / "m") as found:
        first = found.folder / "step-100" / files[0].name
        assert sorted(os.listdir(found.folder)) == ["step-100", "step-200"]
        with open(first, "rb") as opened:
            begin, changed = opened.read(1000), os.stat(first).st_mtime_ns
            append_to_run(files[2], run)
            assert wait_until(lambda: "step-300" in os.listdir(found.folder))
            assert begin + opened.read() == files[0].read_bytes()
        for file in files:
            assert_same(found.folder / file.stem / file.name, file)
        assert os.stat(first).st_mtime_ns == changed
    with mounted(f"{run}@200", tmp_path / "m") as found:
        assert_same(found.folder / files[1].name, files[1])


def test_steps_of_a_published_run_appear_and_vanish_whatever_is_open(tmp_path: Path) -> None:
    publish = pytest.importorskip("bf16codecs.torch").publish
    safetensors_of = pytest.importorskip("safetensors.torch")
    some, others = states(8), states(8, seed=5)
    run, folder = tmp_path / "run.zarr", tmp_path / "m"

    def steps() -> list[str]:
        return sorted(os.listdir(folder))

    def has(number: int, state: State) -> bool:
        found = safetensors_of.load((folder / f"step-{number}" / "run.safetensors").read_bytes())
        return bits_of(found) == bits_of(state)

    for number in range(4):
        publish(run, some[number], number, keyframe_every=2)
    with mounted(run, folder):
        with open(folder / "step-1" / "run.safetensors", "rb") as dropped:
            dropped.read(10)
            publish(run, some[4], 4)
            drop_steps(run, 2)
            assert wait_until(lambda: steps() == ["step-2", "step-3", "step-4"])
            publish(run, some[5], 5)
            assert wait_until(lambda: "step-5" in steps())
            assert has(5, some[5])
        with open(folder / "step-5" / "run.safetensors", "rb") as kept:
            kept.read(10)
            drop_steps(run, 2)
            assert wait_until(lambda: steps() == ["step-4", "step-5"])
        # Another step of the same number, with tensors of the same shapes.
        assert has(4, some[4])
        publish(run, others[4], 4, restart=True)
        assert wait_until(lambda: steps() == ["step-4"])
        assert has(4, others[4])


def test_status_and_rights(tmp_path: Path, model: Path, store: Path) -> None:
    with mounted(store, tmp_path / "m") as found:
        file = found.folder / model.name
        status = os.stat(file)
        assert status.st_size == model.stat().st_size
        assert status.st_mtime_ns == (store / "zarr.json").stat().st_mtime_ns
        assert stat.filemode(status.st_mode) == "-r--r--r--"
        assert (status.st_uid, status.st_gid) == (os.getuid(), os.getgid())
        assert os.statvfs(file).f_bfree == 0
        for refused in (
            lambda: os.open(file, os.O_WRONLY),
            lambda: os.open(found.folder / "new", os.O_CREAT | os.O_WRONLY),
            lambda: os.remove(file),
            lambda: os.chmod(file, 0o777),
            lambda: os.rename(file, found.folder / "other"),
        ):
            with pytest.raises(OSError, match="Read-only file system"):
                refused()
        with pytest.raises(FileNotFoundError):
            os.stat(found.folder / "missing")


# --- how it is read -------------------------------------------------------------------------------


def test_ranges_maps_and_transfers(tmp_path: Path, model: Path, store: Path) -> None:
    content = model.read_bytes()
    with mounted(store, tmp_path / "m", "--threads", 2) as found:
        file = found.folder / model.name
        chance = random.Random(0)
        with open(file, "rb", buffering=0) as opened:
            for _ in range(200):
                at, nbytes = chance.randrange(len(content)), chance.choice([1, 4096, 300_000])
                assert os.pread(opened.fileno(), nbytes, at) == content[at : at + nbytes]
            assert os.pread(opened.fileno(), 10, len(content)) == b""
            with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                for _ in range(200):
                    at = chance.randrange(len(content))
                    assert mapped[at : at + 5000] == content[at : at + 5000]
            with open(tmp_path / "copy", "wb") as copy:
                sent = 0
                while sent < len(content):
                    sent += os.sendfile(copy.fileno(), opened.fileno(), sent, len(content))
        assert_same(tmp_path / "copy", model)


def test_several_readers(tmp_path: Path, model: Path, store: Path) -> None:
    with mounted(store, tmp_path / "m") as found:
        file = found.folder / model.name
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda _: assert_same(file, model), range(6)))


def test_the_library_of_safetensors(tmp_path: Path, model: Path, store: Path) -> None:
    pytest.importorskip("safetensors")
    code = f"""
import sys
import ml_dtypes  # NumPy's bfloat16
from safetensors import safe_open
with (
    safe_open({str(model)!r}, "np") as one,
    safe_open({str(tmp_path / "m" / model.name)!r}, "np") as other,
):
    assert one.metadata() == other.metadata()
    for name in one.keys():
        assert one.get_tensor(name).tobytes() == other.get_tensor(name).tobytes(), name
    part = other.get_slice("embed")[1000:1003, ::7]
    assert part.tobytes() == one.get_slice("embed")[1000:1003, ::7].tobytes()
assert "bf16codecs" not in sys.modules
"""
    with mounted(store, tmp_path / "m"):
        subprocess.run([sys.executable, "-I", "-c", code], check=True)


MAPPING_PROGRAM = r"""
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int main(int argc, char** argv) {
  int file = open(argv[1], O_RDONLY);
  struct stat status;
  if (file < 0 || fstat(file, &status) != 0) return 1;
  unsigned char* bytes = mmap(NULL, status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
  if (bytes == MAP_FAILED) return 2;
  unsigned long long sum = 14695981039346656037ull;
  for (off_t at = status.st_size; at-- > 0;) sum = (sum ^ bytes[at]) * 1099511628211ull;
  printf("%llx\n", sum);
  return argc > 9;
}
"""


def test_a_c_program_that_maps_files_and_reads_them_backwards(
    tmp_path: Path, model: Path, store: Path
) -> None:
    (tmp_path / "map.c").write_text(MAPPING_PROGRAM)
    program = tmp_path / "map"
    subprocess.run(["cc", "-O2", "-o", program, tmp_path / "map.c"], check=True)
    with mounted(store, tmp_path / "m") as found:
        sums = [
            subprocess.run([program, path], check=True, capture_output=True).stdout
            for path in (model, found.folder / model.name)
        ]
    assert sums[0] == sums[1]


# --- damage ---------------------------------------------------------------------------------------


def damage(path: Path, at: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 0x55]))


def test_a_damaged_block_is_an_error_and_is_named(tmp_path: Path, model: Path, store: Path) -> None:
    files = [path for path in store.rglob("*") if path.is_file()]
    chunk = max(files, key=lambda path: path.stat().st_size)
    damage(chunk, chunk.stat().st_size // 2)
    content = model.read_bytes()
    with mounted(store, tmp_path / "m", "--log", tmp_path / "log") as found:
        failed, read = [], 0
        with open(found.folder / model.name, "rb", buffering=0) as opened:
            for at in range(0, len(content), 4096):
                try:
                    part = os.pread(opened.fileno(), 4096, at)
                except OSError as e:
                    failed.append((at, e.errno))
                else:
                    assert part == content[at : at + 4096]
                    read += 1
        # A block of 512 KiB, whose ends lie within pages.
        assert (1 << 19) - 4096 <= len(failed) * 4096 <= (1 << 19) + 8192
        assert failed == [(failed[0][0] + n * 4096, errno.EIO) for n in range(len(failed))]
        assert read + len(failed) == -(-len(content) // 4096)
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert f"{tmp_path / 'm'}: {store}: tensor 'embed', chunk" in line
    assert "checksum" in line


def test_a_store_that_is_replaced_appears_under_the_same_names(
    tmp_path: Path, model: Path, store: Path
) -> None:
    with mounted(store, tmp_path / "m") as found:
        file = found.folder / model.name
        assert_same(file, model)
        write_safetensors(model, {"embed": weights(SHAPE, seed=7)})
        safetensors_to_zarr(model, store, overwrite=True)
        assert wait_until(lambda: os.stat(file).st_size == model.stat().st_size)
        assert_same(file, model)


@pytest.mark.parametrize("suffix", [".zarr.zip", ".h5"])
def test_a_store_that_is_replaced_appears_once_no_old_file_is_open(
    tmp_path: Path, suffix: str
) -> None:
    """Also where the new store has the size and the time of the old one."""
    convert = safetensors_to_hdf5 if suffix == ".h5" else safetensors_to_zarr
    models = []
    for seed in (1, 2):
        (tmp_path / str(seed)).mkdir()
        tensors = {"w": weights((3000, 1000), seed=seed)}
        models.append(write_safetensors(tmp_path / str(seed) / "m.safetensors", tensors))
        convert(models[-1], tmp_path / f"{seed}{suffix}")
        os.utime(tmp_path / f"{seed}{suffix}", (1_600_000_000, 1_600_000_000))
    store = tmp_path / f"store{suffix}"
    (tmp_path / f"1{suffix}").rename(store)
    with mounted(store, tmp_path / "m") as found:
        file = found.folder / "m.safetensors"
        with open(file, "rb") as opened:
            begin = opened.read(1_000_000)
            (tmp_path / f"2{suffix}").rename(store)
            time.sleep(1.5)
            assert_same(file, models[0])
            assert begin + opened.read() == models[0].read_bytes()
        assert wait_until(lambda: file.read_bytes() == models[1].read_bytes())


def test_a_store_in_a_packed_folder_that_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "original").mkdir()
    model = write_safetensors(tmp_path / "original" / "model.safetensors", {"w": weights((99, 9))})
    pack_hugging_face(tmp_path / "original", tmp_path / "packed")
    with mounted(tmp_path / "packed", tmp_path / "m") as found:
        assert_same(found.folder / model.name, model)
        write_safetensors(model, {"w": weights((99, 9), seed=4)})
        safetensors_to_zarr(model, tmp_path / "packed" / "model.zarr", overwrite=True)
        file = found.folder / model.name
        assert wait_until(lambda: file.read_bytes() == model.read_bytes())


def test_a_copied_file_that_is_edited(tmp_path: Path) -> None:
    original = write_folder(tmp_path / "original")
    pack_hugging_face(original, tmp_path / "packed")
    with mounted(tmp_path / "packed", tmp_path / "m") as found:
        file = found.folder / "config.json"
        before = file.read_text()
        (tmp_path / "packed" / "config.json").write_text(before + " " * 100)
        assert wait_until(lambda: file.read_text() == before + " " * 100)


def test_a_store_that_is_removed_gives_errors(tmp_path: Path, model: Path, store: Path) -> None:
    with (
        mounted(store, tmp_path / "m", "--log", tmp_path / "log") as found,
        open(found.folder / model.name, "rb", buffering=0) as opened,
    ):
        shutil.rmtree(store)
        with pytest.raises(OSError, match="Input/output error"):
            opened.read(1 << 20)
    assert str(store) in (tmp_path / "log").read_text()


# --- the end of a mount ---------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_unmounts_even_while_files_are_open(
    tmp_path: Path, model: Path, store: Path, number: int
) -> None:
    with mounted(store, tmp_path / "m") as found:
        opened = os.open(found.folder / model.name, os.O_RDONLY)
        found.process.send_signal(number)
        assert ended(found.process) == ("", "")
        with suppress(OSError):  # closing a file asks the process
            os.close(opened)
        assert found.process.returncode == 0
        assert not is_mounted(found.folder)
        assert os.listdir(found.folder) == []


def test_unmounting_ends_the_process(tmp_path: Path, store: Path) -> None:
    with mounted(store, tmp_path / "m") as found:
        subprocess.run(["umount", found.folder], check=True)
        assert ended(found.process) == ("", "")
        assert found.process.returncode == 0


@pytest.mark.parametrize("before", ["", "import shutil; shutil.which = lambda name: None"])
def test_a_mount_whose_process_was_killed_is_replaced(
    tmp_path: Path, model: Path, store: Path, before: str
) -> None:
    folder = tmp_path / "a folder, with blanks"
    with mounted(store, folder, before=before) as found:
        found.process.kill()
        ended(found.process)
        # With fusermount3, the system may have unmounted it by now.
        assert is_mounted(folder) or not before
        out, err = ended(start("bf16codecs", "mount", store, folder))
        assert (out[:10], err) == ("mounted on", "")
        assert_same(folder / model.name, model)


def test_what_else_was_killed_is_not_removed(tmp_path: Path, store: Path) -> None:
    other = "import bf16codecs.mount.file_system as f; f._SUBTYPE = 'other'"
    hides = "; import shutil; shutil.which = lambda name: None"
    with mounted(store, tmp_path / "m", before=other + hides) as found:
        found.process.kill()
        ended(found.process)
        assert f"remove it with `fusermount3 -u {found.folder}`" in message(store, found.folder)
        assert is_mounted(found.folder)


def test_a_signal_while_it_starts(tmp_path: Path, store: Path) -> None:
    (tmp_path / "m").mkdir()
    for number, how in ((signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")):
        # While a module is imported, signals are noted alone.
        before = f"""
import os, bf16codecs.mount.file_system as f
really = f._checked
f._checked = lambda folder: (f._interrupt.note({int(number)}, f), really(folder))[1]
class Importing: f_code = type("C", (), {{"co_filename": "<frozen importlib._bootstrap>"}})
f._interrupt._is_importing = lambda frame: True
"""
        arguments = ("mount", "--foreground", store, tmp_path / "m")
        process = start("bf16codecs", *arguments, before=before)
        assert ended(process) == ("", f"bf16codecs mount: {how}\n")
        assert process.returncode == 128 + number
        assert not is_mounted(tmp_path / "m")


def test_the_log_is_where_it_was_named(tmp_path: Path, model: Path, store: Path) -> None:
    files = [path for path in store.rglob("*") if path.is_file()]
    damage(max(files, key=lambda path: path.stat().st_size), 100_000)
    before = f"import os; os.chdir({str(tmp_path)!r})"
    with mounted(store, tmp_path / "m", "--log", "log", before=before) as found:
        with pytest.raises(OSError, match="Input/output error"):
            (found.folder / model.name).read_bytes()
        assert "checksum" in (tmp_path / "log").read_text()


def test_what_goes_wrong_when_it_is_ready(tmp_path: Path, store: Path) -> None:
    (tmp_path / "m").mkdir()
    code = f"""
import os
from bf16codecs.mount import mount
def ready():
    raise RuntimeError("no")
try:
    mount({str(store)!r}, {str(tmp_path / "m")!r}, ready=ready)
except RuntimeError as e:
    assert str(e) == "no"
    assert os.getcwd() == {str(tmp_path)!r}
    print("ended")
"""
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env=package_environment(),
    )
    assert found.stdout == "ended\n", found.stderr
    assert not is_mounted(tmp_path / "m")


def test_in_the_background(tmp_path: Path, model: Path, store: Path) -> None:
    folder, log = tmp_path / "m", tmp_path / "logs" / "log"
    folder.mkdir()
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        process = start("bf16codecs", "mount", "store.zarr", "m", "--log", "logs/log")
    finally:
        os.chdir(before)
    out, err = ended(process)
    try:
        assert (process.returncode, err) == (0, "")
        assert out == (
            f"mounted on {folder}; to end it: fusermount3 -u {folder}\nerrors are in {log}\n"
        )
        assert_same(folder / model.name, model)
    finally:
        unmount(folder)
    assert log.read_text() == ""


# --- messages -------------------------------------------------------------------------------------


def test_addresses_of_files(tmp_path: Path, model: Path, store: Path) -> None:
    with mounted(f"file://{store}", tmp_path / "m") as found:
        assert_same(found.folder / model.name, model)


def message(*arguments: object, **environment: str) -> str:
    process = start("bf16codecs", "mount", *arguments, **environment)
    out, err = ended(process)
    assert (process.returncode, out, err.count("\n")) == (1, "", 1)
    return err


def test_what_cannot_be_mounted(tmp_path: Path, model: Path, store: Path) -> None:
    (tmp_path / "folder").mkdir()
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "No such file or directory" in message(tmp_path / "stor.zarr", empty)
    assert "did you mean" in message(tmp_path / "stor.zarr", empty)
    assert "not a model store" in message(model.parent / "folder", empty)
    assert "No such folder: make it first" in message(store, tmp_path / "none")
    assert "not empty: it has 'empty'" in message(store, tmp_path)
    assert "Not a directory" in message(store, store / "zarr.json")
    assert "libfuse 3" in message(store, empty, FUSE_LIBRARY_NAME="nothing")
    assert "has no base" in message(store, empty, "--base", store)
    inside = store / "inside"
    inside.mkdir()
    assert f"{inside}: lies in {store}: choose a folder outside of it" in message(store, inside)
    for arguments in (("", empty), (store, "")):
        assert "is empty" in message(*arguments)
    assert not is_mounted(empty)
