"""Options of commands for runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Any

import click

from bf16codecs._base.limits import MAX_GROUP
from bf16codecs.cli.options import WholeNumber, add_options, is_given
from bf16codecs.store.choice import DEFAULT_GROUP, DEFAULT_STEP_SIZE, CodecChoice

__all__ = ["STEP", "Job", "check_codec", "run_job", "run_options", "step_options"]

#: The number of a step.
STEP = WholeNumber(0, 2**63 - 1)


class Job(Enum):
    """The kinds of conversions: to a store of one model, to a new run, or to a step of a run."""

    MODEL = auto()
    SERIES = auto()
    APPEND = auto()


#: Options for making runs and appending to them: see `run_job`.
run_options = add_options(
    click.option("--series", is_flag=True, help="Make a run from several checkpoints."),
    click.option("--append", is_flag=True, help="Append SRC to the run STORE, or begin a new run."),
    click.option(
        "--step",
        type=STEP,
        help="With --append: the step number of SRC.  [default: from its metadata or name]",
    ),
    click.option(
        "--keyframe-every",
        type=WholeNumber(1, MAX_GROUP),
        default=DEFAULT_GROUP,
        show_default=True,
        metavar="N",
        help="In a new run, every Nth step is coded whole, and those between as differences.",
    ),
    click.option(
        "--allow-changed-tensors",
        is_flag=True,
        help="In a run, let tensors have another dtype or shape than in the steps before.",
    ),
)

#: Options that choose steps of a run to restore.
step_options = add_options(
    click.option("--step", type=STEP, help="The step of a run to restore."),
    click.option("--all", "all_steps", is_flag=True, help="Restore all steps of a run."),
)


def run_job(sources: Sequence[str], options: dict[str, Any], others: Mapping[str, Any]) -> Job:
    """Return the job that the options ask for, and leave only its options in `options`.

    Parameters
    ----------
    sources
        Paths of the sources.
    options
        All options by name, those of `run_options` and of conversions to one model.
    others
        Further options that runs do not take, by their names on the command line.

    Raises
    ------
    click.UsageError
        If options contradict each other, or there are too many sources.
    """
    series, append = options.pop("series"), options.pop("append")
    step, every = options.pop("step"), options.pop("keyframe_every")
    allow_changed = options.pop("allow_changed_tensors")
    if series and append:
        raise click.UsageError("--series makes a new run, --append continues one: choose one")
    if step is not None and not append:
        raise click.UsageError("--step goes with --append")
    if not series and len(sources) > 1:
        raise click.UsageError(
            f"{len(sources)} sources, but one target: --series makes a run of several checkpoints"
        )
    if not series and not append:
        if is_given("keyframe_every"):
            raise click.UsageError("--keyframe-every goes with --series and --append")
        if allow_changed:
            raise click.UsageError("--allow-changed-tensors goes with --series and --append")
        if options["base"] is not None:
            check_codec(options, CodecChoice.check_difference)
        return Job.MODEL
    others = {**others, "--base": options.pop("base")}
    for name, value in others.items():
        if value is not None:
            raise click.UsageError(f"{name} does not go with --series and --append")
    check_codec(options, CodecChoice.check_run)
    options |= {"keyframe_every": every, "allow_changed_tensors": allow_changed}
    if not is_given("chunk_size"):
        options["chunk_size"] = DEFAULT_STEP_SIZE
    if series:
        return Job.SERIES
    if options.pop("overwrite"):
        raise click.UsageError(
            "--append adds to a run and does not replace it: leave out --overwrite"
        )
    options["step"] = step
    # By default, those of the run.
    for name in ("codec", "keyframe_every", "zarr_format"):
        if name in options and not is_given(name):
            options[name] = None
    return Job.APPEND


def check_codec(options: Mapping[str, Any], check: Callable[[CodecChoice], None]) -> None:
    """Raise UsageError if the codec and level of `options` do not pass a check."""
    try:
        check(CodecChoice(options["codec"], options["level"]))
    except ValueError as e:
        raise click.UsageError(str(e)) from None
