"""Benchmark of decoding on a GPU, beside copies of the decoded size in the same rounds.

Tensors are encoded once, on the host, and copied until they fill the GPU's memory as a large model
would: each copy has encoded and decoded memory of its own, so that none comes from a cache. The
first round is not timed. Its results are copied back and compared bit for bit, and so are those of
the last round within the GPU's memory.
"""
