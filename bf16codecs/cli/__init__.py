"""The commands: they parse options, call functions of the package, and print the results."""

from typing import TYPE_CHECKING

from bf16codecs._base.lazy import lazy_names

if TYPE_CHECKING:
    from bf16codecs.cli.convert import *
    from bf16codecs.cli.group import *

__all__ = ["h52st", "main", "st2h5", "st2zarr", "zarr2st"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "bf16codecs.cli.convert": "h52st st2h5 st2zarr zarr2st",
        "bf16codecs.cli.group": "main",
    },
)
