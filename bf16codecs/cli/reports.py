"""What conversions say when they are done, to people and to programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bf16codecs._messages import counted
from bf16codecs.cli.console import format_rate, format_size, printable, show, show_json

if TYPE_CHECKING:
    from bf16codecs._half import HalfLoss
    from bf16codecs.convert.summary import Summary

__all__ = ["lossy_line", "report", "summary_json", "took"]


def report(
    source: str | tuple[str, ...],
    target: str,
    summary: Summary,
    done: str,
    *,
    verified: bool,
    as_json: bool,
) -> None:
    """Tell of a conversion, in lines or as JSON.

    Parameters
    ----------
    source, target
        Their paths; the checkpoints of a run have several.
    summary
        What came of it.
    done
        ``"converted"``, ``"appended"``, ``"restored"``, ``"rewritten"`` or ``"whole"``.
    verified
        Whether the result was read again and compared.
    as_json
        One JSON object instead of lines.
    """
    if as_json:
        about = {"source": source, "target": target, "done": done, "verified": verified}
        show_json(about | summary_json(summary))
        return
    if isinstance(source, tuple):
        source = counted(len(source), "checkpoint")
    ratio = summary.nbytes / max(1, summary.stored_nbytes)
    sizes = [format_size(summary.nbytes), format_size(summary.stored_nbytes)]
    if done == "restored":
        sizes.reverse()
    notes = [done] if done != "converted" else []
    # Files are restored only if they have the SHA-256 that they should have.
    notes += ["verified"] if verified and done != "restored" else []
    show(
        f"{printable(source)} -> {printable(target)}: {counted(summary.tensors, 'tensor')},"
        f" {sizes[0]} -> {sizes[1]} (ratio {ratio:.3f}), {', '.join([took(summary), *notes])}"
    )
    if summary.base:
        show(printable(summary.base))
    if summary.loss is not None:
        show(lossy_line(summary.loss))


def took(summary: Summary) -> str:
    """Return time and rate of what was done, in words."""
    return f"in {summary.seconds:.2f} s ({format_rate(summary.nbytes, summary.seconds)})"


def summary_json(summary: Summary) -> dict[str, Any]:
    """Return what a conversion says of itself as JSON has it: docs/cli.md explains the keys."""
    from bf16codecs.store.entries import loss_entry

    return {
        "files": summary.files,
        "tensors": summary.tensors,
        "nbytes": summary.nbytes,
        "stored_nbytes": summary.stored_nbytes,
        "ratio": summary.nbytes / max(1, summary.stored_nbytes),
        "seconds": summary.seconds,
        "base": summary.base or None,
        "lossy": None if summary.loss is None else loss_entry(summary.loss),
    }


def lossy_line(loss: HalfLoss) -> str:
    """Say what a lossy store does not restore."""
    return f"lossy: FP32 in half precision, not the original: {loss}"
