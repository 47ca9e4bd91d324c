"""Convert Orbax checkpoints to model stores, and restore them."""

from bf16codecs.convert.orbax.converting import orbax_to_zarr
from bf16codecs.convert.orbax.layout import is_orbax
from bf16codecs.convert.orbax.restoring import zarr_to_orbax

__all__ = ["is_orbax", "orbax_to_zarr", "zarr_to_orbax"]
