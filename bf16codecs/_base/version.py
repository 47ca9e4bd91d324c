"""The package's version: the only place where it is written."""

__version__ = "0.1.0"
