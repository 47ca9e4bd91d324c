"""Decoding on a GPU, beside copies of the decoded size in the same rounds.

Tensors are encoded on the host, once, and copied until they fill the GPU's memory as a large model
would: each copy has its own place, encoded and decoded, so that none comes from a cache. The first
round is not timed; what it gives is copied back and compared with the original bit for bit, and so
is what the last one decodes within the GPU's memory.
"""
