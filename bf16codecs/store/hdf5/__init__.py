"""Model stores in HDF5."""
