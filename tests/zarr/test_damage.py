"""Error messages for damaged chunks that zarr alone reads."""

from __future__ import annotations

import re

import numpy as np
import pytest
import zarr

from bf16codecs import BF16Arithmetic, BF16Huffman, open_model
from bf16codecs.errors import CorruptDataError, TruncatedDataError, UnsupportedVersionError
from bf16codecs.zarr import BF16BlocksCodec
from lazy_models import write_store

ADVICE = r"; restore it from its source or a copy \(bf16codecs verify checks all of a store\)$"
FLIPPED = (CorruptDataError, rf"damaged: block 0 of 1, at byte \d+: .*{ADVICE}")
CUT = (TruncatedDataError, rf"damaged: the frame has \d+ bytes of \d+{ADVICE}")
NEWER = (
    UnsupportedVersionError,
    "the frame has format version 9, .*: upgrade bf16codecs, or, if no newer release wrote it, it"
    " is damaged: restore it from its source or a copy$",
)


def flipped(frame):
    middle = len(frame) // 2
    return frame[:middle] + bytes([frame[middle] ^ 1]) + frame[middle + 1 :]


DAMAGE = {
    "flipped": (flipped, *FLIPPED),
    "cut": (lambda frame: frame[:-1], *CUT),
    "newer": (lambda frame: frame[:4] + b"\x09" + frame[5:], *NEWER),
}
damage = pytest.mark.parametrize(("change", "error", "message"), DAMAGE.values(), ids=DAMAGE)


def damaged_array(path, change, **options):
    """Make an array of two chunks, of which the second one is damaged."""
    group = zarr.open_group(path, mode="w", zarr_format=options.pop("zarr_format", 3))
    data = np.random.default_rng(0).normal(size=(8, 90)).astype("f4")
    group.create_array("w", data=data, chunks=(4, 90), **options)
    names = "w/c/1/0", "w/1.0"
    (chunk,) = (path / name for name in names if (path / name).exists())
    chunk.write_bytes(change(chunk.read_bytes()))
    return zarr.open_group(path)["w"]


@damage
@pytest.mark.usefixtures("pipeline")
def test_the_blocks_codec_names_the_chunk(tmp_path, change, error, message):
    blocks = BF16BlocksCodec(BF16Arithmetic("auto"))
    array = damaged_array(tmp_path, change, serializer=blocks, compressors=None)
    named = rf"^chunk file://{re.escape(str(tmp_path))}/w/c/1/0: "
    for selection in (..., np.s_[5], np.s_[6:, ::9]):
        with pytest.raises(error, match=named + message):
            array[selection]
    assert array[:4].shape == (4, 90)


@damage
@pytest.mark.usefixtures("pipeline")
def test_a_compressor_names_shape_and_dtype(tmp_path, change, error, message):
    array = damaged_array(tmp_path, change, compressors=BF16Huffman("auto"))
    with pytest.raises(error, match=r"^a chunk, of shape \(4, 90\) and float32: " + message):
        array[:]


@damage
def test_format_2_names_no_chunk(tmp_path, change, error, message):
    array = damaged_array(tmp_path, change, compressors=BF16Huffman("auto"), zarr_format=2)
    with pytest.raises(error, match=f"^{message}"):
        array[:]


def test_chunks_of_a_shard(tmp_path):
    data = np.random.default_rng(0).normal(size=(8, 90)).astype("f4")
    blocks = BF16BlocksCodec(BF16Arithmetic("auto"))
    array = zarr.create_array(
        tmp_path, data=data, chunks=(4, 90), shards=(8, 90), serializer=blocks, compressors=None
    )
    shard = tmp_path / "c" / "0" / "0"
    content = shard.read_bytes()
    shard.write_bytes(content[:600] + bytes([content[600] ^ 1]) + content[601:])
    message = r"^chunk \(0, 0\) of a shard, of shape \(4, 90\) and float32: damaged: "
    with pytest.raises(CorruptDataError, match=message):
        array[0]


@damage
def test_a_model_names_the_tensor_and_the_chunk(tmp_path, change, error, message):
    path = write_store(tmp_path / "m.zarr", {"w": np.random.default_rng(0).normal(size=(8, 90))})
    (chunk,) = (path / "w").glob("c*")
    chunk.write_bytes(change(chunk.read_bytes()))
    where = rf"^{re.escape(str(path))}: tensor 'w', chunk w/{re.escape(chunk.name)}: "
    with open_model(path) as model, pytest.raises(error, match=where + message):
        model["w"][:]
