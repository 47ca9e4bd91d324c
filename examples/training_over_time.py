"""Report how compressible weights are during training, and how many bits a step changes.

    python examples/training_over_time.py [--picture FILE.png] [RUN | CHECKPOINT CHECKPOINT ...]

RUN is a run store. By default, training is simulated from the package's demo model, by random steps
of decreasing size.
"""

import argparse
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

import ml_dtypes
import numpy as np

import bf16codecs
from bf16codecs import analysis

try:
    from safetensors.numpy import save_file
except ImportError as error:
    sys.exit(f"training_over_time.py: {error}: pip install safetensors")


def train(folder: Path, n: int) -> list[str]:
    """Write `n` checkpoints, each a random step from the one before."""
    with bf16codecs.open_model(files(bf16codecs) / "data" / "demo.safetensors") as model:
        weights = {name: values.astype("f4") for name, values in model.load().items()}
    rng, paths = np.random.default_rng(0), []
    for i in range(n):
        paths.append(str(folder / f"step{100 * i:05d}.safetensors"))
        save_file({k: w.astype(ml_dtypes.bfloat16) for k, w in weights.items()}, paths[-1])
        for values in weights.values():
            values += rng.normal(0, 1e-2 / 4**i, values.shape).astype("f4")
    return paths


def report(result: analysis.Analysis) -> None:
    """Print a line for each checkpoint, in bits per value."""
    print(f"{'step':>8} {'alone':>7} {'difference':>10} {'values changed':>14}  most changed bit")
    for step in result.steps:
        bits, change = step.model.bits, step.model.statistics.change
        line = f"{step.step:>8} {bits['arithmetic best']:>7.2f}"
        if change is not None:
            most = int(np.argmax(change.flipped))
            line += f" {bits['difference, arithmetic best']:>10.2f} {change.changed:>14.1%}"
            line += f"  bit {len(change.flipped) - 1 - most}, in {change.flipped[most]:.1%}"
        print(line)


def main(sources: list[str], picture: str | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        result = analysis.analyze(sources or train(Path(folder), 6))
    if not result.steps:
        raise ValueError(f"{result.path}: only one checkpoint: give a run, or several checkpoints")
    report(result)
    if picture is not None:
        from bf16codecs.analysis import plots

        plots.save(plots.changed_bits(result), picture, "png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", nargs="*", metavar="RUN | CHECKPOINT")
    parser.add_argument("--picture", metavar="FILE.png")
    arguments = parser.parse_args()
    try:
        main(arguments.sources, arguments.picture)
    except (bf16codecs.errors.BF16CodecsError, ImportError, OSError, ValueError) as error:
        sys.exit(f"training_over_time.py: {error}")
