"""Model stores and safetensors files at addresses."""
