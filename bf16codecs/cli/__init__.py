"""The commands: parse, call, print."""

from bf16codecs.cli.convert import h52st, st2h5, st2zarr, zarr2st
from bf16codecs.cli.main import main

__all__ = ["h52st", "main", "st2h5", "st2zarr", "zarr2st"]
