"""Pickles that call functions, claim sizes or never end: nothing runs, and nothing is lost.

Every file is either refused in one line, or comes back byte for byte.
"""

from __future__ import annotations

import os
import pickle
import sys
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from bf16codecs.convert import safetensors_to_zarr, zarr_to_safetensors
from bf16codecs.convert.sources.pytorch import containers, pickles
from bf16codecs.errors import SafetensorsError
from torch_files import call, pickled, plain, storage, tensor, write_older, write_zip

# Commands and code that would leave a file behind.
RUN = plain("echo ran > ran")
CODE = plain("open('ran', 'w').close()")
DATA = bytes(range(48))
HUGE = (1 << 60).to_bytes(8, "little")
GOOD = tensor("Float", "0", 12, 0, (12,), (1,))


class Reduced:
    """An object that pickle makes by a call."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("echo ran > ran",)


def view(offset: object, shape: object, strides: object, *rest: bytes) -> bytes:
    """Return a tensor with any arguments."""
    parts = [storage("Float", "0", 12), *map(plain, (offset, shape, strides)), *rest]
    return call("torch._utils", "_rebuild_tensor_v2", *parts)


CALLS = {
    "os.system": call("os", "system", RUN),
    "posix.system": call("posix", "system", RUN),
    "nt.system": call("nt", "system", RUN),
    "subprocess.Popen": call("subprocess", "Popen", plain(["sh", "-c", "echo ran > ran"])),
    "subprocess.check_output": call("subprocess", "check_output", RUN),
    "pty.spawn": call("pty", "spawn", plain(["sh", "-c", "echo ran > ran"])),
    "builtins.eval": call("builtins", "eval", CODE),
    "builtins.exec": call("builtins", "exec", CODE),
    "__builtin__.eval": call("__builtin__", "eval", CODE),
    "builtins.open": call("builtins", "open", plain("ran"), plain("w")),
    "builtins.__import__": call("builtins", "__import__", plain("ran")),
    "getattr": call("builtins", "getattr", b"cos\nsystem\n", plain("__call__")),
    "runpy": call("runpy", "_run_code", CODE, plain({})),
    "pathlib": call("pathlib", "Path.touch", call("pathlib", "Path", plain("ran"))),
    "torch.load": call("torch", "load", plain("/etc/passwd")),
    "a call in a call": call("os", "system", call("os", "system", RUN)),
    "a call as the function": b"(" + RUN + b"cos\nsystem\n" + b"tR",
    "a call beside a tensor": b"(" + call("os", "system", RUN) + GOOD + b"t",
    "a call as a key": b"}" + call("os", "system", RUN) + GOOD + b"s",
    "a call as a storage": call(
        "torch._utils",
        "_rebuild_tensor_v2",
        call("os", "system", RUN),
        *map(plain, (0, (1,), (1,))),
    ),
    "a function of a subclass": call(
        "torch._tensor",
        "_rebuild_from_type_v2",
        b"cos\nsystem\n",
        b"cos\nsystem\n",
        RUN + b"\x85",
        plain({}),
    ),
    "inst": b"(" + RUN + b"ios\nsystem\n",
    "obj": b"(cos\nsystem\n" + RUN + b"o",
    "newobj": b"cos\nsystem\n" + RUN + b"\x85\x81",
    "newobj_ex": b"cos\nsystem\n" + RUN + b"\x85}\x92",
    "stack_global": b"\x8c\x02os\x8c\x06system\x93" + RUN + b"\x85R",
    "build": b"ccollections\nOrderedDict\n)R}" + plain("__setstate__") + b"cos\nsystem\nsb",
    "extension": b"\x82\x01" + RUN + b"\x85R",
    "reduce of pickle": pickle.dumps(Reduced(), 2)[2:-1],
}
CLAIMS = {
    "bytes": b"\x8e" + HUGE + b"x",
    "text": b"\x8d" + HUGE + b"x",
    "array of bytes": b"\x96" + HUGE + b"x",
    "frame": b"\x95" + HUGE + GOOD,
    "number": b"\x8b\xff\xff\xff\x7f1",
    "memory": b"]r\xff\xff\xff\xffh\xff",
    "items": storage("Float", "0", 1 << 60),
    "shape": view(0, (1 << 60, 1 << 60), (1, 1)),
    "offset": view(1 << 60, (1,), (1,)),
    "strides": view(0, (3,), (1 << 60,)),
}
STRANGE = {
    "negative": view(-4, (2,), (1,)),
    "negative strides": view(8, (2,), (-1,)),
    "no numbers": view("0", ("2",), ("1",)),
    "truth": view(True, (True,), (True,)),
    "too few": call("torch._utils", "_rebuild_tensor_v2", storage("Float", "0", 12)),
    "no arguments": call("torch._utils", "_rebuild_tensor_v2"),
    "outside": storage("Float", "../../../etc/passwd", 12),
    "no storage": b"(" + plain("module") + plain("x") + b"tQ",
    "a text for an id": b"Pstorage\n",
    "itself": b"]q\x00h\x00a",
    "itself in itself": b"]q\x00]q\x01h\x00ah\x01a",
    "a list as a key": b"}]" + GOOD + b"s",
    "pairs of what is none": plain(7) + GOOD + GOOD + b"s",
    "appended to a number": plain(7) + GOOD + b"a",
    "empty stack": b"0",
    "no mark": b"t",
    "two values": b"NN",
    "no such number": b"h\x07",
    "no such instruction": b"\xff",
    "no text": b"\x8c\x02\xff\xff",
    "deep lists": b"]" * 50_000 + b"a" * 49_999,
    "deep tuples": b"N" + b"\x85" * 50_000,
    "doubled": b"]" + b"q\x00h\x00\x86" * 40,
    "shared lists": b"]q\x00" + b"](h\x00h\x00eq\x00" * 40,
    "a name of a million": b"}" + plain("x" * 1_000_000) + GOOD + b"s",
    "names with ..": b"}" + plain("../../x") + GOOD + b"s",
    "an empty name": b"}" + plain("") + GOOD + b"s",
    "the name of the metadata": b"}" + plain("__metadata__") + GOOD + b"s",
    "a name that is no text": b"}" + plain(b"\xff") + GOOD + b"s",
    "another module's storage": b"("
    + plain("storage")
    + b"cos\nsystem\n"
    + plain("0")
    + plain("cpu")
    + plain(12)
    + b"tQ",
}
ALL = {**CALLS, **CLAIMS, **STRANGE}


def refusal(source: Path, store: Path) -> str:
    """Make a store, in little memory; return why that is refused, empty if it is not."""
    tracemalloc.start()
    try:
        safetensors_to_zarr(source, store)
    except SafetensorsError as error:
        return str(error)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 1 << 27
    return ""


@pytest.mark.parametrize("name", ALL)
def test_nothing_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    modules, content = set(sys.modules), pickled(ALL[name])
    files = [
        write_zip(tmp_path / "new.pt", content, {"0": DATA}),
        write_older(tmp_path / "old.pt", content, {"0": (12, DATA)}),
    ]
    for source in files:
        store, back = source.with_suffix(".zarr"), source.with_suffix(".back")
        if message := refusal(source, store):
            assert message.isprintable()
            assert len(message) < 400
            assert not store.exists()
        else:
            zarr_to_safetensors(store, back)
            assert back.read_bytes() == source.read_bytes()
    assert not (tmp_path / "ran").exists()
    assert {"pty", "runpy", "ran"}.isdisjoint(set(sys.modules) - modules)


def test_the_test_would_see_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own pickle runs the same bytes."""
    monkeypatch.chdir(tmp_path)
    for name in ("os.system", "builtins.exec", "stack_global", "inst"):
        (tmp_path / "ran").unlink(missing_ok=True)
        pickle.loads(pickled(ALL[name]))
        assert (tmp_path / "ran").exists()


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickles, "_MOST_INSTRUCTIONS", 1000)
    path = write_zip(tmp_path / "x.pt", pickled(b"](" + b"K\x01" * 1000 + b"e"), {"0": DATA})
    with pytest.raises(SafetensorsError, match="more than 1000 instructions"):
        safetensors_to_zarr(path, tmp_path / "m.zarr")
    monkeypatch.setattr(containers, "MAX_METADATA_BYTES", 1000)
    path = write_zip(tmp_path / "x.pt", pickled(plain("x" * 2000)), {"0": DATA})
    with pytest.raises(SafetensorsError, match="the limit is 1000"):
        safetensors_to_zarr(path, tmp_path / "m.zarr")


def test_calls_with_many_arguments_copy_nothing(tmp_path: Path) -> None:
    """A few bytes may call a function with all values that came before."""
    many = b"(" + b"K\x01" * 20_000 + b"tq\x07"
    calls = b"](" + b"cos\nsystem\nh\x07R" * 1_000 + b"e"
    shape = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage("Float", "0", 12) + b"K\x00"
    tensors = b"](" + (shape + b"h\x07h\x07tR") * 2_000 + b"e"
    for name, content in {"calls": calls, "tensors": tensors}.items():
        path = write_zip(
            tmp_path / f"{name}.pt", pickled(b"(" + many + content + b"t"), {"0": DATA}
        )
        assert refusal(path, tmp_path / f"{name}.zarr") == ""


def test_a_line_without_an_end(tmp_path: Path) -> None:
    """The older form of a file of gigabytes, whose pickles would be all of it."""
    path = write_older(tmp_path / "m.bin", b"", {})
    start = path.read_bytes()
    with open(path, "wb") as file:
        file.write(start[: start.index(b"]")] + b"cthe name of a module")
        file.truncate(3 << 30)
    tracemalloc.start()
    try:
        with pytest.raises(SafetensorsError, match="it is longer than 100000000 bytes"):
            safetensors_to_zarr(path, tmp_path / "m.zarr")
        assert tracemalloc.get_traced_memory()[1] < 500 << 20
    finally:
        tracemalloc.stop()
    assert not (tmp_path / "m.zarr").exists()


def test_zip_files_whose_directory_lies(tmp_path: Path) -> None:
    good = write_zip(tmp_path / "good.bin", pickled({"w": GOOD}), {"0": DATA}).read_bytes()
    end = good.rindex(b"PK\5\6")
    offset = int.from_bytes(good[end + 16 : end + 20], "little")

    def refused(size: int, offset: int, message: str, at: int = end) -> None:
        path = tmp_path / "m.bin"
        with open(path, "wb") as file:
            file.write(good[:end])
            file.seek(at)
            numbers = size.to_bytes(4, "little") + offset.to_bytes(4, "little")
            file.write(good[end : end + 12] + numbers + good[end + 20 :])
        with pytest.raises(SafetensorsError, match=message):
            safetensors_to_zarr(path, tmp_path / "m.zarr")

    # Members would lie before the file.
    refused(end - offset, offset + 100_000, "damaged or truncated ZIP file")
    # A directory of 200 MB, which is never read.
    refused(200_000_000, 0, r"m\.bin: ", at=300_000_000)


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compressed_pickles_that_are_damaged(tmp_path: Path, method: int) -> None:
    path = write_zip(tmp_path / "m.bin", pickled({"w": GOOD}), {"0": DATA}, compression=method)
    with zipfile.ZipFile(path) as archive:
        (record,) = (m for m in archive.infolist() if m.filename.endswith("data.pkl"))
    content = bytearray(path.read_bytes())
    start = record.header_offset + 30 + len(record.filename)
    for at in range(start + 12, start + record.compress_size, 7):
        content[at] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(SafetensorsError, match=r"m\.bin: a damaged or truncated ZIP file"):
        safetensors_to_zarr(path, tmp_path / "m.zarr")
