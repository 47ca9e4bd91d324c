"""Packing and restoring folders of Hugging Face models."""
