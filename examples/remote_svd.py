"""Compute the singular values of one weight matrix in a remote store, without fetching the rest.

    python examples/remote_svd.py ADDRESS TENSOR [OPTION=VALUE ...]

For example:

    python examples/remote_svd.py s3://models/llama.zarr model.embed_tokens.weight anon=true

Options are passed to the address's file system: see its documentation in fsspec.
"""

import json
import sys

import numpy as np

import bf16codecs


def value(text: str) -> object:
    """Parse an option's value as JSON; keep it as text if it is not."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def main(address: str, name: str, *options: str) -> None:
    pairs = (option.split("=", 1) for option in options)
    storage_options = {key: value(text) for key, text in pairs}
    with bf16codecs.open_model(address, storage_options=storage_options) as model:
        tensor = model[name]
        print(f"{name}: {tensor.dtype} {tensor.shape}, {tensor.nbytes / 1e6:.2f} MB of weights")
        values = np.linalg.svd(np.asarray(tensor, dtype="float32"), compute_uv=False)
        print("largest singular values:", *(f"{v:.3f}" for v in values[:5]))
        energy = np.cumsum(values**2) / np.sum(values**2)
        for share in (0.5, 0.9, 0.99):
            rank = int(np.searchsorted(energy, share)) + 1
            print(f"{share:.0%} of the energy in rank {rank} of {len(values)}")


if __name__ == "__main__":
    if len(sys.argv) < 3 or not all("=" in option for option in sys.argv[3:]):
        sys.exit("usage: remote_svd.py ADDRESS TENSOR [OPTION=VALUE ...]")
    try:
        main(*sys.argv[1:])
    except (bf16codecs.errors.BF16CodecsError, OSError, ValueError) as error:
        sys.exit(f"remote_svd.py: {error}")
