"""Names of what is restored of a run."""

from __future__ import annotations

from bf16codecs.store.runs.layout import RunInfo

__all__ = ["step_folders"]


def step_folders(run: RunInfo) -> list[str]:
    """Return the folder of each step among all restored ones: none if names alone tell them."""
    flat = [name for step in run.steps for name in step.file_names]
    if len(flat) > len(run.steps) or len(set(flat)) < len(flat):
        return [f"step-{step.number}" for step in run.steps]
    return [""] * len(run.steps)
