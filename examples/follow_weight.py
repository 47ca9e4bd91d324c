"""Follow a weight through a training run: one store has all checkpoints, with steps as an axis.

python examples/follow_weight.py [CHECKPOINT.safetensors CHECKPOINT.safetensors ...]
"""

import sys
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np

import bf16codecs
from bf16codecs.convert import append_to_run, safetensors_to_run

try:
    from safetensors.numpy import save_file
except ImportError as error:
    sys.exit(f"follow_weight.py: {error}: pip install safetensors")


def train(folder: Path, n: int) -> list[Path]:
    """Write `n` checkpoints of a toy model."""
    rng = np.random.default_rng(0)
    weights = {f"layer{i}.weight": rng.normal(0, 0.02, (256, 512)) for i in range(4)}
    paths = []
    for i in range(n):
        paths.append(folder / f"step{100 * i:05d}.safetensors")
        save_file({k: w.astype(ml_dtypes.bfloat16) for k, w in weights.items()}, paths[-1])
        for values in weights.values():
            values += rng.normal(0, 2e-4, values.shape)
    return paths


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(p) for p in sys.argv[1:]] or train(Path(folder), 12)
        store = Path(folder) / "run.zarr"
        summary = safetensors_to_run(paths[:-1], store)
        append_to_run(paths[-1], store)  # as a training loop would, after each checkpoint
        print(
            f"{len(paths)} checkpoints, {summary.nbytes / summary.stored_nbytes:.2f} times smaller"
        )

        with bf16codecs.open_run(store) as run:
            name = run.keys()[0]
            over_time = run[name][:, 0, :4].astype("f4")  # decodes one block of each step
            print(f"\n{name}[0, :4] at steps {run.steps[0]} to {run.steps[-1]}")
            for step, values in zip(run.steps, over_time, strict=True):
                print(f"{step:6d}  " + "  ".join(f"{value:8.5f}" for value in values))

            first, last = run[run.steps[0]], run[run.steps[-1]]  # each is a `Model`
            moved = {
                key: float(
                    np.linalg.norm(last[key][...].astype("f4") - first[key][...].astype("f4"))
                )
                for key in last
                if key in first
            }
            farthest = max(moved, key=moved.__getitem__)
            print(f"\n{farthest} moved farthest, by {moved[farthest]:.3f}")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        sys.exit("usage: follow_weight.py [CHECKPOINT.safetensors CHECKPOINT.safetensors ...]")
    try:
        main()
    except (bf16codecs.errors.BF16CodecsError, OSError, ValueError) as error:
        sys.exit(f"follow_weight.py: {error}")
