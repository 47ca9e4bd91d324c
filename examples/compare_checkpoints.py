"""Compare two checkpoints of one model, tensor by tensor, with one tensor in memory at a time.

    python examples/compare_checkpoints.py OLD NEW

OLD and NEW are paths or addresses for `bf16codecs.open_model`: stores, safetensors files.
"""

import sys

import numpy as np

import bf16codecs


def main(old: str, new: str) -> None:
    with bf16codecs.open_model(old) as before, bf16codecs.open_model(new) as after:
        print(f"{'tensor':<46} {'changed':>8} {'relative':>9} {'largest':>9}")
        for name in before:
            if name not in after:
                print(f"{name:<46} only in {old}")
                continue
            a, b = np.asarray(before[name]), np.asarray(after[name])
            if a.shape != b.shape:
                print(f"{name:<46} {a.shape} became {b.shape}")
                continue
            difference = b.astype("float32") - a.astype("float32")
            norm = np.linalg.norm(a.astype("float32")) or 1.0
            print(
                f"{name:<46} {np.mean(a != b):>8.1%} {np.linalg.norm(difference) / norm:>9.2e}"
                f" {np.abs(difference).max():>9.2e}"
            )
        for name in after:
            if name not in before:
                print(f"{name:<46} only in {new}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: compare_checkpoints.py OLD NEW")
    try:
        main(*sys.argv[1:])
    except (bf16codecs.errors.BF16CodecsError, OSError, ValueError) as error:
        sys.exit(f"compare_checkpoints.py: {error}")
