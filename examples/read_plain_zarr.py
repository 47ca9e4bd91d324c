"""List the arrays of a Zarr store, a converted model for instance, with zarr alone.

The installed package is found by zarr through entry points; nothing of it is called here.

    python examples/read_plain_zarr.py STORE
"""

import sys

import zarr

# zarr 3.4 finds data types through entry points too; before, importing the package registers them.
if tuple(map(int, zarr.__version__.split(".")[:2])) < (3, 4):
    import bf16codecs  # noqa: F401


def main(store: str) -> None:
    group = zarr.open_group(store, mode="r")
    for name, node in sorted(group.members(max_depth=None)):
        if isinstance(node, zarr.Array):
            # Only what the first elements need is read: a block of the chunk, where it has blocks.
            first = node[(0,) * (node.ndim - 1) + (slice(3),)] if node.ndim else node[()]
            print(f"{name}: {node.dtype} {node.shape} {first}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: read_plain_zarr.py STORE")
    try:
        main(sys.argv[1])
    except (OSError, ValueError) as error:
        sys.exit(f"read_plain_zarr.py: {error}")
