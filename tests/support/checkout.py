"""The source tree that is tested, and an environment for child processes."""

from __future__ import annotations

import os
from pathlib import Path

import bf16codecs

ROOT = Path(__file__).resolve().parents[2]


def package_environment(**extra: str) -> dict[str, str]:
    """Return an environment in which a child Python finds the package under test."""
    parent = str(Path(bf16codecs.__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, [parent, os.environ.get("PYTHONPATH", "")]))
    given = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return {
        **given,
        "PYTHONPATH": path,
        # The working folder may be the checkout, whose package need not have been built.
        "PYTHONSAFEPATH": "1",
        # With coloured or narrow terminals, output would depend on who runs the tests.
        "NO_COLOR": "1",
        "COLUMNS": "100",
        **extra,
    }
