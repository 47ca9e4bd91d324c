"""Reports of finished commands, for people and for programs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from bf16codecs._base import interrupt as _interrupt
from bf16codecs._base.messages import counted, few
from bf16codecs._base.paths import given_path, require_folder_of
from bf16codecs._base.tables import format_rate, format_size, json_parts, printable
from bf16codecs.cli.console import say, show, show_json
from bf16codecs.store.kinds import ZARR_MARKERS, suffix_of

if TYPE_CHECKING:
    from bf16codecs.convert.summary import Summary
    from bf16codecs.errors import Damage

__all__ = [
    "check_writable",
    "counted_tensors",
    "load_plots",
    "report",
    "show_damage",
    "summary_json",
    "took",
    "write_json",
    "write_text",
]

# A mistyped path of a run begins another one.
_NOTES = {"begun": "began a new run"}
# More damaged chunks would scroll the line that counts them off the screen.
_SHOWN = 20
# Files that a store does not have, in a message.
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
    """Report a conversion, in lines or as JSON.

    Parameters
    ----------
    source, target
        Paths; several sources for the checkpoints of a run.
    summary
        The result.
    done
        ``"converted"``, ``"appended"``, ``"begun"``, ``"restored"``, ``"rewritten"``, ``"whole"``
        or ``"unchanged"``.
    verified
        Whether the result was read again and compared.
    as_json
        Print one JSON object instead of lines.
    more
        Further members of that object.
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
    # Restoring always checks the digests.
    notes += ["verified"] if verified and done != "restored" else []
    if done == "restored" and summary.objects:
        notes.append(f"without {counted(summary.objects, 'object')} of the checkpoint")
    say(
        f"{printable(source)} -> {printable(target)}: {counted_tensors(summary)},"
        f" {sizes[0]} -> {sizes[1]} (ratio {ratio:.3f}), {', '.join([took(summary), *notes])}"
    )
    if summary.left_out:
        say(printable(f"not in the store: {few(summary.left_out, _FEW)}"))
    if summary.hidden:
        where = "not in the file" if done == "restored" else "not shown by name"
        say(printable(f"{where}: {few(summary.hidden, _FEW)}"))
    if summary.base:
        say(printable(summary.base))
    if summary.loss is not None:
        say(summary.loss.described())


def _step_note(number: int, by: str) -> str:
    """Name the appended step and the origin of its number, so that users notice a wrong one."""
    return f"step {number}" + (f" (by its {printable(by)})" if by else "")


def counted_tensors(summary: Summary) -> str:
    """Return the number of tensors in words; of a whole run, of different ones, and its steps."""
    if not summary.steps:
        return counted(summary.tensors, "tensor")
    tensors = counted(summary.different_tensors, "tensor")
    return f"{tensors} at {counted(summary.steps, 'step')}"


def took(summary: Summary) -> str:
    """Return the time and the rate of a conversion, in words."""
    return f"in {summary.seconds:.2f} s ({format_rate(summary.nbytes, summary.seconds)})"


def summary_json(summary: Summary) -> dict[str, Any]:
    """Return a summary as a JSON object, as described in docs/cli.md."""
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
        "hidden": list(summary.hidden),
        "base": summary.base or None,
        "lossy": None if summary.loss is None else loss_entry(summary.loss),
    }


def show_damage(damage: Sequence[Damage]) -> None:
    """Print the first damage, one line each, and count the rest."""
    for item in damage[:_SHOWN]:
        step = "" if item.step is None else f"step {item.step}: "
        say(printable(f"{step}{item.message}"))
    if len(damage) > _SHOWN:
        say(f"and {len(damage) - _SHOWN} more (--json has them)")


def load_plots() -> ModuleType:
    """Import and return the module that draws plots, with a backend that needs no display.

    Signals that arrive during the import are raised after it.
    """
    os.environ["MPLBACKEND"] = "agg"
    plots = import_module("bf16codecs.analysis.plots")
    _interrupt.check()
    return plots


def check_writable(files: Mapping[str, str | None], sources: Iterable[str]) -> None:
    """Refuse files for reports that cannot be written, before hours of measurement.

    Parameters
    ----------
    files
        Paths, by the name of the option: ``"json"``, ``"csv"``, ``"plot"``. None is no file,
        ``"-"`` is standard output; pipes and devices are not checked.
    sources
        Paths that the command reads, which no report may replace.

    Raises
    ------
    OSError
        If a file cannot be written.
    ValueError
        If a path is empty or a source, if two are the same, or if a report would replace a file
        that is not a report.
    """
    if list(files.values()).count("-") > 1:
        raise ValueError("-: standard output takes one report: name a file for the other")
    taken = {os.path.realpath(source) for source in sources}
    for kind, file in files.items():
        if file is None or file == "-" or _is_special(file):
            continue
        require_folder_of(Path(given_path(file, "report")))
        if os.path.realpath(file) in taken:
            raise ValueError(f"{file}: this command already reads or writes it: name another file")
        taken.add(os.path.realpath(file))
        _check_replaceable(file, kind)
        is_new = not os.path.lexists(file)
        with open(file, "ab"):
            pass
        if is_new:
            os.remove(file)


def _check_replaceable(file: str, kind: str) -> None:
    """Refuse to replace a file that is not a report.

    In other commands, ``--json`` is a flag: users may put a model behind it.
    """
    target = os.path.realpath(file)
    ending = os.path.splitext(file)[1].lower() if kind == "plot" else f".{kind}"
    advice = f"--{kind} takes the file of a report: name one that ends in {ending}"
    if any(suffix_of(name)[1] is not None for name in (file, target)):
        raise ValueError(f"{file}: the name of a model, but {advice}")
    for folder in Path(target).parents:
        if any((folder / marker).exists() for marker in ZARR_MARKERS):
            raise ValueError(f"{file}: in the Zarr store {folder}: name a file outside of it")
    has_content = os.path.isfile(file) and os.path.getsize(file)
    if has_content and not all(name.lower().endswith(ending) for name in (file, target)):
        raise ValueError(f"{file}: exists, and its name is not that of a report: {advice}")


def _is_special(file: str) -> bool:
    """Return whether a file is a pipe or a device, which take several reports.

    Opening one to check it would have effects.
    """
    return os.path.exists(file) and not os.path.isfile(file) and not os.path.isdir(file)


def write_json(document: Mapping[str, Any], file: str | None) -> None:
    """Write a JSON object to a file, or to standard output for ``"-"``; not at all for None."""
    if file == "-":
        show_json(document)
    elif file is not None:
        parts = json_parts(document)
        first = next(parts)  # usually the whole document, so that errors leave the file alone
        with _report_errors(file), open(file, "w", encoding="utf-8") as out:
            out.write(first)
            out.writelines(parts)


def write_text(text: str, file: str) -> None:
    """Write text to a file, or to standard output for ``"-"``."""
    if file == "-":
        show(text.removesuffix("\n"))
    else:
        with _report_errors(file):
            Path(file).write_text(text, encoding="utf-8")


def _report_errors(file: str) -> AbstractContextManager[None]:
    """Let errors, such as that of a full disk, name the file of a report, and advise."""
    from bf16codecs.convert.target import target_errors

    return target_errors(Path(file))
