"""A browser page that shows the weights of models: `bf16codecs view`.

`Checkpoints` are the models that it shows, `application` is the page and its data as an ASGI
application, and `serve` runs it on this machine.
"""

from typing import TYPE_CHECKING

from bf16codecs._base.lazy import lazy_names

if TYPE_CHECKING:
    from bf16codecs.analysis.checkpoints import *
    from bf16codecs.view.asgi import *
    from bf16codecs.view.server import *

__all__ = ["Checkpoints", "application", "serve"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "bf16codecs.view.asgi": "application",
        "bf16codecs.analysis.checkpoints": "Checkpoints",
        "bf16codecs.view.server": "serve",
    },
)
