"""Decoding on NVIDIA GPUs."""
