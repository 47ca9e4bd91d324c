"""Reports of finished commands, for people and for programs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from bf16codecs._base import interrupt as _interrupt
from bf16codecs._base.messages import counted, few
from bf16codecs._base.paths import given_path, require_folder_of
from bf16codecs._base.tables import json_parts
from bf16codecs.cli.console import (
    format_rate,
    format_size,
    printable,
    say,
    show,
    show_json,
)
from bf16codecs.store.kinds import ZARR_MARKERS, suffix_of

if TYPE_CHECKING:
    from bf16codecs.convert.summary import Summary
    from bf16codecs.errors import Damage

__all__ = [
    "check_writable",
    "load_plots",
    "report",
    "show_damage",
    "summary_json",
    "took",
    "write_json",
    "write_text",
]

# Who mistypes the path of a run begins another one.
_NOTES = {"begun": "began a new run"}
# Of damaged chunks, more would scroll away the line that says how many there are.
_SHOWN = 20
# Of files that a store does not have.
_FEW = 4


def report(
    source: str | tuple[str, ...],
    target: str,
    summary: Summary,
    done: str,
    *,
    verified: bool,
    as_json: bool,
    more: Mapping[str, Any] | None = None,
) -> None:
    """Tell of a conversion, in lines or as JSON.

    Parameters
    ----------
    source, target
        Their paths; the checkpoints of a run have several.
    summary
        What came of it.
    done
        ``"converted"``, ``"appended"``, ``"begun"``, ``"restored"``, ``"rewritten"``, ``"whole"``
        or ``"unchanged"``.
    verified
        Whether the result was read again and compared.
    as_json
        One JSON object instead of lines.
    more
        What else that object has.
    """
    if as_json:
        about: dict[str, Any] = {
            "source": source,
            "target": target,
            "done": done,
            "verified": verified,
        }
        if summary.step is not None:
            about |= {"step": summary.step, "step_by": summary.step_by or None}
        show_json(about | summary_json(summary) | dict(more or {}))
        return
    if isinstance(source, tuple):
        source = counted(len(source), "checkpoint")
    ratio = summary.nbytes / max(1, summary.stored_nbytes)
    sizes = [format_size(summary.nbytes), format_size(summary.stored_nbytes)]
    if done == "restored":
        sizes.reverse()
    notes = [] if summary.step is None else [_step_note(summary.step, summary.step_by)]
    notes += [_NOTES.get(done, done)] if done != "converted" else []
    # Files are restored only if they have the digest that they should have.
    notes += ["verified"] if verified and done != "restored" else []
    if done == "restored" and summary.objects:
        verb = "is" if summary.objects == 1 else "are"
        notes.append(f"{counted(summary.objects, 'object')} {verb} not in it")
    say(
        f"{printable(source)} -> {printable(target)}: {counted(summary.tensors, 'tensor')},"
        f" {sizes[0]} -> {sizes[1]} (ratio {ratio:.3f}), {', '.join([took(summary), *notes])}"
    )
    if summary.left_out:
        say(printable(f"not in the store: {few(summary.left_out, _FEW)}"))
    if summary.base:
        say(printable(summary.base))
    if summary.loss is not None:
        say(summary.loss.described())


def _step_note(number: int, by: str) -> str:
    """Name the step that was appended, and where it was read: a wrong one is in the run."""
    return f"step {number}" + (f" (by its {printable(by)})" if by else "")


def took(summary: Summary) -> str:
    """Return time and rate of what was done, in words."""
    return f"in {summary.seconds:.2f} s ({format_rate(summary.nbytes, summary.seconds)})"


def summary_json(summary: Summary) -> dict[str, Any]:
    """Return what a conversion says of itself as JSON has it: docs/cli.md explains the keys."""
    from bf16codecs.store.attributes import loss_entry

    return {
        "files": summary.files,
        "tensors": summary.tensors,
        "objects": summary.objects,
        "nbytes": summary.nbytes,
        "stored_nbytes": summary.stored_nbytes,
        "ratio": summary.nbytes / max(1, summary.stored_nbytes),
        "seconds": summary.seconds,
        "left_out": list(summary.left_out),
        "base": summary.base or None,
        "lossy": None if summary.loss is None else loss_entry(summary.loss),
    }


def show_damage(damage: Sequence[Damage]) -> None:
    """Print what is damaged, a line each; of much, the first."""
    for own in damage[:_SHOWN]:
        step = "" if own.step is None else f"step {own.step}: "
        say(printable(f"{step}{own.message}"))
    if len(damage) > _SHOWN:
        say(f"and {len(damage) - _SHOWN} more (--json has them)")


def load_plots() -> ModuleType:
    """Import and return what draws, before minutes are spent: into files, which takes no display.

    No signal is raised in the middle of an import; one that came meanwhile is raised behind it.
    """
    os.environ["MPLBACKEND"] = "agg"
    plots = import_module("bf16codecs.analysis.plots")
    _interrupt.check()
    return plots


def check_writable(files: Mapping[str, str | None], sources: Iterable[str]) -> None:
    """Refuse files for reports that cannot be written, before hours are spent on what they tell.

    Parameters
    ----------
    files
        Their paths, by the option that names them: ``"json"``, ``"csv"``, ``"plot"``. None is no
        file, ``"-"`` is standard output; pipes and devices are not looked at.
    sources
        What is read, which no report replaces.

    Raises
    ------
    OSError
        If one cannot be written.
    ValueError
        If one is a source, or empty, or two are the same, or one would take the place of what is no
        report.
    """
    if list(files.values()).count("-") > 1:
        raise ValueError("-: standard output takes one report: name a file for the other")
    taken = {os.path.realpath(source) for source in sources}
    for kind, file in files.items():
        if file is None or file == "-" or _is_special(file):
            continue
        require_folder_of(Path(given_path(file, "report")))
        if os.path.realpath(file) in taken:
            raise ValueError(f"{file}: is read, or written to, already: name another file")
        taken.add(os.path.realpath(file))
        _refuse_what_is_no_report(file, kind)
        is_new = not os.path.lexists(file)
        with open(file, "ab"):
            pass
        if is_new:
            os.remove(file)


def _refuse_what_is_no_report(file: str, kind: str) -> None:
    """Refuse to replace something else: elsewhere ``--json`` takes no file, and a model is next."""
    target = os.path.realpath(file)
    ending = os.path.splitext(file)[1].lower() if kind == "plot" else f".{kind}"
    advice = f"--{kind} takes the file of a report: name one that ends in {ending}"
    if any(suffix_of(name)[1] is not None for name in (file, target)):
        raise ValueError(f"{file}: the name of a model, and {advice}")
    for folder in Path(target).parents:
        if any((folder / marker).exists() for marker in ZARR_MARKERS):
            raise ValueError(f"{file}: in the Zarr store {folder}: name a file outside of it")
    has_content = os.path.isfile(file) and os.path.getsize(file)
    if has_content and not all(name.lower().endswith(ending) for name in (file, target)):
        raise ValueError(f"{file}: is there already, and no report by its name: {advice}")


def _is_special(file: str) -> bool:
    """Tell whether a file is a pipe or a device: both take several reports, and notice opening."""
    return os.path.exists(file) and not os.path.isfile(file) and not os.path.isdir(file)


def write_json(document: Mapping[str, Any], file: str | None) -> None:
    """Write a JSON object to a file, or to standard output for ``"-"``; not at all for None."""
    if file == "-":
        show_json(document)
    elif file is not None:
        parts = json_parts(document)
        first = next(parts)  # of all but huge documents, the whole: errors leave the file alone
        with open(file, "w", encoding="utf-8") as out:
            out.write(first)
            out.writelines(parts)


def write_text(text: str, file: str) -> None:
    """Write text to a file, or to standard output for ``"-"``."""
    if file == "-":
        show(text.removesuffix("\n"))
    else:
        Path(file).write_text(text, encoding="utf-8")
