"""Filters of HDF5 in model stores: decoded here, or refused, since libhdf5 trusts the chunks."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np
import pytest
from click.testing import CliRunner

import bf16codecs
from bf16codecs import cli, hdf5
from bf16codecs.convert import hdf5_to_safetensors, safetensors_to_hdf5, verify_store
from bf16codecs.errors import CodecError, StoreError
from bf16codecs.hdf5.types import file_type
from lazy_models import weights, write_safetensors
from looping import noted
from store_cases import put_back

WEIGHTS = weights((64, 32))
RAW = WEIGHTS.tobytes()
SHUFFLED = np.frombuffer(RAW, "u1").reshape(-1, 2).T.tobytes()
OURS = hdf5.FILTER_ID
SHUFFLE, GZIP = h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_DEFLATE
FLETCHER32, LZF = h5py.h5z.FILTER_FLETCHER32, h5py.h5z.FILTER_LZF


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "m.h5"
    safetensors_to_hdf5(write_safetensors(tmp_path / "m.safetensors", {"w": WEIGHTS}), path)
    return path


def refiltered(
    store: Path, filters: Sequence[int], content: bytes | None = None, filter_mask: int = 0
) -> None:
    """Store `w` as one chunk with other filters: by HDF5, or as `content`."""
    options = {SHUFFLE: (2,), GZIP: (6,), OURS: (2, 0), LZF: (4, 261, len(RAW)), FLETCHER32: ()}
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk(WEIGHTS.shape)
    for number in filters:
        properties.set_filter(number, h5py.h5z.FLAG_OPTIONAL, options[number])
    with h5py.File(store, "r+") as file:
        attributes = dict(file["w"].attrs)
        del file["w"]
        space = h5py.h5s.create_simple(WEIGHTS.shape)
        made = h5py.h5d.create(file.id, b"w", file_type(WEIGHTS.dtype), space, properties)
        if content is None:
            made.write(h5py.h5s.ALL, h5py.h5s.ALL, WEIGHTS.view("u2"), mtype=made.get_type())
        else:
            made.write_direct_chunk((0, 0), content, filter_mask)
        h5py.Dataset(made).attrs.update(attributes)
        del made


def behind_a_user_block(store: Path) -> None:
    """Chunks of such a file are handed over by HDF5, and not read from it directly."""
    moved = store.rename(store.with_name("moved.h5"))
    with h5py.File(store, "w", userblock_size=512) as copy, h5py.File(moved) as original:
        for name in original:
            original.copy(name, copy)
        copy.attrs.update(original.attrs)


blocks = pytest.mark.parametrize("blocked", [False, True])


def assert_is_read(store: Path) -> None:
    with bf16codecs.open_model(store) as model:
        assert model["w"][...].tobytes() == RAW
        assert model["w"][5:50:3, 7].tobytes() == WEIGHTS[5:50:3, 7].tobytes()


@blocks
def test_fletchers_checksum_is_verified_here(store, blocked):
    for before in ([], [SHUFFLE], [GZIP], [SHUFFLE, GZIP], [OURS]):
        with noted(before), put_back(store):
            refiltered(store, [*before, FLETCHER32])
            if blocked:
                behind_a_user_block(store)
            assert_is_read(store)
            verify_store(store)
            with h5py.File(store) as file:
                offset = file["w"].id.get_chunk_info(0).byte_offset
            content = bytearray(store.read_bytes())
            content[offset + 100] ^= 1
            store.write_bytes(content)
            for read in (lambda model: model.load(), lambda model: model["w"][3, 4]):
                with (
                    bf16codecs.open_model(store) as model,
                    pytest.raises(CodecError, match="Fletcher's"),
                ):
                    read(model)


NEEDS_MAX_BYTES = [
    ([LZF], "lzf"),
    ([SHUFFLE, LZF], "shuffle, lzf"),
    ([SHUFFLE, SHUFFLE], "shuffle, shuffle"),
    ([LZF, FLETCHER32], "lzf, fletcher32"),
    ([FLETCHER32, GZIP], "fletcher32, gzip"),
    ([OURS, GZIP], "bf16codecs, gzip"),
    ([GZIP, OURS], "gzip, bf16codecs"),
]


def test_chunks_that_libhdf5_alone_decodes_need_the_callers_consent(store, tmp_path):
    for filters, names in NEEDS_MAX_BYTES:
        with noted(names), put_back(store):
            refiltered(store, filters)
            check_that_libhdf5_needs_a_word(store, tmp_path, names)


def check_that_libhdf5_needs_a_word(store: Path, tmp_path: Path, names: str) -> None:
    back = tmp_path / "back"
    for read in (
        lambda: bf16codecs.open_model(store).load(),
        lambda: bf16codecs.open_model(store)["w"],
        lambda: hdf5_to_safetensors(store, back),
        lambda: verify_store(store),
    ):
        with pytest.raises(StoreError, match=rf"tensor 'w': its filters \({names}\) .*max_bytes"):
            read()
    assert not back.exists()
    with bf16codecs.open_model(store, max_bytes=1 << 20) as model:
        assert model["w"][...].tobytes() == RAW
        assert model["w"][5:50:3, 7].tobytes() == WEIGHTS[5:50:3, 7].tobytes()
    for options, status in (([], 1), (["--max-bytes", "1M"], 0)):
        result = CliRunner().invoke(cli.main, ["info", str(store), *options])
        assert result.exit_code == status, result.output
    hdf5_to_safetensors(store, back, max_bytes=1 << 20)
    assert back.read_bytes() == (tmp_path / "m.safetensors").read_bytes()
    back.unlink()
    with h5py.File(store) as file:
        assert hdf5.read_tensor(file["w"]).tobytes() == RAW


@blocks
def test_chunks_without_a_compressor(store, blocked):
    for filters, content, filter_mask in (
        ([SHUFFLE], SHUFFLED, 0),
        ([SHUFFLE, GZIP], SHUFFLED, 2),
        ([SHUFFLE, GZIP, FLETCHER32], zlib.compress(RAW), 5),
        ([OURS, FLETCHER32], RAW, 3),
    ):
        with noted(filters, filter_mask), put_back(store):
            refiltered(store, filters, content, filter_mask)
            if blocked:
                behind_a_user_block(store)
            assert_is_read(store)


OTHER_SIZES = [
    ([FLETCHER32], b"ab", 0),
    ([FLETCHER32], b"abcd", 0),
    ([FLETCHER32], b"abc", 1),
    ([SHUFFLE, FLETCHER32], b"ab", 0),
    ([SHUFFLE, FLETCHER32], RAW[:100], 2),
    ([SHUFFLE], RAW[:100], 0),
    ([SHUFFLE], SHUFFLED + b"x", 0),
    ([SHUFFLE, GZIP], SHUFFLED[:-1], 2),
    ([GZIP, FLETCHER32], b"ab", 0),
    ([GZIP, FLETCHER32], zlib.compress(RAW[:100]), 2),
    ([GZIP, FLETCHER32], RAW[:100], 3),
    ([FLETCHER32, GZIP], zlib.compress(b"ab"), 0),
    ([FLETCHER32, GZIP], b"abc", 3),
    ([OURS, FLETCHER32], b"ab", 0),
    ([LZF], b"\x01ab", 0),
    ([LZF], RAW[:100], 1),
]


READ = """
import sys
import bf16codecs
from bf16codecs.convert import verify_store
from bf16codecs.errors import CodecError, StoreError

for path in sys.argv[1:]:
    for read in (
        lambda: bf16codecs.open_model(path).load(),
        lambda: bf16codecs.open_model(path)["w"][:1],
        lambda: verify_store(path),
    ):
        try:
            print("read:", path, read())
        except (CodecError, StoreError) as e:
            print("refused:", e)
"""


def test_chunks_of_another_size(store, run_python):
    """Of short ones, libhdf5 reads what lies behind them in memory, or it crashes."""
    content = store.read_bytes()
    paths = []
    for number, chunk in enumerate(OTHER_SIZES):
        for blocked in (False, True):
            path = store.with_name(f"{number}-{blocked}.h5")
            path.write_bytes(content)
            refiltered(path, *chunk)
            if blocked:
                behind_a_user_block(path)
            paths.append(str(path))
    lines = run_python(READ, *paths).stdout.splitlines()
    assert len(lines) == 3 * len(paths), lines
    assert all(line.startswith("refused:") for line in lines), lines
