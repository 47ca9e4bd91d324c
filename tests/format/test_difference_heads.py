"""Heads of frames with differences that break a rule, with checksums that agree."""

from __future__ import annotations

import itertools

import pytest

from bf16codecs.errors import CorruptDataError, TruncatedDataError
from difference_pairs import moved
from frames import HEADER, flips, refuse_head
from makers.frames import BASE_FIELD, CHECKSUMS, DIFFERENCES, MODEL, Parts, same_block, stored_block
from native_core import core
from reference_differences import DIFFERENCE_MODEL, NO_MODEL, NO_PARENT, TILE_MODEL

BASE, RAW = moved(600)
THIRD = moved(600, seed=9)[1]


def to_base(**options) -> Parts:
    """Return a frame of three blocks against a base."""
    return Parts.of(core.encode(RAW, 3, 0, base=BASE, block=256, **options))


def versions(**options) -> Parts:
    """Return a frame of three versions of three blocks each."""
    return Parts.of(core.encode(BASE + RAW + THIRD, 3, 0, steps=3, block=256, **options))


MAKERS = {"base": to_base, "versions": versions}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("checksum", [True, False])
def test_parts_make_the_frame_again(name, checksum):
    parts = MAKERS[name](checksum=checksum)
    frame = parts.joined()
    assert Parts.of(frame) == parts
    assert frame[4] == 2
    assert frame[7] & DIFFERENCES
    assert bool(frame[7] & CHECKSUMS) == checksum
    wanted = RAW if name == "base" else BASE + RAW + THIRD
    assert core.decode(frame, BASE) == wanted
    assert parts.n_versions == (1 if name == "base" else 3)
    if name == "versions":
        assert [(p, k) for p, k, _ in parts.table()] == [
            (NO_PARENT, NO_MODEL), (0, DIFFERENCE_MODEL), (0, DIFFERENCE_MODEL)
        ]  # fmt: skip
        assert all(model for _, _, model in parts.table()[1:])


@pytest.mark.parametrize("name", MAKERS)
def test_every_length_of_a_head_that_is_cut_off(name):
    frame = MAKERS[name]().joined()
    end = core.Index(frame).header_size
    for size in range(HEADER, end):
        refuse_head(frame[:size], TruncatedDataError)
        if size >= HEADER + 8 + BASE_FIELD:
            assert core.header_size(frame[:size]) == end
    for size in {*range(end, len(frame), 97), len(frame) - 1}:
        for call in (core.decode, core.inspect):
            with pytest.raises(TruncatedDataError):
                call(frame[:size])
    with pytest.raises(CorruptDataError, match="after the frame's end"):
        core.inspect(frame + b"x")


@pytest.mark.parametrize("name", MAKERS)
def test_every_bit_of_a_head(name):
    """Any of them makes the frame corrupt, or of another version."""
    frame = MAKERS[name]().joined()
    for damaged in flips(frame, HEADER, core.Index(frame).header_size, 5):
        with pytest.raises((CorruptDataError, TruncatedDataError)):
            core.Index(damaged)


def test_differences_belong_to_version_2():
    for parts in (to_base(), versions()):
        parts.version = 1
        refuse_head(parts.joined(), CorruptDataError)


def test_planes_by_byte():
    for parts in (to_base(), versions()):
        parts.layout |= 16
        refuse_head(parts.joined(), CorruptDataError)
    parts = to_base()
    parts.layout, parts.flags, parts.model = 16, parts.flags & ~MODEL, b""
    refuse_head(parts.joined(), CorruptDataError)


@pytest.mark.parametrize("name", MAKERS)
def test_bits_of_the_base_field_that_are_zero(name):
    for zero in (1, 2, 256, 0x8000, 0xFFFF):
        parts = MAKERS[name]()
        parts.zero = zero
        refuse_head(parts.joined(), CorruptDataError)


@pytest.mark.parametrize("name", MAKERS)
def test_the_base_field_has_a_checksum_of_its_own(name):
    """A reader of ranges uses it before it has the whole head."""
    parts = MAKERS[name]()
    frame = parts.joined()
    at = HEADER + 8
    for damaged in flips(frame, at, at + BASE_FIELD):
        with pytest.raises(CorruptDataError, match="checksum of the base"):
            core.header_size(damaged[: at + BASE_FIELD])


def test_no_versions():
    for parts in (to_base(), versions()):
        parts.n_versions = 0
        refuse_head(parts.joined(), CorruptDataError)


def test_versions_of_parts_of_items():
    for n in (7, 11, 1000, 65534):
        parts = versions()
        parts.n_versions = n
        refuse_head(parts.joined(), CorruptDataError)
    parts = versions()
    parts.raw_size, parts.tail = parts.raw_size + 1, b"x"
    refuse_head(parts.joined(), CorruptDataError)


def test_versions_with_a_base_outside():
    for digest in (1, 1 << 63, (1 << 64) - 1):
        parts = versions()
        parts.digest = digest
        refuse_head(parts.joined(), CorruptDataError)


def test_versions_without_a_table():
    parts = versions()
    parts.flags &= ~MODEL
    refuse_head(parts.joined(), CorruptDataError)
    whole = versions().model
    for size in (0, 1, 7, 14, 20):
        parts.flags |= MODEL
        parts.model = whole[:size]
        refuse_head(parts.joined(), CorruptDataError)


def test_a_base_without_checksums_of_its_blocks():
    """The table's entries are one field longer, so the head ends elsewhere."""
    parts = to_base()
    parts.base_sums = None
    with pytest.raises((CorruptDataError, TruncatedDataError)):
        core.Index(parts.joined())
    parts = versions()
    parts.base_sums = [0] * 9
    with pytest.raises((CorruptDataError, TruncatedDataError)):
        core.Index(parts.joined())


def test_blocks_are_those_of_each_version():
    """600 items in blocks of 256 are three blocks, and 1800 would be eight."""
    parts = versions()
    assert [len(parts.blocks), core.Index(parts.joined()).n_blocks] == [9, 9]
    del parts.blocks[-1], parts.sums[-1]
    with pytest.raises((CorruptDataError, TruncatedDataError)):
        core.Index(parts.joined())
    parts = versions()
    parts.blocks[4] = b""
    refuse_head(parts.joined(), CorruptDataError)


# --- the table of versions ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "parent"),
    [(0, 0), (0, 1), (1, 1), (1, 2), (1, 3), (2, 2), (2, 3), (2, 65534), (0, 65534)],
)
def test_parents_that_are_no_earlier_versions(at, parent):
    parts = versions()
    table = parts.table()
    table[at] = (parent, *table[at][1:])
    parts.set_table(table)
    refuse_head(parts.joined(), CorruptDataError)


def test_other_parents_are_read():
    """Any earlier version may be a parent; the decoded bytes differ then."""
    parts = versions(checksum=False)
    table = parts.table()
    table[2] = (1, *table[2][1:])
    parts.set_table(table)
    index = core.Index(parts.joined())
    assert index.parents == [None, 0, 1]
    frame = Parts.of(core.encode(BASE + RAW + RAW, 3, 0, steps=3, block=256))
    table = frame.table()
    frame.set_table([table[0], table[1], (1, NO_MODEL, b"")])
    frame.blocks[6:] = [same_block(2)] * 3
    assert core.decode(frame.joined()) == BASE + RAW + RAW


@pytest.mark.parametrize("kind", [3, 4, 128, 255])
def test_unknown_kinds(kind):
    parts = versions()
    table = parts.table()
    for v in range(3):
        changed = table.copy()
        changed[v] = (table[v][0], kind, table[v][2])
        parts.set_table(changed)
        refuse_head(parts.joined(), CorruptDataError)
    parts = to_base()
    parts.model = bytes([kind]) + parts.model[1:]
    refuse_head(parts.joined(), CorruptDataError)


def test_models_of_no_kind():
    parts = versions()
    table = parts.table()
    parts.set_table([*table[:2], (0, NO_MODEL, b"x")])
    refuse_head(parts.joined(), CorruptDataError)
    parts = to_base()
    parts.model = b"\0" + parts.model[1:]
    refuse_head(parts.joined(), CorruptDataError)
    for model in (b"", b"\0"):
        parts.model = model
        refuse_head(parts.joined(), CorruptDataError)


def test_differences_to_no_parent():
    parts = versions()
    model = parts.table()[1][2]
    for v in range(3):
        table = parts.table()
        table[v] = (NO_PARENT, DIFFERENCE_MODEL, model)
        changed = versions()
        changed.set_table(table)
        refuse_head(changed.joined(), CorruptDataError)


def test_sizes_of_models_that_do_not_agree_with_the_rest():
    whole = versions()
    for v, size in itertools.product(range(3), (0, 1, 1 << 16, (1 << 32) - 1)):
        parts = versions()
        at = 7 * v + 3
        if int.from_bytes(whole.model[at : at + 4], "little") == size:
            continue
        parts.model = whole.model[:at] + size.to_bytes(4, "little") + whole.model[at + 4 :]
        refuse_head(parts.joined(), CorruptDataError)
    for model in (whole.model + b"x", whole.model[:-1]):
        parts = versions()
        parts.model = model
        refuse_head(parts.joined(), CorruptDataError)


def test_sizes_whose_sum_wraps():
    parts = versions()
    table, at = parts.table(), 7 + 3
    size = len(table[1][2])
    model = bytearray(parts.model)
    model[at : at + 4] = ((1 << 32) - size).to_bytes(4, "little")
    model[at + 7 : at + 11] = (3 * size).to_bytes(4, "little")
    parts.model = bytes(model)
    refuse_head(parts.joined(), CorruptDataError)


# --- blocks and models that are refused when they are decoded -------------------------------------


def refuse_blocks(frame: bytes, match: str) -> None:
    assert core.Index(frame)
    with pytest.raises(CorruptDataError, match=match):
        core.decode(frame, BASE)
    with pytest.raises(CorruptDataError, match=match):
        core.decode_into(frame, bytearray(core.Index(frame).raw_size), BASE)


def test_blocks_without_a_base():
    first, second = stored_block(bytes(512), 2), same_block(2)
    parts = Parts(raw_size=1024, n_versions=2)
    for table in (
        [(NO_PARENT, NO_MODEL, b"")] * 2,
        [(NO_PARENT, TILE_MODEL, b""), (NO_PARENT, NO_MODEL, b"")],
    ):
        parts.set_table(table)
        parts.blocks = [first, second]
        refuse_blocks(parts.joined(), "without a base")
    parts.set_table([(NO_PARENT, NO_MODEL, b""), (0, NO_MODEL, b"")])
    assert core.decode(parts.joined()) == bytes(1024)
    parts.blocks = [second, second]
    refuse_blocks(parts.joined(), "block 0 of 2.*without a base")
    parts.blocks = [first, versions().blocks[3]]
    refuse_blocks(parts.joined(), "without a difference model")


def test_modes_that_need_another_model():
    parts = to_base(checksum=False)
    parts.flags, parts.model = parts.flags & ~MODEL, b""
    refuse_blocks(parts.joined(), "without a difference model")
    parts = to_base(checksum=False)
    for mode, name in ((6, "scale"), (8, "tiles")):
        parts.blocks[1] = bytes([mode, 7]) + (4).to_bytes(4, "little") + bytes(4)
        refuse_blocks(parts.joined(), f"a {name} mode in a frame without")


@pytest.mark.parametrize("mode", [9, 10])
def test_modes_of_several_planes_are_the_first_one_s(mode):
    parts = to_base(checksum=False)
    sized = (4).to_bytes(4, "little") if mode == 10 else b""
    parts.blocks[0] = bytes([0, mode]) + sized + bytes(256 + 4 * (mode == 10))
    refuse_blocks(parts.joined(), "after the first one")


def test_planes_that_are_joined_where_they_should_not_be():
    parts = to_base(checksum=False)
    whole = parts.blocks[0]
    assert whole[0] == 10
    assert whole[1] == 7
    for block in (
        b"\x09\x00" + bytes(256),  # the same, and a stored plane
        b"\x09\x01\x07",
        b"\x0a\x00" + whole[2:6] + bytes(256) + whole[6:],  # all low bytes are in the numbers
        b"\x0a\x01" + whole[2:6] + b"\7" + whole[6:],
        b"\x07\x07",
    ):
        parts.blocks[0] = block
        refuse_blocks(parts.joined(), "a joined mode out of place")
    parts.blocks[0] = same_block(2) + b"x"
    refuse_blocks(parts.joined(), "bytes after its last plane")
    parts.blocks[0] = b"\x09"
    refuse_blocks(parts.joined(), "shorter than its modes")


def test_low_planes_that_are_joined():
    base, raw = moved(600, 3, most=1 << 8)
    parts = Parts.of(core.encode(raw, 3, 3, base=base, block=1024, checksum=False))
    modes = parts.blocks[0][:8]
    assert modes[0] == 10
    low = 8 - 1 - modes.count(7)
    for p in range(1, 8):
        changed = bytearray(parts.blocks[0])
        changed[p] = 7 if p >= 8 - low else 1
        other = Parts.of(parts.joined())
        if p >= 8 - low:
            other.blocks[0] = bytes(changed)
        else:
            other.blocks[0] = bytes(changed) + b"\0"
        with pytest.raises(CorruptDataError):
            core.decode(other.joined(), base)
