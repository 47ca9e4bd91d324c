"""Publishes the steps of a training job: see `publish`."""

from bf16codecs.torch.publishing.publishing import Published, publish

__all__ = ["Published", "publish"]
