"""Kinds of tensors, by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

__all__ = ["KINDS", "kind_of", "kinds_by", "layer_of"]

#: Kinds, and patterns of the names of their tensors, tried in this order, whatever the case. A name
#: with none of them is of kind "other".
KINDS: Mapping[str, str] = {
    "norm": r"norm(?!al)|\bln(_?[a-z0-9]+)?\b",
    "embedding": r"embed|\bw[tp]e\b|\blm_head\b|\bshared\.weight|\boutput\.weight$",
    "attention": r"att(n|ention)|qkv|\b[qkvo]_?proj\b|\bw[qkvo]\b|query|\bkey\b|\bvalue\b",
    "mlp": r"mlp|feed_?forward|\bffn?\b|expert|gate|dense|\bfc\d*\b|\b(up|down)_proj\b|\bw[123]\b",
}
_LAYER = re.compile(r"(?<![^._/])(\d+)(?![^._/])")


def kind_of(name: str) -> str:
    """Return what kind of tensor a name means: a key of `KINDS`, or ``"other"``.

    Examples
    --------
    >>> kind_of("model.layers.3.self_attn.q_proj.weight")
    'attention'
    """
    return _DEFAULT(name)


def kinds_by(rules: Mapping[str, str]) -> Callable[[str], str]:
    """Return a rule like `kind_of`, of other kinds: regular expressions, tried in their order.

    Case does not matter. Raises ValueError if one is no regular expression.
    """
    patterns = {}
    for kind, rule in rules.items():
        try:
            patterns[kind] = re.compile(rule, re.IGNORECASE)
        except re.error as e:
            why = f"the rule of kind {kind!r} is no regular expression: {rule!r:.80}: {e}"
            raise ValueError(why) from None

    def of_name(name: str) -> str:
        return next((kind for kind, rule in patterns.items() if rule.search(name)), "other")

    return of_name


_DEFAULT = kinds_by(KINDS)


def layer_of(name: str) -> int | None:
    """Return the number of a tensor's layer, the first that stands alone in its name, or None."""
    match = _LAYER.search(name)
    return None if match is None else int(match[1])
