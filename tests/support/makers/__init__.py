"""Makes sound and broken frames and payloads: a module for each part of the format."""
