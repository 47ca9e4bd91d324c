"""NVIDIA's GPUs: frames are decoded where their numbers are needed."""
