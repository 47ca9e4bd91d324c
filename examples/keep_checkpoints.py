"""Keep checkpoints as differences to the one before, or as steps of one array.

python examples/keep_checkpoints.py
"""

from itertools import pairwise

import ml_dtypes
import numpy as np

import bf16codecs


def train(n: int) -> list[np.ndarray]:
    """Return `n` checkpoints of a matrix of weights."""
    rng = np.random.default_rng(0)
    weights = rng.normal(0, 0.02, (512, 1024)).astype("f4")
    checkpoints = []
    for _ in range(n):
        checkpoints.append(weights.astype(ml_dtypes.bfloat16))
        weights += rng.normal(0, 1e-4, weights.shape).astype("f4")
    return checkpoints


def bits(frames: list[bytes], checkpoints: list[np.ndarray]) -> float:
    return 8 * sum(map(len, frames)) / sum(checkpoint.size for checkpoint in checkpoints)


def main() -> None:
    checkpoints = train(8)
    codec = bf16codecs.BF16Arithmetic()
    alone = [codec.encode(checkpoint) for checkpoint in checkpoints]
    chain = alone[:1]
    for before, after in pairwise(checkpoints):
        chain.append(bf16codecs.encode_delta(codec, after, before))
    steps = [bf16codecs.BF16Arithmetic(steps=8).encode(np.stack(checkpoints))]

    # The chain is decoded in place: the memory of one checkpoint becomes the next one.
    weights = np.empty_like(checkpoints[0])
    bf16codecs.decode(chain[0], out=weights)
    for frame, checkpoint in zip(chain[1:], checkpoints[1:], strict=True):
        bf16codecs.decode(frame, out=weights, base=weights)
        assert weights.tobytes() == checkpoint.tobytes()
    assert bf16codecs.decode(steps[0]) == np.stack(checkpoints).tobytes()

    print(f"each alone                {bits(alone, checkpoints):6.2f} bits per value")
    print(f"each on the one before    {bits(chain, checkpoints):6.2f}")
    print(f"steps of one array        {bits(steps, checkpoints):6.2f}, at most 3 others away")


if __name__ == "__main__":
    main()
