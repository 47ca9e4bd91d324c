"""Names the features of the format that a frame uses, by the reference decoder."""

from __future__ import annotations

from collections.abc import Iterator

import reference_decoder as reference
from difference_goldens import features_of_difference
from growing_goldens import features_of_growing
from reference_grid import SECTION, Grid
from reference_growing import is_growing
from reference_planes import huffman_counts, huffman_size_width
from reference_tiles import TileSection, coded_items, read_payload, tiles_of

MODES = [
    "stored", "constant", "huffman", "pairs", "wide", "zstandard", "scale", "joined", "tiles",
    "same", "difference", "sparse", "grid",
]  # fmt: skip


def features(frame: bytes) -> set[str]:
    if is_growing(frame):
        return features_of_growing(frame, features)
    head = reference.read_head(frame)
    found = {f"{len(head.sizes)} blocks", f"tail {len(head.tail)}"}
    found.add("by byte" if head.by_byte else "by field")
    found.add("checksums" if head.checksums is not None else "no checksums")
    own = head.versions[0]
    model = own.scale or own.tiles or own.differences
    if model is not None:
        found.add(f"{len(model)} sections")
    if len(head.versions) > 1:
        found.add("versions")
    for b in range(len(head.sizes)):
        n = head.items_of(b)
        for mode, payload in reference.split_block(frame, head, b):
            name = MODES[mode]
            found.add(name)
            if name == "difference":
                section = head.difference_section_of(b)
                found |= set(features_of_grid(section))
                found |= set(features_of_difference(section, payload, n))
            if name == "sparse":
                found.add("sparse signs" if payload[2] else "sparse, no signs")
                found.add("sparse exceptions" if any(payload[7:11]) else "no sparse exceptions")
            if name in ("scale", "tiles"):
                section = model[head.first_of(b) // SECTION]
                found |= set(features_of_grid(section))
            if name == "grid":
                found |= set(features_of_levels(payload))
            if name == "tiles":
                found |= set(features_of_tiles(section, payload, n))
            if name in ("pairs", "wide"):
                log2_groups = payload[0] >> 4 & 3 if name == "pairs" else payload[0]
                found.add(f"{name} of {1 << log2_groups}")
            if name == "pairs":
                found.add("escapes" if payload[0] & 64 else "no escapes")
            if name == "huffman":
                counts = huffman_counts(n)
                found.add(f"huffman of {len(counts)}")
                found.add(f"huffman sizes of {huffman_size_width(counts)}")
    return found


def features_of_grid(section: Grid) -> Iterator[str]:
    yield "rows" if section.run else "no rows"
    yield "columns" if section.period else "no columns"


def features_of_levels(payload: bytes) -> Iterator[str]:
    family = ("integers", "floats", "table", "integers")[payload[0]]
    yield f"levels: {family}, {payload[1]} low bits"
    scales = payload[25 + 4 * payload[2] * (payload[0] == 2) :]
    if payload[0] == 3:
        yield f"offsets: {('sum', 'rounded sum', 'difference')[payload[2]]}"
        offsets = payload[29 + int.from_bytes(payload[17:21], "little") :]
        scales = payload[29:]
        if MODES[offsets[0]] == "grid":
            yield "offsets on a grid"
    if MODES[scales[0]] == "grid":
        yield "scales on a grid"
    yield f"rounding {payload[3]}"
    yield "plain items" if any(payload[21:25]) else "no plain items"


def features_of_tiles(section: TileSection, payload: bytes, n: int) -> Iterator[str]:
    parts = read_payload(payload, section.dtype, n)
    m = coded_items(n, parts.groups)
    yield f"tiles of {parts.groups}"
    yield "one tile" if tiles_of(m) == 1 else "several tiles"
    tables = "Gaussian" if section.form < 2 else "explicit"
    classes = "one class" if len(section.tables) == 1 else "four classes"
    yield f"{tables}, {classes}"
    yield "escaped keys" if parts.escapes else "no escaped keys"
    yield "stored keys" if parts.rest else "no stored keys"
