"""Chunks that are growing frames, in both formats: read by zarr, whole and in part, and written."""

import numpy as np
import pytest
import zarr

import bf16codecs
from bf16codecs import BF16Arithmetic, BF16Huffman
from bf16codecs.errors import CorruptDataError
from bf16codecs.zarr import BF16BlocksCodec
from bits import assert_same_bits
from counting_store import CountingStore
from looping import for_each
from makers.growing import ENTRY, HEADER, frames_of, grow
from native_core import core
from versions import ancestors, fields

pytestmark = [
    pytest.mark.usefixtures("pipeline"),
    pytest.mark.filterwarnings("ignore:invalid value encountered in equal"),
]

FIELD = fields(5, 30, 50)  # in a chunk with room for 8
CODEC = BF16Arithmetic("float32", steps=8)
FORMS = {
    "2": {"zarr_format": 2, "compressors": CODEC},
    "3": {"zarr_format": 3, "compressors": CODEC},
    "blocks": {"serializer": BF16BlocksCodec(CODEC), "compressors": None},
}
forms = for_each("form", FORMS)


def grown_of(data, codec=CODEC):
    name = codec.codec_id.removeprefix("bf16codecs.")
    return grow(data, codec.steps, dtype=codec.dtype, block=1 << 17, codec=name)


def create(path, form, steps=5, content=None):
    """Make an array of so many steps, in one chunk with room for 8."""
    array = zarr.create_array(
        path,
        shape=(steps, 30, 50),
        chunks=(8, 30, 50),
        dtype="f4",
        fill_value=0,
        **FORMS[form],
    )
    key = "0.0.0" if form == "2" else "c/0/0/0"
    (path / key).parent.mkdir(parents=True, exist_ok=True)
    (path / key).write_bytes(grown_of(FIELD) if content is None else content)
    return array, path / key


def check(array, data):
    assert_same_bits(array[:], data)
    assert_same_bits(array[3], data[3])
    assert_same_bits(array[1:5:2, ::7, 2:5], data[1:5:2, ::7, 2:5])
    assert_same_bits(array.oindex[[1, 4], 2:9, 4], data[[1, 4], 2:9, 4])
    assert_same_bits(array.vindex[[1, 4], [2, 29], [0, 9]], data[[1, 4], [2, 29], [0, 9]])


@forms
@for_each("rest", [b"", b"room for the next"])
def test_reads_existing_versions(new_folder, form, rest):
    folder = new_folder()
    array, _ = create(folder, form, content=grown_of(FIELD) + rest)
    for a in (array, zarr.open_array(folder, mode="r")):
        check(a, FIELD)


@forms
def test_missing_versions(new_folder, form):
    array, _ = create(new_folder(), form, steps=8)
    assert_same_bits(array[:5], FIELD)
    if form == "blocks":
        message = "the chunk has 5 of 8 versions, and version 6 was asked for"
        with pytest.raises(CorruptDataError, match=message):
            array[6]
    else:  # zarr decodes whole chunks, and selects then
        assert_same_bits(array[6:].view("u4"), np.full((2, 30, 50), 0xFFFFFFFF, "u4"))


@forms
def test_a_step_is_appended(new_folder, form):
    folder = new_folder()
    array, chunk = create(folder, form, 1, grown_of(FIELD[:1]))
    for step in range(1, 5):
        before, after = grown_of(FIELD[:step]), grown_of(FIELD[: step + 1])
        chunk.write_bytes(before + after[len(before) :])  # interrupted before the entry
        check_steps(folder, FIELD[:step])
        chunk.write_bytes(after)
        array.resize((step + 1, 30, 50))
        check_steps(folder, FIELD[: step + 1])
    check(array, FIELD)


def check_steps(path, data):
    array = zarr.open_array(path, mode="r")
    assert_same_bits(array[:], data)
    assert_same_bits(array[-1, 7:9], data[-1, 7:9])


@forms
def test_zarr_writes_steps_into_the_chunk(new_folder, form):
    """Then it is one frame, as zarr writes them."""
    array, chunk = create(new_folder(), form, steps=8)
    new = fields(3, 30, 50, seed=1)
    array[5:] = new
    assert_same_bits(array[:], np.concatenate([FIELD, new]))
    assert bf16codecs.inspect(chunk.read_bytes())["codec"] == "arithmetic"


@forms
def test_a_chunk_for_another_number_of_steps(new_folder, form):
    codec = BF16Arithmetic("float32", steps=16)
    array, _ = create(new_folder(), form, content=grown_of(FIELD, codec))
    with pytest.raises(ValueError, match=r"room for|reshape"):  # zarr's own, in format 3
        array[:]


@forms
def test_a_chunk_that_claims_any_size(new_folder, form):
    codec = BF16Huffman("float32", steps=65534)
    content = grown_of(np.zeros((1, 1 << 20), "f4"), codec)
    array, _ = create(new_folder(), form, content=content)
    with pytest.raises(CorruptDataError):
        array[:]


def test_fetches_the_blocks_of_the_versions_on_the_way():
    """Of a chunk of 16 MiB: 13 versions of 2 blocks, and 25 rows in the last."""
    data = fields(13, 281, 1024)
    codec = BF16Arithmetic("float32", steps=16)
    store = CountingStore()
    array = zarr.create_array(
        store,
        shape=data.shape,
        chunks=(16, 281, 1024),
        dtype="f4",
        serializer=BF16BlocksCodec(codec),
        compressors=None,
        fill_value=0,
    )
    array[:1] = 1
    content = grown_of(data, codec)
    key = "c/0/0/0"
    store.content[key] = store.content[key].from_bytes(content)
    frames, begin = frames_of(content), HEADER + 16 * ENTRY
    begins = np.cumsum([begin, *map(len, frames)])
    for selection, place in ((np.s_[11, 5], 0), (np.s_[7, 130:140, 3], 1), (np.s_[12, -1], 2)):
        store.requests.clear()
        assert_same_bits(array[selection], data[selection])
        version = selection[0]
        wanted = {version, *ancestors(version)}
        blocks = set()
        for v in wanted:
            offsets = core.Index(frames[v]).offsets
            blocks.add((int(begins[v]) + offsets[place], offsets[place + 1] - offsets[place]))
        asked = [(request.start, length) for request, length in store.requests]
        assert blocks <= set(asked)
        # The directory with the head of the first version, and the heads of the others.
        heads = [length for at, length in asked if (at, length) not in blocks]
        assert len(heads) == len(wanted)
        assert max(heads) <= 4096
