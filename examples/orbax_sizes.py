"""Train a small model with JAX, and compare the sizes of its checkpoint in Orbax and in stores.

    python examples/orbax_sizes.py [STEPS]

The model predicts the next byte of Python's standard library. Its weights are saved in bfloat16,
the two moments of Adam in float32, each as an Orbax checkpoint, which is converted with several
codecs.
"""

import sys
import sysconfig
import tempfile
from pathlib import Path

import numpy as np

try:
    import jax
    import jax.numpy as jnp
    import orbax.checkpoint as ocp

    from bf16codecs.convert.orbax import orbax_to_zarr
except ImportError as error:
    sys.exit(f"orbax_sizes.py: {error}: pip install orbax-checkpoint 'bf16codecs[orbax]'")

CONTEXT, WIDTH, HIDDEN = 32, 64, 512
BATCH, RATE, DECAYS = 256, 1e-3, (0.9, 0.999)
CODECS = {
    "zstd": {"codec": "zstd"},
    "huffman": {"codec": "huffman"},
    "arithmetic": {"codec": "arithmetic"},
    "best": {"codec": "arithmetic", "level": "best"},
}


def text() -> np.ndarray:
    """Return four megabytes of the standard library."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return np.frombuffer(b"".join(file.read_bytes() for file in files)[: 4 << 20], np.uint8)


def new_weights(rng: np.random.Generator) -> dict[str, jax.Array]:
    """Draw weights: an embedding, two layers and the output."""
    shapes = {
        "embed": (256, WIDTH),
        "first": (CONTEXT * WIDTH, HIDDEN),
        "second": (HIDDEN, HIDDEN),
        "output": (HIDDEN, 256),
    }
    return {
        name: jnp.asarray(rng.normal(0, shape[0] ** -0.5, shape), jnp.float32)
        for name, shape in shapes.items()
    }


def loss(weights: dict[str, jax.Array], batch: jax.Array) -> jax.Array:
    """Return the mean cross entropy of the last byte of each row, by those before it."""
    states = weights["embed"][batch[:, :-1]].reshape(len(batch), -1)
    states = jax.nn.gelu(states @ weights["first"])
    states = jax.nn.gelu(states @ weights["second"])
    logits = jax.nn.log_softmax(states @ weights["output"])
    return -jnp.take_along_axis(logits, batch[:, -1:], axis=1).mean()


@jax.jit
def step(weights, first, second, batch, number):
    """Take a step of Adam."""
    slope = jax.grad(loss)(weights, batch)
    first = jax.tree.map(lambda m, g: DECAYS[0] * m + (1 - DECAYS[0]) * g, first, slope)
    second = jax.tree.map(lambda v, g: DECAYS[1] * v + (1 - DECAYS[1]) * g * g, second, slope)
    scales = 1 - DECAYS[0] ** number, 1 - DECAYS[1] ** number

    def moved(w, m, v):
        return w - RATE * (m / scales[0]) / (jnp.sqrt(v / scales[1]) + 1e-8)

    return jax.tree.map(moved, weights, first, second), first, second


def trained(steps: int) -> dict[str, dict[str, jax.Array]]:
    """Return the parts of a checkpoint after some steps."""
    rng, data = np.random.default_rng(0), text()
    weights = new_weights(rng)
    first = second = jax.tree.map(jnp.zeros_like, weights)
    for number in range(1, steps + 1):
        starts = rng.integers(0, data.size - CONTEXT - 1, BATCH)
        batch = jnp.asarray(data[starts[:, None] + np.arange(CONTEXT + 1)], jnp.int32)
        weights, first, second = step(weights, first, second, batch, number)
    print(f"after {steps} steps: {loss(weights, batch) / np.log(2):.2f} bits a byte")
    rounded = jax.tree.map(lambda w: w.astype(jnp.bfloat16), weights)
    return {"weights, BF16": rounded, "first moments, FP32": first, "second moments, FP32": second}


def main(steps: str = "400") -> None:
    """Print a table."""
    parts = trained(int(steps))
    print(f"{'':22}{'raw':>12}{'Orbax':>12}" + "".join(f"{name:>12}" for name in CODECS))
    totals = np.zeros(2 + len(CODECS), int)
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, tree) in enumerate(parts.items()):
            path = Path(folder) / str(number)
            with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False)) as checkpointer:
                checkpointer.save(path, tree)
            sizes = [sum(array.nbytes for array in tree.values())]
            sizes.append(sum(file.stat().st_size for file in path.rglob("*") if file.is_file()))
            for options in CODECS.values():
                store = Path(folder) / "model.zarr"
                sizes.append(orbax_to_zarr(path, store, overwrite=True, **options).stored_nbytes)
            totals += sizes
            print(f"{name:22}" + "".join(f"{size:12,}" for size in sizes))
    print(f"{'all':22}" + "".join(f"{size:12,}" for size in totals))
    print(f"{'of raw':22}" + "".join(f"{size / totals[0]:12.1%}" for size in totals))


if __name__ == "__main__":
    main(*sys.argv[1:])
