"""Untrusted HDF5 files: other types, data that were never written, huge shapes."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import bf16codecs
import tiers
from bf16codecs.convert import hdf5_to_safetensors, safetensors_to_hdf5, verify_store
from bf16codecs.errors import CodecError
from bf16codecs.hdf5.types import file_type
from bf16codecs.store import StoreError
from lazy_models import weights, write_safetensors
from looping import noted
from store_cases import put_back

ARRAYS = {"w": weights((64, 32)), "n": np.arange(1000)}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "m.h5"
    safetensors_to_hdf5(write_safetensors(tmp_path / "m.safetensors", ARRAYS), path)
    return path


def replaced(store: Path, path: str, make: Callable[[h5py.File], Any]) -> None:
    """Replace a dataset by another with its attributes."""
    with h5py.File(store, "r+") as file:
        attributes = dict(file[path].attrs)
        del file[path]
        make(file).attrs.update(attributes)


def opened(store: Path, read: Callable[[bf16codecs.Model], Any]) -> Any:
    with bf16codecs.open_model(store) as model:
        return read(model)


def refused(store: Path, match: str) -> None:
    for read in (
        lambda: opened(store, lambda model: model.load()),
        lambda: opened(store, lambda model: model["w"][3]),
        lambda: hdf5_to_safetensors(store, store.with_name("back")),
        lambda: verify_store(store),
    ):
        with pytest.raises(StoreError, match=match):
            read()
    assert not store.with_name("back").exists()


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EIO, "Can't read data (file read failed: errno = 5, error message = 'I')"),
        KeyError("Unable to open object (file read failed: errno = 5, error message = 'I', x)"),
    ],
    ids=["OSError", "KeyError"],
)
def test_a_disk_that_fails_is_no_damage(
    store: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """h5py raises the same errors for both, from libhdf5's messages."""

    def fail(*_args: object) -> None:
        raise error

    with bf16codecs.open_model(store) as model:
        monkeypatch.setattr("h5py.h5o.open", fail)
        with pytest.raises(OSError, match=f": {os.strerror(errno.EIO)}$") as caught:
            model["w"][3]
    assert str(store) in str(caught.value)
    monkeypatch.setattr("h5py.h5o.get_info", fail)
    with pytest.raises(OSError, match=f": {os.strerror(errno.EIO)}$"):
        bf16codecs.open_model(store)


VARIABLE = h5py.vlen_dtype(np.int32)


OTHER_TYPES: list[tuple[Any, Any]] = [
    (VARIABLE, [np.arange(3, dtype=np.int32)] * 64),
    (h5py.string_dtype(), ["text"] * 64),
    (h5py.ref_dtype, None),
    (h5py.regionref_dtype, None),
    ("S7", b"x"),
    ("V5", None),
    ("(3,)i4", None),
    ([("a", "f4"), ("b", "i2")], None),
    ("c16", 0),
]


@pytest.mark.parametrize("chunks", [None, True])
def test_types_that_no_tensor_has(store, chunks):
    """Sequences of any length were written over memory that they do not fit into."""
    for dtype, data in OTHER_TYPES:

        def make(file: h5py.File, dtype: Any = dtype, data: Any = data) -> Any:
            dataset = file.create_dataset("w", (64,), np.dtype(dtype), chunks=chunks)
            if dtype is VARIABLE:
                dataset[...] = np.array(data, VARIABLE)
            elif data is not None:
                dataset[...] = data
            return dataset

        with noted(dtype), put_back(store):
            replaced(store, "w", make)
            refused(store, r"not the data type of a tensor|is missing")


def test_a_header_of_another_type(store):
    def make(file: h5py.File) -> Any:
        dataset = file.create_dataset("safetensors/header/0", (3,), VARIABLE)
        dataset[...] = np.array([np.arange(3, dtype=np.int32)] * 3, VARIABLE)
        return dataset

    replaced(store, "safetensors/header/0", make)
    refused(store, "not the data type of a tensor")


@pytest.mark.parametrize(
    "options",
    [{}, {"chunks": (8, 32)}, {"chunks": (8, 32), "compression": "gzip"}],
    ids=["contiguous", "chunks", "gzip"],
)
def test_data_that_were_never_written(store, options):
    """HDF5 reads zeros there."""

    def make(file: h5py.File) -> Any:
        return file.create_dataset("w", (64, 32), np.float16, **options)

    arrays = {"w": np.zeros((64, 32), np.float16)}
    safetensors_to_hdf5(
        write_safetensors(store.with_name("m.safetensors"), arrays), store, overwrite=True
    )
    replaced(store, "w", make)
    refused(store, "missing")
    if options:
        with h5py.File(store, "r+") as file:
            file["w"][:32] = 1
        with bf16codecs.open_model(store) as model, pytest.raises(StoreError, match="missing"):
            model.load()


@pytest.mark.parametrize("shape", [(1 << 40, 1 << 40), (1 << 62,), (1 << 24,)])
@pytest.mark.parametrize("chunks", [None, 1])
def test_shapes_without_an_end(store, shape, chunks):
    def make(file: h5py.File) -> Any:
        options: dict[str, Any] = {} if chunks is None else {"chunks": (1,) * len(shape)}
        space = h5py.h5s.create_simple(shape)
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        if options:
            properties.set_chunk(options["chunks"])
        kind = h5py.h5t.py_create(np.dtype("u1"))
        return h5py.Dataset(h5py.h5d.create(file.id, b"w", kind, space, properties))

    try:
        replaced(store, "w", make)
    except (ValueError, OverflowError) as e:
        pytest.skip(f"HDF5 refuses it: {e}")
    refused(store, r"missing|larger than any|is uint8 of shape")


FOLLOWED = """
import sys
import bf16codecs
from bf16codecs.errors import StoreError

for path in sys.argv[1:]:
    print("store", path, flush=True)
    for read in (
        lambda: bf16codecs.open_model(path).load(),
        lambda: bf16codecs.open_model(path)["w"][3],
        lambda: bf16codecs.open_model(path).metadata(),
    ):
        try:
            read()
        except StoreError as e:
            print(e, flush=True)
"""


def assert_refused_in_a_child(run_python: Any, stores: list[Path], message: str) -> None:
    """Read stores in a process that may wait for ever; each reading that fails says why."""
    told = run_python(FOLLOWED, *map(str, stores), timeout=60).stdout
    for store, lines in zip(stores, told.split("store ")[1:], strict=True):
        path, *errors = lines.splitlines()
        assert path == str(store)
        assert errors, f"nothing was refused of {store.name}"
        assert all(message in error for error in errors), lines


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="a system without FIFOs")
def test_links_are_not_followed(store, run_python):
    """HDF5 opens the file that an external link names, and waits for ever if that is a pipe."""
    os.mkfifo(store.with_name("pipe"))
    links = {
        "external": h5py.ExternalLink("pipe", "/w"),
        "soft to external": h5py.SoftLink("/elsewhere"),
        "soft": h5py.SoftLink("/moved"),
    }
    stores = []
    for path in ("w", "safetensors/header/0", "safetensors/header", "safetensors"):
        for kind, link in links.items():
            name = f"{path.replace('/', '-')} {kind}.h5"
            stores.append(Path(shutil.copy(store, store.with_name(name))))
            with h5py.File(stores[-1], "r+") as file:
                file.move(path, "moved")
                file["elsewhere"] = h5py.ExternalLink("pipe", "/w")
                file[path] = link
    assert_refused_in_a_child(run_python, stores, "soft or external link")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="a system without FIFOs")
def test_data_in_other_files_are_not_looked_for(store, run_python):
    os.mkfifo(store.with_name("pipe"))
    os.mkfifo(store.with_name("pipe0"))
    stores = []
    for path in ("w", "safetensors/header/0"):
        for kind in ("virtual", "unlimited", "printf", "external"):
            name = f"{path.replace('/', '-')} {kind}.h5"
            stores.append(Path(shutil.copy(store, store.with_name(name))))
            put_elsewhere(stores[-1], path, kind)
    assert_refused_in_a_child(run_python, stores, "in another file")


def put_elsewhere(store: Path, path: str, kind: str) -> None:
    """Make a dataset's values external, in the file `pipe`."""
    with h5py.File(store, "r+") as file:
        dataset = file[path]
        attributes, shape, dtype = dict(dataset.attrs), dataset.shape, dataset.id.get_type()
        space, endless = dataset.id.get_space(), (h5py.h5s.UNLIMITED, *shape[1:])
        del file[path], dataset
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        if kind == "external":
            properties.set_external(b"pipe", 0, h5py.h5s.UNLIMITED)
        else:
            source = h5py.h5s.create_simple(shape, None if kind == "virtual" else endless)
            target = source.copy()
            ones = (1,) * len(shape)
            if kind == "unlimited":
                count = (h5py.h5s.UNLIMITED, *ones[1:])
                for each in (source, target):
                    each.select_hyperslab((0,) * len(shape), count, None, (1, *shape[1:]))
            elif kind == "printf":
                count = (h5py.h5s.UNLIMITED, *ones[1:])
                target.select_hyperslab((0,) * len(shape), count, shape, shape)
                source = space
            name = b"pipe%b" if kind == "printf" else b"pipe"
            properties.set_virtual(target, name, b"w", source)
            space = target
        made = h5py.h5d.create(file.id, path.encode(), dtype, space, properties)
        h5py.Dataset(made).attrs.update(attributes)
        del made


@pytest.mark.parametrize("owner", ["/", "w"])
def test_attributes_that_are_no_text(store, owner):
    for content in (1, 2.5, ["{}"], np.zeros(9000), h5py.Empty("S2")):
        with h5py.File(store, "r+") as file:
            file[owner].attrs["bf16codecs"] = content
        with (
            noted(content),
            pytest.raises(StoreError, match="attribute 'bf16codecs': it is not text"),
            bf16codecs.open_model(store) as model,
        ):
            model.load()


@pytest.mark.parametrize("owner", tiers.by_tier(["w"], ["/", "w"]))
def test_attributes_of_variable_length_without_an_end(store, owner):
    """Their size is unknown until they are read."""
    with h5py.File(store, "r+") as file:
        file[owner].attrs["bf16codecs"] = "{}" + " " * 100_000_000
    with pytest.raises(StoreError, match=r"'bf16codecs': \d+ bytes of metadata, more than"):
        bf16codecs.open_model(store).load()


def test_attributes_of_fixed_length_are_read(store):
    """As other programs write them."""
    with h5py.File(store, "r+") as file:
        for owner in (file, file["w"], file["n"]):
            owner.attrs["bf16codecs"] = np.bytes_(owner.attrs["bf16codecs"].encode())
    loaded = bf16codecs.open_model(store).load()
    assert loaded["w"].tobytes() == ARRAYS["w"].tobytes()


def deflated(store: Path, content: bytes, filter_mask: int = 0, shuffled: bool = True) -> None:
    """Store `w` as one chunk that was deflated, and perhaps shuffled, by another program."""

    def make(file: h5py.File) -> Any:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((64, 32))
        if shuffled:
            properties.set_shuffle()
        properties.set_deflate(6)
        space = h5py.h5s.create_simple((64, 32))
        dataset = h5py.h5d.create(file.id, b"w", file_type(ARRAYS["w"].dtype), space, properties)
        dataset.write_direct_chunk((0, 0), content, filter_mask)
        return h5py.Dataset(dataset)

    replaced(store, "w", make)


RAW = ARRAYS["w"].tobytes()
SHUFFLED = bytes(np.frombuffer(RAW, "u1").reshape(-1, 2).T.tobytes())


def test_filters_that_were_left_out_of_a_chunk(store):
    for content, filter_mask, shuffled in (
        (zlib.compress(RAW), 0, False),
        (RAW, 1, False),
        (zlib.compress(SHUFFLED), 0, True),
        (zlib.compress(RAW), 1, True),
        (SHUFFLED, 2, True),
        (RAW, 3, True),
    ):
        deflated(store, content, filter_mask, shuffled)
        with noted(filter_mask, shuffled):
            with h5py.File(store) as file:
                dataset = file["w"]
                by_hdf5 = np.empty((64, 32), "u2")
                dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, by_hdf5, mtype=dataset.id.get_type())
                del dataset
            assert by_hdf5.tobytes() == RAW
            with bf16codecs.open_model(store) as model:
                assert model["w"][...].tobytes() == RAW
                assert model["w"][5:50:3, 7].tobytes() == ARRAYS["w"][5:50:3, 7].tobytes()
            verify_store(store)


def test_deflated_chunks_of_another_size(store):
    """HDF5 reads past the end of those that are too short."""
    for content, match in (
        (zlib.compress(SHUFFLED)[:3], "cannot hold"),
        (zlib.compress(SHUFFLED)[:-3], "end too early"),
        (zlib.compress(SHUFFLED)[:200], "end too early"),
        (zlib.compress(SHUFFLED[:-1]), "inflates to 4095 bytes"),
        (zlib.compress(SHUFFLED + b"x"), "inflates to more than the 4096 bytes"),
        (zlib.compress(SHUFFLED)[:-4] + b"sums", "incorrect data check"),
        (SHUFFLED, "while decompressing"),
    ):
        deflated(store, content)
        for read in (lambda model: model.load(), lambda model: model["w"][3, 4]):
            with (
                noted(match, len(content)),
                bf16codecs.open_model(store) as model,
                pytest.raises(CodecError, match=match),
            ):
                read(model)


def test_only_truncated_files_are_to_be_restored(store: Path) -> None:
    """Not a file that is being written, which libhdf5 marks in the same way."""
    whole = store.read_bytes()
    store.write_bytes(whole[:-1])
    with pytest.raises(StoreError, match=f"has {len(whole) - 1} bytes of .*; restore it"):
        bf16codecs.open_model(store)
    code = (
        "import h5py, os, sys; f = h5py.File(sys.argv[1], 'w', libver='latest');"
        "f['a'] = 1; f.flush(); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, store], check=True, timeout=60)
    with pytest.raises(StoreError, match="already open for write") as error:
        bf16codecs.open_model(store)
    assert "restore" not in str(error.value)
    assert "damaged" not in str(error.value)
