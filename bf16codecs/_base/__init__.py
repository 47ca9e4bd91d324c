"""Helpers that all other parts share: buffers, data types, limits, messages, paths, threads."""
