"""Two frames of differences to damage: one to a base outside of it, one of two versions."""

from __future__ import annotations

from both_decoders import both_refuse_to_base
from difference_frames import base_of, near_to, numbers_for
from makers import frames as build
from makers.differences import code_block, code_differences, write_difference_model
from makers.frames import frame_of_versions, frame_to_base, model_of_versions, whole_block
from makers.grids import write_rows
from makers.lanes import pack_payload
from reference_differences import items_from
from reference_planes import DIFFERENCE, JOINED

N = 203
BASE = base_of(N)
RAW = near_to(BASE)
NUMBERS = numbers_for(run=(0, 100))
ROWS = write_rows(-2, [1, 2, -1])
MODEL = write_difference_model([NUMBERS])
PARTS, _ = code_differences(items_from(RAW, 2), items_from(BASE, 2), NUMBERS.section(0), rows=ROWS)
PAYLOAD = pack_payload(PARTS, 2)


def frame_of(payload: bytes = PAYLOAD, model: bytes | None = MODEL, **options) -> bytes:
    block = build.block((DIFFERENCE, payload), (JOINED, b""))
    return frame_to_base(RAW, BASE, [block], model=model, **options)


def refused(frame: bytes, match: str | None = None) -> None:
    both_refuse_to_base(frame, BASE, match)


SECOND = near_to(RAW, seed=9)
OWN = numbers_for()
FIRST_BLOCK = whole_block(RAW, 2)
SECOND_BLOCK = code_block(SECOND, RAW, OWN.section(0))
OWN_MODEL = write_difference_model([OWN])


def versions(
    blocks=(FIRST_BLOCK, SECOND_BLOCK), parents=(None, 0), models=(b"", OWN_MODEL), sizes=None,
    kinds=None, **options,
) -> bytes:  # fmt: skip
    """Return a frame of two versions."""
    options = {"model": model_of_versions(parents, models, sizes, kinds), **options}
    return frame_of_versions([RAW, SECOND], [[block] for block in blocks], **options)
