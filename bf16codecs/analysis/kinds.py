"""Kinds of tensors, by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

__all__ = ["KINDS", "kind_of", "kinds_by", "layer_of"]

#: Regular expressions of tensor names by kind, tried in this order, without regard to case. A name
#: that matches none of them has the kind "other".
KINDS: Mapping[str, str] = {
    "norm": r"norm(?!al)|\bln(_?[a-z0-9]+)?\b",
    "embedding": r"embed|\bw[tp]e\b|\blm_head\b|\bshared\.weight|\boutput\.weight$",
    "attention": r"att(n|ention)|qkv|\b[qkvo]_?proj\b|\bw[qkvo]\b|query|\bkey\b|\bvalue\b",
    "mlp": r"mlp|feed_?forward|\bffn?\b|expert|gate|dense|\bfc\d*\b|\b(up|down)_proj\b|\bw[123]\b",
}
_LAYER = re.compile(r"(?<![^._/])(\d+)(?![^._/])")


def kind_of(name: str) -> str:
    """Return the kind of a tensor by its name: a key of `KINDS`, or ``"other"``.

    Examples
    --------
    >>> kind_of("model.layers.3.self_attn.q_proj.weight")
    'attention'
    """
    return _DEFAULT(name)


def kinds_by(rules: Mapping[str, str]) -> Callable[[str], str]:
    """Return a function like `kind_of` for regular expressions by kind, tried in order.

    Case does not matter. Raises ValueError if a rule is not a regular expression.
    """
    patterns = {}
    for kind, rule in rules.items():
        try:
            patterns[kind] = re.compile(rule, re.IGNORECASE)
        except re.error as e:
            why = f"the rule of kind {kind!r} is not a regular expression: {rule!r:.80}: {e}"
            raise ValueError(why) from None

    def of_name(name: str) -> str:
        return next((kind for kind, rule in patterns.items() if rule.search(name)), "other")

    return of_name


_DEFAULT = kinds_by(KINDS)


def layer_of(name: str) -> int | None:
    """Return the number of a tensor's layer, the first that stands alone in its name, or None."""
    match = _LAYER.search(name)
    return None if match is None else int(match[1])
