"""Two tensors of a run's checkpoints: what differences save, and that nothing is lost.

`steps/steps.safetensors` has them at steps 300 and 399; the package's own demo is step 400 of the
same run.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import bf16codecs
from looping import for_each
from native_core import core

NAMES = ["model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight"]
EARLIER = Path(__file__).parent / "steps" / "steps.safetensors"
levels = for_each("level", ["fast", "best"])

Tensors = dict[tuple[str, int], np.ndarray]


@pytest.fixture(scope="module")
def tensors(demo_model) -> Tensors:
    """Return the tensors by name and step."""
    with bf16codecs.open_model(EARLIER) as earlier, bf16codecs.open_model(demo_model) as last:
        found = {
            (name, step): earlier[f"{name}.step{step}"][...]
            for name in NAMES
            for step in (300, 399)
        }
        return found | {(name, 400): last[name][...] for name in NAMES}


def size(tensors: Tensors, level: str, step: int, base: int | None = None) -> int:
    """Return the sizes of both tensors' frames, after decoding them."""
    codec, total = bf16codecs.BF16Arithmetic(level=level), 0
    for name in NAMES:
        items = tensors[name, step]
        if base is None:
            total += len(codec.encode(items))
            continue
        frame = bf16codecs.encode_delta(codec, items, tensors[name, base])
        out = tensors[name, base].copy()
        bf16codecs.decode(frame, out=out, base=out)
        assert np.array_equal(out.view("u2"), items.view("u2"))
        total += len(frame)
    return total


@levels
def test_one_step_is_an_eighth_of_the_weights(tensors, level):
    assert size(tensors, level, 400, 399) < 0.125 * size(tensors, level, 400)


@levels
def test_a_hundred_steps_are_two_thirds_of_the_weights(tensors, level):
    assert size(tensors, level, 400, 300) < 0.65 * size(tensors, level, 400)


@levels
def test_backwards_is_as_good(tensors, level):
    assert size(tensors, level, 399, 400) < 1.05 * size(tensors, level, 400, 399)


@levels
def test_checkpoints_in_one_frame(tensors, level):
    """Steps 399 and 400 both have step 300 as their parent, by the version's number."""
    number, codec = core.LEVELS[level], core.CODECS["arithmetic"]
    for name in NAMES:
        raw = b"".join(tensors[name, step].tobytes() for step in (300, 399, 400))
        frame = core.encode(raw, codec, 0, level=number, steps=3, row=tensors[name, 300].shape[1])
        assert core.decode(frame) == raw
        alone = core.encode(raw, codec, 0, level=number)
        assert len(frame) < len(alone)
        assert core.Index(frame).parents == [None, 0, 0]


@levels
def test_another_tensor_is_no_base_worth_having(tensors, level):
    """The frame is no larger than without a base."""
    codec = bf16codecs.BF16Arithmetic(level=level)
    first, second = (tensors[name, 400] for name in NAMES)
    alone = len(codec.encode(first))
    assert len(bf16codecs.encode_delta(codec, first, second)) < 1.02 * alone + 100
