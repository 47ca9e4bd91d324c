"""Differences: heads, versions and modes that the format forbids are refused."""

from __future__ import annotations

import pytest

import reference_decoder as reference
from both_decoders import (
    both_agree_to_base,
    both_decode_to_base,
    both_refuse_base,
    both_refuse_to_base,
)
from contents import weights
from difference_frames import base_of, plain_numbers
from difference_samples import (
    BASE,
    FIRST_BLOCK,
    MODEL,
    OWN_MODEL,
    PAYLOAD,
    RAW,
    SECOND,
    SECOND_BLOCK,
    N,
    frame_of,
    refused,
    versions,
)
from looping import for_each
from makers import frames as build
from makers.differences import code_differences, write_difference_model
from makers.frames import (
    base_field,
    frame_to_base,
    low_planes,
    model_of_versions,
    same_block,
    sums_of,
    whole_block,
)
from makers.lanes import pack_payload
from makers.tiles import TileNumbers, write_tile_model
from native_core import core
from reference_difference_model import PLAIN
from reference_differences import digest_of_base, items_from
from reference_planes import (
    CONSTANT,
    DIFFERENCE,
    JOINED,
    SAME,
    SCALE,
    STORED,
    TILES,
    FormatError,
    TruncatedFrame,
)
from tiers import by_tier

# --- heads and base fields -----------------------------------------------------------------------

DIGEST = digest_of_base(BASE)


def test_differences_where_there_are_none():
    refused(frame_of(version=1), "bit 5")
    refused(frame_of(layout=16), "by byte")
    refused(frame_of(layout=16, model=None), "by byte")
    stored = frame_to_base(RAW, BASE, [whole_block(RAW, 2)])
    assert both_decode_to_base(stored, BASE) == RAW
    refused(frame_to_base(RAW, BASE, [whole_block(RAW, 2)], version=1), "bit 5")


def test_base_fields():
    assert both_decode_to_base(frame_of(base=base_field(1, DIGEST)), BASE) == RAW
    refused(frame_of(base=base_field(0, DIGEST)), "no versions")
    refused(frame_of(base=base_field(0)), "no versions")
    refused(frame_of(base=base_field(1, DIGEST, zero=1)), "not zero")
    refused(frame_of(base=base_field(1, DIGEST, zero=1 << 15)), "not zero")
    for bit in range(0, 128, 7):
        field = bytearray(base_field(1, DIGEST))
        field[bit // 8] ^= 1 << bit % 8
        refused(frame_of(base=bytes(field)), "checksum of the base")


def test_other_bases():
    frame = frame_of()
    both_refuse_base(frame)
    for base in (b"", BASE[:-1], BASE[:-2], BASE + b"\0", BASE + bytes(2), RAW, BASE[::-1]):
        both_refuse_base(frame, base)
    for at in (0, 100, 2 * N - 1):
        changed = bytearray(BASE)
        changed[at] ^= 1
        both_refuse_base(frame, bytes(changed))
    both_refuse_base(frame_of(base=base_field(1, DIGEST ^ 1)), BASE)
    both_refuse_base(frame_of(base=base_field(1, DIGEST ^ 1 << 63)), BASE)
    both_refuse_base(frame_to_base(RAW, BASE, [whole_block(RAW, 2)]), RAW)
    both_refuse_base(frame_to_base(b"", b"", []))
    assert both_decode_to_base(frame_to_base(b"", b"", []), b"") == b""


def test_bases_with_another_tail():
    base = BASE + b"\1"
    frame = frame_to_base(base, base, [same_block(2)])
    assert both_decode_to_base(frame, base) == base
    for other in (BASE, BASE + b"\2", BASE + b"\1\1"):
        both_refuse_base(frame, other)


def test_other_blocks_of_a_base():
    """Blocks of a base have checksums whether those of the frame have or not."""
    blocks = [whole_block(RAW, 2)]
    wrong = [sums_of(BASE, 0, 8)[0] ^ 1]
    for sums in (True, False):
        assert both_decode_to_base(frame_to_base(RAW, BASE, blocks, sums=sums), BASE) == RAW
        frame = frame_to_base(RAW, BASE, blocks, sums=sums, base_sums=wrong)
        both_refuse_base(frame, BASE)
        head = reference.read_head(frame)
        with pytest.raises(FormatError, match="another block"):
            reference.decode_block(frame, head, 0, BASE)


def test_checksums_of_decoded_blocks():
    wrong = [sums_of(RAW, 0, 8)[0] ^ 1]
    block = build.block((DIFFERENCE, PAYLOAD), (JOINED, b""))
    refused(frame_to_base(RAW, BASE, [block], sums=wrong, model=MODEL), "checksum of a block")
    refused(frame_to_base(RAW, BASE, [same_block(2)]))
    both_refuse_to_base(
        frame_to_base(BASE, BASE, [same_block(2)], sums=wrong), BASE, "checksum of a block"
    )


def test_every_length_of_a_frame_that_is_cut_off():
    frame = frame_of()
    for length in range(4, len(frame), by_tier(5, 1)):
        with pytest.raises(TruncatedFrame):
            reference.decode(frame[:length], BASE)
        both_agree_to_base(frame[:length], BASE)
    refused(frame + b"\0", "longer")


# --- versions ------------------------------------------------------------------------------------


def test_the_versions_that_the_others_damage():
    assert both_decode_to_base(versions()) == RAW + SECOND


def test_versions_with_a_digest_or_a_tail():
    both_refuse_to_base(versions(base=base_field(2, 1)), match="digest of a base")
    both_refuse_to_base(versions(base=base_field(2, zero=1)), match="not zero")
    options = {"layout": 0, "version": 2, "model": versions_model(3), "base": base_field(3)}
    for size, n_blocks in ((4, 3), (5, 3), (7, 3), (8, 3), (1, 0)):
        frame = build.frame(size, [whole_block(b"ab", 2)] * n_blocks, tail=b"", **options)
        both_refuse_to_base(frame, match="versions with a tail")
    frame = build.frame(6, [whole_block(b"ab", 2)] * 3, **options)
    assert both_decode_to_base(frame) == b"ab" * 3


def versions_model(n: int) -> bytes:
    return model_of_versions([None] * n, [b""] * n)


def test_versions_without_a_model():
    frame = versions(blocks=[FIRST_BLOCK, whole_block(SECOND, 2)], model=None)
    both_refuse_to_base(frame, match="without a model")


def test_parents_that_do_not_come_before():
    for parents in ((0, 0), (1, 0), (None, 1), (None, 2), (None, 65534), (65534, 0)):
        both_refuse_to_base(versions(parents=parents), match="parent")


def test_kinds_of_models():
    tiles = write_tile_model([TileNumbers()])
    for kind in (3, 4, 128, 255):
        refused(frame_of(kind=kind), "unknown kind")
        both_refuse_to_base(versions(kinds=(0, kind)), match="unknown kind")
        both_refuse_to_base(versions(kinds=(kind, 1)), match="unknown kind")
    both_refuse_to_base(versions(kinds=(0, 0)), match="no kind")
    both_refuse_to_base(versions(kinds=(1, 1)), match="without a base")
    both_refuse_to_base(versions(kinds=(1, 1), models=(OWN_MODEL, OWN_MODEL)), match="a base")
    both_refuse_to_base(versions(kinds=(0, 2), models=(b"", tiles)), match="without a model")
    for model in (b"", MODEL):
        refused(frame_of(kind=0, model=model), "no kind")
    whole = [whole_block(RAW, 2)]
    refused(build.frame(2 * N, whole, version=2, model=b"", base=base_field(1, DIGEST),
                        base_sums=sums_of(BASE, 0, 8)))  # fmt: skip
    for kind, model in ((1, MODEL), (2, tiles)):
        frame = frame_to_base(RAW, BASE, whole, kind=kind, model=model)
        assert both_decode_to_base(frame, BASE) == RAW
    refused(frame_of(kind=2, model=tiles), "without a model")


def test_models_that_do_not_fill_the_model():
    size = len(OWN_MODEL)
    for sizes in ((0, size - 1), (0, size + 1), (1, size), (0, 0), (0, (1 << 32) - 1)):
        both_refuse_to_base(versions(sizes=sizes))
    whole = model_of_versions((None, 0), (b"", OWN_MODEL))
    both_refuse_to_base(versions(model=whole + b"\0"), match="do not fill")
    for length in range(len(whole)):
        both_refuse_to_base(versions(model=whole[:length]))


def test_versions_without_what_their_blocks_need():
    both_refuse_to_base(versions(blocks=[same_block(2), SECOND_BLOCK]), match="no base")
    first = build.block((DIFFERENCE, PAYLOAD), (JOINED, b""))
    both_refuse_to_base(versions(blocks=[first, SECOND_BLOCK]), match="no base")
    both_refuse_to_base(versions(parents=(None, None), models=(b"", b"")), match="no base")
    both_refuse_to_base(versions(models=(b"", b"")), match="without a model")


# --- modes of planes -----------------------------------------------------------------------------


def test_differences_in_frames_without_them():
    for version in (1, 2):
        for block in (same_block(2), build.block((DIFFERENCE, PAYLOAD), (JOINED, b""))):
            both_refuse_to_base(build.frame(2 * N, [block], version=version))
    model = core.encode(weights(20_000), 3, 0, level=1)
    assert reference.read_head(model).version in (1, 2)


def test_a_difference_without_a_model():
    refused(frame_of(model=None), "without a model")


def wide_frame(*planes: tuple[int, bytes], low: int = 1) -> bytes:
    """Return a frame of float32 of the planes, in the place of a difference with low bytes."""
    base = base_of(64, 2)
    model = write_difference_model([plain_numbers(PLAIN, 2, low)])
    return frame_to_base(base, base, [build.block(*planes)], 2, model=model, sums=False)


def wide_payload(low: int) -> tuple[bytes, bytes]:
    base = items_from(base_of(64, 2), 4)
    parts, lows = code_differences(base, base, plain_numbers(PLAIN, 2, low).section(2))
    return pack_payload(parts, 4), b"".join(low_planes(lows, low))


@for_each("low", range(4))
def test_planes_that_are_joined_or_not(low):
    base = base_of(64, 2)
    payload, _ = wide_payload(low)
    for joined in range(4):
        planes = [(DIFFERENCE, payload), *[(JOINED, b"")] * joined]
        planes += [(STORED, bytes(64))] * (3 - joined)
        frame = wide_frame(*planes, low=low)
        if joined == 3 - low:
            assert both_decode_to_base(frame, base) == base
        else:
            both_refuse_to_base(frame, base, "joined")
        planes = [(SAME, b""), *planes[1:]]
        if joined == 3:
            assert both_decode_to_base(wide_frame(*planes, low=low), base) == base
        else:
            both_refuse_to_base(wide_frame(*planes, low=low), base, "joined")


def test_planes_in_the_wrong_order():
    base = base_of(64, 2)
    payload, low = wide_payload(1)
    own, stored, joined = (DIFFERENCE, payload), (STORED, low), (JOINED, b"")
    for planes in (
        (own, stored, joined, joined),
        (own, joined, stored, joined),
        (stored, joined, joined, stored),
        (joined, joined, joined, stored),
        (stored, stored, stored, joined),
    ):
        both_refuse_to_base(wide_frame(*planes), base, "joined")
    for mode in (SAME, DIFFERENCE, SCALE, TILES):
        for at in (1, 2, 3):
            planes = [stored, stored, stored, stored]
            planes[at] = (mode, b"" if mode == SAME else payload)
            both_refuse_to_base(wide_frame(*planes), base, "behind plane 0")
        both_refuse_to_base(wide_frame(own, joined, joined, (mode, b"")), base, "behind")


def test_modes_that_go_with_other_models():
    base = base_of(64, 2)
    payload, low = wide_payload(1)
    for mode in (SCALE, TILES):
        frame = wide_frame((mode, payload), (JOINED, b""), (STORED, low), (STORED, low))
        both_refuse_to_base(frame, base)
    frame = wide_frame((99, payload), (JOINED, b""), (JOINED, b""), (STORED, low))
    both_refuse_to_base(frame, base, "unknown mode")


def test_payloads_that_do_not_fill_the_block():
    for block in (same_block(2) + b"\0", build.block((DIFFERENCE, PAYLOAD), (JOINED, b"")) + b"\0"):
        refused(frame_to_base(RAW, BASE, [block], model=MODEL), "do not fill")
    payload, low = wide_payload(1)
    base = base_of(64, 2)
    joined = [(JOINED, b"")] * 2
    for plane in (low[:-1], low + b"\0"):
        frame = wide_frame((DIFFERENCE, payload), *joined, (STORED, plane))
        both_refuse_to_base(frame, base)
    frame = wide_frame((DIFFERENCE, payload), *joined, (CONSTANT, b"\0\0"))
    both_refuse_to_base(frame, base)
