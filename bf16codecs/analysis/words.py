"""Why values get as small as they do, in words."""

from __future__ import annotations

from collections.abc import Iterator

from bf16codecs._fields import FIELDS
from bf16codecs.analysis.results import GroupAnalysis, TensorAnalysis

__all__ = ["reasons"]


def reasons(group: GroupAnalysis | TensorAnalysis) -> Iterator[str]:
    """Yield sentences that say why values get as small as they do, and no smaller."""
    own, found = group.statistics, group.statistics.entropies
    fields = FIELDS.get(own.dtype)
    if fields is None or found.exponent is None:
        yield f"{own.dtype} numbers have no exponent: only what repeats among them can be saved."
        return
    there = sum(count > 0 for count in own.exponents)
    text = (
        f"Exponents: {there} of {len(own.exponents)} occur, so they hold {found.exponent:.2f} bits"
        f" and not {fields.exponent}"
    )
    if isinstance(group, GroupAnalysis) and group.tensors > 1 and group.exponent_per_tensor:
        text += f"; {group.exponent_per_tensor:.2f} with a table for each tensor"
    yield f"{text}."
    if found.sign_and_mantissa is not None:
        yield (
            f"Signs and mantissas hold {found.sign_and_mantissa:.2f} of their"
            f" {fields.sign + fields.mantissa} bits."
        )
    for prediction in own.predictions:
        given, alone = prediction.given, prediction.alone
        if prediction.of == "exponent byte" and given is not None:
            best = min(prediction.delta, prediction.xor)
            verdict = "worse than none" if best > alone else "which helps"
            yield (
                f"The {prediction.neighbour} neighbour tells {max(0, alone - given):.2f} bits of"
                f" the exponent. To predict from it leaves {prediction.delta:.2f} (delta) or"
                f" {prediction.xor:.2f} (XOR) of {alone:.2f} bits: {verdict}."
            )
