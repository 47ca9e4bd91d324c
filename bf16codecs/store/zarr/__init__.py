"""Model stores in Zarr."""
