"""Frames and payloads by hand, sound and broken ones: a module for each part of the format."""
