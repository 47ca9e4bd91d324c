"""Convert many models, each to a store of its own."""
