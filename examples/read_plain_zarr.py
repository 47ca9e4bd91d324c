"""List the arrays of a Zarr store, such as a converted model, with zarr alone.

    python examples/read_plain_zarr.py STORE

zarr finds the codecs of the installed package through entry points; the example does not call it.
"""

import sys

import zarr

# From 3.4 on, zarr finds data types through entry points; before, the package has to be imported.
if tuple(map(int, zarr.__version__.split(".")[:2])) < (3, 4):
    import bf16codecs  # noqa: F401


def main(store: str) -> None:
    group = zarr.open_group(store, mode="r")
    for name, node in sorted(group.members(max_depth=None)):
        if isinstance(node, zarr.Array):
            # Reads only one block of the chunk, if the chunk has blocks.
            first = node[(0,) * (node.ndim - 1) + (slice(3),)] if node.ndim else node[()]
            print(f"{name}: {node.dtype} {node.shape} {first}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: read_plain_zarr.py STORE")
    try:
        main(sys.argv[1])
    except (OSError, ValueError) as error:
        sys.exit(f"read_plain_zarr.py: {error}")
